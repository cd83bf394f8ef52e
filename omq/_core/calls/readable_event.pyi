class ReadableEvent:
    """A descriptor for any `select`: readable exactly while a condition holds, for example that a message waits.

    Raises:
        OSError: The process may open no more descriptors.
    """

    @property
    def fd(self) -> int:
        """The descriptor; it is closed with this object."""

    def fileno(self) -> int:
        """The descriptor."""

    def reset(self) -> None:
        """Makes the descriptor unreadable."""
