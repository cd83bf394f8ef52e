"""The alarm: it calls later, all at once, and wakes nobody when it is set."""

from __future__ import annotations

import select
import time

from omq._core.alarm import Alarm


def readable(alarm: Alarm, seconds: float) -> bool:
    return bool(select.select([alarm.fd], [], [], seconds)[0])


def test_what_is_set_is_called_once_a_moment_later() -> None:
    alarm, called = Alarm(), []
    started = time.monotonic()
    alarm.set(lambda: called.append(1))
    alarm.set(lambda: called.append(2))
    assert not readable(alarm, 0)
    assert readable(alarm, 5)
    assert time.monotonic() - started >= 0.015
    alarm.ring()
    assert called == [1, 2]
    assert not readable(alarm, 0.05)


def test_it_can_be_set_again_by_what_it_calls() -> None:
    alarm, called = Alarm(), []
    alarm.set(lambda: alarm.set(lambda: called.append(1)))
    for _ in range(2):
        assert readable(alarm, 5)
        alarm.ring()
    assert called == [1]


def test_a_closed_alarm_calls_nothing() -> None:
    alarm = Alarm()
    alarm.close()
    alarm.close()
    alarm.set(lambda: None)
    assert alarm.fd == -1
