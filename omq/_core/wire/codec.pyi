class Codec:
    """The form of one connection's frames on the wire, both ways. This class does what is done without a codec.

    Attributes:
        overhead: Octets around a payload that encoding may write to.
        growth: Octets by which a slab's frames may grow when they are decoded, all together.
        borrows: A large payload leaves as it is.
        lead: Octets left free in front of those of each read, where decoding writes a frame's header.
        portion: Octets of one read at most; 0 for as many as there is room for.
        watchable: A thread that never takes the GIL may look at arrived frames, and answer.
    """

    @property
    def overhead(self) -> int: ...
    @property
    def growth(self) -> int: ...
    @property
    def borrows(self) -> bool: ...
    @property
    def lead(self) -> int: ...
    @property
    def portion(self) -> int: ...
    @property
    def watchable(self) -> bool: ...
