"""A shorter switch interval (`sys.setswitchinterval`) while threads wait for the I/O thread."""

def reset() -> int:
    """Restores the interval in a forked child, where the threads that shortened it are not."""
