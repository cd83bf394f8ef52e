"""A cache of handshakes: a peer that sends the same bytes as an earlier one gets the same answers.

With NULL, and without a question, our side of a handshake depends only on the bytes of the peer: it has no random
values and no secrets. Most peers of a socket send the same bytes, so the outcome with one is cached for the next.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from omq._core.wire.codec import Codec
from omq.errors import LocalProtocolError
from omq.types import SocketType
from omq.zmtp.greeting import GREETING_SIZE
from omq.zmtp.handshake import Handshake, PeerMetadata
from omq.zmtp.mechanism import Question
from omq.zmtp.null import Null

_MAX_PEER_BYTES: Final = 512  # bytes from a peer that are cached: a greeting and a READY with a long identity
_MAX_LINES: Final = 32  # above that the cache is cleared, because the peers have little in common


class Line(NamedTuple):
    """The state of a handshake after the peer has sent certain bytes.

    Attributes:
        said: The bytes that we have sent by then, without our greeting.
        peer: The peer's metadata, if the handshake is done; otherwise `None`.
    """

    said: bytes
    peer: PeerMetadata | None


_BEGINNING: Final = Line(b"", None)


class Script:
    """The cached handshakes of sockets of one type with the same metadata; threads share it.

    Args:
        greeting: Our greeting.

    Attributes:
        lines: The cached states, by all bytes from the peer.
    """

    def __init__(self, greeting: bytes) -> None:
        self.greeting: Final = greeting
        self.lines: Final[dict[bytes, Line]] = {}

    def note(self, heard: bytes, line: Line) -> None:
        """Adds a state, unless the peer has sent too many bytes."""
        if len(heard) <= _MAX_PEER_BYTES:
            if len(self.lines) >= _MAX_LINES:
                self.lines.clear()
            self.lines[heard] = line


@lru_cache(maxsize=32)
def _script(socket_type: SocketType, properties: tuple[tuple[bytes, bytes], ...]) -> Script:
    return Script(Handshake(socket_type=socket_type, mechanism=Null(), properties=dict(properties)).start())


@lru_cache(maxsize=32)
def opening(socket_type: SocketType, properties: tuple[tuple[bytes, bytes], ...]) -> bytes:
    """Returns all that we send in a handshake with NULL, whatever the peer sends.

    Raises:
        LocalProtocolError: The metadata cannot be sent, or the type has no handshake.
    """
    handshake = Handshake(socket_type=socket_type, mechanism=Null(), properties=dict(properties))
    greeting = handshake.start()
    return greeting + handshake.receive(greeting)  # a peer's greeting with NULL looks the same


class RehearsedHandshake:
    """A handshake with NULL and without a question. It uses the cache, and otherwise a `Handshake`.

    Its methods and properties are those of a `Handshake`.

    Args:
        socket_type: The socket's type.
        properties: Our metadata apart from Socket-Type.

    Raises:
        LocalProtocolError: The metadata cannot be sent, or the type has no handshake.
    """

    __slots__ = ("_handshake", "_heard", "_line", "_properties", "_script", "_socket_type", "done", "unread")

    mechanism: Final = Null.name.decode()
    question: Final[Question | None] = None
    codec: Final[Codec | None] = None

    def __init__(self, *, socket_type: SocketType, properties: Mapping[bytes, bytes]) -> None:
        self._socket_type = socket_type
        self._properties = properties
        self._script = _script(socket_type, tuple(properties.items()))
        self._line = _BEGINNING
        self._heard = self.unread = b""
        self.done = False
        self._handshake: Handshake | None = None

    @property
    def peer(self) -> PeerMetadata:
        peer = self._line.peer
        if peer is None:
            raise LocalProtocolError("the peer is unknown before the handshake is done")
        return peer._replace(properties=peer.properties.copy())  # the user gets them

    @property
    def peer_may_send(self) -> bool:
        return bool(self._line.said)

    @property
    def hint(self) -> str:
        return "" if self._handshake is None else self._handshake.hint

    def start(self) -> bytes:
        return self._script.greeting

    def receive(self, data: bytes) -> bytes:
        if self._handshake is not None or self.done:
            return self._improvise(data)
        lines = self._script.lines
        heard = self._heard + data
        line = lines.get(heard)
        if line is None and len(heard) >= GREETING_SIZE + 2:
            # Traffic may follow READY (RFC 23, Framing: the second octet is the size of a short frame).
            end = GREETING_SIZE + 2 + heard[GREETING_SIZE + 1]
            line = lines.get(heard[:end])
            if line is not None and line.peer is not None:
                self.unread = heard[end:]
            else:
                line = None
        if line is None:
            return self._improvise(data)
        said, peer = line
        answer = said[len(self._line.said) :]
        self._heard, self._line, self.done = heard, line, peer is not None
        return answer

    def _improvise(self, data: bytes) -> bytes:
        """Continues with a `Handshake`, and caches the outcome."""
        handshake = self._handshake
        if handshake is None:
            handshake = self._handshake = Handshake(
                socket_type=self._socket_type, mechanism=Null(), properties=self._properties
            )
            handshake.start()
            handshake.receive(self._heard)  # its answers were sent already
        answer = handshake.receive(data)
        self._heard += data
        self.done = handshake.done
        self._line = Line(self._line.said + answer, handshake.peer if self.done else None)
        if self.done:
            self.unread = handshake.unread
        self._script.note(self._heard[: len(self._heard) - len(self.unread)], self._line)
        return answer

    def answer(self, refusal: bytes | None = None, why: str = "") -> bytes:
        raise LocalProtocolError("there is no open question")

    def failure(self) -> bytes:
        return b"" if self._handshake is None else self._handshake.failure()
