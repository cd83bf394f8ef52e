"""CURVE, byte by byte (RFC 25, RFC 26): each message flipped, cut, repeated, reordered, sent by the wrong side."""

import pytest

from omq._core.wire.crypto import CurveCipher, Secret
from omq._core.wire.framing import encode_frame
from omq.errors import AuthenticationError, HandshakeError, MechanismError, RemoteProtocolError
from omq.types import SocketType
from omq.zmtp.command import Command, encode_command, encode_properties, parse_command
from omq.zmtp.curve import CookieKeys, CurveClient, CurveServer
from omq.zmtp.greeting import Greeting
from omq.zmtp.handshake import Handshake
from tests.unit.zmtp.role_handshake import frames, greet, handshake, run

SERVER, CLIENT = Secret(), Secret()
#: Points whose product with any scalar is known to everybody (libsodium refuses them).
LOW_ORDER = [
    bytes(32),
    b"\x01" + bytes(31),
    bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    bytes.fromhex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
    bytes.fromhex("ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"),
    bytes.fromhex("edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"),
    bytes.fromhex("eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"),
]


def client(server_key: bytes | None = None) -> CurveClient:
    return CurveClient(server_key or SERVER.public(), CLIENT.public(), CLIENT)


def server(cookies: CookieKeys | None = None) -> CurveServer:
    return CurveServer(SERVER.public(), SERVER, cookies or CookieKeys())


def body(frame: bytes) -> bytes:
    """A command's data."""
    return parse_command(frame[2:] if frame[0] == 4 else frame[9:]).body


def pair() -> tuple[Handshake, Handshake]:
    return handshake(client(), Identity=b"me"), handshake(server(), SocketType.ROUTER)


def exchanged(count: int) -> tuple[Handshake, Handshake, bytes]:
    """Both sides after a number of commands, and the next one, which is not delivered."""
    theirs, ours = pair()
    sent = greet(theirs, ours)
    hearer, other = ours, theirs
    for _ in range(count):
        sent = hearer.receive(sent)
        if hearer.question is not None:
            sent = hearer.answer()
        hearer, other = other, hearer
    return hearer, other, sent


# --- good handshakes --------------------------------------------------------------------------------


def test_sizes_on_the_wire() -> None:
    exchange = run(client, server)
    metadata = encode_properties({b"Socket-Type": b"DEALER", b"Identity": b"me"})
    theirs = encode_properties({b"Socket-Type": b"ROUTER"})
    assert [
        (side, parse_command(one[2:] if one[0] == 4 else one[9:]).name, len(one)) for side, one in exchange.sent
    ] == [
        ("client", b"HELLO", 2 + 200),
        ("server", b"WELCOME", 2 + 168),
        ("client", b"INITIATE", 9 + 257 + len(metadata)),
        ("server", b"READY", 2 + 30 + len(theirs)),
    ]
    assert exchange.server.peer.identity == b"me"
    assert exchange.client.peer.socket_type is SocketType.ROUTER


def test_both_sides_open_what_the_other_seals() -> None:
    exchange = run(client, server)
    theirs, ours = exchange.client.codec, exchange.server.codec
    assert theirs is not None
    assert ours is not None
    for number in range(3):
        assert ours.open(theirs.seal(b"up %d" % number, 1)) == (1, b"up %d" % number)
        assert theirs.open(ours.seal(b"down %d" % number)) == (0, b"down %d" % number)


def test_the_server_asks_with_the_clients_key() -> None:
    ours, _, initiate = exchanged(2)
    ours.receive(initiate)
    assert ours.question is not None
    assert ours.question.credentials == (CLIENT.public(),)


def test_no_two_handshakes_share_a_byte_that_matters() -> None:
    one, other = run(client, server), run(client, server)
    assert all(a != b for (_, a), (_, b) in zip(one.sent, other.sent, strict=True))


def test_a_refusal_is_sent_and_named() -> None:
    ours, theirs, initiate = exchanged(2)
    ours.receive(initiate)
    with pytest.raises(AuthenticationError, match="'400'"):
        ours.answer(b"400")
    with pytest.raises(AuthenticationError, match="refused the handshake: '400'"):
        theirs.receive(ours.failure())


# --- bad ones ---------------------------------------------------------------------------------------

STEPS = ["HELLO", "WELCOME", "INITIATE", "READY"]


