import pytest

from omq._core.wire.framing import encode_frame
from omq.errors import (
    AuthenticationError,
    HandshakeError,
    LocalProtocolError,
    MechanismError,
    RemoteProtocolError,
)
from omq.types import COMPATIBLE, SocketType
from omq.zmtp.command import (
    MAX_PROPERTIES_BYTES,
    encode_command,
    error,
    ready,
    subscribe,
)
from omq.zmtp.greeting import Greeting
from omq.zmtp.handshake import (
    MAX_HANDSHAKE_FRAME_BYTES,
    TRANSITIONS,
    Handshake,
    HandshakeEvent,
    HandshakeState,
    PeerMetadata,
)
from omq.zmtp.mechanism import Question
from omq.zmtp.null import Null

S = HandshakeState
E = HandshakeEvent

GREETING = Greeting((3, 1), b"NULL", False).encode()
ROUTER = ready({b"Socket-Type": b"ROUTER", b"X-Colour": b"blue"})
PEER = PeerMetadata(
    version=(3, 1),
    socket_type=SocketType.ROUTER,
    identity=b"",
    mechanism=b"NULL",
    properties={b"socket-type": b"ROUTER", b"x-colour": b"blue"},
)


def dealer(**how) -> Handshake:
    handshake = Handshake(socket_type=SocketType.DEALER, mechanism=Null(**how))
    handshake.start()
    return handshake


def greeted(**how) -> Handshake:
    handshake = dealer(**how)
    handshake.receive(GREETING)
    return handshake


def in_state(state: HandshakeState) -> Handshake:
    """A handshake that came to the state by what a peer and an engine can do."""
    if state is S.NEW:
        return Handshake(socket_type=SocketType.DEALER, mechanism=Null())
    handshake = dealer(ask=state is S.ASKING)
    if state is S.FAILED:
        with pytest.raises(RemoteProtocolError):
            handshake.receive(b"no")
    elif state is not S.GREETING:
        handshake.receive(GREETING)
        if state is S.DONE:
            handshake.receive(ROUTER)
    assert handshake.state is state
    return handshake


# --- the way that it should go --------------------------------------------------------------------


def test_two_of_ours_agree():
    left = Handshake(
        socket_type=SocketType.DEALER,
        mechanism=Null(),
        properties={b"Identity": b"me", b"X-Colour": b"blue"},
    )
    right = Handshake(socket_type=SocketType.ROUTER, mechanism=Null())
    to_right, to_left = left.start(), right.start()
    assert to_right == to_left == GREETING
    to_right, to_left = left.receive(to_left), right.receive(to_right)
    assert not left.done
    assert not right.done
    assert left.receive(to_left) == b""
    assert right.receive(to_right) == b""
    assert left.done
    assert right.done
    assert left.peer == PeerMetadata((3, 1), SocketType.ROUTER, b"", b"NULL", {b"socket-type": b"ROUTER"})
    assert right.peer == PeerMetadata(
        (3, 1),
        SocketType.DEALER,
        b"me",
        b"NULL",
        {b"socket-type": b"DEALER", b"identity": b"me", b"x-colour": b"blue"},
    )
    assert left.unread == right.unread == b""


def test_our_ready_is_the_answer_to_the_peers_whole_greeting():
    handshake = Handshake(
        socket_type=SocketType.DEALER, mechanism=Null(), properties={b"Identity": b"me", b"X-A": b"1"}
    )
    assert handshake.start() == GREETING
    assert handshake.receive(GREETING[:63]) == b""
    # libzmq knows "Socket-Type" and "Identity" in this spelling alone.
    assert handshake.receive(GREETING[63:]) == ready({b"Socket-Type": b"DEALER", b"Identity": b"me", b"X-A": b"1"})
    assert not handshake.done


