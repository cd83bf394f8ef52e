"""The rules of admission and of subscriptions, pattern by pattern, without an engine: peers are pipes."""

from __future__ import annotations

import pytest

from omq._core.queues.peer import Gate, Inlet
from omq._core.queues.pipe import Pipe
from omq.options import Options
from omq.routing import PATTERNS
from omq.types import COMPATIBLE, SocketType

T = SocketType


class FakeSession:
    """One end of a pipe, and a note of what it was told."""

    def __init__(self, pattern, identity=b""):
        inlet = pattern.inlet if pattern.queues_messages else None
        self.pattern = pattern
        self.identity = identity
        self.peer = Pipe(self, inlet, 0, None)
        self.far = Pipe(None, Inlet(Gate()), 0, None)
        self.peer.join(self.far)
        self.told = []
        self.ended = []

    def on_message(self, parts):
        self.pattern.on_message(self, parts)

    def send_subscription(self, prefix, subscribe):
        self.told.append((prefix, subscribe))

    def end(self, reason):
        self.ended.append(reason)
        self.pattern.disconnected(self)


def make(kind, **options):
    return PATTERNS[kind](kind, Options.parse(kind, options), Gate(), Gate())


def join(pattern, identity=b""):
    session = FakeSession(pattern, identity)
    pattern.connected(session)
    return session


def test_every_type_that_is_spoken_has_a_pattern():
    assert set(PATTERNS) <= set(COMPATIBLE)
    for kind in PATTERNS:
        pattern = make(kind)
        assert pattern.socket_type is kind
        assert pattern.idle
        assert (pattern.inlet is None) == (kind in {T.PUSH, T.PUB})
        assert (pattern.outlet is None) == (kind in {T.PULL, T.SUB})


@pytest.mark.parametrize("kind", list(PATTERNS))
def test_peers_come_and_go(kind):
    pattern = make(kind)
    session = join(pattern, b"name")
    assert list(pattern.sessions) == [session]
    pattern.disconnected(session)
    pattern.disconnected(session)
    assert list(pattern.sessions) == []
    assert pattern.idle


def test_a_pair_refuses_a_second_peer():
    pattern = make(T.PAIR)
    assert pattern.refusal(b"") is None
    session = join(pattern)
    assert "has a peer" in pattern.refusal(b"")
    pattern.disconnected(session)
    assert pattern.refusal(b"") is None


@pytest.mark.parametrize("kind", [T.REQ, T.DEALER, T.ROUTER])
def test_a_probe_is_one_empty_message(kind):
    session = join(make(kind, probe_router=True), b"name")
    assert session.far.unread == 1
    assert join(make(kind), b"name").far.unread == 0


# ROUTER


def test_router_names_those_without_a_name():
    pattern = make(T.ROUTER)
    names = [join(pattern).peer.identity for _ in range(3)]
    assert len(set(names)) == 3
    assert all(name[:1] == b"\0" for name in names)
    assert join(pattern, b"own").peer.identity == b"own"
    assert set(pattern.outlet.table) == {*names, b"own"}


def test_router_keeps_a_duplicate_waiting():
    pattern = make(T.ROUTER)
    first, second, third = (join(pattern, b"same") for _ in range(3))
    assert list(pattern.sessions) == [first]
    assert pattern.outlet.table[b"same"] is first.peer
    pattern.disconnected(second)
    pattern.disconnected(first)
    assert pattern.outlet.table[b"same"] is third.peer
    assert list(pattern.sessions) == [third]
    pattern.disconnected(third)
    assert pattern.outlet.table == {}


def test_router_hands_a_name_over():
    pattern = make(T.ROUTER, router_handover=True)
    first = join(pattern, b"same")
    second = join(pattern, b"same")
    assert first.ended == [None]
    assert list(pattern.sessions) == [second]
    assert pattern.outlet.table[b"same"] is second.peer


def test_router_hands_over_also_with_a_duplicate_waiting():
    pattern = make(T.ROUTER)
    join(pattern, b"same")
    join(pattern, b"same")
    pattern.reconfigure(Options.parse(T.ROUTER, {"router_handover": True}))
    newest = join(pattern, b"same")
    assert pattern.outlet.table == {b"same": newest.peer}
    assert list(pattern.sessions) == [newest]


class LateSession(FakeSession):
    """One whose own thread ends it, later."""

    def end(self, reason):
        self.ended.append(reason)


def test_router_hands_over_what_another_thread_is_to_end():
    pattern = make(T.ROUTER, router_handover=True)
    sessions = [LateSession(pattern, b"same") for _ in range(3)]
    for session in sessions:
        pattern.connected(session)
    first, second, third = sessions
    assert [session.ended for session in sessions] == [[None], [None], []]
    assert list(pattern.sessions) == [third]
    assert pattern.outlet.table == {b"same": third.peer}
    for session in (second, first):
        pattern.disconnected(session)
    assert pattern.outlet.table == {b"same": third.peer}, "their ends come, and change nothing"


# Publishers


def test_a_publisher_counts_pairs_of_peer_and_prefix():
    pattern = make(T.PUB)
    changes = []
    pattern.on_change = lambda: changes.append(pattern.subscriptions(None))
    one, other = join(pattern), join(pattern)
    for session, prefix, subscribe in [
        (one, b"a", True),
        (one, b"a", True),
        (other, b"a", True),
        (other, b"b", True),
        (one, b"a", False),
        (one, b"never", False),
    ]:
        pattern.on_subscription(session, prefix, subscribe)
    assert changes == [1, 1, 2, 3, 2, 2]
    assert pattern.subscriptions(b"a") == 1
    pattern.disconnected(other)
    assert pattern.subscriptions(None) == 0
    assert changes[-1] == 0


