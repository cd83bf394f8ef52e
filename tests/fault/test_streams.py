"""Streams through a network that delays, cuts, resets, stalls and swallows: each message is accounted for.

One connection carries a beginning of what was given to it. So what is missing in the end are at most as many unbroken
stretches as connections have died; nothing comes twice, out of order, or in halves.
"""

import functools
import itertools
import random
import time

import pytest

import omq
from tests.fault.message_history import History, compose
from tests.fault.stream_endpoints import CALL_TIMEOUT_S, End, collecting, echoing, outlives, runs, streaming
from tests.support.chaos_proxy import DOWN, UP, Fault, Proxy, seeded
from tests.support.parameters import each_value_once
from tests.support.socket_types import GROUP
from tests.support.waits import until

ENDS = [
    ("asyncio", "blocking"),
    ("blocking", "asyncio"),
    ("asyncio", "libzmq"),
    ("libzmq", "asyncio"),
    ("blocking", "libzmq"),
    ("libzmq", "blocking"),
]
#: The types of one part, which pyzmq lacks; a PEER whose connection is cut has to be dialled by its user.
OURS = [("asyncio", "blocking"), ("blocking", "asyncio")]
PIPES = [
    *((*ends, "PUSH", "PULL") for ends in ENDS),
    *((*ends, *kinds) for ends, kinds in zip(OURS, (("SCATTER", "GATHER"), ("CHANNEL", "CHANNEL")), strict=True)),
]
TALKS = [*((*ends, "DEALER", "ROUTER") for ends in ENDS), *((*ends, "CLIENT", "SERVER") for ends in OURS)]
FEEDS = [*((*ends, "PUB", "SUB") for ends in ENDS), *((*ends, "RADIO", "DISH") for ends in OURS)]
SCHEMES = ("tcp", "ipc")
HARMLESS = ("split", "delay")
DEADLY = ("reset", "drop", "half_close")
_HANDSHAKE = 92  # bytes of greeting and READY of a PUSH or PULL
_names = itertools.count()


@pytest.fixture
def proxy():
    with Proxy() as one:
        yield one


@pytest.fixture
def where(scheme, tmp_path):
    """Endpoints of the test's scheme for the listener and for the proxy, made one after the other."""

    def fresh():
        return "tcp://127.0.0.1:0" if scheme == "tcp" else f"ipc://{tmp_path}/{next(_names)}"

    return fresh


def scripts(seed, faulty, whats, within=30_000, ways=(UP,)):
    """The first *faulty* connections have a fault each, the others none."""
    chance = random.Random(seed)
    made = [[seeded(chance, within, whats, ways)] for _ in range(faulty)]
    return lambda number: made[number] if number < faulty else ()


def finish(*ends):
    """Ends them, the receiver, if there is one, as the last: while it is there no sender waits for room."""
    *senders, last = ends
    for end in senders:
        end.over.set()
    for end in senders:
        end.join()
    last.over.set()
    last.join()


@each_value_once(sender__receiver__kind__other=PIPES, scheme=SCHEMES, seed=range(1, 10))
def test_a_pipeline_that_is_cut_again_and_again(proxy, where, sender, receiver, kind, other, seed):
    history, count = History(), 1500
    pull = End(receiver, other, collecting(history, "pull"), where(), bind=True)
    link = proxy.link(pull.endpoint, where(), scripts(seed, 8, DEADLY))
    push = End(sender, kind, streaming(history, 1, count), link.endpoint, reconnect_interval=0.005)
    until(outlives(history, 1, link, 8), lambda: f"a message after {len(link.happened)} faults")
    finish(push, pull)
    history.check(streams=link.accepted)
    assert runs(history, 1) <= link.accepted - 1