def test_byte_by_byte_and_at_every_split_and_whole():
    transcript = GREETING + ROUTER
    traffic = encode_frame(b"hi") + subscribe(b"A")
    expected = ready({b"Socket-Type": b"DEALER"})
    pieces = [
        [transcript + traffic],
        *([transcript[:cut], transcript[cut:] + traffic] for cut in range(1, len(transcript))),
        [bytes((octet,)) for octet in transcript[:-1]] + [transcript[-1:] + traffic],
    ]
    for chunks in pieces:
        handshake = dealer()
        written = b""
        for chunk in chunks:
            assert not handshake.done
            written += handshake.receive(chunk)
        assert written == expected
        assert handshake.done
        assert handshake.peer == PEER
        assert handshake.unread == traffic


def test_an_empty_portion_changes_nothing():
    handshake = greeted()
    assert handshake.receive(b"") == b""
    handshake.receive(ROUTER)
    assert handshake.peer == PEER


@pytest.mark.parametrize("ours", SocketType, ids=lambda kind: kind.value)
def test_every_pair_of_socket_types(ours):
    if ours is SocketType.STREAM:
        with pytest.raises(LocalProtocolError, match="STREAM does not speak ZMTP"):
            Handshake(socket_type=ours, mechanism=Null())
        return
    for theirs in SocketType:
        handshake = Handshake(socket_type=ours, mechanism=Null())
        handshake.start()
        data = GREETING + ready({b"Socket-Type": theirs.value.encode()})
        if theirs in COMPATIBLE[ours]:
            handshake.receive(data)
            assert handshake.peer.socket_type is theirs
            assert handshake.failure() == b""
        else:
            with pytest.raises(RemoteProtocolError, match=f"{ours.value} and {theirs.value} are incompatible"):
                handshake.receive(data)
            reason = f"incompatible-socket-types:{ours.value},{theirs.value}".encode()
            assert handshake.failure() == error(reason)
            assert handshake.state is S.FAILED


@pytest.mark.parametrize(
    ("version", "by_command"), [((3, 0), False), ((3, 1), True), ((3, 2), True), ((4, 0), True)], ids=str
)
def test_the_version_decides_the_form_of_subscriptions(version, by_command):
    handshake = dealer()
    handshake.receive(Greeting(version, b"NULL", False).encode() + ROUTER)
    assert handshake.peer.version == version
    assert handshake.peer.subscribes_by_command is by_command


def test_as_server_has_no_significance_for_null():
    # RFC 23, Topology.
    handshake = dealer()
    handshake.receive(Greeting((3, 1), b"NULL", True).encode() + ROUTER)
    assert handshake.done


# --- the state machine ----------------------------------------------------------------------------


def test_the_table_names_every_state_and_leads_nowhere_else():
    assert set(TRANSITIONS) == set(S)
    assert {event for row in TRANSITIONS.values() for event in row} == set(E)
    assert TRANSITIONS[S.DONE] == TRANSITIONS[S.FAILED] == {}
    reached, left = {S.NEW}, [S.NEW]
    while left:
        for state in TRANSITIONS[left.pop()].values():
            if state not in reached:
                reached.add(state)
                left.append(state)
    assert reached == set(S)


@pytest.mark.parametrize("state", S, ids=lambda state: state.name)
@pytest.mark.parametrize("event", E, ids=lambda event: event.name)
def test_every_event_in_every_state(state, event):
    handshake = in_state(state)
    following = TRANSITIONS[state].get(event)
    if following is None:
        with pytest.raises(LocalProtocolError, match=f"cannot {event.name} in state {state.name}"):
            handshake._move(event)
        assert handshake.state is state
    else:
        handshake._move(event)
        assert handshake.state is following


@pytest.mark.parametrize("state", S, ids=lambda state: state.name)
@pytest.mark.parametrize("call", ["start", "receive", "answer"])
def test_calls_that_do_not_fit_the_state_are_the_callers_fault(state, call):
    handshake = in_state(state)
    fits = {
        "start": {S.NEW},
        "receive": {S.GREETING, S.SECURITY, S.ASKING},
        "answer": {S.ASKING},
    }[call]
    arguments = (b"",) if call == "receive" else ()
    if state in fits:
        assert isinstance(getattr(handshake, call)(*arguments), bytes)
    else:
        with pytest.raises(LocalProtocolError):
            getattr(handshake, call)(*arguments)
        assert handshake.state is state


