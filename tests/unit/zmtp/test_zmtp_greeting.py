import pytest

from omq.errors import LocalProtocolError, RemoteProtocolError
from omq.zmtp.greeting import GREETING_BYTES, SIGNATURE_BYTES, VERSION, Greeting, GreetingParser

# RFC 37, Worked Example, octet by octet.
WIRE = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x01" + b"NULL" + bytes(16) + b"\x00" + bytes(31)
GREETING = Greeting((3, 1), b"NULL", False)


def changed(at: int, *octets: int) -> bytes:
    return WIRE[:at] + bytes(octets) + WIRE[at + len(octets) :]


def refusal(data: bytes) -> tuple[int, str]:
    """Returns how many octets a parser took, one by one, before it refused, and its reason."""
    parser = GreetingParser()
    for count in range(len(data)):
        try:
            parser.feed(data[count : count + 1])
        except RemoteProtocolError as error:
            return count, str(error)
    pytest.fail("nothing was refused")


def test_encode_gives_the_worked_example_of_the_rfc():
    assert GREETING.encode() == WIRE
    assert (len(WIRE), SIGNATURE_BYTES, GREETING_BYTES, VERSION) == (64, 10, 64, (3, 1))


def test_encode_places_every_field():
    wire = Greeting((4, 7), b"CURVE", True).encode()
    assert wire[10:12] == b"\x04\x07"
    assert wire[12:32] == b"CURVE" + bytes(15)
    assert wire[32:] == b"\x01" + bytes(31)


@pytest.mark.parametrize("version", [(3, 0), (3, 255), (255, 0), (255, 255)], ids=str)
def test_encode_takes_every_version_from_3_0_on(version):
    assert Greeting(version, b"NULL", False).encode()[10:12] == bytes(version)


@pytest.mark.parametrize(
    "name",
    [b"", b"null", b"A" * 21, b"NULL\0", b"NU LL", "NÜLL".encode("latin-1"), b"NULL\n"],
    ids=["empty", "lower case", "21 characters", "zero byte", "blank", "not ascii", "newline"],
)
def test_encode_refuses_what_names_no_mechanism(name):
    with pytest.raises(LocalProtocolError, match="mechanism"):
        Greeting((3, 1), name, False).encode()


@pytest.mark.parametrize("version", [(2, 0), (256, 0), (3, -1), (3, 256)], ids=str)
def test_encode_refuses_a_version_without_such_a_greeting(version):
    with pytest.raises(LocalProtocolError, match="no greeting"):
        Greeting(version, b"NULL", False).encode()


def test_every_split_gives_the_same_greeting_and_the_same_rest():
    data = WIRE + b"rest"
    for cut in range(len(data) + 1):
        parser = GreetingParser()
        first = parser.feed(data[:cut])
        assert first == (GREETING if cut >= GREETING_BYTES else None)
        if first is None:
            assert parser.unread == b""
            assert parser.feed(data[cut:]) == GREETING
            assert parser.unread == b"rest"
        else:
            assert parser.unread == data[GREETING_BYTES:cut]


def test_byte_by_byte_it_is_complete_with_the_last_octet_and_not_before():
    parser = GreetingParser()
    given = [parser.feed(WIRE[at : at + 1]) for at in range(GREETING_BYTES)]
    assert given == [None] * 63 + [GREETING]
    assert parser.unread == b""


def test_no_bytes_change_nothing():
    parser = GreetingParser()
    assert parser.feed(b"") is None
    assert parser.feed(WIRE) == GREETING


def test_a_complete_greeting_takes_no_more():
    parser = GreetingParser()
    parser.feed(WIRE)
    with pytest.raises(LocalProtocolError, match="complete"):
        parser.feed(b"x")


@pytest.mark.parametrize(
    ("data", "version"),
    [
        (changed(11, 0), (3, 0)),
        (WIRE, (3, 1)),
        (changed(11, 9), (3, 9)),
        (changed(10, 4, 0), (4, 0)),
        (changed(10, 255, 255), (255, 255)),
    ],
    ids=["3.0", "3.1", "3.9", "4.0", "255.255"],
)
def test_this_version_and_every_higher_one_is_accepted(data, version):
    assert GreetingParser().feed(data) == Greeting(version, b"NULL", False)


