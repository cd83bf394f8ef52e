"""A handshake that was held before is looked up: it does what a usual one does, whatever was sent before."""

import itertools

import pytest

from omq.errors import HandshakeError, LocalProtocolError, RemoteProtocolError
from omq.types import SocketType
from omq.zmtp import handshake_cache
from omq.zmtp.command import error, ready
from omq.zmtp.greeting import Greeting
from omq.zmtp.handshake import Handshake
from omq.zmtp.handshake_cache import CachedHandshake
from omq.zmtp.null import Null

GREETING = Greeting((3, 1), b"NULL", False).encode()
PUSH = ready({b"Socket-Type": b"PUSH"})
DEALER = ready({b"Socket-Type": b"DEALER", b"Identity": b"one"})
LONG = ready({b"Socket-Type": b"PUSH", b"X-Long": bytes(300)})
TRAFFIC = b"\0\4here"

SENT = {
    "it fits": GREETING + PUSH,
    "traffic follows": GREETING + PUSH + TRAFFIC,
    "other traffic": GREETING + PUSH + TRAFFIC * 3,
    "an old peer": Greeting((3, 0), b"NULL", False).encode() + PUSH,
    "a long READY": GREETING + LONG + TRAFFIC,
    "another property": GREETING + ready({b"Socket-Type": b"PUSH", b"X-Name": b"x"}),
    "a type that does not fit": GREETING + DEALER,
    "an ERROR": GREETING + error(b"no"),
    "a message": GREETING + TRAFFIC,
    "another mechanism": Greeting((3, 1), b"PLAIN", False).encode() + PUSH,
    "no greeting": b"GET / HTTP/1.1\r\n" * 5,
    "a command before READY": GREETING + b"\4\5\4PING" + PUSH,
}
CUTS = {
    "at once": lambda sent: [sent],
    "the greeting first": lambda sent: [sent[:64], sent[64:]],
    "as libzmq": lambda sent: [sent[:10], sent[10:64], sent[64:]],
    "READY in pieces": lambda sent: [sent[:64], sent[64:70], sent[70:80], sent[80:]],
    "octets": lambda sent: [sent[at : at + 1] for at in range(len(sent))],
}


def held(handshake, pieces):
    """All that a handshake answers, learns and refuses."""
    results = [handshake.start()]
    for at, piece in enumerate(pieces):
        try:
            results.append(handshake.receive(piece))
        except (RemoteProtocolError, HandshakeError) as failed:
            return [*results, type(failed), str(failed), handshake.failure(), handshake.done, handshake.hint]
        if handshake.done:
            left = handshake.unread + b"".join(pieces[at + 1 :])
            return [*results, handshake.peer, left, handshake.question, handshake.codec, handshake.mechanism]
    return [*results, handshake.done]


def usual():
    return Handshake(socket_type=SocketType.PULL, mechanism=Null(), properties={b"X-Ours": b"1"})


def looked_up():
    return CachedHandshake(socket_type=SocketType.PULL, properties={b"X-Ours": b"1"})


@pytest.fixture(autouse=True)
def _nothing_remembered():
    handshake_cache._cache_of.cache_clear()


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("before", CUTS)
def test_a_cached_handshake_ends_as_a_usual_one(cut, before):
    for sent in SENT.values():  # peers who came earlier
        held(looked_up(), CUTS[before](sent))
    for sent in itertools.chain(SENT.values(), SENT.values()):
        assert held(looked_up(), CUTS[cut](sent)) == held(usual(), CUTS[cut](sent))


def test_what_was_sent_before_needs_no_usual_one(monkeypatch):
    for sent in ("traffic follows", "it fits"):
        held(looked_up(), CUTS["the greeting first"](SENT[sent]))
    monkeypatch.setattr(handshake_cache, "Handshake", None)
    for sent in ("traffic follows", "it fits", "other traffic"):
        for cut in ("the greeting first", "at once"):
            assert held(looked_up(), CUTS[cut](SENT[sent]))[-5].socket_type is SocketType.PUSH


def test_each_peer_has_metadata_of_its_own():
    for _ in range(3):
        handshake = looked_up()
        handshake.start()
        handshake.receive(GREETING + PUSH)
        assert handshake.peer.properties == {b"socket-type": b"PUSH"}
        handshake.peer.properties[b"x"] = b"changed"
        assert handshake.peer.properties == {b"socket-type": b"PUSH"}


def test_peers_that_have_nothing_in_common_fill_no_memory():
    for number in range(500):
        handshake = CachedHandshake(socket_type=SocketType.ROUTER, properties={})
        handshake.start()
        handshake.receive(GREETING)
        handshake.receive(ready({b"Socket-Type": b"DEALER", b"Identity": b"%d" % number}))
        assert handshake.peer.identity == b"%d" % number
        assert len(handshake._cache.states) <= handshake_cache._MAX_STATES
    long = CachedHandshake(socket_type=SocketType.PULL, properties={})
    long.start()
    long.receive(GREETING + ready({b"Socket-Type": b"PUSH", b"X": bytes(60_000)}))
    assert long.done
    assert not long._cache.states


@pytest.mark.parametrize("again", [False, True])
def test_a_cached_handshake_takes_nothing_after_its_end(again):
    handshake = looked_up()
    with pytest.raises(LocalProtocolError, match="before the handshake is done"):
        _ = handshake.peer
    with pytest.raises(LocalProtocolError, match="no question to answer"):
        handshake.answer()
    if again:
        held(looked_up(), [GREETING + PUSH])
    held(handshake, [GREETING + PUSH])
    with pytest.raises(LocalProtocolError, match="cannot RECEIVE in state DONE"):
        handshake.receive(TRAFFIC)


def test_our_own_metadata_are_checked_before_anything_is_sent():
    with pytest.raises(LocalProtocolError, match="identity"):
        CachedHandshake(socket_type=SocketType.DEALER, properties={b"Identity": bytes(256)})


@pytest.mark.parametrize("size", [0, 1, 10, 63, 64, 70])
def test_the_hint_of_one_that_was_seen_before_is_the_usual_one(size):
    sent = (GREETING + PUSH)[:size]
    expected = usual()
    expected.start()
    expected.receive(sent)
    for _ in range(3):
        handshake = looked_up()
        handshake.start()
        if sent:
            handshake.receive(sent)
        assert handshake.hint == expected.hint
