import pytest

from omq.errors import AuthenticationError, HandshakeError, LocalProtocolError, RemoteProtocolError
from omq.zmtp.command import Command, encode_properties, error, ready
from omq.zmtp.mechanism import Mechanism, Question
from omq.zmtp.null import Null, NullPhase

OURS = {b"Socket-Type": b"REQ"}
READY = Command(b"READY", encode_properties({b"Socket-Type": b"REP", b"X-Colour": b"blue"}))
ERROR = Command(b"ERROR", b"\x03400")


def in_phase(phase: NullPhase) -> Null:
    """A mechanism that came to the phase by what a peer and an engine can do."""
    mechanism = Null(ask=phase is NullPhase.ASKING)
    if phase is not NullPhase.START:
        mechanism.start(OURS)
    if phase is NullPhase.AGREED:
        mechanism.receive(READY)
    if phase is NullPhase.REFUSED:
        with pytest.raises(AuthenticationError):
            mechanism.receive(ERROR)
    assert mechanism.phase is phase
    return mechanism


def test_ready_goes_out_at_once_and_only_once():
    mechanism = in_phase(NullPhase.READY_SENT)
    assert mechanism.outgoing() == ready(OURS)
    assert mechanism.outgoing() == b""
    assert not mechanism.done


def test_ready_from_the_peer_completes_it():
    mechanism = in_phase(NullPhase.READY_SENT)
    mechanism.receive(READY)
    assert mechanism.done
    assert mechanism.phase is NullPhase.AGREED
    assert mechanism.peer_properties == {b"socket-type": b"REP", b"x-colour": b"blue"}
    assert mechanism.peer_error is None
    assert mechanism.failure() == b""


def test_the_table_has_every_phase():
    assert set(Null.steps) == set(NullPhase)


@pytest.mark.parametrize("phase", NullPhase, ids=lambda phase: phase.name)
@pytest.mark.parametrize("name", [b"READY", b"ERROR", b"HELLO", b"PING", b"SUBSCRIBE", b"ready"])
def test_every_command_in_every_phase(phase, name):
    mechanism = in_phase(phase)
    body = READY.body if name != b"ERROR" else ERROR.body
    allowed = {
        (NullPhase.READY_SENT, b"READY"): NullPhase.AGREED,
        (NullPhase.READY_SENT, b"ERROR"): NullPhase.REFUSED,
    }
    following = allowed.get((phase, name))
    if following is NullPhase.AGREED:
        mechanism.receive(Command(name, body))
    elif following is NullPhase.REFUSED:
        with pytest.raises(AuthenticationError, match="'400'"):
            mechanism.receive(Command(name, body))
    else:
        with pytest.raises(RemoteProtocolError, match=f"'{name.decode()}' where NULL .*{phase.name}"):
            mechanism.receive(Command(name, body))
    assert mechanism.phase is (following or phase)
    assert mechanism.done is (mechanism.phase is NullPhase.AGREED)


@pytest.mark.parametrize(
    "body",
    [b"\x00", b"\x0bSocket-Type\x00\x00\x00\x09REP", encode_properties({b"Identity": b"x"}) * 2],
    ids=["zero", "cut off", "twice"],
)
def test_malformed_ready_changes_nothing(body):
    mechanism = in_phase(NullPhase.READY_SENT)
    with pytest.raises(RemoteProtocolError):
        mechanism.receive(Command(b"READY", body))
    assert mechanism.phase is NullPhase.READY_SENT
    assert mechanism.peer_properties is None
    assert not mechanism.done


@pytest.mark.parametrize(
    ("reason", "kind", "shown"),
    [
        (b"300", AuthenticationError, "'300'"),
        (b"400", AuthenticationError, "'400'"),
        (b"500", AuthenticationError, "'500'"),
        (b"200", HandshakeError, "'200'"),
        (b"", HandshakeError, "''"),
        (b"incompatible", HandshakeError, "'incompatible'"),
        (b"\x1b[2J\r\nroot\xff", HandshakeError, r"'\\x1b\[2J\\r\\nroot\\xff'"),
        (b"\0" * 255, HandshakeError, r"'(\\x00){255}'"),
    ],
    ids=["300", "400", "500", "200", "empty", "a word", "terminal controls", "255 zeros"],
)
def test_the_peers_reason_is_reported_and_never_trusted(reason, kind, shown):
    mechanism = in_phase(NullPhase.READY_SENT)
    with pytest.raises(HandshakeError, match=f"refused the handshake: {shown}$") as caught:
        mechanism.receive(Command(b"ERROR", bytes((len(reason),)) + reason))
    assert type(caught.value) is kind
    assert str(caught.value).isprintable()
    assert mechanism.peer_error == reason
    assert mechanism.failure() == b""


@pytest.mark.parametrize("body", [b"", b"\x05400"], ids=["empty", "cut off"])
def test_malformed_error_is_the_peers_violation(body):
    mechanism = in_phase(NullPhase.READY_SENT)
    with pytest.raises(RemoteProtocolError, match="wrong length"):
        mechanism.receive(Command(b"ERROR", body))
    assert mechanism.peer_error is None


def test_a_question_holds_ready_back():
    mechanism = in_phase(NullPhase.ASKING)
    assert mechanism.question == Question(b"NULL", ())
    assert mechanism.outgoing() == b""
    mechanism.answer(None)
    assert mechanism.question is None
    assert mechanism.phase is NullPhase.READY_SENT
    assert mechanism.outgoing() == ready(OURS)


@pytest.mark.parametrize(
    ("refusal", "expected"), [(b"400", error(b"400")), (b"", b"")], ids=["with a reason", "without a word"]
)
def test_a_refusal_sends_no_ready(refusal, expected):
    mechanism = in_phase(NullPhase.ASKING)
    with pytest.raises(AuthenticationError, match="was refused"):
        mechanism.answer(refusal)
    assert mechanism.outgoing() == b""
    assert mechanism.failure() == expected
    assert not mechanism.done


@pytest.mark.parametrize("refusal", [b"", b"300", b"400", b"500", b"connections=2"])
def test_only_refused_credentials_are_an_authentication_error(refusal):
    mechanism = in_phase(NullPhase.ASKING)
    with pytest.raises(HandshakeError) as caught:
        mechanism.answer(refusal)
    assert isinstance(caught.value, AuthenticationError) == (refusal != b"connections=2")


def test_an_answer_needs_a_question():
    for phase in (NullPhase.START, NullPhase.READY_SENT, NullPhase.AGREED):
        with pytest.raises(LocalProtocolError, match="no question to answer"):
            in_phase(phase).answer(None)


def test_a_refusal_that_cannot_be_sent_lets_no_client_in():
    mechanism = in_phase(NullPhase.ASKING)
    with pytest.raises(LocalProtocolError, match="reason"):
        mechanism.answer(b"not allowed")
    assert mechanism.question is not None
    assert mechanism.phase is NullPhase.ASKING
    assert mechanism.outgoing() == b""


def test_credentials_stay_out_of_logs():
    question = Question(b"PLAIN", (b"admin", b"hunter2"))
    assert "hunter2" not in repr(question)
    assert "hunter2" not in f"{question}"
    assert question.credentials == (b"admin", b"hunter2")


def test_a_mechanism_without_roles_has_no_server():
    class Server(Null):
        def __init__(self) -> None:
            Mechanism.__init__(self, NullPhase.START, as_server=True)

    with pytest.raises(LocalProtocolError, match="NULL has no server"):
        Server()
