"""The handshake over a WebSocket: the upgrade, then a mechanism's commands in its frames (RFC 45).

There is no greeting: the sub-protocol of the upgrade names the mechanism.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from omq._core.wire.codec import Codec
from omq._core.wire.crypto import CurveCipher
from omq._core.wire.framing import FrameDecoder, encode_frame
from omq._core.wire.websocket import BINARY, CLOSE, PING, PONG, WebSocketCodec
from omq.errors import HandshakeError, LocalProtocolError, RemoteProtocolError
from omq.types import SENDS_IDENTITY, SocketType
from omq.zmtp.greeting import VERSION, Greeting
from omq.zmtp.handshake import MAX_HANDSHAKE_FRAME_BYTES, Handshake, HandshakeEvent, HandshakeState, PeerMetadata
from omq.zmtp.mechanism import Mechanism, Question
from omq.zmtp.null import Null

_SUB_PROTOCOL: Final = "ZWS2.0"
_MORE: Final = 1  # flags of a plain frame (RFC 23, Framing)
_COMMAND: Final = 4
_MAX_PINGS: Final = 16  # answered during a handshake: the answers stay in memory if the peer does not read


class Upgrade(Protocol):
    """The upgrade of a connection to a WebSocket (RFC 6455, section 4), without I/O.

    Attributes:
        as_client: Whether this side has dialled.
        protocol: The sub-protocol that both sides agreed on; empty until they have.
        unread: The bytes that came after the exchange.
    """

    as_client: bool
    protocol: str
    unread: bytes

    def start(self, protocols: Sequence[str]) -> bytes:
        """Starts; returns the bytes to send first.

        Args:
            protocols: The sub-protocols of this side, the preferred one first.
        """
        ...

    def receive(self, data: bytes) -> bytes:
        """Takes bytes from the peer, in any portion; returns the bytes to send next.

        Raises:
            HandshakeError: The peer does not agree, or does not speak WebSocket.
        """
        ...

    def failure(self) -> bytes:
        """Returns the bytes to send before the connection is closed; often none."""
        ...


class _Ungreeted(Handshake):
    """A handshake that begins with the mechanism's commands."""

    def start(self) -> bytes:
        self._move(HandshakeEvent.START)
        self._greeting = Greeting(VERSION, self._mechanism.name, False)
        self._move(HandshakeEvent.GREETED)
        self._mechanism.start(self._properties)
        self._go_on()
        return self._mechanism.outgoing()

    def _check_peer(self, properties: dict[bytes, bytes]) -> PeerMetadata:
        return super()._check_peer(properties)._replace(over_websocket=True)


class _Unsecured(Handshake):
    """The sub-protocol without a mechanism: each side's first message is its identity (RFC 45, No Mechanism).

    Args:
        socket_type: The socket's type. Peers do not announce theirs, so this one is recorded for them.
        identity: Our identity.
    """

    def __init__(self, socket_type: SocketType, identity: bytes) -> None:
        self._socket_type = socket_type
        self._own_identity = identity
        self._mechanism = Null()
        self._frames = FrameDecoder(MAX_HANDSHAKE_FRAME_BYTES)
        self._peer = None
        self._failure = b""
        self._state = HandshakeState.NEW

    @property
    def peer_may_send(self) -> bool:
        return True  # the peer need not wait for our identity

    @property
    def codec(self) -> Codec | None:
        return None

    def start(self) -> bytes:
        self._state = HandshakeState.SECURITY
        return encode_frame(self._own_identity)

    def receive(self, data: bytes) -> bytes:
        self._frames.feed(data)
        found = self._frames.next_frame()
        if found is None:
            return b""
        flags, identity = found
        if flags:
            self._state = HandshakeState.FAILED
            raise RemoteProtocolError("the first message is not an identity of one part (RFC 45, No Mechanism)")
        identity = self._check_identity(identity)
        self._peer = PeerMetadata((2, 0), self._socket_type, identity, b"", {}, over_websocket=True)
        self._state = HandshakeState.DONE
        return b""


