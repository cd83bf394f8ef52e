"""A peer may send what it likes: the handshake ends well, or by its fault, or waits; and it holds little."""

from dataclasses import dataclass
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from omq._core.wire.framing import encode_frame
from omq.errors import HandshakeError, RemoteProtocolError
from omq.types import COMPATIBLE, SocketType
from omq.zmtp.command import encode_command, error, ready
from omq.zmtp.greeting import Greeting
from omq.zmtp.handshake import MAX_HANDSHAKE_FRAME_BYTES, Handshake, HandshakeState, PeerMetadata
from omq.zmtp.null import Null
from tests.support.hypothesis_profiles import examples

TYPES = [kind for kind in SocketType if COMPATIBLE[kind]]

sockets = st.sampled_from(TYPES)
identities = st.binary(max_size=255)
cuts = st.lists(st.integers(0, 400), max_size=10)
frames = st.one_of(
    st.builds(encode_command, st.sampled_from([b"READY", b"ERROR", b"HELLO", b"PING"]), st.binary(max_size=60)),
    st.builds(encode_frame, st.binary(max_size=40), st.booleans(), st.booleans()).filter(lambda f: f[0] != 5),
    st.builds(lambda kind: ready({b"Socket-Type": kind.value.encode()}), sockets),
    st.just(error(b"400")),
    st.binary(max_size=20),
)


@dataclass
class Outcome:
    """The end of a handshake; `raised` and `failure` are the reasons if it failed."""

    state: HandshakeState
    raised: type[Exception] | None
    failure: bytes
    peer: PeerMetadata | None
    rest: bytes


def chunked(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


def run(ours: SocketType, chunks: list[bytes], ask: bool = False) -> Outcome:
    """Feeds everything; any exception but the peer's faults escapes, and with it the test fails."""
    handshake = Handshake(socket_type=ours, mechanism=Null(ask=ask))
    handshake.start()
    raised, text, rest = None, "", b""
    for chunk in chunks:
        if raised is not None or handshake.done:
            rest += chunk
            continue
        try:
            handshake.receive(chunk)
            if handshake.question is not None:
                handshake.answer()
        except (RemoteProtocolError, HandshakeError) as failure:
            raised, text = type(failure), str(failure)
        assert text.isprintable()
        assert (raised is not None) == (handshake.state is HandshakeState.FAILED)
        assert handshake.done or len(handshake.unread) <= MAX_HANDSHAKE_FRAME_BYTES + 9 + len(chunk)
    peer = handshake.peer if handshake.done else None
    rest = handshake.unread + rest if handshake.done else b""
    return Outcome(handshake.state, raised, handshake.failure(), peer, rest)


@examples(50)
@given(st.data(), identities, st.binary(max_size=60), cuts, st.booleans())
def test_a_good_peer_gets_through_however_its_bytes_are_cut(data, identity, traffic, cuts, ask):
    ours = data.draw(sockets)
    theirs = data.draw(st.sampled_from(sorted(COMPATIBLE[ours], key=lambda kind: kind.value)))
    peer = Handshake(socket_type=theirs, mechanism=Null(), properties={b"Identity": identity})
    transcript = peer.start() + peer.receive(Greeting((3, 1), b"NULL", False).encode())
    outcome = run(ours, chunked(transcript + traffic, cuts), ask)
    assert outcome.state is HandshakeState.DONE
    assert outcome.raised is None
    assert outcome.rest == traffic
    assert outcome.peer is not None
    assert outcome.peer.socket_type is theirs
    assert outcome.peer.properties == {b"socket-type": theirs.value.encode(), b"identity": identity}


@examples(100)
@given(
    sockets,
    st.lists(
        st.tuples(st.sampled_from(["set", "delete", "insert"]), st.integers(0, 120), st.integers(0, 255)),
        min_size=1,
        max_size=4,
    ),
    cuts,
)
def test_a_damaged_transcript_ends_alike_however_it_is_cut(theirs, changes, cuts):
    ours = min(COMPATIBLE[theirs], key=lambda kind: kind.value)
    transcript = bytearray(
        Greeting((3, 1), b"NULL", False).encode()
        + ready({b"Socket-Type": theirs.value.encode(), b"Identity": b"me"})
        + encode_frame(b"traffic")
    )
    for change, at, octet in changes:
        at %= len(transcript)
        if change == "set":
            transcript[at] = octet
        elif change == "delete":
            del transcript[at]
        else:
            transcript.insert(at, octet)
    assert run(ours, chunked(bytes(transcript), cuts)) == run(ours, [bytes(transcript)])


@examples(100)
@given(sockets, st.lists(frames, max_size=5), cuts, st.booleans())
def test_any_frames_after_a_good_greeting_end_alike_however_they_are_cut(ours, sent, cuts, ask):
    data = Greeting((3, 1), b"NULL", False).encode() + b"".join(sent)
    whole = run(ours, [data], ask)
    assert run(ours, chunked(data, cuts), ask) == whole
    if whole.state is HandshakeState.DONE:
        assert whole.peer is not None
        assert whole.peer.socket_type in COMPATIBLE[ours]


@examples(50)
@given(sockets, st.binary(max_size=300), cuts)
def test_garbage_ends_alike_however_it_is_cut(ours, data, cuts):
    assert run(ours, chunked(data, cuts)) == run(ours, [data])


@examples(20)
@given(
    st.binary(min_size=9, max_size=9),
    st.integers(1, 40_000),
    st.booleans(),
)
def test_an_endless_peer_is_cut_off_before_it_costs_memory(head, size, ask):
    handshake = Handshake(socket_type=SocketType.PULL, mechanism=Null(ask=ask))
    handshake.start()
    handshake.receive(Greeting((3, 1), b"NULL", False).encode())
    chunk = b"\x06" + (MAX_HANDSHAKE_FRAME_BYTES).to_bytes(8, "big") + b"x" * size
    sent = 0
    try:
        handshake.receive(head)
        while sent <= 2 * MAX_HANDSHAKE_FRAME_BYTES:
            sent += len(chunk)
            handshake.receive(chunk)
            assert len(handshake.unread) <= MAX_HANDSHAKE_FRAME_BYTES + 9
    except (RemoteProtocolError, HandshakeError):
        assert handshake.state is HandshakeState.FAILED
        assert len(handshake.unread) <= MAX_HANDSHAKE_FRAME_BYTES + 9 + len(chunk)
    else:
        raise AssertionError("nothing stopped it")