@pytest.mark.parametrize(
    ("parts", "subscribed"),
    [([b"\1A"], True), ([b"\1"], True), ([b"\0A"], False), ([b"A"], False), ([b""], False), ([b"\1A", b"x"], False)],
)
def test_a_message_of_the_older_form_subscribes(parts, subscribed):
    pattern = make(T.PUB)
    pattern.on_message(join(pattern), parts)
    assert pattern.subscriptions(None) == subscribed


def unread(pattern):
    return pattern._mail.unread


@pytest.mark.parametrize(
    ("options", "heard"),
    [({}, 2), ({"xpub_verbose": True}, 4), ({"xpub_verboser": True}, 5)],
    ids=["usual", "verbose", "verboser"],
)
def test_what_an_xpub_is_told(options, heard):
    pattern = make(T.XPUB, **options)
    one, other = join(pattern), join(pattern)
    pattern.on_subscription(one, b"a", True)
    pattern.on_subscription(one, b"a", True)
    pattern.on_subscription(other, b"a", True)
    pattern.on_subscription(one, b"a", False)
    pattern.on_subscription(other, b"a", False)
    pattern.on_subscription(other, b"a", False)
    assert unread(pattern) == heard


def test_an_xpub_whose_user_lags_keeps_only_what_differs():
    pattern = make(T.XPUB, recv_hwm=5)
    session = join(pattern)
    for number in range(5):
        pattern.on_subscription(session, b"%d" % number, True)
    assert (unread(pattern), len(pattern._late)) == (5, 0)
    for number in range(1000):
        pattern.on_subscription(session, b"x%d" % number, True)
        pattern.on_subscription(session, b"x%d" % number, False)
    assert (unread(pattern), len(pattern._late)) == (5, 0)
    pattern.on_subscription(session, b"0", False)
    assert (unread(pattern), len(pattern._late)) == (5, 1)
    pattern.on_subscription(session, b"0", True)
    assert (unread(pattern), len(pattern._late)) == (5, 0)


def test_without_a_mark_an_xpub_keeps_everything():
    pattern = make(T.XPUB, recv_hwm=0)
    session = join(pattern)
    for number in range(3000):
        pattern.on_subscription(session, b"%d" % number, True)
    assert (unread(pattern), len(pattern._late)) == (3000, 0)


def test_the_welcome_goes_to_each_peer_once():
    pattern = make(T.XPUB, xpub_welcome_message=b"hello")
    session = join(pattern)
    for prefix in (b"a", b"b"):
        pattern.on_subscription(session, prefix, True)
    assert session.far.unread == 1


def test_a_slot_is_free_only_when_the_matcher_has_forgotten_it():
    """The outlet drops a peer whose connection is broken before its session has ended."""
    pattern = make(T.PUB)
    broken = join(pattern)
    pattern.on_subscription(broken, b"old", True)
    pattern.outlet.remove(broken.peer)
    fresh = join(pattern)
    assert fresh.peer.slot != broken.peer.slot
    pattern.on_subscription(fresh, b"new", True)
    pattern.disconnected(broken)
    assert pattern.matcher.prefixes() == [(b"new", 1)]
    assert join(pattern).peer.slot == broken.peer.slot


# Subscribers


def test_a_subscriber_tells_only_of_the_first_and_the_last():
    pattern = make(T.SUB, subscribe=[b"opt", b"opt"])
    session = join(pattern)
    assert session.told == [(b"opt", True)]
    session.told.clear()
    pattern.subscribe(b"a")
    pattern.subscribe(b"a")
    pattern.unsubscribe(b"a")
    assert session.told == [(b"a", True)]
    pattern.unsubscribe(b"a")
    pattern.unsubscribe(b"a")
    pattern.unsubscribe(b"opt")
    assert session.told == [(b"a", True), (b"a", False)]
    late = join(pattern)
    assert late.told == [(b"opt", True)]


def test_an_xsub_subscribes_through_its_messages():
    pattern = make(T.XSUB)
    session = join(pattern)
    pattern._change(True, b"a")
    pattern._change(False, b"b")
    assert session.told == [(b"a", True)]


def test_a_mark_that_changes_reaches_the_outlet():
    pattern = make(T.PUSH, send_hwm=5)
    assert pattern.outlet.hwm == 5
    pattern.reconfigure(Options.parse(T.PUSH, {"send_hwm": 7}))
    assert pattern.outlet.hwm == 7


# Names and numbers that a socket makes for itself


def names_of(router, count=3):
    return [join(router).peer.identity for _ in range(count)]


def test_no_router_begins_with_the_names_of_another():
    names = [name for _ in range(20) for name in names_of(make(T.ROUTER))]
    assert len(set(names)) == len(names)
    assert all(len(name) == 5 and name[:1] == b"\0" for name in names)


def test_a_router_names_each_peer_once_also_beyond_the_last_number():
    router = make(T.ROUTER)
    router._serial = 2**32 - 1
    assert names_of(router, 3) == [b"\0\xff\xff\xff\xff", b"\0\0\0\0\0", b"\0\0\0\0\1"]
    router._serial = 2**32 - 1
    assert names_of(router, 2) == [b"\0\0\0\0\2", b"\0\0\0\0\3"], "the others are taken"