@pytest.mark.parametrize("state", [state for state in S if state is not S.DONE], ids=lambda state: state.name)
def test_no_peer_before_it_is_done(state):
    with pytest.raises(LocalProtocolError, match="before the handshake is done"):
        _ = in_state(state).peer


def test_a_peer_that_failed_is_not_known():
    handshake = greeted()
    with pytest.raises(RemoteProtocolError):
        handshake.receive(ready({b"Socket-Type": b"PUB"}))
    with pytest.raises(LocalProtocolError):
        _ = handshake.peer


# --- what is refused: the greeting ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x01\x00", "ZMTP 1.0 peer"),
        (b"\xff" + bytes(8) + b"\x00", "ZMTP 1.0 peer"),
        (b"\xff" + bytes(8) + b"\x7f\x01\x05", "ZMTP 2.0 peer .* not supported"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "ZMTP 1.0 peer"),
    ],
    ids=["1.0", "1.0 long", "2.0", "ssh"],
)
def test_old_and_foreign_peers(data, reason):
    handshake = dealer()
    with pytest.raises(RemoteProtocolError, match=reason):
        handshake.receive(data)
    assert handshake.state is S.FAILED
    assert handshake.failure() == b""


@pytest.mark.parametrize("theirs", [b"PLAIN", b"CURVE", b"NULLX", b"NUL"], ids=lambda name: name.decode())
def test_another_mechanism_names_both(theirs):
    handshake = dealer()
    with pytest.raises(MechanismError, match=f"peer's mechanism is {theirs.decode()}, ours is NULL"):
        handshake.receive(Greeting((3, 1), theirs, False).encode() + ROUTER)
    assert handshake.state is S.FAILED
    assert handshake.failure() == b""
    assert handshake.unread == b""


# --- what is refused: frames ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (b"\x00\x00", "message before"),
        (b"\x00\x05hello", "message before"),
        (b"\x01\x00", "message before"),
        (b"\x00", "message before"),
        (b"\x02", "message before"),
        (b"\x02\x00\x00\x00\x00\x00\x00\x01", "message before"),
        (b"\x02" + b"\xff" * 8 + b"data", "not a ZMTP frame"),
        (b"\xff\xff\xff\xff\xff\xff\xff\xff\xda\x00" + b"A" * 5000, "not a ZMTP frame"),
        (b"\x08\x00", "not a ZMTP frame"),
        (b"\x05\x06\x05READY", "not a ZMTP frame"),
        (b"\x07", "not a ZMTP frame"),
        (b"\x04\x00", "proper name"),
        (b"\x04\x01\x00", "proper name"),
        (b"\x04\x06\x06READY", "proper name"),
        (b"\x04\x06\x05HELLO", "'HELLO' where NULL"),
        (encode_command(b"PING", b"\0\0"), "'PING' where NULL"),
        (b"\x04\x07\x05READY\x00", "metadata"),
        (b"\x06" + (1 << 40).to_bytes(8, "big"), "announces 1099511627776 bytes"),
        (b"\x06" + (MAX_HANDSHAKE_FRAME_BYTES + 1).to_bytes(8, "big"), "more than the 66560 allowed"),
        (b"\x06" + b"\x80" + bytes(7), "not a ZMTP frame"),
    ],
    ids=[
        "empty message",
        "message",
        "part of a message",
        "first octet of a message",
        "first octet of a long message",
        "half the header of a long message",
        "CVE-2019-6250",
        "size near 2^64",
        "reserved bit",
        "READY with MORE",
        "every bit",
        "empty command",
        "command with an empty name",
        "command cut off",
        "command of another mechanism",
        "command of the traffic",
        "malformed READY",
        "a terabyte announced",
        "one byte above the limit",
        "2^63",
    ],
)
def test_what_is_no_handshake(frame, reason):
    handshake = greeted()
    with pytest.raises(RemoteProtocolError, match=reason):
        handshake.receive(frame)
    assert handshake.state is S.FAILED
    assert handshake.failure() == b""


