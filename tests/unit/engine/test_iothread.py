"""The I/O thread, and those who wait for it."""

from __future__ import annotations

import asyncio
import gc
import signal
import threading

import pytest

import omq
from omq._core.bell import Bell
from omq._core.link.deferred_calls import DeferredCalls
from omq.engine.iothread import IoThread
from omq.engine.thread_call import run_in_new_thread
from omq.engine.weak_set import WeakIdentitySet
from tests.support.waits import BOUND, until

# The tests set SIGALRM, with which timeouts are made otherwise.
pytestmark = pytest.mark.timeout(method="thread")


class Tick(Exception):
    pass


@pytest.fixture
def io():
    before = set(threading.enumerate())
    deferred_calls, bell = DeferredCalls(), Bell()
    thread = IoThread(deferred_calls, bell)
    yield thread
    thread.stop()
    deferred_calls.close()
    bell.close()
    assert not any(one.name == "omq-io" for one in set(threading.enumerate()) - before)


@pytest.fixture
def ticks():
    """Has SIGALRM raise `Tick`."""

    def tick(*_):
        raise Tick

    before = signal.signal(signal.SIGALRM, tick)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def in_threads(count, work):
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(BOUND)
        assert not thread.is_alive()


def test_calls_and_coroutines_run_there_and_give_what_they_give(io):
    async def later(value):
        await asyncio.sleep(0.01)
        return value, threading.current_thread().name

    assert io.run(later, 1) == (1, "omq-io")
    assert io.run(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        io.run(divmod, 7, 0)


def test_the_io_thread_cannot_wait_for_itself(io):
    for call in (io.run, io.begin):
        with pytest.raises(omq.StateError, match="callback on the I/O thread"):
            io.run(call, len, "")


def test_one_thread_starts_whichever_caller_asks_first():
    before = threading.active_count()
    deferred_calls, bell = DeferredCalls(), Bell()
    io = IoThread(deferred_calls, bell)
    idents = []
    in_threads(8, lambda: idents.append(io.run(threading.get_ident)))
    assert len(idents) == 8
    assert len(set(idents)) == 1
    until(lambda: threading.active_count() == before + 1, "the end of the threads that start it")
    in_threads(8, io.stop)
    assert threading.active_count() == before


def test_one_that_was_never_used_ends_without_having_begun():
    io = IoThread(DeferredCalls(), Bell())
    io.stop()
    with pytest.raises(omq.ContextTerminated, match="the context has been terminated"):
        io.run(len, "")


def test_what_waits_when_it_ends_is_reported(io):
    forever = io.begin(asyncio.sleep, 3600)
    failures = []

    def wait():
        try:
            io.finish(forever)
        except omq.ContextTerminated as error:
            failures.append(error)

    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    io.stop()
    for thread in threads:
        thread.join(BOUND)
    assert failures
    with pytest.raises(omq.ContextTerminated):
        io.begin(len, "")


def test_a_call_that_is_interrupted_before_it_was_made_never_is(io, ticks):
    made, wait_queue = [], threading.Event()
    io.start()
    io.begin(wait_queue.wait, BOUND)  # it is busy
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    with pytest.raises(Tick):
        io.run(made.append, 1)
    wait_queue.set()
    io.run(made.append, 2)
    assert made == [2]


def test_a_call_that_is_interrupted_while_it_is_made_has_been_made_afterwards(io, ticks):
    made, begun = [], threading.Event()

    def make():
        begun.set()
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        made.append(threading.Event().wait(0.2))

    with pytest.raises(Tick):
        io.run(make)
    assert begun.is_set()
    assert made == [False]


def test_a_coroutine_whose_caller_is_interrupted_is_cancelled(io, ticks):
    ends = []

    async def forever():
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise

    io.start()
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    with pytest.raises(Tick):
        io.run(forever)
    until(lambda: ends == ["cancelled"], "the end of the coroutine")


def test_a_function_apart_is_not_interrupted(ticks):
    made = []

    def make():
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        made.append(threading.Event().wait(0.1))
        made.append(threading.current_thread() is threading.main_thread())

    with pytest.raises(Tick):
        run_in_new_thread(make)
    assert made == [False, False]
    assert run_in_new_thread(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        run_in_new_thread(divmod, 7, 0)


class Member:
    pass


def test_a_weak_set_keeps_no_member_and_may_change_during_iteration():
    weak_set: WeakIdentitySet[Member] = WeakIdentitySet()
    members = [Member() for _ in range(100)]
    for member in members + members:
        weak_set.add(member)
    assert list(weak_set) == members
    over = threading.Event()

    def come_and_go():
        while not over.is_set():
            weak_set.add(Member())

    thread = threading.Thread(target=come_and_go)
    thread.start()
    for _ in range(2000):
        assert len([one for one in weak_set if one in members[:2]]) == 2
    over.set()
    thread.join(BOUND)
    del members, member
    gc.collect()
    assert list(weak_set) == []
    assert len(weak_set) == 0
