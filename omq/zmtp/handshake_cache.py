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
from omq.zmtp.greeting import GREETING_BYTES
from omq.zmtp.handshake import Handshake, PeerMetadata
from omq.zmtp.mechanism import Question
from omq.zmtp.null import Null

_MAX_PEER_BYTES: Final = 512  # bytes from a peer that are cached: a greeting and a READY with a long identity
_MAX_STATES: Final = 32  # above that the cache is cleared, because the peers have little in common


class CachedState(NamedTuple):
    """The state of a handshake after the peer has sent certain bytes.

    Attributes:
        sent: The bytes that we have sent by then, without our greeting.
        peer: The peer's metadata, if the handshake is done; otherwise `None`.
    """

    sent: bytes
    peer: PeerMetadata | None


_INITIAL: Final = CachedState(b"", None)


class HandshakeCache:
    """The cached handshakes of sockets of one type with the same metadata; threads share it.

    Args:
        greeting: Our greeting.

    Attributes:
        states: The cached states, by all bytes from the peer.
    """

    def __init__(self, greeting: bytes) -> None:
        self.greeting: Final = greeting
        self.states: Final[dict[bytes, CachedState]] = {}

    def add(self, received: bytes, state: CachedState) -> None:
        """Adds a state, unless the peer has sent too many bytes."""
        if len(received) <= _MAX_PEER_BYTES:
            if len(self.states) >= _MAX_STATES:
                self.states.clear()
            self.states[received] = state


@lru_cache(maxsize=32)
def _cache_of(socket_type: SocketType, properties: tuple[tuple[bytes, bytes], ...]) -> HandshakeCache:
    return HandshakeCache(Handshake(socket_type=socket_type, mechanism=Null(), properties=dict(properties)).start())


@lru_cache(maxsize=32)
def null_handshake_bytes(socket_type: SocketType, properties: tuple[tuple[bytes, bytes], ...]) -> bytes:
    """Returns all that we send in a handshake with NULL, whatever the peer sends.

    Raises:
        LocalProtocolError: The metadata cannot be sent, or the type has no handshake.
    """
    handshake = Handshake(socket_type=socket_type, mechanism=Null(), properties=dict(properties))
    greeting = handshake.start()
    return greeting + handshake.receive(greeting)  # a peer's greeting with NULL looks the same


class CachedHandshake:
    """A handshake with NULL and without a question. It uses the cache, and otherwise a `Handshake`.

    Its methods and properties are those of a `Handshake`.

    Args:
        socket_type: The socket's type.
        properties: Our metadata apart from Socket-Type.

    Raises:
        LocalProtocolError: The metadata cannot be sent, or the type has no handshake.
    """

    __slots__ = ("_cache", "_handshake", "_properties", "_received", "_socket_type", "_state", "done", "unread")

    mechanism: Final = Null.name.decode()
    question: Final[Question | None] = None
    codec: Final[Codec | None] = None

    def __init__(self, *, socket_type: SocketType, properties: Mapping[bytes, bytes]) -> None:
        self._socket_type = socket_type
        self._properties = properties
        self._cache = _cache_of(socket_type, tuple(properties.items()))
        self._state = _INITIAL
        self._received = self.unread = b""
        self.done = False
        self._handshake: Handshake | None = None

    @property
    def peer(self) -> PeerMetadata:
        peer = self._state.peer
        if peer is None:
            raise LocalProtocolError("the peer is unknown before the handshake is done")
        return peer._replace(properties=peer.properties.copy())  # the user gets them

    @property
    def peer_may_send(self) -> bool:
        return bool(self._state.sent)

    @property
    def hint(self) -> str:
        return "" if self.done else self._uncached().hint

    def start(self) -> bytes:
        return self._cache.greeting

    def receive(self, data: bytes) -> bytes:
        if self._handshake is not None or self.done:
            return self._run_handshake(data)
        states = self._cache.states
        received = self._received + data
        state = states.get(received)
        if state is None and len(received) >= GREETING_BYTES + 2:
            # Traffic may follow READY (RFC 23, Framing: the second byte is the size of a short frame).
            end = GREETING_BYTES + 2 + received[GREETING_BYTES + 1]
            state = states.get(received[:end])
            if state is not None and state.peer is not None:
                self.unread = received[end:]
            else:
                state = None
        if state is None:
            return self._run_handshake(data)
        sent, peer = state
        answer = sent[len(self._state.sent) :]
        self._received, self._state, self.done = received, state, peer is not None
        return answer

    def _run_handshake(self, data: bytes) -> bytes:
        """Continues with a `Handshake`, and caches the outcome."""
        handshake = self._uncached()
        answer = handshake.receive(data)
        self._received += data
        self.done = handshake.done
        self._state = CachedState(self._state.sent + answer, handshake.peer if self.done else None)
        if self.done:
            self.unread = handshake.unread
        self._cache.add(self._received[: len(self._received) - len(self.unread)], self._state)
        return answer

    def _uncached(self) -> Handshake:
        """Returns a `Handshake` in the same state."""
        handshake = self._handshake
        if handshake is None:
            handshake = self._handshake = Handshake(
                socket_type=self._socket_type, mechanism=Null(), properties=self._properties
            )
            handshake.start()
            handshake.receive(self._received)  # its answers were sent already
        return handshake

    def answer(self, refusal: bytes | None = None, why: str = "") -> bytes:
        raise LocalProtocolError("answer: there is no question to answer")

    def failure(self) -> bytes:
        return b"" if self._handshake is None else self._handshake.failure()