class WebSocketHandshake:
    """The upgrade of a connection, and the handshake after it, with the interface of a `Handshake`.

    Args:
        upgrade: A new upgrade, made by the transport.
        socket_type: The socket's type.
        mechanism: A new mechanism.
        properties: Our metadata apart from Socket-Type.
        allow_unsecured: Whether to admit peers without a mechanism; only if the mechanism has no question.

    Raises:
        LocalProtocolError: The metadata cannot be sent, or the type has no handshake.
    """

    def __init__(
        self,
        upgrade: Upgrade,
        *,
        socket_type: SocketType,
        mechanism: Mechanism,
        properties: Mapping[bytes, bytes],
        allow_unsecured: bool,
    ) -> None:
        self._upgrade = upgrade
        self._codec = WebSocketCodec(as_client=upgrade.as_client)
        secured = _Ungreeted(socket_type=socket_type, mechanism=mechanism, properties=properties)
        self.mechanism: Final = secured.mechanism
        self._offers: dict[str, Handshake] = {f"{_SUB_PROTOCOL}/{secured.mechanism}": secured}
        if allow_unsecured:
            identity = properties.get(b"Identity", b"") if socket_type in SENDS_IDENTITY else b""
            self._offers[_SUB_PROTOCOL] = _Unsecured(socket_type, identity)
        self._chosen: Handshake | None = None
        self._pings = 0
        self.unread = b""

    @property
    def done(self) -> bool:
        return self._chosen is not None and self._chosen.done

    @property
    def peer_may_send(self) -> bool:
        return self._chosen is not None and self._chosen.peer_may_send

    @property
    def peer(self) -> PeerMetadata:
        if self._chosen is None:
            raise LocalProtocolError("the peer is unknown before the handshake is done")
        return self._chosen.peer

    @property
    def question(self) -> Question | None:
        return None if self._chosen is None else self._chosen.question

    @property
    def codec(self) -> Codec:
        """The codec of the traffic, once `done`."""
        cipher = None if self._chosen is None else self._chosen.codec
        assert cipher is None or isinstance(cipher, CurveCipher)
        self._codec.encrypt_with(cipher)
        return self._codec

    @property
    def hint(self) -> str:
        if self._chosen is None:
            return (
                "it may not be a WebSocket server" if self._upgrade.as_client else "its upgrade request is not complete"
            )
        return self._chosen.hint

    def start(self) -> bytes:
        return self._upgrade.start(tuple(self._offers))

    def receive(self, data: bytes) -> bytes:
        if self._chosen is not None:
            if self.question is not None and len(self.unread) + len(data) > MAX_HANDSHAKE_FRAME_BYTES:
                raise RemoteProtocolError("the peer continues to send before it is admitted")
            self.unread += data
            return self._go_on(self._chosen)
        answer = self._upgrade.receive(data)
        if not self._upgrade.protocol:
            return answer
        self._chosen = self._offers[self._upgrade.protocol]
        self.unread = self._upgrade.unread
        return answer + self._codec.wrap(self._chosen.start()) + self._go_on(self._chosen)

    def answer(self, refusal: bytes | None = None, why: str = "") -> bytes:
        if self._chosen is None:
            raise LocalProtocolError("answer: there is no question to answer")
        return self._codec.wrap(self._chosen.answer(refusal, why)) + self._go_on(self._chosen)

    def failure(self) -> bytes:
        if self._chosen is None:
            return self._upgrade.failure()
        return self._codec.wrap(self._chosen.failure())

    def _go_on(self, chosen: Handshake) -> bytes:
        """Passes the content of frames to the handshake, until it is done, has a question, or needs more bytes."""
        answers = []
        while not chosen.done and chosen.question is None:
            frame = self._codec.unwrap(self.unread, MAX_HANDSHAKE_FRAME_BYTES)
            if frame is None:
                break
            opcode, flags, body, taken = frame
            self.unread = self.unread[taken:]
            if opcode == BINARY:
                plain = encode_frame(body, more=bool(flags & _MORE), command=bool(flags & _COMMAND))
                answers.append(self._codec.wrap(chosen.receive(plain)))
            elif opcode == PING:
                self._pings += 1
                if self._pings > _MAX_PINGS:
                    raise RemoteProtocolError(f"more than {_MAX_PINGS} PINGs before the handshake is done")
                answers.append(self._codec.wrap(encode_frame(bytes([0, PONG]) + body, command=True)))
            elif opcode == CLOSE:
                raise HandshakeError(f"the peer closed the WebSocket{_status(body)}")
        return b"".join(answers)


def _status(body: bytes) -> str:
    """Returns the status of a CLOSE frame (RFC 6455, 7.4), for an error."""
    if len(body) < 2:
        return ""
    reason = body[2:].decode("utf-8", "replace")
    return f" with status {int.from_bytes(body[:2], 'big')}" + (f": {reason!r}" if reason else "")
