"""How long a call may wait, as Python code asks for it."""


def patience(timeout: float | None) -> float | None:
    """Checks a timeout.

    Args:
        timeout: Seconds; `None` for ever, 0 never.

    Returns:
        Seconds that every timer of the system can count, or `None` for ever, also for infinity and for ages.

    Raises:
        ValueError: It is below 0, or not a number.
        TypeError: It is something else.
    """
    return seconds(timeout)
