"""The rules of admission and of subscriptions, pattern by pattern, without an engine: peers are pipes."""

from __future__ import annotations

import pytest

from omq._core.queues.peer import RecvQueue
from omq._core.queues.pipe import Pipe
from omq._core.queues.wait_queue import WaitQueue
from omq.options import Options
from omq.routing import PATTERNS, Pattern
from omq.types import COMPATIBLE, SocketType
from omq.zmtp.command import Command, Join, Leave

T = SocketType


class FakeSession:
    """One end of a pipe, and a record of its notifications."""

    def __init__(self, pattern, identity=b""):
        recv_queue = pattern.recv_queue if pattern.queues_messages else None
        self.pattern = pattern
        self.identity = identity
        self.options = pattern.options
        self.is_named = False
        self.peer = Pipe(self, recv_queue, 0, None)
        self.far = Pipe(None, RecvQueue(WaitQueue()), 0, None)
        self.peer.join(self.far)
        self.ended = []

    def end(self, reason):
        self.ended.append(reason)
        self.pattern.disconnected(self)


def make(kind, **options):
    return PATTERNS[kind](kind, Options.parse(kind, options), WaitQueue(), WaitQueue())


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
        assert (pattern.recv_queue is None) == (kind in {T.PUSH, T.PUB, T.SCATTER, T.RADIO})
        assert (pattern.send_queue is None) == (kind in {T.PULL, T.SUB, T.GATHER, T.DISH})


@pytest.mark.parametrize("kind", list(PATTERNS))
def test_peers_come_and_go(kind):
    pattern = make(kind)
    session = join(pattern, b"name")
    assert list(pattern.sessions) == [session]
    pattern.disconnected(session)
    pattern.disconnected(session)
    assert list(pattern.sessions) == []
    assert pattern.idle


@pytest.mark.parametrize("kind", list(PATTERNS))
def test_every_command_that_a_pattern_declares_has_a_handler(kind):
    pattern = make(kind)
    heeded_in_order = pattern.send_queue is not None and pattern.send_queue.heeds
    assert bool(pattern.commands) == (heeded_in_order or type(pattern).heed is not Pattern.heed)
    commands = {T.PUB: {b"SUBSCRIBE", b"CANCEL"}, T.XPUB: {b"SUBSCRIBE", b"CANCEL"}, T.RADIO: {b"JOIN", b"LEAVE"}}
    assert pattern.commands == commands.get(kind, set())


class Obedient(PATTERNS[T.PULL]):
    """Understands one command, and leaves a note of it."""

    commands = frozenset({b"JOIN"})

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.heeded = []

    def heed(self, session, command):
        self.heeded.append((session, command))


def test_a_pattern_gets_its_commands_alone_and_from_its_peers_alone():
    pattern = Obedient(T.PULL, Options(), WaitQueue(), WaitQueue())
    session, stranger = join(pattern), FakeSession(pattern)
    for command in (Join(b"g"), Leave(b"g"), Command(b"NOVEL", b"")):
        pattern.obey(session, command)
        pattern.obey(stranger, command)
    assert pattern.heeded == [(session, Join(b"g"))]


@pytest.mark.parametrize(("name", "data"), [(b"JOIN", b""), (b"LEAVE", b"group"), (b"A" * 255, b"x")])
def test_a_command_over_a_pipe_comes_whole(name, data):
    session, seen = FakeSession(make(T.PUSH)), []
    session.on_command = seen.append
    session.far.command(name, data)
    assert seen == [bytes((len(name),)) + name + data]


# ROUTER


def test_router_keeps_a_duplicate_waiting():
    pattern = make(T.ROUTER)
    first, second, third = (join(pattern, b"same") for _ in range(3))
    assert list(pattern.sessions) == [first]
    assert pattern.send_queue.table[b"same"] is first.peer
    pattern.disconnected(second)
    pattern.disconnected(first)
    assert pattern.send_queue.table[b"same"] is third.peer
    assert list(pattern.sessions) == [third]
    pattern.disconnected(third)
    assert pattern.send_queue.table == {}


