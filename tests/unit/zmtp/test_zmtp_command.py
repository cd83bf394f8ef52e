import pytest

from omq._core.wire.framing import FrameDecoder
from omq.errors import LocalProtocolError, RemoteProtocolError
from omq.zmtp import command
from omq.zmtp.command import Cancel, Command, Error, Join, Leave, Ping, Pong, Subscribe


def test_the_form_of_a_subscription():
    # The octets that libzmq's own mock peers expect.
    assert command.subscribe(b"A") == b"\x04\x0b\x09SUBSCRIBEA"
    assert command.cancel(b"A") == b"\x04\x08\x06CANCELA"


@pytest.mark.parametrize(
    ("frame", "wire"),
    [
        (command.encode_command(b"HELLO"), b"\x04\x06\x05HELLO"),
        (command.encode_command(b"HELLO", b"\x00\xff"), b"\x04\x08\x05HELLO\x00\xff"),
        (command.ping(10, b"ctx"), b"\x04\x0a\x04PING\x00\x0actx"),
        (command.ping(0), b"\x04\x07\x04PING\x00\x00"),
        (command.ping(65535, b"c" * 16), b"\x04\x17\x04PING\xff\xff" + b"c" * 16),
        (command.pong(b""), b"\x04\x05\x04PONG"),
        (command.pong(b"ctx"), b"\x04\x08\x04PONGctx"),
        (command.error(b"400"), b"\x04\x0a\x05ERROR\x03400"),
        (command.error(b""), b"\x04\x07\x05ERROR\x00"),
        (command.join(b"g"), b"\x04\x06\x04JOINg"),
        (command.join(b""), b"\x04\x05\x04JOIN"),
        (command.leave(b"g"), b"\x04\x07\x05LEAVEg"),
        (command.ready({}), b"\x04\x06\x05READY"),
        (
            # RFC 23, Worked Example.
            command.ready({b"Socket-Type": b"DEALER", b"Identity": b""}),
            b"\x04\x29\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x00",
        ),
    ],
    ids=lambda value: value[:12].decode("latin-1") if isinstance(value, bytes) else None,
)
def test_frames_on_the_wire(frame, wire):
    assert frame == wire


@pytest.mark.parametrize("size", [244, 245, 246, 247, 70_000], ids=lambda size: f"{size} bytes")
def test_a_frame_is_long_from_256_bytes_of_body_on(size):
    # RFC 23, Commands: the body has the counted name (10 bytes) and the prefix.
    frame = command.subscribe(b"t" * size)
    body = b"\x09SUBSCRIBE" + b"t" * size
    header = b"\x04" + bytes((len(body),)) if len(body) < 256 else b"\x06" + len(body).to_bytes(8, "big")
    assert frame == header + body


@pytest.mark.parametrize(
    "name",
    [b"", b"A" * 256, b"PI NG", b"PING\0", b"P1NG", b"PING\n"],
    ids=["empty", "256", "blank", "zero", "digit", "newline"],
)
def test_encode_command_refuses_what_is_no_name(name):
    with pytest.raises(LocalProtocolError, match="name a command"):
        command.encode_command(name)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: command.ping(-1), "16 bits"),
        (lambda: command.ping(65536), "16 bits"),
        (lambda: command.ping(0, b"c" * 17), "context of 17 bytes"),
        (lambda: command.pong(b"c" * 17), "context of 17 bytes"),
        (lambda: command.error(b"r" * 256), "reason"),
        (lambda: command.error(b"two words"), "reason"),
        (lambda: command.error(b"\xff"), "reason"),
        (lambda: command.join(b"g" * 256), "group"),
        (lambda: command.leave(b"g" * 256), "group"),
        (lambda: command.join(b"a\0b"), "group"),
        (lambda: command.ready({b"": b""}), "cannot be a property"),
        (lambda: command.ready({b"n" * 256: b""}), "cannot be a property"),
        (lambda: command.ready({b"a:b": b""}), "cannot be a property"),
        (lambda: command.ready({b"a b": b""}), "cannot be a property"),
        (lambda: command.ready({b"X-a": b"1", b"x-A": b"2"}), "twice"),
    ],
    ids=[
        "TTL below 0",
        "TTL above 16 bits",
        "PING context",
        "PONG context",
        "long reason",
        "reason with a blank",
        "reason not ascii",
        "long group to join",
        "long group to leave",
        "zero byte in a group",
        "empty property name",
        "long property name",
        "colon in a property name",
        "blank in a property name",
        "names that differ by case",
    ],
)
def test_what_may_not_be_sent_is_the_callers_fault(make, reason):
    with pytest.raises(LocalProtocolError, match=reason):
        make()