@pytest.mark.parametrize("step", range(4), ids=STEPS)
def test_every_byte_flipped(step: int) -> None:
    # The bytes of the frame's header may as well announce a longer frame, which then does not come.
    hearer, _, sent = exchanged(step)
    size = len(sent)
    for at in range(size):
        hearer, _, sent = exchanged(step)
        broken = bytearray(sent)
        broken[at % len(sent)] ^= 1 << at % 8
        try:
            hearer.receive(bytes(broken))
        except (RemoteProtocolError, HandshakeError):
            assert not hearer.done
        else:
            assert not hearer.done
            assert hearer.question is None
            assert at < 9, f"byte {at} of {STEPS[step]} can be changed"


@pytest.mark.parametrize("step", range(4), ids=STEPS)
def test_every_length_cut(step: int) -> None:
    hearer, _, sent = exchanged(step)
    command = parse_command(sent[2:] if sent[0] == 4 else sent[9:])
    for size in range(len(command.body)):
        hearer, _, _ = exchanged(step)
        with pytest.raises(RemoteProtocolError):
            hearer.receive(encode_command(command.name, command.body[:size]))


@pytest.mark.parametrize("step", range(4), ids=STEPS)
def test_one_byte_more(step: int) -> None:
    hearer, _, sent = exchanged(step)
    command = parse_command(sent[2:] if sent[0] == 4 else sent[9:])
    with pytest.raises(RemoteProtocolError):
        hearer.receive(encode_command(command.name, command.body + b"\0"))


@pytest.mark.parametrize("step", range(4), ids=STEPS)
@pytest.mark.parametrize("other_step", range(4), ids=STEPS)
def test_reordered_repeated_and_sent_by_the_wrong_side(step: int, other_step: int) -> None:
    if step == other_step:
        return
    hearer, _, _ = exchanged(step)
    _, _, sent = exchanged(other_step)
    with pytest.raises((RemoteProtocolError, MechanismError)):
        hearer.receive(sent)


@pytest.mark.parametrize("step", range(1, 4), ids=STEPS[1:])
def test_replayed_from_another_connection(step: int) -> None:
    # HELLO can be replayed (RFC 26: "which has no impact"); what follows belongs to one connection.
    recorded = run(client, server).sent[step][1]
    hearer, _, _ = exchanged(step)
    with pytest.raises(RemoteProtocolError):
        hearer.receive(recorded)


def test_a_whole_client_replayed_within_the_life_of_its_cookie() -> None:
    cookies = CookieKeys()
    recorded = run(client, lambda: server(cookies)).sent
    victim = handshake(server(cookies), SocketType.ROUTER)
    victim.start()
    victim.receive(Greeting((3, 1), b"CURVE", False).encode())
    victim.receive(recorded[0][1])
    with pytest.raises(RemoteProtocolError, match="cookie of another connection"):
        victim.receive(recorded[2][1])


def test_a_server_without_the_key_that_we_expect() -> None:
    other = Secret()
    theirs = handshake(client(other.public()))
    ours = handshake(server(), SocketType.ROUTER)
    hello = greet(theirs, ours)
    with pytest.raises(RemoteProtocolError, match="server_key is not the public key of this server"):
        ours.receive(hello)
    assert ours.failure() == b""
    assert "server_key is most likely not its public key" in theirs.hint


def test_a_client_without_the_secret_half_of_its_key() -> None:
    thief = CurveClient(SERVER.public(), CLIENT.public(), Secret())
    theirs, ours = handshake(thief), handshake(server(), SocketType.ROUTER)
    initiate = theirs.receive(ours.receive(greet(theirs, ours)))
    with pytest.raises(RemoteProtocolError, match="does not have the secret half of its public key"):
        ours.receive(initiate)


def test_a_vouch_for_another_server_is_refused() -> None:
    # Who has talked to one server cannot pass the vouch on to another one.
    cookies = CookieKeys()
    elsewhere = Secret()
    ours = handshake(CurveServer(elsewhere.public(), SERVER, cookies), SocketType.ROUTER)
    theirs = handshake(client())
    initiate = theirs.receive(ours.receive(greet(theirs, ours)))
    with pytest.raises(RemoteProtocolError, match="vouch for another connection, or for another server"):
        ours.receive(initiate)


