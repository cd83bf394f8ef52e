"""Commands and frames, byte for byte, and the protocol state of both sides without a connection."""

import pytest

from omq.broker.errors import SyntaxFault, VersionFault
from omq.broker.sexp.protocol import (
    Ack,
    Connect,
    Create,
    Created,
    Error,
    Message,
    Ping,
    Pings,
    Publish,
    Published,
    SexpClientProtocol,
    SexpServerProtocol,
    Subscribe,
    Subscribed,
    Unsubscribe,
    Unsubscribed,
    read_command,
    read_frame,
    write_command,
    write_frame,
)
from omq.broker.sexp.syntax import parse
from omq.broker.start_time import StartTime

COMMANDS = [
    (b"(Connect 1 client-7)", Connect(1, b"client-7")),
    (b"(Subscribe prices From_beginning)", Subscribe(b"prices", "earliest")),
    (b'(Subscribe "my topic" (From_message 42))', Subscribe(b"my topic", 42)),
    (b"(Subscribe t From_current)", Subscribe(b"t", "latest")),
    (b"(Subscribe t (From_time 1372682096.012345))", Subscribe(b"t", StartTime(1372682096_012345))),
    (b"(Unsubscribe prices)", Unsubscribe(b"prices")),
    (b"(Ack 1385226000)", Ack(1385226000)),
    (b'(Publish prices "AAPL 189.95")', Publish(b"prices", b"AAPL 189.95")),
    (b"(Create t Broadcast (Persistent Strong))", Create(b"t", "broadcast", "strong")),
    (b"(Create t Broadcast (Persistent Weak))", Create(b"t", "broadcast", "weak")),
    (b"(Create t Broadcast (Persistent Async))", Create(b"t", "broadcast", "async")),
    (b"(Create t Round_robin Transient)", Create(b"t", "round-robin", "transient")),
]

ALSO_READ = [
    (b"(connect 1 c)", Connect(1, b"c")),
    (b'("Connect" "1" "c")', Connect(1, b"c")),
    (b"(subscribe t from_beginning)", Subscribe(b"t", "earliest")),
    (b"(subscribe t(from_message 7))", Subscribe(b"t", 7)),
    (b"(Subscribe t (From_message 0007))", Subscribe(b"t", 7)),
    (b"(Subscribe t (From_message " + b"9" * 5000 + b"))", Subscribe(b"t", 1 << 64)),
    (b"(subscribe t (from_time 1372682096))", Subscribe(b"t", StartTime(1372682096_000000))),
    (b"(Subscribe t (From_time (2013-07-01 12:34:56.5Z)))", Subscribe(b"t", StartTime(1372682096_500000))),
    (b"(Subscribe t (From_time (2013-07-01 14:34:56+02:00)))", Subscribe(b"t", StartTime(1372682096_000000))),
    (b"(create t round_robin (persistent strong))", Create(b"t", "round-robin", "strong")),
    (b"(Ack 1372682096.123456)", Ack(1372682096.123456)),
    (b"(Ack 1372682096.)", Ack(1372682096.0)),
    (b"(Ack 1.372682096e9)", Ack(1372682096.0)),
    (b"(Ack (2013-07-01 12:34:56.123456Z))", Ack(1372682096.123456)),
    (b"(Ack (2013-07-01 12:34:56Z))", Ack(1372682096.0)),
    (b"(Ack (2013-07-01 14:34:56.5+02:00))", Ack(1372682096.5)),
    (b"(Ack (2013-07-01 08:34:56-04:00))", Ack(1372682096.0)),
    (b'(Ack "2013-07-01 12:34:56.123456Z")', Ack(1372682096.123456)),
    (b"(Ack 2013-07-01T12:34:56Z)", Ack(1372682096.0)),
]

