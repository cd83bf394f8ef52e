"""The alarm: it calls later, all at once, and wakes no thread when it is set."""

from __future__ import annotations

import select
import time
from collections.abc import Iterator

import pytest

from omq._core.link.deferred_calls import DeferredCalls


@pytest.fixture
def deferred_calls() -> Iterator[DeferredCalls]:
    made = DeferredCalls()
    made.open()
    yield made
    made.close()


def readable(deferred_calls: DeferredCalls, seconds: float) -> bool:
    return bool(select.select([deferred_calls.fd], [], [], seconds)[0])


def test_what_is_set_is_called_once_a_moment_later(deferred_calls: DeferredCalls) -> None:
    called: list[int] = []
    started = time.monotonic()
    deferred_calls.set(lambda: called.append(1))
    deferred_calls.set(lambda: called.append(2))
    assert not readable(deferred_calls, 0)
    assert readable(deferred_calls, 5)
    assert time.monotonic() - started >= 0.0075
    deferred_calls.ring()
    assert called == [1, 2]
    assert not readable(deferred_calls, 0.05)


def test_what_is_taken_back_is_not_called_and_wakes_no_thread(deferred_calls: DeferredCalls) -> None:
    called: list[int] = []

    def first() -> None:
        called.append(1)

    deferred_calls.cancel(first)  # it was never set
    deferred_calls.set(first)
    deferred_calls.cancel(first)
    assert not readable(deferred_calls, 0.05)
    deferred_calls.set(first)
    deferred_calls.set(lambda: called.append(2))
    deferred_calls.cancel(first)
    assert readable(deferred_calls, 5)
    deferred_calls.ring()
    assert called == [2]


def test_a_deferred_call_can_set_the_alarm_again(deferred_calls: DeferredCalls) -> None:
    called: list[int] = []
    deferred_calls.set(lambda: deferred_calls.set(lambda: called.append(1)))
    for _ in range(2):
        assert readable(deferred_calls, 5)
        deferred_calls.ring()
    assert called == [1]


def test_a_closed_deferred_calls_calls_nothing(deferred_calls: DeferredCalls) -> None:
    deferred_calls.close()
    deferred_calls.close()
    deferred_calls.set(lambda: None)
    assert deferred_calls.fd == -1
