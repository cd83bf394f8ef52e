"""PLAIN, byte by byte (RFC 24)."""

import pytest

from omq._core.wire.framing import encode_frame
from omq.errors import AuthenticationError, HandshakeError, LocalProtocolError, MechanismError, RemoteProtocolError
from omq.types import SocketType
from omq.zmtp.command import encode_command, encode_properties, ready
from omq.zmtp.greeting import Greeting
from omq.zmtp.plain import PlainClient, PlainServer
from tests.unit.zmtp.role_handshake import greet, handshake, run

HELLO = encode_command(b"HELLO", b"\x04user\x04word")
METADATA = encode_properties({b"Socket-Type": b"ROUTER"})


def client(username: bytes = b"user", password: bytes = b"word") -> PlainClient:
    return PlainClient(username, password)


def server_after(*sent: bytes):
    """A server that has received this."""
    ours = handshake(PlainServer(), SocketType.ROUTER)
    ours.start()
    ours.receive(Greeting((3, 1), b"PLAIN", False).encode())
    for one in sent:
        ours.receive(one)
        if ours.question is not None:
            ours.answer()
    return ours


def client_after(*sent: bytes):
    ours = handshake(client())
    ours.start()
    ours.receive(Greeting((3, 1), b"PLAIN", True).encode())
    for one in sent:
        ours.receive(one)
    return ours


def test_what_goes_over_the_wire() -> None:
    exchange = run(client, PlainServer)
    assert exchange.sent == [
        ("client", HELLO),
        ("server", encode_command(b"WELCOME")),
        ("client", encode_command(b"INITIATE", encode_properties({b"Socket-Type": b"DEALER", b"Identity": b"me"}))),
        ("server", ready({b"Socket-Type": b"ROUTER"})),
    ]
    assert exchange.server.peer.identity == b"me"
    assert exchange.client.peer.socket_type is SocketType.ROUTER
    assert exchange.client.codec is None


def test_the_server_asks_with_user_name_and_password() -> None:
    ours = handshake(PlainServer(), SocketType.ROUTER)
    greet(handshake(client()), ours)
    ours.receive(HELLO)
    assert ours.question is not None
    assert ours.question.credentials == (b"user", b"word")
    assert "word" not in repr(ours.question)


def test_a_refusal_is_sent_and_named() -> None:
    theirs, ours = handshake(client()), handshake(PlainServer(), SocketType.ROUTER)
    ours.receive(greet(theirs, ours))
    with pytest.raises(AuthenticationError, match="'400', because"):
        ours.answer(b"400", "because")
    with pytest.raises(AuthenticationError, match="refused the handshake: '400'"):
        theirs.receive(ours.failure())


def test_a_temporary_refusal_is_not_sent() -> None:
    theirs, ours = handshake(client()), handshake(PlainServer(), SocketType.ROUTER)
    ours.receive(greet(theirs, ours))
    with pytest.raises(AuthenticationError):
        ours.answer(b"")
    assert ours.failure() == b""
    assert "did not answer the user name" in theirs.hint


@pytest.mark.parametrize(
    "body", [b"", b"\x04use", b"\x04user", b"\x04user\x05word", b"\x04user\x04word!", b"\x00", b"\xff"]
)
def test_a_malformed_hello(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="HELLO of PLAIN") as caught:
        server_after(encode_command(b"HELLO", body))
    assert "wor" not in str(caught.value), "it may be a password"


@pytest.mark.parametrize("body", [b"\x00\x00", b"\xff" + b"u" * 255 + b"\xff" + b"p" * 255])
def test_credentials_of_every_length(body: bytes) -> None:
    assert not server_after(encode_command(b"HELLO", body)).done


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param([encode_command(b"INITIATE", METADATA)], id="INITIATE-first"),
        pytest.param([HELLO, HELLO], id="HELLO-twice"),
        pytest.param([HELLO, encode_command(b"READY", METADATA)], id="READY-from-a-client"),
        pytest.param([encode_command(b"WELCOME")], id="WELCOME-from-a-client"),
        pytest.param([encode_command(b"ERROR", b"\x03400")], id="ERROR-from-a-client"),
        pytest.param([HELLO, encode_command(b"MESSAGE", b"x")], id="a-command-of-CURVE"),
        pytest.param([encode_frame(b"evil")], id="a-message"),
        pytest.param([HELLO, encode_frame(b"evil")], id="a-message-after-HELLO"),
    ],
)
def test_what_a_client_does_not_send(sent: list[bytes]) -> None:
    with pytest.raises(RemoteProtocolError):
        server_after(*sent)


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param([ready({b"Socket-Type": b"ROUTER"})], id="READY-before-WELCOME"),
        pytest.param([encode_command(b"WELCOME", b"!")], id="WELCOME-with-a-body"),
        pytest.param([encode_command(b"WELCOME")] * 2, id="WELCOME-twice"),
        pytest.param([encode_command(b"INITIATE", METADATA)], id="INITIATE-from-a-server"),
        pytest.param([encode_command(b"WELCOME"), encode_command(b"READY", b"\x05junk")], id="READY-malformed"),
    ],
)
def test_what_a_server_does_not_send(sent: list[bytes]) -> None:
    with pytest.raises(RemoteProtocolError):
        client_after(*sent)


@pytest.mark.parametrize("sent", [[], [encode_command(b"WELCOME")]], ids=["at-once", "later"])
def test_the_server_may_refuse_with_an_error(sent: list[bytes]) -> None:
    with pytest.raises(HandshakeError, match="no!"):
        client_after(*sent, encode_command(b"ERROR", b"\x03no!"))


def test_two_clients_know_what_is_wrong() -> None:
    with pytest.raises(MechanismError, match="both sides are clients of PLAIN"):
        client_after(HELLO)


def test_two_servers_know_what_is_wrong() -> None:
    ours = handshake(PlainServer(), SocketType.ROUTER)
    ours.start()
    with pytest.raises(MechanismError, match="both sides are servers of PLAIN"):
        ours.receive(Greeting((3, 1), b"PLAIN", True).encode())


def test_two_servers_one_of_them_libzmq_are_hinted_at() -> None:
    # libzmq's servers announce themselves as clients, so neither side ever sends: the timeout's error names the reason.
    assert "a PLAIN server, too?" in server_after().hint


def test_metadata_are_bounded() -> None:
    flood = encode_command(b"INITIATE", encode_properties({b"Socket-Type": b"DEALER", b"X": bytes(70_000)}))
    with pytest.raises(RemoteProtocolError, match="announces"):
        server_after(HELLO, flood)


def test_credentials_that_have_no_encoding() -> None:
    with pytest.raises(LocalProtocolError, match="more than 255 bytes"):
        PlainClient(b"u" * 256, b"")


def test_an_error_as_libzmq_spells_it() -> None:
    with pytest.raises(AuthenticationError, match="refused the handshake: '400'"):
        client_after(encode_frame(b"^RROR\x03400", command=True))
