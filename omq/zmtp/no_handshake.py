"""The absence of a handshake, for the socket type that does not speak ZMTP (STREAM)."""

from omq._core.wire.codec import Codec
from omq._core.wire.framing import FrameDecoder
from omq._core.wire.raw import RawCodec
from omq.types import SocketType
from omq.zmtp.handshake import Handshake, HandshakeState, PeerMetadata
from omq.zmtp.null import Null


class NoHandshake(Handshake):
    """Stands in for a handshake: it sends nothing, and is done before anything has arrived.

    Args:
        socket_type: The socket's type; its peers' types are unknown.
    """

    def __init__(self, socket_type: SocketType) -> None:
        self._socket_type = socket_type
        self._mechanism = Null()
        self._frames = FrameDecoder()
        self._peer = PeerMetadata((0, 0), socket_type, b"", b"", {})
        self._failure = b""
        self._state = HandshakeState.DONE

    def start(self) -> bytes:
        return b""

    @property
    def mechanism(self) -> str:
        """The empty name: there is no mechanism."""
        return ""

    @property
    def codec(self) -> Codec:
        return RawCodec()