def test_a_frame_of_the_largest_size_is_waited_for():
    handshake = greeted()
    handshake.receive(b"\x06" + MAX_HANDSHAKE_FRAME_BYTES.to_bytes(8, "big"))
    assert handshake.state is S.SECURITY


def test_metadata_up_to_the_limit_are_taken():
    handshake = greeted()
    properties = {b"Socket-Type": b"ROUTER", b"X-Big": b"x" * 65_000}
    handshake.receive(ready(properties))
    assert handshake.peer.properties[b"x-big"] == b"x" * 65_000


# --- what is refused: metadata --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("properties", "message", "reason"),
    [
        ({}, "does not send its socket type", b"no-socket-type"),
        ({b"Socket-Type": b""}, "unknown socket type ''", b"unknown-socket-type"),
        ({b"Socket-Type": b"router"}, "unknown socket type 'router'", b"unknown-socket-type"),
        ({b"Socket-Type": b"DGRAM"}, "unknown socket type 'DGRAM'", b"unknown-socket-type"),
        ({b"Socket-Type": b"ROUTER\0"}, r"unknown socket type 'ROUTER\\x00'", b"unknown-socket-type"),
        ({b"Socket-Type": b"\x1b" * 60_000}, r"\(60000 bytes\)", b"unknown-socket-type"),
        (
            {b"Socket-Type": b"STREAM"},
            "DEALER and STREAM are incompatible",
            b"incompatible-socket-types:DEALER,STREAM",
        ),
        ({b"Socket-Type": b"ROUTER", b"Identity": b"i" * 256}, "has 256 bytes", b"invalid-identity"),
    ],
    ids=[
        "no type",
        "empty type",
        "lower case",
        "unknown type",
        "type with a tail",
        "type of 60000 bytes",
        "STREAM",
        "identity of 256 bytes",
    ],
)
def test_metadata_that_do_not_fit_are_answered_with_error(properties, message, reason):
    handshake = greeted()
    with pytest.raises(RemoteProtocolError, match=message) as caught:
        handshake.receive(ready(properties))
    assert len(str(caught.value)) < 600
    assert str(caught.value).isprintable()
    assert handshake.failure() == error(reason)
    assert handshake.failure() == error(reason), "asking twice gives the same"
    assert handshake.state is S.FAILED


@pytest.mark.parametrize("identity", [b"", b"i" * 255, b"a\0", b"\xff", b"\0", b"\0me", bytes(255)])
def test_identities_that_are_allowed(identity):
    """RFC 37 reserves a zero in front, libzmq does not refuse it: one random name of 256 has it."""
    Handshake(socket_type=SocketType.DEALER, mechanism=Null(), properties={b"Identity": identity})
    handshake = greeted()
    handshake.receive(ready({b"Socket-Type": b"ROUTER", b"IDENTITY": identity}))
    assert handshake.peer.identity == identity


def test_the_identity_of_a_type_that_has_none_is_ignored():
    # RFC 23, The Identity Property.
    handshake = Handshake(socket_type=SocketType.PULL, mechanism=Null())
    handshake.start()
    handshake.receive(GREETING + ready({b"Socket-Type": b"PUSH", b"Identity": b"\0" * 300}))
    assert handshake.peer.identity == b""
    assert handshake.peer.properties[b"identity"] == b"\0" * 300


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        ({b"Identity": b"i" * 256}, "the identity .* has 256 bytes"),
        ({b"Socket-Type": b"PUB"}, "cannot be set as a property"),
        ({b"SOCKET-TYPE": b"DEALER"}, "cannot be set as a property"),
        ({b"a b": b""}, "cannot be a property"),
        ({b"X-a": b"x" * (MAX_PROPERTIES_BYTES - 29)}, "the metadata have"),
    ],
    ids=["long identity", "type", "type in capitals", "bad name", "too large"],
)
def test_our_own_metadata_are_checked_before_anything_is_sent(properties, reason):
    with pytest.raises(LocalProtocolError, match=reason):
        Handshake(socket_type=SocketType.DEALER, mechanism=Null(), properties=properties)


