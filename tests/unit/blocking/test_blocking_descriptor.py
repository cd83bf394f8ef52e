"""The descriptor that never lies: readable exactly while a message waits."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import select
import selectors
import sys
import threading
import time

import pytest

import omq
import omq.asyncio
from tests.support.waits import descriptors, sleeps, until
from tests.unit.blocking.conftest import BOUND


def _readable(fd):
    return bool(select.select([fd], [], [], 0)[0])


def _waits(fd, seconds=BOUND):
    return bool(select.select([fd], [], [], seconds)[0])


@pytest.mark.parametrize("count", [20_000, pytest.param(1_000_000, marks=[pytest.mark.slow, pytest.mark.timeout(300)])])
def test_the_descriptor_agrees_with_poll_after_every_take(make, crew, endpoint, count):
    pull, push = make.linked(omq.PULL, omq.PUSH, endpoint)
    fd = pull.fileno()
    chance = random.Random(3)

    def send():
        sent = 0
        mine = random.Random(4)
        while sent < count:
            burst = min(mine.choice([1, 2, 100, 3000]), count - sent)
            sent += push.send_many([b"%d" % n for n in range(sent, sent + burst)])
            if mine.random() < 0.3:
                time.sleep(mine.random() * 0.002)

    crew(send)
    got = 0
    while got < count:
        assert _waits(fd), f"{count - got} messages are missing"
        for message in pull.recv_many(chance.choice([1, 2, 7, 256, 10_000]), timeout=0):
            assert message == b"%d" % got
            got += 1
        # poll() looks itself, so only in this order can the descriptor not know less.
        ready = _readable(fd)
        polled = bool(pull.poll(0))
        assert ready <= polled, "readable without a message"
        if polled:
            assert _waits(fd, 1), "a message, and not readable"
    crew.join()
    assert not _readable(fd)
    assert not pull.poll(0)
    with pytest.raises(omq.ReceiveTimeout):
        pull.recv(timeout=0)


@pytest.mark.parametrize("early", [True, False])
def test_the_descriptor_may_be_asked_for_at_any_time(make, inproc, early):
    pull = make(omq.PULL)
    fd = pull.fileno() if early else None
    pull.bind("tcp://127.0.0.1:*")
    push = make(omq.PUSH, connect=pull.endpoints[0])
    push.send(b"x")
    push.send(b"y")
    if fd is None:
        assert pull.recv(timeout=BOUND) == b"x"
        push.send(b"x")
        fd = pull.fileno()
    assert fd == pull.fileno()
    assert _waits(fd)
    assert pull.recv(timeout=0)
    assert _waits(fd)
    assert pull.recv(timeout=BOUND)
    assert not _readable(fd)


def test_filtered_messages_do_not_show(make, endpoint):
    pub, sub = make.linked(omq.PUB, omq.SUB, endpoint)
    sub.subscribe(b"a")
    pub.wait_subscribed(b"a", timeout=BOUND)
    fd = sub.fileno()
    for n in range(2000):
        pub.send(b"%s%d" % (b"ab"[n % 2 : n % 2 + 1], n))
    for n in range(0, 2000, 2):
        assert _waits(fd)
        assert sub.recv(timeout=0) == b"a%d" % n
    assert not _readable(fd)


def test_an_end_of_a_subscription_takes_what_waits_from_sight(make):
    pub, sub = make.linked(omq.PUB, omq.SUB, "tcp://127.0.0.1:*")
    sub.subscribe(b"a")
    pub.wait_subscribed(b"a", timeout=BOUND)
    fd = sub.fileno()
    pub.send(b"a")
    assert _waits(fd)
    sub.unsubscribe(b"a")
    assert not _readable(fd)
    assert not sub.poll(0)


def test_a_reply_socket_shows_a_request_only_when_it_can_be_taken(make, endpoint):
    rep = make(omq.REP, bind=endpoint)
    clients = [make(omq.REQ, connect=rep.endpoints[0]) for _ in range(2)]
    rep.wait_connected(2, timeout=BOUND)
    fd = rep.fileno()
    for client in clients:
        client.send(b"question")
    for left in (2, 1):
        assert _waits(fd), f"{left} requests wait"
        assert rep.recv(timeout=0) == b"question"
        until(lambda: sum(peer.messages_in for peer in rep.peers) == 2, "the other request")
        assert not _readable(fd)
        assert not rep.poll(0)
        rep.send(b"answer")
    assert not _readable(fd)
    for client in clients:
        assert client.recv(timeout=BOUND) == b"answer"


def test_a_request_socket_and_a_router(make, endpoint):
    router, req = make.linked(omq.ROUTER, omq.REQ, endpoint)
    fds = router.fileno(), req.fileno()
    for _ in range(50):
        assert not any(map(_readable, fds))
        req.send(b"question")
        assert _waits(fds[0])
        message = router.recv_multipart(timeout=0)
        assert not any(map(_readable, fds))
        router.send_multipart([*message[:2], b"answer"])
        assert _waits(fds[1])
        assert req.recv(timeout=0) == b"answer"


def test_types_that_only_send_have_none(make):
    for kind in (omq.PUSH, omq.PUB):
        with pytest.raises(omq.StateError, match="does not receive"):
            make(kind).fileno()


def test_a_close_shows(make, crew):
    pull = make(omq.PULL, bind="tcp://127.0.0.1:*")
    fd = pull.fileno()
    crew(_waits, fd)
    pull.close()
    assert crew.join() == [True]
    with pytest.raises(omq.ClosedError):
        pull.fileno()


def _callers_read(pull, push):
    """Returns whether the I/O thread makes way for a caller."""
    for _ in range(3):
        threading.Timer(0.02, push.send, [b"x"]).start()
        assert pull.recv(timeout=BOUND) == b"x"
    until(lambda: not pull.watched, "the I/O thread watches on")
    return not pull.published


def test_a_caller_asleep_on_a_released_descriptor_wakes_up(make, crew):
    pull, push = make.linked(omq.PULL, omq.PUSH, "tcp://127.0.0.1:*")
    fd = pull.fileno()
    waiting = crew(_waits, fd)
    until(lambda: sleeps(waiting.native_id))
    pull.release_fileno()
    assert crew.join() == [True]
    assert _callers_read(pull, push)
    os.fstat(fd)  # open: no other file gets its number


def test_after_a_wait_callers_read_again(make):
    pull, push = make.linked(omq.PULL, omq.PUSH, "tcp://127.0.0.1:*")
    assert omq.wait([pull], 0.05) == []
    assert _callers_read(pull, push)
    push.send(b"x")
    assert omq.wait([pull], BOUND) == [pull]
    assert not pull.published
    assert pull.recv(timeout=0) == b"x"
    with pytest.raises(TypeError):
        omq.wait([pull, 3], 0)
    with pytest.raises(omq.StateError):
        omq.wait([pull, push], 0)
    assert not pull.published
    fd = pull.fileno()
    assert omq.wait([pull], 0) == []
    assert pull.published, "the user has it"
    assert not _readable(fd)
    pull.release_fileno()
    assert omq.wait([pull], 0) == []
    assert _readable(fd), "the user has given it back"


def test_a_wait_outlives_what_another_thread_gives_back(make, crew):
    pull, push = make.linked(omq.PULL, omq.PUSH, "tcp://127.0.0.1:*")
    pull.fileno()
    waiting = [crew(omq.wait, [pull], BOUND) for _ in range(2)]
    until(lambda: all(sleeps(one.native_id) for one in waiting))
    pull.release_fileno()
    assert pull.published
    push.send(b"x")
    assert crew.join() == [[pull], [pull]]
    assert not pull.published


def test_waits_for_messages_leave_nothing_more_behind(make, endpoint):
    pull, push = make.linked(omq.PULL, omq.PUSH, endpoint)
    omq.wait([pull], 0)
    before = descriptors()
    for _ in range(100):
        push.send(b"x")
        assert omq.wait([pull], BOUND) == [pull]
        pull.recv(timeout=0)
    assert not descriptors() - before


def test_descriptors_that_come_and_go_lose_nothing(make, crew):
    pull, push = make.linked(omq.PULL, omq.PUSH, "tcp://127.0.0.1:*")
    count = 5000
    crew(lambda: [push.send(b"%d" % n) for n in range(count)])
    over = threading.Event()

    def come_and_go():
        while not over.is_set():
            pull.fileno()
            pull.release_fileno()
            omq.wait([pull], 0)

    crew(come_and_go)
    try:
        assert [pull.recv(timeout=BOUND) for _ in range(count)] == [b"%d" % n for n in range(count)]
    finally:
        over.set()
    crew.join()
    assert _callers_read(pull, push)


def test_selectors_with_a_pipe_next_to_it(make):
    pull, push = make.linked(omq.PULL, omq.PUSH, "tcp://127.0.0.1:*")
    here, there = os.pipe()
    seen = []
    with selectors.DefaultSelector() as selector:
        selector.register(pull, selectors.EVENT_READ, "socket")
        selector.register(here, selectors.EVENT_READ, "pipe")
        for what in ("pipe", "socket", "socket", "pipe"):
            os.write(there, b"x") if what == "pipe" else push.send(b"x")
            ready = [key.data for key, _ in selector.select(BOUND)]
            assert ready == [what]
            # Level-triggered: it stays so.
            assert [key.data for key, _ in selector.select(0)] == [what]
            seen.append(os.read(here, 1) if what == "pipe" else pull.recv(timeout=0))
        assert selector.select(0) == []
    os.close(here)
    os.close(there)
    assert seen == [b"x"] * 4


def test_add_reader_of_an_event_loop(make):
    pull, push = make.linked(omq.PULL, omq.PUSH, "tcp://127.0.0.1:*")
    got = []

    async def main():
        loop = asyncio.get_running_loop()
        done = loop.create_future()

        def take():
            got.append(pull.recv(timeout=0))
            if len(got) == 500:
                done.set_result(None)

        loop.add_reader(pull.fileno(), take)
        thread = threading.Thread(target=lambda: [push.send(b"%d" % n) for n in range(500)])
        thread.start()
        await asyncio.wait_for(done, BOUND)
        loop.remove_reader(pull.fileno())
        thread.join()

    asyncio.run(main())
    assert got == [b"%d" % n for n in range(500)]


def test_wait_for_several_sockets(make, crew, inproc):
    one, push = make.linked(omq.PULL, omq.PUSH, "tcp://127.0.0.1:*")
    two, other = make.linked(omq.PULL, omq.PUSH, inproc)
    assert omq.wait([one, two], 0) == []
    before = time.monotonic()
    assert omq.wait([one, two], 0.1) == []
    assert 0.1 <= time.monotonic() - before < 5
    other.send(b"x")
    assert omq.wait([one, two, two], BOUND) == [two]
    push.send(b"y")
    assert one.poll(BOUND)
    assert set(omq.wait([one, two], BOUND)) == {one, two}
    two.recv()
    assert omq.wait([two, one]) == [one]
    one.recv()
    with pytest.raises(omq.StateError):
        omq.wait([])
    with pytest.raises(omq.StateError):
        omq.wait([one, push], 0)
    waiting = crew(pytest.raises, omq.ClosedError, omq.wait, [one, two])
    until(lambda: sleeps(waiting.native_id))
    two.close()
    crew.join()


def full(make, endpoint, **options):
    """A pair whose PUSH has no room left; what it has accepted."""
    pull, push = make.linked(omq.PULL, omq.PUSH, endpoint, recv_hwm=1, send_hwm=1, **options)
    sent = 0
    with contextlib.suppress(omq.SendTimeout):
        while True:
            push.send(bytes(100_000), timeout=0.1)
            sent += 1
    return pull, push, sent


@pytest.mark.parametrize("away", [False, True], ids=["at once", "after a while"])
def test_wait_for_room(make, crew, endpoint, away):
    pull, push, sent = full(make, endpoint)
    _stuck, busy, _ = full(make, "tcp://127.0.0.1:*")
    assert omq.wait([push, busy], 0, omq.POLL_OUT) == []
    before = time.monotonic()
    assert omq.wait([push, busy], 0.1, omq.POLL_OUT) == []
    assert 0.1 <= time.monotonic() - before < 5
    found = []
    waiting = crew(lambda: found.extend(omq.wait([busy, push], BOUND, omq.POLL_OUT)))
    until(lambda: sleeps(waiting.native_id))
    if away:
        time.sleep(0.1)
    for _ in range(sent):
        pull.recv(timeout=BOUND)
    crew.join()
    assert found == [push]
    push.send(b"x", timeout=0)


def test_wait_for_either(make, endpoint):
    pull, push, sent = full(make, endpoint)
    both = omq.POLL_IN | omq.POLL_OUT
    assert omq.wait([push, pull], BOUND, both) == [pull]
    for _ in range(sent):
        assert pull in omq.wait([pull, push], BOUND, both)
        pull.recv(timeout=BOUND)
    assert omq.wait([pull, push], BOUND, both) == [push]
    with pytest.raises(omq.StateError, match="PULL socket does not send"):
        omq.wait([push, pull], 0, omq.POLL_OUT)
    for wrong in (0, 8, omq.POLL_OUT | 2, "in", None):
        with pytest.raises(ValueError, match="events="):
            omq.wait([push], 0, wrong)


def test_wait_for_room_ends_with_its_socket_and_where_a_peer_comes(make, crew, tmp_path):
    push = make(omq.PUSH, connect=f"ipc://{tmp_path}/s", immediate=True, reconnect_interval=0.01)
    waiting = crew(pytest.raises, omq.ClosedError, omq.wait, [push], None, omq.POLL_OUT)
    until(lambda: sleeps(waiting.native_id))
    push.close()
    crew.join()
    push = make(omq.PUSH, connect=f"ipc://{tmp_path}/s", immediate=True, reconnect_interval=0.01)
    waiting = crew(omq.wait, [push], BOUND, omq.POLL_OUT)
    until(lambda: sleeps(waiting.native_id))
    make(omq.PULL, bind=f"ipc://{tmp_path}/s")
    crew.join()
    assert push.poll(0, omq.POLL_OUT)


def test_waits_for_room_leave_nothing_behind(make, endpoint):
    _, push, _ = full(make, endpoint)
    before = descriptors()
    for _ in range(100):
        assert omq.wait([push], 0, omq.POLL_OUT) == []
    assert not descriptors() - before
    with pytest.raises(TypeError):
        omq.wait([push, 3], 0, omq.POLL_OUT)
    assert not descriptors() - before


class Other(omq.PULL):
    """A socket whose user has made other calls of the library's."""

    def poll(self, timeout=1000, out=False):
        raise AssertionError("this is the user's")

    fileno = poll


