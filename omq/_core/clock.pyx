"""How long a call may wait, as Python code asks for it."""


def patience(timeout):
    return seconds(timeout)