@pytest.mark.parametrize("key", LOW_ORDER, ids=range(len(LOW_ORDER)))
def test_low_order_keys_are_refused(key: bytes) -> None:
    assert Secret().shared(key) is None
    _, _, hello = exchanged(0)
    forged = bytearray(body(hello))
    forged[74:106] = key
    ours = handshake(server(), SocketType.ROUTER)
    greet(handshake(client()), ours)
    with pytest.raises(RemoteProtocolError, match="low order"):
        ours.receive(encode_command(b"HELLO", bytes(forged)))


def test_a_low_order_permanent_key_is_refused() -> None:
    theirs, ours = handshake(CurveClient(SERVER.public(), bytes(32), CLIENT)), handshake(server(), SocketType.ROUTER)
    initiate = theirs.receive(ours.receive(greet(theirs, ours)))
    with pytest.raises(RemoteProtocolError, match="permanent key has a low order"):
        ours.receive(initiate)


def test_versions_and_padding_are_checked() -> None:
    _, _, hello = exchanged(0)
    for at, value, match in ((0, 2, "CurveZMQ 2.0"), (1, 1, "CurveZMQ 1.1"), (40, 1, "padding")):
        forged = bytearray(body(hello))
        forged[at] = value
        ours = handshake(server(), SocketType.ROUTER)
        greet(handshake(client()), ours)
        with pytest.raises(RemoteProtocolError, match=match):
            ours.receive(encode_command(b"HELLO", bytes(forged)))


def test_cookies_open_until_the_second_rotation() -> None:
    for rotations in range(3):
        cookies = CookieKeys()
        theirs, ours = handshake(client()), handshake(server(cookies), SocketType.ROUTER)
        initiate = theirs.receive(ours.receive(greet(theirs, ours)))
        assert cookies.in_use
        for _ in range(rotations):
            cookies.rotate()
        if rotations < 2:
            assert cookies.in_use
            ours.receive(initiate)
            assert ours.question is not None
        else:
            assert not cookies.in_use
            with pytest.raises(RemoteProtocolError, match="cookie does not open"):
                ours.receive(initiate)


def test_nothing_secret_is_kept_between_welcome_and_initiate() -> None:
    ours, _, _ = exchanged(2)
    mechanism = ours._mechanism
    held = [value for name, value in vars(mechanism).items() if isinstance(value, Secret) and name != "_secret_key"]
    assert held == []


def test_metadata_in_initiate_cve_2019_13132() -> None:
    # libzmq had 256 bytes on its stack for them.
    theirs = Handshake(socket_type=SocketType.DEALER, mechanism=client(), properties={b"X-Long": bytes(60_000)})
    ours = handshake(server(), SocketType.ROUTER)
    ours.receive(theirs.receive(ours.receive(greet(theirs, ours))))
    ours.answer()
    assert ours.peer.properties[b"x-long"] == bytes(60_000)


def test_metadata_are_bounded() -> None:
    ours, _, initiate = exchanged(2)
    with pytest.raises(RemoteProtocolError, match="announces"):
        ours.receive(encode_command(b"INITIATE", body(initiate) + bytes(70_000)))


def test_a_client_sends_no_error() -> None:
    # RFC 26: "A client peer SHALL NOT send ERROR to the server".
    theirs, ours = handshake(client(), SocketType.PUB), server()
    ours.start({b"Socket-Type": b"PUSH"})
    theirs.start()
    hello = theirs.receive(Greeting((3, 1), b"CURVE", True).encode())
    ours.receive(Command(b"HELLO", body(hello)))
    ours.receive(Command(b"INITIATE", body(theirs.receive(ours.outgoing()))))
    ours.answer(None)
    with pytest.raises(RemoteProtocolError, match="PUB and PUSH are incompatible"):
        theirs.receive(ours.outgoing())
    assert theirs.failure() == b""


def test_a_server_names_which_types_do_not_fit() -> None:
    theirs, ours = handshake(client(), SocketType.PUB), handshake(server(), SocketType.ROUTER)
    initiate = theirs.receive(ours.receive(greet(theirs, ours)))
    with pytest.raises(RemoteProtocolError, match="ROUTER and PUB are incompatible"):
        ours.receive(initiate)
    with pytest.raises(HandshakeError, match="incompatible-socket-types"):
        theirs.receive(ours.failure())


def test_two_clients_and_two_servers() -> None:
    theirs = handshake(client())
    theirs.start()
    hello = theirs.receive(Greeting((3, 1), b"CURVE", False).encode())
    with pytest.raises(MechanismError, match="both sides are clients of CURVE"):
        theirs.receive(hello)
    ours = handshake(server(), SocketType.ROUTER)
    ours.start()
    with pytest.raises(MechanismError, match="both sides are servers of CURVE"):
        ours.receive(Greeting((3, 1), b"CURVE", True).encode())