@pytest.mark.slow
@each_value_once(sender__receiver=ENDS, scheme=SCHEMES)
def test_nothing_is_lost_while_nothing_is_cut(proxy, where, sender, receiver):
    """Every byte alone, pieces that wait, and a network that stands still for a while."""
    history, count = History(), 120
    pull = End(receiver, "PULL", collecting(history, "pull"), where(), bind=True)
    link = proxy.link(pull.endpoint, where(), lambda _: [Fault(0, UP, "split"), Fault(0, DOWN, "split")])
    role = streaming(history, 1, count, pace=10, largest=300, rest=0.05)
    push = End(sender, "PUSH", role, link.endpoint, reconnect_interval=0.005)
    for _ in range(3):
        link.stall()
        time.sleep(0.02)  # nothing moves, and then all does
        link.release()
        time.sleep(0.02)
    until(lambda: len(history.got(1)) >= count, lambda: f"all messages; {len(history.got(1))} came")
    finish(push)
    until(lambda: not history.missing(1) or sender == "libzmq", lambda: f"the rest; {history.missing(1)}")
    finish(pull)
    history.check()
    assert runs(history, 1) == 0
    assert link.accepted == 1


@pytest.mark.slow
@each_value_once(sender__receiver__kind__other=TALKS, scheme=SCHEMES, seed=range(4, 10))
def test_a_client_and_its_server_in_both_directions(proxy, where, sender, receiver, kind, other, seed):
    history = History()
    router = End(receiver, other, echoing(history, 2, "router"), where(), bind=True)
    link = proxy.link(router.endpoint, where(), scripts(seed, 6, DEADLY, within=10_000, ways=(UP, DOWN)))

    async def talking(end):
        number = 0
        while not end.over.is_set():
            await end.do("send_multipart", compose(1, number, topic=b"x" * (number % 500)), timeout=CALL_TIMEOUT_S)
            history.accept(1, number)
            number += 1
            if number % 5 == 0:
                await answers(end)

    async def answers(end):
        try:
            while True:
                history.receive("dealer", await end.do("recv_multipart", timeout=0.001))
        except omq.Timeout:
            pass

    dealer = End(sender, kind, talking, link.endpoint, reconnect_interval=0.005)
    for voice in (1, 2):
        until(outlives(history, voice, link, 6), lambda: f"a message after {len(link.happened)} faults")
    finish(dealer, router)
    history.check(streams=link.accepted)
    assert runs(history, 1) <= link.accepted - 1


@pytest.mark.slow
@each_value_once(sender__receiver=[pair for pair in ENDS if pair[0] != "libzmq"], scheme=SCHEMES)
def test_requests_get_their_own_reply_or_none(proxy, where, sender, receiver):
    history, unanswered = History(), []
    rep = End(receiver, "REP", echoing(history, 2, "rep"), where(), bind=True)
    link = proxy.link(rep.endpoint, where(), scripts(6, 8, DEADLY, within=3_000, ways=(UP, DOWN)))

    async def asking(end):
        for number in itertools.count():
            if end.over.is_set():
                return
            await ask(end, number)
            try:
                parts = await end.do("recv_multipart", timeout=0.1)
            except omq.Timeout:
                unanswered.append(number)
                continue
            assert parts[1] == b"%d" % number
            history.receive("req", parts)

    async def ask(end, number):
        deadline = time.monotonic() + CALL_TIMEOUT_S
        while True:
            try:
                await end.do("send_multipart", compose(1, number, [b"x" * 50]), timeout=CALL_TIMEOUT_S)
            except omq.StateError:
                # The reply to the last one may still come: until it does, or never can.
                assert time.monotonic() < deadline, "a REQ whose connection has died can never ask again"
                try:
                    history.receive("req", await end.do("recv_multipart", timeout=0.01))
                except (omq.Timeout, omq.StateError):
                    pass
            else:
                history.accept(1, number)
                return

    req = End(sender, "REQ", asking, link.endpoint, reconnect_interval=0.005)
    until(outlives(history, 2, link, 8), lambda: f"a reply after {len(link.happened)} faults; unanswered {unanswered}")
    finish(req, rep)
    history.check(streams=link.accepted)
    assert len(unanswered) <= link.accepted - 1


