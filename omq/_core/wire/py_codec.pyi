from omq._core.wire.codec import Codec

class PyCodec(Codec):
    """A codec in Python, for trying out a form of traffic and for tests.

    Flags are those of a plain frame: 1 for more, 4 for a command, and 8 beside that for a message between codecs.
    A number below 0 stands for an error, and so does an exception that a method raises.

    Args:
        overhead: Octets that a frame has beside its payload, at most.
        growth: Octets by which a slab's frames may grow when they are decoded, all together.
        borrows: A large payload leaves as it is, behind the octets of `encode_head`.
    """

    def __init__(self, *, overhead: int = 0, growth: int = 0, borrows: bool = False) -> None: ...
    def encode_frame(self, flags: int, payload: bytes) -> bytes:
        """The frame; empty if nothing is to be sent."""

    def encode_head(self, flags: int, size: int) -> bytes:
        """The octets in front of a large payload of *size* octets."""

    def reopen_frame(self, frame: bytes) -> tuple[int, bytes] | None:
        """The flags and the payload of a frame of `encode_frame` that has not left; `None`: it cannot be had again."""

    def measure_frame(self, arrived: bytes) -> tuple[int, int, int, int | None, bool] | int | None:
        """Measures the frame that begins here.

        Returns:
            Octets of its header, octets behind that, octets of payload among them at most, its flags if they are known,
            and whether it is the payload as it is where it is large. `None`: its header is not whole.
        """

    def decode_frame(self, frame: bytes) -> tuple[int, bytes] | int:
        """The flags and the payload of a whole frame."""

    def finish_body(self, body: bytes) -> tuple[int, bytes] | int:
        """The flags and the payload of a large frame, of which *body* stood behind the header."""

    def answer_own(self) -> bytes | None:
        """The answer to a frame with flag 8, as plain frames."""

    def explain_error(self, found: int) -> Exception | None:
        """The exception for an error; `None`: the peer has said that it ends the connection."""