@pytest.mark.parametrize("theirs", [b"NULL", b"PLAIN"])
def test_a_weaker_mechanism_is_refused_cve_2014_7202(theirs: bytes) -> None:
    ours = handshake(server(), SocketType.ROUTER)
    ours.start()
    with pytest.raises(MechanismError, match=f"the peer's mechanism is {theirs.decode()}, ours is CURVE"):
        ours.receive(Greeting((3, 1), theirs, False).encode())


def test_messages_before_the_handshake_is_done() -> None:
    for step in range(4):
        hearer, _, _ = exchanged(step)
        with pytest.raises(RemoteProtocolError, match="a message before the handshake is done"):
            hearer.receive(encode_frame(b"\x07MESSAGE" + bytes(40)))


def test_the_frames_helper_keeps_every_byte() -> None:
    assert frames(encode_command(b"A") + encode_frame(bytes(300))) == [encode_command(b"A"), encode_frame(bytes(300))]


# --- traffic ----------------------------------------------------------------------------------------


def sessions() -> tuple[CurveCipher, CurveCipher]:
    key = Secret()
    return CurveCipher(key, False, 2, 1), CurveCipher(key, True, 1, 2)


NO_MESSAGE, REPLAYED, FORGED, BAD_FLAGS = -1, -2, -3, -4


@pytest.mark.parametrize("size", [0, 1, 30, 31, 32, 191, 222, 223, 224, 478, 479, 480, 4063, 4095, 4096, 4097, 70_000])
def test_a_box_is_the_one_that_libsodium_makes(size: int) -> None:
    key, nonce = Secret(), b"CurveZMQMESSAGEC" + (7).to_bytes(8, "big")
    text = (bytes(range(256)) * (size // 256 + 1))[:size]
    body = b"\x07MESSAGE" + nonce[16:] + key.seal(nonce, b"\x01" + text)
    assert CurveCipher(key, False, 6, 1).seal(text, 1) == body
    assert CurveCipher(key, True, 1, 6).open(body) == (1, text)


def test_a_message_replayed_or_reordered() -> None:
    theirs, ours = sessions()
    first, second = theirs.seal(b"first"), theirs.seal(b"second")
    assert first is not None
    assert second is not None
    assert ours.open(second) == (0, b"second")
    assert ours.open(second) == REPLAYED
    assert ours.open(first) == REPLAYED


def test_a_message_sent_back_to_who_sent_it() -> None:
    theirs, _ = sessions()
    mine = theirs.seal(b"mine")
    assert mine is not None
    assert theirs.open(mine) == FORGED


def test_every_byte_of_a_message_flipped() -> None:
    for at in range(33 + 20):
        theirs, ours = sessions()
        sealed = theirs.seal(b"twenty bytes of text")
        assert sealed is not None
        broken = bytearray(sealed)
        broken[at] ^= 1 << at % 8
        assert ours.open(bytes(broken)) in (NO_MESSAGE, REPLAYED, FORGED)
        # A forged message does not use up the nonce of the good one.
        assert ours.open(sealed) == (0, b"twenty bytes of text")


def test_every_length_of_a_message() -> None:
    for size in range(33 + 20):
        theirs, ours = sessions()
        sealed = theirs.seal(b"twenty bytes of text")
        assert sealed is not None
        assert ours.open(sealed[:size]) in (NO_MESSAGE, FORGED)


@pytest.mark.parametrize("flags", [3, 4, 8, 0x80, 0xFF])
def test_reserved_flags(flags: int) -> None:
    theirs, ours = sessions()
    sealed = theirs.seal(b"", flags)
    assert sealed is not None
    assert ours.open(sealed) == BAD_FLAGS


def test_nonces_are_used_up_to_the_last_and_no_further() -> None:
    key = Secret()
    theirs, ours = CurveCipher(key, False, 2**64 - 3, 1), CurveCipher(key, True, 1, 2**64 - 3)
    for _ in range(2):
        sealed = theirs.seal(b"late")
        assert sealed is not None
        assert ours.open(sealed) == (0, b"late")
    assert theirs.seal(b"too late") is None
    assert ours.received == 2**64 - 1