def test_router_hands_over_also_with_a_duplicate_waiting():
    pattern = make(T.ROUTER)
    join(pattern, b"same")
    join(pattern, b"same")
    pattern.reconfigure(Options.parse(T.ROUTER, {"router_handover": True}))
    newest = join(pattern, b"same")
    assert pattern.send_queue.table == {b"same": newest.peer}
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
    assert pattern.send_queue.table == {b"same": third.peer}
    for session in (second, first):
        pattern.disconnected(session)
    assert pattern.send_queue.table == {b"same": third.peer}, "their ends come, and change nothing"


# Publishers


def on_subscription(session, prefix, subscribe):
    """The peer at the far end of a publisher's session subscribes, or takes that back."""
    session.far.send_parts([(b"\1" if subscribe else b"\0") + prefix])


def test_a_publisher_counts_pairs_of_peer_and_prefix():
    pattern = make(T.PUB)
    changes = []
    pattern.listen(lambda: changes.append(pattern.subscriptions(None)), lambda *_: None)
    one, other = join(pattern), join(pattern)
    for session, prefix, subscribe in [
        (one, b"a", True),
        (one, b"a", True),
        (other, b"a", True),
        (other, b"b", True),
        (one, b"a", False),
        (one, b"never", False),
    ]:
        pattern.watch()
        on_subscription(session, prefix, subscribe)
    assert changes == [1, 2, 3, 2]
    assert pattern.subscriptions(b"a") == 1
    pattern.disconnected(other)
    assert pattern.subscriptions(None) == 0


def test_subscriptions_are_not_reported_unasked():
    pattern = make(T.PUB)
    changes, news = [], []
    pattern.listen(lambda: changes.append(True), lambda *what: news.append(what))
    session = join(pattern)
    on_subscription(session, b"a", True)
    assert (changes, news) == ([], [])
    pattern.watch()
    on_subscription(session, b"b", True)
    on_subscription(session, b"c", True)
    assert (changes, news) == ([True], [])
    pattern.monitor(True)
    on_subscription(session, b"c", False)
    pattern.monitor(False)
    on_subscription(session, b"b", False)
    assert (changes, news) == ([True], [(session, b"c", False)])


def test_what_is_to_be_reported_gathers_until_the_engine_asks():
    pattern = make(T.PUB)
    asked, changes, news = [], [], []
    pattern.listen(lambda: changes.append(True), lambda _, *what: news.append(what))
    pattern.send_queue.set_report(lambda: asked.append(True))
    pattern.monitor(True)
    pattern.watch()
    session = join(pattern)
    on_subscription(session, b"a", True)
    on_subscription(session, b"b", True)
    assert (asked, changes, news) == ([True], [], [])
    pattern.send_queue.report()
    assert (asked, changes, news) == ([True], [True], [(b"a", True), (b"b", True)])
    on_subscription(session, b"a", False)
    assert asked == [True, True]


def unread(pattern):
    return pattern.send_queue.mailbox.unread


def test_a_peer_that_goes_with_many_prefixes_delays_no_other():
    """Its subscriptions are removed in turns, and its slot stays unused until then."""
    pattern = make(T.XPUB, recv_hwm=0)
    turns = []
    pattern.send_queue.set_schedule(lambda: turns.append(True))
    goes, stays = join(pattern), join(pattern)
    slot = goes.peer.slot
    for number in range(10_000):
        on_subscription(goes, b"%d" % number, True)
    on_subscription(stays, b"0", True)
    pattern.disconnected(goes)
    assert 5_000 < pattern.subscriptions(None) < 10_001
    assert len(turns) == 1
    assert join(pattern).peer.slot != slot
    on_subscription(goes, b"it is gone", True)
    while len(turns) < 20 and pattern.subscriptions(None) > 1:
        pattern.send_queue.flush_turn()
    assert len(turns) > 2
    assert pattern.matcher.prefixes() == [(b"0", 1)]
    assert unread(pattern) == 10_000 + 9_999
    assert join(pattern).peer.slot == slot


def test_an_xpub_whose_user_lags_keeps_only_what_differs():
    pattern = make(T.XPUB, recv_hwm=5)
    session = join(pattern)
    for number in range(5):
        on_subscription(session, b"%d" % number, True)
    assert (unread(pattern), len(pattern.send_queue.mailbox.late)) == (5, 0)
    for number in range(5000):
        on_subscription(session, b"x%d" % number, True)
        on_subscription(session, b"x%d" % number, False)
    assert (unread(pattern), len(pattern.send_queue.mailbox.late)) == (5, 0)
    on_subscription(session, b"0", False)
    assert (unread(pattern), len(pattern.send_queue.mailbox.late)) == (5, 1)
    on_subscription(session, b"0", True)
    assert (unread(pattern), len(pattern.send_queue.mailbox.late)) == (5, 0)


