"""Handshakes of a mechanism with roles and a question, as PLAIN and CURVE have them."""

from collections.abc import Mapping
from enum import Enum

import pytest

from omq.errors import (
    AuthenticationError,
    HandshakeError,
    LocalProtocolError,
    MechanismError,
    RemoteProtocolError,
)
from omq.types import SocketType
from omq.zmtp.command import encode_command, encode_properties, parse_properties, ready
from omq.zmtp.greeting import Greeting
from omq.zmtp.handshake import Handshake
from omq.zmtp.mechanism import Mechanism, Question
from omq.zmtp.null import Null

GREETING = Greeting((3, 1), b"NULL", False).encode()


class Phase(Enum):
    START = 0
    HELLO = 1
    ASKING = 2
    READY = 3
    AGREED = 4
    REFUSED = 5


class Knock(Mechanism):
    """The client sends HELLO with a word and its metadata, the server asks, then sends WELCOME and READY."""

    name = b"KNOCK"
    has_roles = True
    agreed = Phase.AGREED
    answered = frozenset({Phase.READY, Phase.AGREED})

    def __init__(self, word: bytes = b"", *, as_server: bool = False) -> None:
        super().__init__(Phase.START, as_server=as_server)
        self.word = word
        self.ours: Mapping[bytes, bytes] = {}

    def start(self, properties: Mapping[bytes, bytes]) -> None:
        self.ours = properties
        if self.as_server:
            self.phase = Phase.HELLO
        else:
            word = bytes((len(self.word),)) + self.word
            self._frames.append(encode_command(b"HELLO", word + encode_properties(properties)))
            self.phase = Phase.READY

    def _on_hello(self, body: bytes) -> None:
        size = body[0]
        self.peer_properties = parse_properties(body[1 + size :])
        self.question = Question(self.name, (body[1 : 1 + size],))

    def _admitted(self) -> None:
        self._frames += [encode_command(b"WELCOME"), ready(self.ours)]
        self.phase = Phase.AGREED

    def _on_welcome(self, body: bytes) -> None:
        pass

    def _on_ready(self, body: bytes) -> None:
        self.peer_properties = parse_properties(body)

    steps = {  # noqa: RUF012 - the base class declares it
        Phase.START: {},
        Phase.HELLO: {b"HELLO": (_on_hello, Phase.ASKING)},
        Phase.ASKING: {},
        Phase.READY: {
            b"WELCOME": (_on_welcome, Phase.READY),
            b"READY": (_on_ready, Phase.AGREED),
            b"ERROR": (Mechanism._on_error, Phase.REFUSED),
        },
        Phase.AGREED: {},
        Phase.REFUSED: {},
    }


def knock(kind: SocketType, **how) -> Handshake:
    return Handshake(socket_type=kind, mechanism=Knock(**how))


def exchange(client: Handshake, server: Handshake) -> None:
    """Greetings and HELLO."""
    to_server, to_client = client.start(), server.start()
    assert to_server[32:33] == b"\x00"
    assert to_client[32:33] == b"\x01"
    server.receive(to_server)
    server.receive(client.receive(to_client))


def test_roles_and_a_question():
    client, server = knock(SocketType.REQ, word=b"sesame"), knock(SocketType.REP, as_server=True)
    exchange(client, server)
    assert server.question == Question(b"KNOCK", (b"sesame",))
    assert not server.done
    with pytest.raises(LocalProtocolError, match="before the handshake is done"):
        _ = server.peer
    reply = server.answer()
    assert reply == encode_command(b"WELCOME") + ready({b"Socket-Type": b"REP"})
    assert server.done
    client.receive(reply + b"traffic")
    assert client.done
    assert client.unread == b"traffic"
    assert (client.peer.socket_type, client.peer.mechanism) == (SocketType.REP, b"KNOCK")
    assert server.peer.socket_type is SocketType.REQ


def test_roles_and_a_refusal():
    client, server = knock(SocketType.REQ, word=b"wrong"), knock(SocketType.REP, as_server=True)
    exchange(client, server)
    with pytest.raises(AuthenticationError):
        server.answer(b"400")
    with pytest.raises(AuthenticationError, match="'400'"):
        client.receive(server.failure())


def test_a_server_checks_the_clients_metadata_before_it_answers():
    client, server = knock(SocketType.PUB), knock(SocketType.REP, as_server=True)
    with pytest.raises(RemoteProtocolError, match="REP and PUB are incompatible"):
        exchange(client, server)
    with pytest.raises(HandshakeError, match="incompatible-socket-types:REP,PUB"):
        client.receive(server.failure())


def test_two_servers_are_a_mechanism_error():
    server = knock(SocketType.REP, as_server=True)
    server.start()
    with pytest.raises(MechanismError, match="both sides are servers of KNOCK"):
        server.receive(Greeting((3, 1), b"KNOCK", True).encode())


def test_two_clients_are_found_out_by_their_commands():
    # libzmq's servers announce as-server 0 as well, so the greeting alone proves nothing.
    client = knock(SocketType.REQ)
    client.start()
    hello = client.receive(Greeting((3, 1), b"KNOCK", False).encode())
    with pytest.raises(RemoteProtocolError, match="'HELLO' where KNOCK"):
        client.receive(hello)


def test_a_mechanism_that_forgets_the_peers_metadata_is_caught():
    class Silent(Null):
        def _admitted(self) -> None:
            super()._admitted()
            self.phase = self.agreed

    handshake = Handshake(socket_type=SocketType.REQ, mechanism=Silent())
    handshake.start()
    with pytest.raises(LocalProtocolError, match="without metadata"):
        handshake.receive(GREETING)
