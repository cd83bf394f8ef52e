class Background:
    """Reads and writes for owners that are away, without the GIL.

    Attributes:
        grace_ns: Nanoseconds that an event may stand before the owner is taken to be away. For tests.
        rest_ns: Nanoseconds for which a set is let alone after its owner came. For tests.
    """

    grace_ns: int
    rest_ns: int

    @property
    def read_ahead_bytes(self) -> int:
        """Bytes that the thread has read and no owner has taken yet."""

    @property
    def descriptors(self) -> list[int]:
        """The thread's own descriptors, which stay open once there is a connection. For tests."""

    def stop(self) -> None:
        """Ends the thread; what it has read is still taken by its owners."""