NO_COMMANDS = [
    b"hello",
    b"()",
    b"((Connect) 1 c)",
    b"(Hello)",
    b"(CONNECT 1 c)",
    b"(Connect 1)",
    b"(Connect 1 c d)",
    b"(Connect one c)",
    b"(Connect 1 (c))",
    b"(Connect -1 c)",
    b"(Subscribe t)",
    b"(Subscribe t From_here)",
    b"(Subscribe t (From_beginning))",
    b"(Subscribe t (From_current))",
    b"(Subscribe t From_message)",
    b"(Subscribe t (From_message))",
    b"(Subscribe t (From_message -1))",
    b"(Subscribe t (From_message 1 2))",
    b"(Subscribe t From_time)",
    b"(Subscribe t (From_time))",
    b"(Subscribe t (From_time yesterday))",
    b"(Subscribe t (From_time -1))",
    b"(Subscribe t (From_time 1 2))",
    b"(Subscribe (t) From_current)",
    b"(Unsubscribe)",
    b"(Unsubscribe t From_current)",
    b"(Ack)",
    b"(Ack yesterday)",
    b"(Ack nan)",
    b"(Ack (2013-13-01 12:34:56Z))",
    b"(Ack (2013-07-01))",
    b"(Ack ())",
    b"(Publish t)",
    b"(Publish t (a))",
    b"(Create t)",
    b"(Create t Broadcast Strong)",
    b"(Create t Broadcast (Transient))",
    b"(Create t Broadcast (Persistent (Strong)))",
    b"(Create t (Broadcast) Transient)",
    b"(Create t Everybody Transient)",
]

FRAMES = [
    (Error("no"), b"\x00\x00\x00\x03\x00no"),
    (Ping(0x51D177F0), b"\x00\x00\x00\x05\x01\x51\xd1\x77\xf0"),
    (
        Message(42, 3, b"AAPL"),
        b"\x00\x00\x00\x11\x02\x00\x00\x00\x00\x00\x00\x00\x2a\x00\x00\x00\x03AAPL",
    ),
    (Message(1, 3, b""), b"\x00\x00\x00\x0d\x02\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x03"),
    (Subscribed(3, b"prices"), b"\x00\x00\x00\x17\x03((id 3)(topic prices))"),
    (Unsubscribed(3, b"my topic"), b'\x00\x00\x00\x1b\x04((id 3)(topic "my topic"))'),
    (Published(42, 3), b"\x00\x00\x00\x0d\x05\x00\x00\x00\x00\x00\x00\x00\x2a\x00\x00\x00\x03"),
    (Created(3, b"prices"), b"\x00\x00\x00\x17\x06((id 3)(topic prices))"),
]


@pytest.mark.parametrize(("text", "command"), COMMANDS, ids=repr)
def test_commands(text, command):
    assert read_command(parse(text), 2) == command
    assert write_command(command) == text + b"\n"


@pytest.mark.parametrize("replay", ["beginning", None, 1.5])
def test_a_replay_that_no_command_can_have_is_named(replay):
    with pytest.raises(ValueError, match=f"^replay={replay!r}: must be "):
        write_command(Subscribe(b"t", replay))


@pytest.mark.parametrize(("text", "command"), ALSO_READ, ids=[repr(text[:40]) for text, _ in ALSO_READ])
def test_commands_that_are_also_read(text, command):
    assert read_command(parse(text), 2) == command


@pytest.mark.parametrize("text", NO_COMMANDS, ids=repr)
def test_no_commands(text):
    with pytest.raises(SyntaxFault):
        read_command(parse(text), 2)


@pytest.mark.parametrize("text", [b"(Publish t a)", b"(Create t Broadcast Transient)", b"(Publish)"])
def test_version_1_has_no_publish_and_no_create(text):
    with pytest.raises(SyntaxFault, match="not a command of version 1"):
        read_command(parse(text), 1)


@pytest.mark.parametrize(("frame", "data"), FRAMES, ids=repr)
def test_frames(frame, data):
    assert write_frame(frame) == data
    assert read_frame(data[4], data[5:]) == frame


@pytest.mark.parametrize(
    "record",
    [
        b"((topic prices)(id 3))",
        b'( (id 3) (topic"prices") )',
        b"; c\n((id 3) #; x (topic prices))",
        b"((id 3)(topic prices))\n",
    ],
)
def test_records_in_any_order(record):
    assert read_frame(3, record) == Subscribed(3, b"prices")


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (1, b"abc"),
        (2, b"too short"),
        (5, b""),
        (7, b""),
        (3, b""),
        (3, b"prices"),
        (3, b"((id 3))"),
        (3, b"((id 3)(topic a)(topic b))"),
        (3, b"((id 3)(topic a)(more b))"),
        (3, b"((id x)(topic a))"),
        (3, b"((id 3)(topic a)"),
        (3, b"((id 3)(topic a)) more"),
    ],
)
def test_no_frames(kind, payload):
    with pytest.raises(SyntaxFault):
        read_frame(kind, payload)


