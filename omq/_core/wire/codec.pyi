class Codec:
    """How one connection's frames look on the wire, both ways; this one does what is done without one.

    Attributes:
        overhead: Octets around a payload's own that encoding may write to.
        growth: Octets by which a slab's frames may grow when they are decoded, all together.
        borrows: A large payload goes out as it is.
        watchable: A thread that never takes the GIL may look at what has arrived, and answer.
    """

    @property
    def overhead(self) -> int: ...
    @property
    def growth(self) -> int: ...
    @property
    def borrows(self) -> bool: ...
    @property
    def watchable(self) -> bool: ...
