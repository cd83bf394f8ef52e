"""How long a call may wait, as Python code asks it."""


def patience(timeout):
    return seconds(timeout)
