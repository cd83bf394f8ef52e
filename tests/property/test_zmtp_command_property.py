from hypothesis import example, given
from hypothesis import strategies as st

from omq._core.wire.framing import FrameDecoder
from omq.errors import RemoteProtocolError
from omq.zmtp import command
from omq.zmtp.command import Cancel, Command, Error, Join, Leave, Ping, Pong, Subscribe
from tests.support.hypothesis_profiles import examples

letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
names = st.text(letters, min_size=1, max_size=255).map(str.encode)
property_names = st.text(letters + "0123456789-_.+", min_size=1, max_size=255).map(str.encode)
groups = st.binary(max_size=255).map(lambda group: group.replace(b"\0", b"0"))
reasons = st.text([chr(code) for code in range(0x21, 0x7F)], max_size=255).map(str.encode)
contexts = st.binary(max_size=16)

TRAFFIC = (
    st.builds(Ping, st.integers(0, 65535), contexts)
    | st.builds(Pong, contexts)
    | st.builds(Subscribe, st.binary(max_size=400))
    | st.builds(Cancel, st.binary(max_size=400))
    | st.builds(Join, groups)
    | st.builds(Leave, groups)
    | st.builds(Error, reasons)
)


def encode(value: command.TrafficCommand) -> bytes:
    match value:
        case Ping(ttl, context):
            return command.ping(ttl, context)
        case Pong(context):
            return command.pong(context)
        case Subscribe(prefix):
            return command.subscribe(prefix)
        case Cancel(prefix):
            return command.cancel(prefix)
        case Join(group):
            return command.join(group)
        case Leave(group):
            return command.leave(group)
        case Error(reason):
            return command.error(reason)
        case Command(name, body):
            return command.encode_command(name, body)


def body_of(frame: bytes) -> bytes:
    decoder = FrameDecoder()
    decoder.feed(frame)
    taken = decoder.next_frame()
    assert taken is not None
    assert taken[0] == 4
    assert decoder.unread == b""
    return taken[1]


@examples(100)
@given(TRAFFIC)
def test_every_command_comes_back(value):
    assert command.parse_traffic_command(body_of(encode(value))) == value


@examples(50)
@given(names, st.binary(max_size=400))
def test_every_name_comes_back(name, body):
    assert command.parse_command(body_of(command.encode_command(name, body))) == Command(name, body)


@examples(100)
@given(st.binary(max_size=300))
@example(b"\x04PING\x00")
@example(b"\x05ERROR\xff")
def test_any_body_is_a_command_or_the_peers_fault(body):
    text = ""
    try:
        value = command.parse_traffic_command(body)
    except RemoteProtocolError as error:
        text = str(error)
    else:
        assert body[0] >= 1
        assert isinstance(value, command.TrafficCommand)
    assert text.isprintable()
    assert len(text) < 1500


@examples(75)
@given(TRAFFIC, st.data())
def test_a_damaged_command_is_read_or_refused(value, data):
    body = bytearray(body_of(encode(value)))
    at = data.draw(st.integers(0, len(body) - 1))
    body[at] = data.draw(st.integers(0, 255))
    try:
        read = command.parse_traffic_command(bytes(body))
    except RemoteProtocolError:
        return
    # What was read is what was there: the name and the data account for every octet, apart from those after a reason.
    if not isinstance(read, Error):
        assert body_of(encode(read)) == bytes(body)
    else:
        assert body.startswith(b"\x05ERROR" + bytes((len(read.reason),)) + read.reason)


@examples(75)
@given(st.lists(st.tuples(property_names, st.binary(max_size=300)), max_size=8, unique_by=lambda pair: pair[0].lower()))
def test_properties_come_back_in_lower_case_and_in_order(pairs):
    parsed = command.parse_properties(command.encode_properties(dict(pairs)))
    assert list(parsed.items()) == [(name.lower(), value) for name, value in pairs]


@examples(100)
@given(
    st.dictionaries(property_names, st.binary(max_size=20), min_size=1, max_size=3).filter(
        lambda properties: len({name.lower() for name in properties}) == len(properties)
    ),
    st.data(),
)
def test_damaged_properties_are_read_completely_or_refused(properties, data):
    body = bytearray(command.encode_properties(properties))
    at = data.draw(st.integers(0, len(body) - 1))
    body[at] = data.draw(st.integers(0, 255))
    try:
        parsed = command.parse_properties(bytes(body))
    except RemoteProtocolError:
        return
    # Names may differ in case, and not come twice; apart from that, what was read is what was there.
    for name, value in parsed.items():
        assert (bytes((len(name),)) + name + len(value).to_bytes(4, "big") + value).lower() in bytes(body).lower()
    assert sum(5 + len(name) + len(value) for name, value in parsed.items()) <= len(body)


@examples(100)
@given(st.binary(max_size=200))
def test_any_metadata_are_properties_or_the_peers_fault(body):
    try:
        parsed = command.parse_properties(body)
    except RemoteProtocolError:
        return
    assert sum(5 + len(name) + len(value) for name, value in parsed.items()) <= len(body)