def test_wait_does_not_call_what_a_subclass_has_made_its_own(make, inproc):
    one = make(Other, bind=inproc)
    push = make(omq.PUSH, connect=inproc)
    assert omq.wait([one], 0) == []
    push.send(b"x")
    assert omq.wait([one], BOUND) == [one]
    assert one.recv(timeout=0) == b"x"


def test_wait_takes_blocking_sockets_only():
    for wrong in (3, sys.stdin, omq.asyncio.PULL()):
        with pytest.raises(TypeError, match="takes blocking sockets"):
            omq.wait([wrong], 0)


def test_poll_returns_what_is_ready(make, endpoint):
    one, other = make.linked(omq.DEALER, omq.DEALER, endpoint)
    both = omq.POLL_IN | omq.POLL_OUT
    assert one.poll(0) == 0
    assert one.poll(0, omq.POLL_OUT) == omq.POLL_OUT
    assert one.poll(None, both) == omq.POLL_OUT
    other.send(b"x")
    assert one.poll(BOUND) == omq.POLL_IN
    assert one.poll(0, both) == both
    for wrong in (0, 2, 8, 1 | 16):
        with pytest.raises(ValueError, match="events"):
            one.poll(0, wrong)
    with pytest.raises(ValueError, match="timeout"):
        one.poll(-1)


def test_reading_on_for_it_takes_nobodys_turn(make):
    """While the owner works the I/O thread reads on, again and again; each peer is still first once a round."""
    pull = make(omq.PULL, bind="tcp://127.0.0.1:*", recv_hwm=0)
    pushes = [make(omq.PUSH, connect=pull.endpoints[0]) for _ in range(3)]
    pull.wait_connected(n=3, timeout=BOUND)
    fd = pull.fileno()

    def send_all(push, bodies):
        before = sum(peer.messages_in for peer in pull.peers)
        push.send_many(bodies)
        until(lambda: sum(peer.messages_in for peer in pull.peers) == before + len(bodies))

    for number, push in enumerate(pushes):
        send_all(push, [b"%d" % number] * 20)
    took = []
    for turn in range(30):
        assert _waits(fd)
        took.append(pull.recv(timeout=0))
        for _ in range(turn % 3):
            send_all(pushes[turn % 2], [b"%d" % (turn % 2)])
    assert took in ([b"0", b"1", b"2"] * 10, [b"1", b"2", b"0"] * 10, [b"2", b"0", b"1"] * 10), took