@pytest.mark.parametrize(
    ("body", "parsed"),
    [
        (b"\x01A", Command(b"A", b"")),
        (b"\x05READYrest", Command(b"READY", b"rest")),
        (b"\x05ready", Command(b"ready", b"")),
        (b"\xff" + b"n" * 255 + b"\x00", Command(b"n" * 255, b"\x00")),
    ],
    ids=["one letter", "data", "lower case", "255 letters"],
)
def test_parse_command(body, parsed):
    assert command.parse_command(body) == parsed


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x00",
        b"\x00READY",
        b"\x05READ",
        b"\xffREADY",
        b"\x06READY ",
        b"\x05RE\0DY",
        b"\x04P1NG",
        b"\x01\xc4",
    ],
    ids=["empty", "no name", "empty name", "cut off", "far cut off", "blank", "zero", "digit", "not ascii"],
)
def test_parse_command_refuses(body):
    with pytest.raises(RemoteProtocolError, match="proper name"):
        command.parse_command(body)


def test_a_bad_name_is_shown_escaped_and_short():
    with pytest.raises(RemoteProtocolError) as caught:
        command.parse_command(b"\xff\x1b[2J\r\n" + b"\x00" * 60_000)
    text = str(caught.value)
    assert text.isprintable()
    assert len(text) < 700


@pytest.mark.parametrize(
    ("frame", "parsed"),
    [
        (command.ping(0), Ping(0, b"")),
        (command.ping(0x1234, b"c" * 16), Ping(0x1234, b"c" * 16)),
        (command.pong(b"c" * 16), Pong(b"c" * 16)),
        (command.subscribe(b""), Subscribe(b"")),
        (command.subscribe(bytes(range(256))), Subscribe(bytes(range(256)))),
        (command.cancel(b"topic"), Cancel(b"topic")),
        (command.join(b"g" * 255), Join(b"g" * 255)),
        (command.leave(b""), Leave(b"")),
        (command.error(b"400"), Error(b"400")),
        (command.encode_command(b"MESSAGE", b"box"), Command(b"MESSAGE", b"box")),
        (command.encode_command(b"ping", b""), Command(b"ping", b"")),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, bytes) else None,
)
def test_every_command_comes_back_as_its_type(frame, parsed):
    decoder = FrameDecoder()
    decoder.feed(frame)
    flags, body = decoder.next_frame()
    assert flags == 4
    assert command.parse_traffic_command(body) == parsed


def test_a_prefix_of_a_megabyte_is_no_problem():
    # libzmq's GHSA-qq65: recursion over the topic's length.
    assert command.parse_traffic_command(b"\x06CANCEL" + b"t" * (1 << 20)) == Cancel(b"t" * (1 << 20))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"\x04PING", "2 to 18"),
        (b"\x04PING\x00", "2 to 18"),
        (b"\x04PING\x00\x00" + b"c" * 17, "2 to 18"),
        (b"\x04PONG" + b"c" * 17, "up to 16"),
        (b"\x04JOIN" + b"g" * 256, "group"),
        (b"\x05LEAVE" + b"g" * 256, "group"),
        (b"\x04JOINa\0b", "group"),
        (b"\x05ERROR", "wrong length"),
        (b"\x05ERROR\x04400", "wrong length"),
        (b"\x05ERROR\xff" + b"r" * 254, "wrong length"),
    ],
    ids=[
        "PING without TTL",
        "PING with half a TTL",
        "PING context of 17",
        "PONG context of 17",
        "JOIN 256",
        "LEAVE 256",
        "JOIN zero byte",
        "ERROR without reason",
        "ERROR cut off",
        "ERROR 255 announced",
    ],
)
def test_malformed_data_is_the_peers_fault(body, reason):
    with pytest.raises(RemoteProtocolError, match=reason):
        command.parse_traffic_command(body)


def test_the_reason_of_a_peer_is_taken_as_it_comes():
    assert command.parse_error(b"\x06\x1b[2J\n\xff") == Error(b"\x1b[2J\n\xff")


def test_properties_both_ways():
    properties = {b"Socket-Type": b"DEALER", b"X-.+_-9": bytes(range(256)), b"Identity": b""}
    encoded = command.encode_properties(properties)
    assert encoded.startswith(b"\x0bSocket-Type\x00\x00\x00\x06DEALER\x07X-.+_-9\x00\x00\x01\x00\x00\x01\x02")
    parsed = command.parse_properties(encoded)
    assert list(parsed.items()) == [
        (b"socket-type", b"DEALER"),
        (b"x-.+_-9", bytes(range(256))),
        (b"identity", b""),
    ]
    assert command.parse_properties(b"") == {}


