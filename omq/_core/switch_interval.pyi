"""A shorter switch interval (`sys.setswitchinterval`) while threads wait for the I/O thread."""

def shorten() -> int:
    """Begins a wait; `restore` must follow."""

def restore() -> int:
    """Ends a wait."""

def reset() -> int:
    """Restores the interval in a forked child, where the threads that shortened it are not."""
