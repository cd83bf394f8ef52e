"""Atomic steps: no bytecode runs inside, so that no signal handler and no other thread comes between."""

from __future__ import annotations

import operator
import signal
import sys
import threading
import time
from functools import partial

import pytest

import omq
from omq._core.atomic import Latch, Slot
from omq._core.queues.names import Names
from tests.support.signal_injection import Points
from tests.support.waits import BOUND

# The tests set SIGALRM, with which timeouts are made otherwise.
pytestmark = pytest.mark.timeout(method="thread")


def moments(*calls):
    """At how many moments of some calls, which C code makes, a signal handler could run."""
    points, out = Points(), []
    take, results = out.extend, map(operator.call, calls)
    points.watch(0)
    take(results)
    sys.settrace(None)
    assert len(out) == len(calls)
    return points.count


def test_a_latch_wakes_everybody_who_waits():
    latch = Latch()
    threads = [threading.Thread(target=latch.wait) for _ in range(5)]
    for thread in threads:
        thread.start()
    assert not latch.wait(0.05)
    latch.set()
    for thread in threads:
        thread.join(BOUND)
        assert not thread.is_alive()
    assert latch.is_set
    assert latch.wait(0)


def test_a_latch_refuses_what_is_no_timeout():
    for timeout in (-1, float("nan")):
        with pytest.raises(ValueError, match="timeout"):
            Latch().wait(timeout)


def test_a_handler_waits_for_the_latch_whose_wait_it_has_interrupted():
    latch, order = Latch(), []

    def handle(*_):
        order.append("handler")
        threading.Timer(0.05, latch.set).start()
        assert latch.wait(BOUND)
        order.append("woken")

    before = signal.signal(signal.SIGUSR1, handle)
    main = threading.main_thread().ident
    assert main is not None
    try:
        threading.Timer(0.05, signal.pthread_kill, [main, signal.SIGUSR1]).start()
        assert latch.wait(BOUND)
        order.append("interrupted")
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert order == ["handler", "woken", "interrupted"]


def test_a_handler_that_raises_ends_a_wait_and_nothing_else():
    latch = Latch()

    def handle(*_):
        raise KeyError

    before = signal.signal(signal.SIGALRM, handle)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyError):
            latch.wait(BOUND)
    finally:
        signal.signal(signal.SIGALRM, before)
    began = time.monotonic()
    threading.Timer(0.05, latch.set).start()
    assert latch.wait(BOUND)
    assert time.monotonic() - began < BOUND


def test_a_slot_takes_a_value_instead_of_the_one_that_is_expected():
    slot: Slot[str] = Slot()
    assert slot.value is None
    assert slot.put("first", None) == "first"
    assert slot.put("late", None) == "first"
    assert slot.put("second", "first") == "second"
    assert slot.value == "second"


def test_one_of_many_threads_fills_a_slot():
    slot: Slot[object] = Slot()
    found: list[object] = []
    go = threading.Barrier(8)

    def fill():
        go.wait()
        found.append(slot.put(object(), None))

    threads = [threading.Thread(target=fill) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(BOUND)
    assert len(found) == 8
    assert {id(one) for one in found} == {id(slot.value)}


def test_names_are_taken_opened_and_given_back():
    names = Names()
    names.bind("a", "listener")
    with pytest.raises(omq.BindError, match="a: the name is bound"):
        names.bind("a", "other")
    assert names.bound == ["a"]
    assert not names.is_open("a")
    assert names.find("a", "early") is None
    assert names.find("a", "earlier") is None
    assert names.waited_for == ["a"]
    assert names.open("a") == ["early", "earlier"]
    assert names.is_open("a")
    assert names.find("a", "late") == "listener"
    assert names.waited_for == []
    names.unbind("a")
    names.unbind("a")
    assert not names.is_open("a")
    assert names.find("a", "late") is None
    names.forget("a", "late")
    names.forget("a", "late")
    assert names.waited_for == names.bound == []


def test_every_call_is_one_step():
    latch, names = Latch(), Names()
    slot: Slot[object] = Slot()
    one, other = object(), object()
    assert not moments(
        latch.set,
        partial(latch.wait, 1),
        partial(slot.put, one, None),
        partial(slot.put, other, one),
        partial(names.bind, "a", one),
        partial(names.find, "a", other),
        partial(names.forget, "a", other),
        partial(names.find, "a", other),
        partial(names.open, "a"),
        partial(names.find, "a", other),
        partial(names.is_open, "a"),
        partial(names.unbind, "a"),
    )

    def counted():
        len("")

    moments(counted)  # Python 3.13 reports a function's instructions from its second run on
    assert moments(counted)