def test_a_value_above_the_limit_of_its_size_field_is_not_sent(monkeypatch):
    assert command._MAX_VALUE_BYTES == 2**31 - 1
    monkeypatch.setattr(command, "_MAX_VALUE_BYTES", 3)
    assert command.encode_properties({b"a": b"abc"}) == b"\x01a\x00\x00\x00\x03abc"
    with pytest.raises(LocalProtocolError, match="cannot be a property"):
        command.encode_properties({b"a": b"abcd"})


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"\x00", "ends inside"),
        (b"\x00\x00\x00\x00\x00", "cannot name"),
        (b"\x04Na", "ends inside"),
        (b"\x04Name", "ends inside"),
        (b"\x04Name\x00\x00\x00", "ends inside"),
        (b"\x04Name\x00\x00\x00\x02v", "longer than"),
        (b"\x04Name\x7f\xff\xff\xffv", "longer than"),
        (b"\x04Name\xff\xff\xff\xffv", "longer than"),
        (b"\x04Name\x00\x00\x00\x01v\x04", "ends inside"),
        (b"\x08Identity\x00\x00\x00\x00" * 2, "twice"),
        (b"\x0bSocket-Type\x00\x00\x00\x00\x0bsocket-type\x00\x00\x00\x00", "twice"),
        (b"\xff" * 300, "longer than"),
    ],
    ids=[
        "one zero",
        "empty name",
        "cut in the name",
        "no size",
        "cut in the size",
        "value too short",
        "size of 2^31-1",
        "size of 2^32-1",
        "second one cut off",
        "two identities",
        "two types, in another case",
        "all ff",
    ],
)
def test_malformed_properties(body, reason):
    with pytest.raises(RemoteProtocolError, match=reason):
        command.parse_properties(body)


@pytest.mark.parametrize("name", [b"x-a b", b"x-a:b", b"x-\xc3\xa4", b"x-\0", b"x" * 255])
def test_a_peer_names_its_own_properties_as_it_likes(name):
    """ZMQ_METADATA of libzmq only wants "X-" in front."""
    assert command.parse_properties(bytes((len(name),)) + name + b"\x00\x00\x00\x01v") == {name: b"v"}


def test_of_a_property_that_comes_twice_the_first_counts():
    """libzmq's users may give names that differ by case alone."""
    body = b"\x03X-a\x00\x00\x00\x011\x03X-A\x00\x00\x00\x012\x03x-b\x00\x00\x00\x00"
    assert command.parse_properties(body) == {b"x-a": b"1", b"x-b": b""}


@pytest.mark.parametrize(("body", "reason"), [(b"\x02400", b"40"), (b"\x00no", b""), (b"\x03no!\0", b"no!")])
def test_what_follows_the_reason_of_an_error_is_ignored(body, reason):
    assert command.parse_traffic_command(b"\x05ERROR" + body) == command.Error(reason)


def test_every_cut_through_properties_is_refused_except_between_two():
    first = command.encode_properties({b"Socket-Type": b"REQ"})
    whole = first + command.encode_properties({b"Identity": b"me"})
    good = {0, len(first), len(whole)}
    for cut in range(len(whole) + 1):
        if cut in good:
            assert len(command.parse_properties(whole[:cut])) == sorted(good).index(cut)
        else:
            with pytest.raises(RemoteProtocolError):
                command.parse_properties(whole[:cut])


def test_properties_are_bounded():
    body = command.encode_properties({b"a": b"x" * 94})
    assert command.parse_properties(body, limit=100) == {b"a": b"x" * 94}
    with pytest.raises(RemoteProtocolError, match="100 bytes: at most 99"):
        command.parse_properties(body, limit=99)
    with pytest.raises(RemoteProtocolError, match="at most 65536"):
        command.parse_properties(command.encode_properties({b"a": b"x" * 65_531}))
    assert len(command.parse_properties(command.encode_properties({b"a": b"x" * 65_530}))) == 1


def test_quoted_is_printable_and_bounded():
    assert command.quoted(b"plain") == "'plain'"
    assert command.quoted(b"it's \x1b\xff") == '"it\'s \\x1b\\xff"'
    assert command.quoted(b"x" * 101) == "'" + "x" * 100 + "'... (101 bytes)"
    assert command.quoted(b"x" * 9, 3) == "'xxx'... (9 bytes)"
    assert len(command.quoted(bytes(10**6))) < 450
