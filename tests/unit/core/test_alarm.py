"""The alarm: it calls later, all at once, and wakes nobody when it is set."""

from __future__ import annotations

import select
import time
from collections.abc import Iterator

import pytest

from omq._core.link.alarm import Alarm


@pytest.fixture
def alarm() -> Iterator[Alarm]:
    made = Alarm()
    made.open()
    yield made
    made.close()


def readable(alarm: Alarm, seconds: float) -> bool:
    return bool(select.select([alarm.fd], [], [], seconds)[0])


def test_what_is_set_is_called_once_a_moment_later(alarm: Alarm) -> None:
    called: list[int] = []
    started = time.monotonic()
    alarm.set(lambda: called.append(1))
    alarm.set(lambda: called.append(2))
    assert not readable(alarm, 0)
    assert readable(alarm, 5)
    assert time.monotonic() - started >= 0.0075
    alarm.ring()
    assert called == [1, 2]
    assert not readable(alarm, 0.05)


def test_it_can_be_set_again_by_what_it_calls(alarm: Alarm) -> None:
    called: list[int] = []
    alarm.set(lambda: alarm.set(lambda: called.append(1)))
    for _ in range(2):
        assert readable(alarm, 5)
        alarm.ring()
    assert called == [1]


def test_a_closed_alarm_calls_nothing(alarm: Alarm) -> None:
    alarm.close()
    alarm.close()
    alarm.set(lambda: None)
    assert alarm.fd == -1
