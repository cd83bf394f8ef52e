"""Both sides of the S-expressions' protocol: what one writes the other reads, and nothing else gets through."""

from hypothesis import given, settings
from hypothesis import strategies as st

from omq.broker.errors import SyntaxFault, VersionFault
from omq.broker.sexp.protocol import (
    Ack,
    Connect,
    Create,
    Created,
    Error,
    Message,
    Ping,
    Publish,
    Published,
    SexpClientProtocol,
    SexpServerProtocol,
    Subscribe,
    Subscribed,
    Unsubscribe,
    Unsubscribed,
    read_frame,
    write_command,
    write_frame,
)
from omq.broker.sexp.syntax import encode

NAMES = st.binary(max_size=20)
REPLAYS = st.one_of(st.sampled_from(["earliest", "latest"]), st.integers(0, 2**62))
COMMANDS = st.one_of(
    st.builds(Subscribe, NAMES, REPLAYS),
    st.builds(Unsubscribe, NAMES),
    st.builds(Ack, st.one_of(st.integers(0, 2**32), st.floats(0, 2**32, allow_nan=False).map(lambda at: round(at, 6)))),
    st.builds(Publish, NAMES, st.binary(max_size=50)),
    st.builds(
        Create,
        NAMES,
        st.sampled_from(["broadcast", "round-robin"]),
        st.sampled_from(["transient", "strong", "weak", "async"]),
    ),
)
IDS = st.integers(0, 2**62 - 1)
TOPIC_IDS = st.integers(0, 2**32 - 1)
FRAMES = st.one_of(
    st.builds(Error, st.text(st.characters(exclude_categories=["Cs"]), max_size=20)),
    st.builds(Ping, TOPIC_IDS),
    st.builds(Message, IDS, TOPIC_IDS, st.binary(max_size=50)),
    st.builds(Published, IDS, TOPIC_IDS),
    *(st.builds(kind, TOPIC_IDS, NAMES) for kind in (Subscribed, Unsubscribed, Created)),
)
SIZES = st.integers(1, 50)


#: Frames that can be written in several ways; what is no UTF-8 in an error's text is replaced.
RECORDS = (Subscribed, Unsubscribed, Created, Error)


def cut(frame: bytes) -> tuple[int, bytes]:
    """Type and payload."""
    return frame[4], frame[5:]


def pieces(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


@settings(deadline=None)
@given(st.lists(COMMANDS, max_size=8), SIZES, st.sampled_from([b"", b"; a comment\n"]))
def test_a_server_reads_what_a_client_writes(commands, size, between):
    client = SexpClientProtocol(b"c")
    data = client.hello() + client.connect() + between.join(map(write_command, commands))
    server, found = SexpServerProtocol(), []
    for piece in pieces(data, size):
        if not server.version:
            _, piece = server.handshake(piece)
        found += server.commands(piece)
    assert found == [Connect(2, b"c"), *commands]


@settings(deadline=None)
@given(st.lists(FRAMES, max_size=8), SIZES)
def test_a_client_reads_what_a_server_writes(frames, size):
    client = SexpClientProtocol(b"c")
    data = client.hello() + b"".join(map(write_frame, frames))
    assert [frame for piece in pieces(data, size) for frame in client.receive(piece)] == frames


WORDS = st.one_of(
    st.sampled_from(
        [b"Connect", b"Subscribe", b"Unsubscribe", b"Ack", b"Publish", b"Create", b"c", b"t", b"", b"\xff"]
    ),
    st.sampled_from([b"From_message", b"From_current", b"From_beginning", b"From_time"]),
    st.sampled_from([b"Broadcast", b"Transient", b"Persistent"]),
    st.sampled_from([b"Strong", b"1", b"-1", b"2", b"9" * 400, b"0.", b"1e99", b"inf"]),
    st.sampled_from([b"2013-07-01", b"12:34:56Z", b"2013-07-01 99:99:99Z", b"0000-01-01 00:00:00Z"]),
)
EXPRESSIONS = st.recursive(WORDS, lambda inner: st.lists(inner, max_size=4), max_leaves=8)


@settings(max_examples=150, deadline=None)
@given(st.lists(EXPRESSIONS, max_size=4), st.sampled_from([1, 2]))
def test_any_expressions_are_commands_or_the_one_fault(expressions, version):
    server = SexpServerProtocol()
    server.handshake(version.to_bytes(8, "big"))
    try:
        for command in server.commands(b"(Connect %d c)" % version + b"\n".join(map(encode, expressions)) + b"\n"):
            assert isinstance(command, Connect | Subscribe | Unsubscribe | Ack | Publish | Create)
    except SyntaxFault:
        pass


@settings(deadline=None)
@given(st.binary(max_size=30), SIZES)
def test_any_bytes_are_frames_or_the_one_fault(data, size):
    client = SexpClientProtocol(b"c")
    try:
        found = [frame for piece in pieces(client.hello() + data, size) for frame in client.receive(piece)]
    except SyntaxFault:
        return
    assert data.startswith(b"".join(map(write_frame, found))) or any(isinstance(one, RECORDS) for one in found)


@settings(deadline=None)
@given(st.integers(0, 7), st.one_of(st.binary(max_size=20), EXPRESSIONS.map(encode)))
def test_any_payload_is_a_frame_or_the_one_fault(kind, payload):
    try:
        frame = read_frame(kind, payload)
    except SyntaxFault:
        return
    assert read_frame(*cut(write_frame(frame))) == frame


@settings(deadline=None)
@given(st.binary(min_size=8, max_size=12))
def test_any_version_is_spoken_or_refused(data):
    server = SexpServerProtocol()
    try:
        answer, rest = server.handshake(data)
    except VersionFault:
        assert int.from_bytes(data[:8], "big", signed=True) not in (1, 2)
    else:
        assert answer + rest == data
