from omq._core.wire.codec import Codec
from omq._core.wire.crypto import CurveCipher

#: Opcodes (RFC 6455, 5.2).
BINARY: int
CLOSE: int
PING: int
PONG: int

class WebSocketCodec(Codec):
    """The frames of one WebSocket.

    Args:
        as_client: Whether this side has dialled: it masks what it sends (RFC 6455, 5.3).
    """

    def __init__(self, *, as_client: bool) -> None: ...
    def encrypt_with(self, cipher: CurveCipher | None) -> None:
        """Seals the payload of all later messages and commands; `None` leaves them in the clear."""

    def wrap(self, frames: bytes) -> bytes:
        """Returns the WebSocket frames of plain ZMTP frames, which are whole."""

    def unwrap(self, data: bytes, limit: int) -> tuple[int, int, bytes, int] | None:
        """Takes one frame from the beginning of *data*, where nothing is encrypted yet.

        Args:
            data: What has arrived.
            limit: Bytes of payload that are allowed.

        Returns:
            Opcode, ZMTP flags, payload, and the bytes that the frame has; `None` as long as it is not whole.

        Raises:
            RemoteProtocolError: It is no frame, or is too large.
        """