def test_a_slot_is_free_only_when_the_matcher_has_forgotten_it():
    """The send queue drops a peer whose connection is broken before its session has ended."""
    pattern = make(T.PUB)
    broken = join(pattern)
    slot = broken.peer.slot
    on_subscription(broken, b"old", True)
    pattern.send_queue.remove(broken.peer)
    fresh = join(pattern)
    assert fresh.peer.slot != slot
    on_subscription(fresh, b"new", True)
    pattern.disconnected(broken)
    assert pattern.matcher.prefixes() == [(b"new", 1)]
    assert join(pattern).peer.slot == slot


# Subscribers


def test_a_subscriber_sends_each_subscription_and_the_last_end():
    """libzmq does the same: publishers do not count, but a subscriber upstream may want each."""
    pattern = make(T.SUB, subscribe=[b"opt", b"opt"])
    far = join(pattern).far
    assert far.unread == 1
    pattern.book.subscribe(b"a")
    pattern.book.subscribe(b"a")
    assert far.unread == 3
    pattern.book.unsubscribe(b"a")
    pattern.book.unsubscribe(b"never")
    assert far.unread == 3
    pattern.book.unsubscribe(b"a")
    assert far.unread == 4
    pattern.book.unsubscribe(b"a")
    pattern.book.unsubscribe(b"opt")
    assert far.unread == 4
    assert join(pattern).far.unread == 1


def test_a_recreated_subscriber_has_the_same_subscriptions():
    before = make(T.SUB, subscribe=[b"opt"])
    for prefix in (b"opt", b"a", b"a"):
        before.book.subscribe(prefix)
    pattern = make(T.SUB, subscribe=[b"new"])
    pattern.inherit(before)
    assert sorted(pattern.matcher.prefixes()) == [(b"a", 1), (b"new", 1), (b"opt", 1)]
    pattern.book.unsubscribe(b"a")
    assert pattern.matcher.count(b"a") == 1
    pattern.book.unsubscribe(b"a")
    assert pattern.matcher.count(b"a") == 0


def test_a_mark_that_changes_reaches_the_send_queue():
    pattern = make(T.PUSH, send_hwm=5)
    assert pattern.send_queue.hwm == 5
    pattern.reconfigure(Options.parse(T.PUSH, {"send_hwm": 7}))
    assert pattern.send_queue.hwm == 7


# Names and numbers that a socket makes for itself


def names_of(router, count=3):
    return [join(router).peer.identity for _ in range(count)]


def test_no_router_begins_with_the_names_of_another():
    names = [name for _ in range(20) for name in names_of(make(T.ROUTER))]
    assert len(set(names)) == len(names)
    assert all(len(name) == 5 and name[:1] == b"\0" for name in names)


def test_a_peer_with_a_name_that_the_router_made_up_gets_it_when_it_is_free():
    router = make(T.ROUTER)
    nameless = join(router)
    name = nameless.peer.identity
    late = join(router, name)
    assert list(router.sessions) == [nameless]
    router.disconnected(nameless)
    assert list(router.sessions) == [late]
    assert late.peer.identity == name


def test_a_peer_takes_a_name_that_the_router_made_up_over():
    router = make(T.ROUTER, router_handover=True)
    nameless = join(router)
    late = join(router, nameless.peer.identity)
    assert list(router.sessions) == [late]


def test_a_router_makes_up_no_name_that_a_peer_has():
    router = make(T.ROUTER)
    router._identities._serial = 7
    chosen = join(router, b"\0" + (7).to_bytes(4, "big"))
    assert join(router).peer.identity == b"\0" + (8).to_bytes(4, "big")
    assert next(iter(router.sessions)) is chosen


def test_a_router_names_each_peer_once_also_beyond_the_last_number():
    router = make(T.ROUTER)
    router._identities._serial = 2**32 - 1
    assert names_of(router, 3) == [b"\0\xff\xff\xff\xff", b"\0\0\0\0\0", b"\0\0\0\0\1"]
    router._identities._serial = 2**32 - 1
    assert names_of(router, 2) == [b"\0\0\0\0\2", b"\0\0\0\0\3"], "the others are taken"
