"""The check of timeouts, for Python code."""


def check_timeout(timeout: float | None) -> float | None:
    """Checks a timeout.

    Args:
        timeout: Seconds; `None` for ever, 0 never.

    Returns:
        Seconds that every timer of the system can count, or `None` for ever, also for more than 30 years.

    Raises:
        ValueError: The timeout is below 0, or NaN.
        TypeError: The timeout is not a number.
    """
    return seconds(timeout)
