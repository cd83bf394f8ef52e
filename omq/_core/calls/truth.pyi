class Truth:
    """A descriptor for any `select`: readable exactly while a message waits.

    Raises:
        OSError: The process may open no more.
    """

    @property
    def fd(self) -> int:
        """The descriptor; it is closed with this object."""