def test_our_own_metadata_may_have_what_a_peer_like_us_takes():
    # 22 bytes of Socket-Type and 8 of X-a's name and sizes.
    ours = Handshake(
        socket_type=SocketType.DEALER, mechanism=Null(), properties={b"X-a": b"x" * (MAX_PROPERTIES_BYTES - 30)}
    )
    ours.start()
    handshake = dealer()
    handshake.receive(GREETING + ours.receive(GREETING))
    assert len(handshake.peer.properties[b"x-a"]) == MAX_PROPERTIES_BYTES - 30


def test_an_incompatible_peer_in_one_burst_never_gets_our_ready():
    # RFC 23, The NULL Security Mechanism: null = ready *message | error.
    handshake = dealer()
    with pytest.raises(RemoteProtocolError):
        handshake.receive(GREETING + ready({b"Socket-Type": b"PUB"}))
    assert handshake.failure() == error(b"incompatible-socket-types:DEALER,PUB")


def test_error_from_the_peer():
    handshake = greeted()
    with pytest.raises(HandshakeError, match=r"refused the handshake: 'incompatible\\n'") as caught:
        handshake.receive(encode_command(b"ERROR", b"\x0dincompatible\n"))
    assert not isinstance(caught.value, MechanismError)
    assert handshake.peer_error == b"incompatible\n"
    assert handshake.failure() == b""
    assert handshake.state is S.FAILED


def test_a_refusal_of_zap_is_an_authentication_error():
    handshake = greeted()
    with pytest.raises(AuthenticationError, match="'400'"):
        handshake.receive(error(b"400"))
    assert handshake.peer_error == b"400"


# --- questions ------------------------------------------------------------------------------------


def test_a_question_holds_everything_until_it_is_answered():
    handshake = dealer(ask=True)
    assert handshake.question is None
    assert handshake.receive(GREETING + ROUTER[:5]) == b""
    assert handshake.state is S.ASKING
    assert handshake.question == Question(b"NULL", ())
    assert handshake.receive(ROUTER[5:] + b"traffic") == b""
    assert not handshake.done
    assert handshake.answer() == ready({b"Socket-Type": b"DEALER"})
    assert handshake.question is None
    assert handshake.peer == PEER
    assert handshake.unread == b"traffic"


def test_an_answer_before_the_peers_ready():
    handshake = greeted(ask=True)
    assert handshake.answer(None) == ready({b"Socket-Type": b"DEALER"})
    assert handshake.state is S.SECURITY
    assert handshake.receive(ROUTER) == b""
    assert handshake.done


def test_a_refusal_fails_it():
    handshake = greeted(ask=True)
    handshake.receive(ROUTER)
    with pytest.raises(AuthenticationError, match="was refused"):
        handshake.answer(b"400")
    assert handshake.state is S.FAILED
    assert handshake.failure() == error(b"400")
    assert handshake.peer_error is None


def test_what_arrived_before_the_answer_is_judged_after_it():
    handshake = greeted(ask=True)
    assert handshake.receive(ready({b"Socket-Type": b"PUB"})) == b""
    with pytest.raises(RemoteProtocolError, match="incompatible"):
        handshake.answer()
    assert handshake.state is S.FAILED
    assert handshake.failure() == error(b"incompatible-socket-types:DEALER,PUB")


def test_a_peer_that_floods_before_it_is_let_in():
    handshake = greeted(ask=True)
    handshake.receive(b"x" * MAX_HANDSHAKE_FRAME_BYTES)
    with pytest.raises(RemoteProtocolError, match="before it is admitted"):
        handshake.receive(b"x")
    assert handshake.state is S.FAILED
    assert len(handshake.unread) == MAX_HANDSHAKE_FRAME_BYTES