V1 = b"\x00\x00\x00\x00\x00\x00\x00\x01"
V2 = b"\x00\x00\x00\x00\x00\x00\x00\x02"


@pytest.mark.parametrize(("version_bytes", "version"), [(V1, 1), (V2, 2)])
def test_the_handshake_of_a_server(version_bytes, version):
    side = SexpServerProtocol()
    assert side.handshake(version_bytes + b"(Conn") == (version_bytes, b"(Conn")
    assert side.version == version


def test_the_handshake_byte_by_byte():
    side = SexpServerProtocol()
    for byte in V1[:-1]:
        assert side.handshake(bytes([byte])) == (b"", b"")
    assert side.handshake(V1[-1:]) == (V1, b"")


@pytest.mark.parametrize("start", [bytes(8), b"\xff" * 8, b"GET / HTTP/1.1", b"\x00\x00\x00\x00\x00\x00\x00\x03"])
def test_no_version_of_a_server(start):
    with pytest.raises(VersionFault):
        SexpServerProtocol().handshake(start)


def connected(version: bytes = V1) -> SexpServerProtocol:
    side = SexpServerProtocol()
    side.handshake(version)
    return side


def test_connect_comes_first_and_once():
    side = connected()
    assert list(side.commands(b"(Connect 1 c)(Subscribe t From_current)\n")) == [
        Connect(1, b"c"),
        Subscribe(b"t", "latest"),
    ]
    with pytest.raises(SyntaxFault, match="sent only once"):
        list(side.commands(b"(Connect 1 c)"))


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (b"(Ack 1)", "first command must be Connect"),
        (b"(Connect 2 c)", "the handshake had 1"),
        (b'(Connect 1 "")', "must not be empty"),
        (b"(Hello)", "not a command"),
        (b")", "unexpected closing"),
    ],
)
def test_invalid_first_bytes_are_refused(text, fault):
    with pytest.raises(SyntaxFault, match=fault):
        list(connected().commands(text))


def test_a_client_parses_frames_in_pieces_of_any_size():
    data = V2 + b"".join(data for _, data in FRAMES)
    for size in (1, 2, 3, 7, 1000):
        side = SexpClientProtocol(b"c")
        assert side.hello() == V2
        assert side.connect() == b"(Connect 2 c)\n"
        found = [frame for at in range(0, len(data), size) for frame in side.receive(data[at : at + size])]
        assert found == [frame for frame, _ in FRAMES]
        assert side.agreed


def test_a_client_of_another_version():
    with pytest.raises(VersionFault):
        list(SexpClientProtocol(b"c", 1).receive(b"\xff" * 8))


@pytest.mark.parametrize("length", [b"\x00\x00\x00\x00", b"\xff\xff\xff\xff"])
def test_no_length_of_a_frame(length):
    side = SexpClientProtocol(b"c", 1)
    with pytest.raises(SyntaxFault):
        list(side.receive(V1 + length))


def test_two_pings_without_an_answer():
    pings, queued = Pings(), 0
    for time in (25, 50):
        ping = pings.next(time, queued, queued)
        assert ping == write_frame(Ping(time))
        queued += len(ping)
        pings.sent(queued)
    assert pings.next(75, queued, queued) is None


def test_an_answer_answers_the_pings_before_it():
    pings, queued = Pings(), 0
    for time in range(25, 1000, 25):
        ping = pings.next(time, queued, queued)
        assert ping is not None
        queued += len(ping)
        pings.sent(queued)
        if time % 50 == 0:
            pings.ack(time + 0.25)
    pings.ack(10)  # of a ping that was never sent
    assert pings.next(1000, queued, queued) is not None
    pings.sent(queued + 9)
    assert pings.next(1025, queued + 9, queued + 9) is None


def test_a_ping_that_waits_is_not_missed():
    pings, queued, written = Pings(), 1_000_000, 0
    for time in range(25, 500, 25):
        written += 1000  # a slow reader
        ping = pings.next(time, queued, written)
        assert ping is not None
        queued += len(ping)
        pings.sent(written)


def test_a_client_that_reads_nothing_is_dead():
    pings = Pings()
    assert pings.next(25, 1000, 500) is not None
    pings.sent(500)
    assert pings.next(50, 1009, 500) is not None
    pings.sent(500)
    assert pings.next(75, 1018, 500) is None
