"""A whole handshake: greeting, mechanism, metadata; then traffic follows (RFC 23, Overall Behavior).

The reader of a connection passes it the received bytes and sends the bytes that it returns, until `done`:

    handshake = Handshake(socket_type=SocketType.DEALER, mechanism=Null())
    write(handshake.start())
    while not handshake.done:
        write(handshake.receive(read()))
    traffic_starts_with(handshake.unread)

Nothing may be sent after our last command before `done`: libzmq drops a peer that does.
"""

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Final, NamedTuple

from omq._core.wire.codec import Codec
from omq._core.wire.framing import FrameDecoder
from omq.errors import HandshakeError, LocalProtocolError, MechanismError, RemoteProtocolError
from omq.types import COMPATIBLE, SENDS_IDENTITY, IdentityEnum, SocketType
from omq.zmtp.command import MAX_PROPERTIES_BYTES, Command, encode_properties, error, parse_command, quoted
from omq.zmtp.greeting import VERSION, Greeting, GreetingParser
from omq.zmtp.mechanism import Mechanism, Question

#: The largest body of a handshake's command, in bytes. An unknown peer can make us hold that much: the largest
#: metadata, and some room for a mechanism's own fields around them.
MAX_HANDSHAKE_FRAME_BYTES: Final = MAX_PROPERTIES_BYTES + 1024

MAX_IDENTITY_BYTES: Final = 255  # bytes (RFC 23, The Identity Property)

_COMMAND_FLAG: Final = 4  # RFC 23, Framing: bit 2
#: ERROR as libzmq's PLAIN server spells it: in C, "\\x05ERROR" begins with the byte 5E.
_LIBZMQ_ERROR: Final = b"^RROR"
_SOCKET_TYPE: Final = b"Socket-Type"
_IDENTITY: Final = b"Identity"


class HandshakeState(IdentityEnum):
    """The state of a handshake."""

    NEW = "nothing is sent"
    GREETING = "our greeting is sent, the peer's is awaited"
    SECURITY = "the mechanism exchanges its commands"
    ASKING = "the engine must decide whether to admit the peer"
    DONE = "both sides have agreed"
    FAILED = "the connection is to be closed"


class HandshakeEvent(IdentityEnum):
    """An event that moves a handshake on."""

    START = "we sent our greeting"
    RECEIVE = "bytes arrived"
    GREETED = "the peer's greeting fits ours"
    ASK = "the mechanism has a question"
    ANSWER = "the engine has answered"
    AGREE = "the mechanism has finished and the peer's metadata are valid"
    FAIL = "one of the two sides cannot continue"


_S = HandshakeState
_E = HandshakeEvent

#: The whole state machine. An event that a state does not list is a bug in the calling code.
TRANSITIONS: Final[dict[HandshakeState, dict[HandshakeEvent, HandshakeState]]] = {
    _S.NEW: {_E.START: _S.GREETING},
    _S.GREETING: {_E.RECEIVE: _S.GREETING, _E.GREETED: _S.SECURITY, _E.FAIL: _S.FAILED},
    _S.SECURITY: {_E.RECEIVE: _S.SECURITY, _E.ASK: _S.ASKING, _E.AGREE: _S.DONE, _E.FAIL: _S.FAILED},
    _S.ASKING: {_E.RECEIVE: _S.ASKING, _E.ANSWER: _S.SECURITY, _E.FAIL: _S.FAILED},
    _S.DONE: {},
    _S.FAILED: {},
}


class PeerMetadata(NamedTuple):
    """The metadata of a peer, from the handshake.

    Attributes:
        version: The version of ZMTP that the peer announced.
        socket_type: Its socket type, which fits ours.
        identity: Its identity; empty if it sends none or its type has none.
        properties: All its metadata by lower-case name: `properties[b"socket-type"]`.
        mechanism: The mechanism that both sides used.
        over_websocket: Whether the connection is a WebSocket (RFC 45).
    """

    version: tuple[int, int]
    socket_type: SocketType
    identity: bytes
    mechanism: bytes
    properties: dict[bytes, bytes]
    over_websocket: bool = False

    @property
    def subscribes_by_command(self) -> bool:
        """Returns whether the peer takes SUBSCRIBE and CANCEL.

        ZMTP 3.0 (RFC 37) and WebSockets (RFC 45, Publish-Subscribe) use messages instead.
        """
        return self.version >= (3, 1) and not self.over_websocket

    @property
    def answers_ping(self) -> bool:
        """Returns whether the peer answers a PING: RFC 23 has none, RFC 37 and WebSockets do."""
        return self.version >= (3, 1) or self.over_websocket


