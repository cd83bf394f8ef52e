"""The pace of messages."""

from __future__ import annotations

import pytest

from omq.cli.sockets import pace
from omq.cli.sockets.pace import MAX_LAG_S, Pacer


class Clock:
    """A clock that a sleep moves on."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(round(seconds, 9))
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(pace, "time", clock)
    return clock


def test_the_first_message_is_due_at_once_and_others_at_a_steady_rate(clock: Clock) -> None:
    pacer = Pacer(0.5)
    pacer.wait()
    assert clock.slept == []
    clock.now += 0.2
    pacer.wait()
    clock.now += 0.1
    pacer.wait()
    assert clock.slept == [0.3, 0.4]


def test_a_short_delay_is_made_up_for_and_a_long_one_is_not(clock: Clock) -> None:
    pacer = Pacer(0.05)
    pacer.wait()
    clock.now += 0.08
    pacer.wait()
    pacer.wait()
    assert clock.slept == [0.02]
    clock.now += 100
    before = clock.now
    for _ in range(10):
        pacer.wait()
    assert clock.now - before == pytest.approx(9 * 0.05 - MAX_LAG_S)


def test_no_interval_never_waits(clock: Clock) -> None:
    pacer = Pacer(0)
    for _ in range(3):
        pacer.wait()
    assert clock.slept == []
