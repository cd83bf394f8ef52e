"""One attempt of a call, without waiting."""

def checked_events(events: int) -> int:
    """Checks what a call is to wait for.

    Args:
        events: `POLL_IN`, `POLL_OUT` or both.

    Raises:
        ValueError: It is something else.
    """

def checked_count(name: str, value: int, least: int = 1) -> int:
    """Checks a number of things.

    Args:
        name: What the argument is called.
        value: How many.
        least: The smallest number that fits.

    Returns:
        The number as an `int`.

    Raises:
        ValueError: It is below `least`, or more than memory could hold.
        TypeError: It is not a whole number.
    """