@each_value_once(sender__receiver__kind__other=FEEDS, scheme=SCHEMES)
def test_a_feed_that_is_cut_goes_on(proxy, where, sender, receiver, kind, other):
    history, count = History(), 2000
    wanted = {"join": GROUP} if other == "DISH" else {"subscribe": b""}
    pub = End(sender, kind, streaming(history, 1, count, pace=5), where(), bind=True, send_hwm=0)
    link = proxy.link(pub.endpoint, where(), scripts(7, 6, DEADLY, within=200_000, ways=(DOWN,)))
    sub = End(
        receiver,
        other,
        collecting(history, "sub"),
        link.endpoint,
        reconnect_interval=0.005,
        recv_hwm=0,
        **wanted,
    )
    until(outlives(history, 1, link, 6), lambda: f"a message after {len(link.happened)} faults")
    finish(pub, sub)
    history.check(streams=link.accepted)
    assert runs(history, 1) <= link.accepted


def test_what_a_slow_subscriber_misses_is_counted(proxy):
    history, count = History(), 3000
    with omq.PUB(bind="tcp://127.0.0.1:*", send_hwm=10, send_buffer=8192) as pub:
        link = proxy.link(pub.endpoints[0])
        with omq.SUB(connect=link.endpoint, subscribe=b"", recv_hwm=0) as sub:
            pub.wait_subscribed(timeout=CALL_TIMEOUT_S)
            link.stall(DOWN)
            for number in range(count):
                pub.send_multipart(compose(1, number, [b"x" * 5000]))
                history.accept(1, number)
            dropped = pub.peers[0].dropped
            link.release()
            while len(history.got(1)) < count - dropped:
                history.receive("sub", sub.recv_multipart(timeout=CALL_TIMEOUT_S))
            assert sub.poll(0.05) == 0
    history.check()
    assert 0 < dropped < count
    assert len(history.missing(1)) == dropped


@pytest.mark.slow
@each_value_once(twin=["asyncio", "blocking"], way=[UP, DOWN], scheme=SCHEMES)
def test_an_altered_byte_of_the_handshake_costs_a_connection_at_most(proxy, where, twin, way):
    """Each byte of greeting and READY in turn; the connection that follows is good."""
    history, offsets = History(), range(0, _HANDSHAKE, 5)
    pull = End(twin, "PULL", collecting(history, "pull"), where(), bind=True, handshake_timeout=0.5)
    pushes = []
    for offset in offsets:
        link = proxy.link(
            pull.endpoint, where(), functools.partial(_first, Fault(offset, way, "flip", 1 << offset % 8))
        )
        # Who is done leaves the proxy, and the interpreter's lock, to the others.
        role = streaming(history, offset, 20, pace=4, rest=0.2)
        pushes.append(End(twin, "PUSH", role, link.endpoint, reconnect_interval=0.005, handshake_timeout=0.5))
    for offset in offsets:
        until(lambda offset=offset: len(history.got(offset)) >= 10, lambda offset=offset: f"offset {offset} ends well")
    finish(*pushes, pull)
    history.check(streams=4)


def _first(fault, number):
    return [fault] if number == 0 else []


@each_value_once(sender__receiver=ENDS, scheme=SCHEMES)
def test_bytes_that_vanish_leave_no_half_message(proxy, where, sender, receiver):
    """The network swallows all, then resets: what had begun is gone as a whole."""
    history, count = History(), 400
    pull = End(receiver, "PULL", collecting(history, "pull"), where(), bind=True)
    link = proxy.link(pull.endpoint, where(), scripts(8, 5, ("swallow",)))
    push = End(sender, "PUSH", streaming(history, 1, count, pace=3), link.endpoint, reconnect_interval=0.005)
    outlived, seen = outlives(history, 1, link, 5), 0

    def going_on():
        nonlocal seen
        if len(link.happened) > seen:
            time.sleep(0.02)  # what is under way meanwhile is lost, too
            seen = len(link.happened)
            link.reset()
        return outlived()

    until(going_on, lambda: f"a message after {len(link.happened)} faults")
    finish(push, pull)
    history.check(streams=link.accepted)
    assert runs(history, 1) <= link.accepted - 1