@pytest.mark.parametrize(
    "data",
    [
        changed(1, *b"\x00\x00\x00\x00\x00\x00\x00\x01"),
        changed(1, *b"\xff" * 8),
        changed(33, *b"\xa5" * 31),
        changed(63, 1),
    ],
    ids=["padding as libzmq sends it", "padding full", "filler full", "last octet of the filler"],
)
def test_padding_and_filler_are_ignored(data):
    assert GreetingParser().feed(data) == GREETING


@pytest.mark.parametrize(
    ("name", "as_server"),
    [(b"PLAIN", 0), (b"CURVE", 1), (b"A", 1), (b"X-MY_OWN.MECH+012345", 0)],
    ids=["PLAIN client", "CURVE server", "one character", "twenty characters"],
)
def test_mechanism_and_role_are_read(name, as_server):
    data = changed(12, *name.ljust(20, b"\0"), as_server)
    assert GreetingParser().feed(data) == Greeting((3, 1), name, bool(as_server))


@pytest.mark.parametrize("octet", [2, 0xFF])
def test_an_unknown_role_is_ignored(octet):
    """libzmq looks at this octet no more than at the filler."""
    assert GreetingParser().feed(changed(32, octet)) == Greeting((3, 1), b"NULL", False)


@pytest.mark.parametrize(
    ("data", "at", "reason"),
    [
        (b"\x01\x00" + bytes(62), 0, "ZMTP 1.0 peer"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", 0, "ZMTP 1.0 peer"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 0, "ZMTP 1.0 peer"),
        (b"\xff\x00\x00\x00\x00\x00\x00\x01\x00\x00" + bytes(300), 9, "ZMTP 1.0 peer"),
        (changed(9, 0x01), 9, "signature"),
        (changed(9, 0xFF), 9, "signature"),
        (changed(10, 0), 10, "ZMTP 1.0 peer"),
        (changed(10, 1), 10, "ZMTP 2.0 peer .* not supported"),
        (changed(10, 2), 10, "ZMTP 2.0 peer .* not supported"),
        (changed(12, 0), 12, "names no mechanism"),
        (changed(12, *bytes(4)), 12, "names no mechanism"),
        (changed(12, *b"null"), 12, "cannot have this character"),
        (changed(14, ord(" ")), 14, "cannot have this character"),
        (changed(15, 0x80), 15, "cannot have this character"),
        (changed(17, ord("X")), 17, "after its padding"),
        (changed(31, ord("X")), 31, "after its padding"),
    ],
    ids=[
        "1.0 with a short identity",
        "HTTP",
        "TLS",
        "1.0 with a long identity",
        "signature ends with 01",
        "signature ends with ff",
        "revision 0",
        "revision 1",
        "revision 2",
        "mechanism starts with zero",
        "no mechanism",
        "mechanism in lower case",
        "blank in the mechanism",
        "high bit in the mechanism",
        "mechanism goes on",
        "mechanism goes on at its end",
    ],
)
def test_the_first_wrong_octet_is_refused_and_none_before(data, at, reason):
    count, text = refusal(data)
    assert count == at
    with pytest.raises(RemoteProtocolError, match=reason):
        GreetingParser().feed(data)
    assert len(text) < 400


def test_old_peers_are_distinguished_from_what_is_supported():
    assert "not supported" in refusal(b"\x01\x00")[1]
    assert "not supported" in refusal(changed(9, 0))[1]
    assert "not supported" in refusal(changed(10, 1))[1]


def test_a_refused_peer_stays_refused_and_costs_no_memory():
    parser = GreetingParser()
    for _ in range(3):
        with pytest.raises(RemoteProtocolError, match=r"ZMTP 1\.0 peer"):
            parser.feed(b"G" * 100_000)
    assert parser.unread == b""
    assert len(parser._received) == GREETING_BYTES