class Handshake:
    """Our side of one connection's handshake.

    Args:
        socket_type: The socket's type.
        mechanism: A new mechanism, for this connection only.
        properties: Our metadata apart from Socket-Type: Identity, for the types that have one, and the
            application's own.

    Raises:
        LocalProtocolError: The metadata cannot be sent, or the type has no handshake.
    """

    def __init__(
        self,
        *,
        socket_type: SocketType,
        mechanism: Mechanism,
        properties: Mapping[bytes, bytes] | None = None,
    ) -> None:
        self._socket_type = socket_type
        self._mechanism = mechanism
        self._properties = _own_properties(socket_type, tuple((properties or {}).items()))
        self._state = HandshakeState.NEW
        self._parser = GreetingParser()
        self._frames = FrameDecoder(MAX_HANDSHAKE_FRAME_BYTES)
        self._greeting: Greeting | None = None
        self._peer: PeerMetadata | None = None
        self._failure = b""

    @property
    def mechanism(self) -> str:
        """The name of the security mechanism."""
        return self._mechanism.name.decode("ascii")

    @property
    def state(self) -> HandshakeState:
        """The state of the handshake."""
        return self._state

    @property
    def done(self) -> bool:
        """Returns whether both sides have agreed: traffic may flow."""
        return self._state is HandshakeState.DONE

    @property
    def peer_may_send(self) -> bool:
        """Returns whether the peer may send messages once it has all that we have sent; it cannot earlier."""
        return self.done or self._mechanism.peer_may_send

    @property
    def peer(self) -> PeerMetadata:
        """The peer's metadata, once `done`.

        Raises:
            LocalProtocolError: The handshake is not done.
        """
        if self._peer is None or not self.done:
            raise LocalProtocolError("the peer is unknown before the handshake is done")
        return self._peer

    @property
    def unread(self) -> bytes:
        """The bytes that came after the handshake: the beginning of the traffic, once `done`."""
        return self._frames.unread

    @property
    def question(self) -> Question | None:
        """The question that waits for `answer`, or `None`. Stop reading meanwhile: little more is held."""
        return self._mechanism.question

    @property
    def codec(self) -> Codec | None:
        """The codec of the traffic, once `done`; `None` for plain frames."""
        return self._mechanism.codec

    @property
    def hint(self) -> str:
        """The most likely reason for the peer's silence, or its end, in this state; empty if unknown."""
        if self._state is _S.GREETING and (self._mechanism.has_roles or self._parser.begun):
            # libzmq closes the connection at a greeting with another mechanism, before it has sent all of its own.
            return f"it may have another mechanism than {self._mechanism.name.decode()}"
        return self._mechanism.hint if self._state in (_S.SECURITY, _S.ASKING) else ""

    @property
    def peer_error(self) -> bytes | None:
        """The reason in the peer's ERROR command, unescaped; `None` if it has sent none.

        RFC 23, Error Handling: after an ERROR, do not reconnect with the same credentials.
        """
        return self._mechanism.peer_error

    def start(self) -> bytes:
        """Starts the handshake.

        Returns:
            Our whole greeting, to be sent before waiting: a peer that waits for our version would otherwise wait for
            ever (RFC 23, Version Negotiation).
        """
        self._move(_E.START)
        return _own_greeting(self._mechanism.name, self._mechanism.as_server)

    def receive(self, data: bytes) -> bytes:
        """Takes bytes from the peer.

        Args:
            data: The next bytes, in any portion.

        Returns:
            The bytes to send now; often none.

        Raises:
            RemoteProtocolError: The peer violates ZMTP or does not fit our socket.
            HandshakeError: The peer has another mechanism (`MechanismError`), was refused or refused us
                (`AuthenticationError`), or sent ERROR for another reason.
            LocalProtocolError: The handshake has not started, or is over.
        """
        self._move(_E.RECEIVE)
        try:
            self._take(data)
        except (RemoteProtocolError, HandshakeError):
            self._move(_E.FAIL)
            raise
        return self._mechanism.outgoing()

    def answer(self, refusal: bytes | None = None, why: str = "") -> bytes:
        """Answers `question`.

        Args:
            refusal: `None` admits the peer. Otherwise the reason for the ERROR command of `failure`, such as `b"400"`,
                or `b""` to close the connection without ERROR.
            why: Details of a refusal, for the log of this side alone.

        Returns:
            The bytes to send now.

        Raises:
            AuthenticationError: The answer was a refusal.
            RemoteProtocolError: Bytes that arrived meanwhile violate ZMTP.
            HandshakeError: As for `receive`.
            LocalProtocolError: `question` is `None`.
        """
        self._move(_E.ANSWER)
        try:
            self._mechanism.answer(refusal, why)
            self._go_on()
        except (RemoteProtocolError, HandshakeError):
            self._move(_E.FAIL)
            raise
        return self._mechanism.outgoing()

    def failure(self) -> bytes:
        """Returns the bytes to send before the connection is closed.

        Returns:
            An ERROR frame if it helps the peer and the RFC allows one: its metadata do not fit, or it was refused.
            Otherwise nothing (RFC 23, Error Handling: signal any other error by closing).
        """
        failure = self._failure or self._mechanism.failure()
        return failure if self._mechanism.reports else b""

    def _move(self, event: HandshakeEvent) -> None:
        following = TRANSITIONS[self._state].get(event)
        if following is None:
            raise LocalProtocolError(f"a handshake cannot {event.name} in state {self._state.name}")
        self._state = following

    def _take(self, data: bytes) -> None:
        if self._state is HandshakeState.GREETING:
            greeting = self._parser.feed(data)
            if greeting is None:
                return
            self._check_mechanism(greeting)
            self._greeting = greeting
            self._move(_E.GREETED)
            self._mechanism.start(self._properties)
            data = self._parser.unread
        elif self._state is HandshakeState.ASKING and len(self._frames.unread) + len(data) > MAX_HANDSHAKE_FRAME_BYTES:
            # RFC 37, The NULL Security Mechanism: traffic starts when both READY are sent, and ours is not.
            raise RemoteProtocolError("the peer continues to send before it is admitted")
        self._frames.feed(data)
        self._go_on()

    def _go_on(self) -> None:
        """Passes commands to the mechanism until it is done, has a question, or needs more bytes."""
        mechanism = self._mechanism
        while mechanism.question is None and not mechanism.done:
            command = self._next_command()
            if command is None:
                return
            mechanism.receive(command)
            if mechanism.peer_properties is not None and self._peer is None:
                # If this raises, frames that the mechanism has queued meanwhile are never sent.
                self._peer = self._check_peer(mechanism.peer_properties)
        if mechanism.question is not None:
            if self._state is HandshakeState.SECURITY:
                self._move(_E.ASK)
        elif self._peer is None:
            raise LocalProtocolError(f"{mechanism.name.decode()} has finished without metadata of the peer")
        else:
            self._move(_E.AGREE)

    def _next_command(self) -> Command | None:
        """Returns the next whole command; refuses a message by its first byte, before its body is held."""
        frame = self._frames.next_frame()
        begun = self._frames.unread[:1]  # the flags of a frame that is not whole yet
        if frame is None and not begun:
            return None
        flags = begun[0] if frame is None else frame[0]
        if not flags & _COMMAND_FLAG:
            raise RemoteProtocolError("a message before the handshake is done (RFC 23, Formal Grammar: handshake)")
        if frame is None:
            return None
        body = frame[1]
        if body.startswith(_LIBZMQ_ERROR):
            body = b"\x05ERROR" + body[len(_LIBZMQ_ERROR) :]
        return parse_command(body)

    def _check_mechanism(self, greeting: Greeting) -> None:
        ours, theirs = self._mechanism.name, greeting.mechanism
        # RFC 23, Authentication and Confidentiality: anything but an exact match MUST close the connection.
        if theirs != ours:
            raise MechanismError(f"the peer's mechanism is {theirs.decode()}, ours is {ours.decode()}")
        # RFC 23, Topology: one server. Two clients look like a client and a libzmq server, which sends 0 as well; the
        # mechanism's own commands detect them.
        if self._mechanism.has_roles and self._mechanism.as_server and greeting.as_server:
            raise MechanismError(f"both sides are servers of {ours.decode()} (RFC 23, Topology)")

    def _check_peer(self, properties: dict[bytes, bytes]) -> PeerMetadata:
        assert self._greeting is not None
        socket_type = self._check_socket_type(properties.get(_SOCKET_TYPE.lower()))
        identity = b""
        # RFC 23, The Identity Property: from all other types it shall be ignored.
        if socket_type in SENDS_IDENTITY:
            identity = self._check_identity(properties.get(_IDENTITY.lower(), b""))
        return PeerMetadata(self._greeting.version, socket_type, identity, self._greeting.mechanism, properties)

    def _check_socket_type(self, name: bytes | None) -> SocketType:
        # RFC 23, The Socket-Type Property: "it SHOULD handle errors by returning an ERROR command".
        ours = self._socket_type
        if name is None:
            self._failure = error(b"no-socket-type")
            raise RemoteProtocolError(f"the peer of this {ours.value} does not send its socket type")
        theirs = _TYPES.get(name)
        if theirs is None:
            self._failure = error(b"unknown-socket-type")
            raise RemoteProtocolError(f"the peer of this {ours.value} has the unknown socket type {quoted(name)}")
        if theirs not in COMPATIBLE[ours]:
            self._failure = error(b"incompatible-socket-types:" + f"{ours.value},{theirs.value}".encode())
            raise RemoteProtocolError(
                f"{ours.value} and {theirs.value} are incompatible (RFC 23, The Socket-Type Property)"
            )
        return theirs

    def _check_identity(self, identity: bytes) -> bytes:
        wrong = _wrong_identity(identity)
        if wrong:
            self._failure = error(b"invalid-identity")
            raise RemoteProtocolError(f"the peer's identity {quoted(identity)} {wrong}")
        return identity


