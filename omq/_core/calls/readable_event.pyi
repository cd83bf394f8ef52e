class ReadableEvent:
    """A descriptor for any `select`: readable exactly while something holds, that a message waits, say.

    Raises:
        OSError: The process may open no more.
    """

    @property
    def fd(self) -> int:
        """The descriptor; it is closed with this object."""

    def fileno(self) -> int:
        """The descriptor."""

    def reset(self) -> None:
        """Makes it unreadable, whoever made it readable."""