_TYPES: Final = {kind.value.encode(): kind for kind in SocketType}


@lru_cache(maxsize=32)  # a socket sends the same to each of its peers
def _own_greeting(mechanism: bytes, as_server: bool) -> bytes:
    return Greeting(VERSION, mechanism, as_server).encode()


@lru_cache(maxsize=32)  # likewise
def _own_properties(socket_type: SocketType, properties: tuple[tuple[bytes, bytes], ...]) -> Mapping[bytes, bytes]:
    if not COMPATIBLE[socket_type]:
        raise LocalProtocolError(f"{socket_type.value} does not speak ZMTP")
    for name, value in properties:
        if name.lower() == _SOCKET_TYPE.lower():
            raise LocalProtocolError("Socket-Type is that of the socket: it cannot be set as a property")
        wrong = _wrong_identity(value) if name.lower() == _IDENTITY.lower() else ""
        if wrong:
            raise LocalProtocolError(f"the identity {quoted(value)} {wrong}")
    # libzmq sends Socket-Type first, and so do we.
    ours = {_SOCKET_TYPE: socket_type.value.encode(), **dict(properties)}
    size = len(encode_properties(ours))
    if size > MAX_PROPERTIES_BYTES:
        raise LocalProtocolError(
            f"the metadata have {size} bytes: a peer that runs omq takes at most {MAX_PROPERTIES_BYTES}"
        )
    return MappingProxyType(ours)


def _wrong_identity(identity: bytes) -> str:
    """Returns the error of an identity; empty if it is valid."""
    if len(identity) > MAX_IDENTITY_BYTES:
        return f"has {len(identity)} bytes: at most {MAX_IDENTITY_BYTES} are allowed (RFC 23, The Identity Property)"
    # RFC 37 reserves identities that start with a zero byte for those that a ROUTER generates. libzmq accepts them from
    # peers all the same: one random identity in 256 is such a one. A ROUTER of ours generates only unused ones.
    return ""
