"""Acks recorded for an absent owner, and the callers that wait until they are stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from omq.pzq.cluster.remote_acks import RemoteAcks
from omq.store.errors import OutOfSpace, StoreFailed
from omq.store.interface import Acknowledge, Append


class Journal:
    """Has writes wait until the test ends them."""

    def __init__(self) -> None:
        self.writes: list[tuple[Any, Callable[[Any], None]]] = []
        self.settled: list[tuple[int, int]] = []

    def submit(self, write: Any, done: Callable[[Any], None]) -> None:
        if isinstance(write, Acknowledge):
            self.settled += write.ranges
            done(write)
        else:
            self.writes.append((write, done))

    def end(self, at: int = 0, number: int = 1, error: Exception | None = None) -> None:
        write, done = self.writes.pop(at)
        assert isinstance(write, Append)
        write.first, write.error = number, error  # type: ignore[assignment]
        done(write)


def opened() -> tuple[RemoteAcks, Any, list[Callable[[], None]]]:
    journal: Any = Journal()
    later: list[Callable[[], None]] = []
    return RemoteAcks(journal, 5, lambda seconds, call: later.append(call)), journal, later


def test_a_waiter_waits_for_all_acks_added_before() -> None:
    remote_acks, journal, _ = opened()
    called: list[str] = []
    remote_acks.when_stored(lambda: called.append("at once"))
    remote_acks.add("a", "k1")
    remote_acks.add("a", "k2")
    remote_acks.when_stored(lambda: called.append("two"))
    remote_acks.add("a", "k3")
    remote_acks.when_stored(lambda: called.append("three"))
    journal.end(1)
    assert called == ["at once"]
    journal.end(0)
    assert called == ["at once", "two"]
    journal.end(0)
    assert called == ["at once", "two", "three"]


@pytest.mark.parametrize("before", [False, True])
def test_what_all_know_is_not_kept(before: bool) -> None:
    remote_acks, journal, _ = opened()
    remote_acks.add("a", "k")
    if before:
        remote_acks.forget("k")
    journal.end(number=9)
    if not before:
        remote_acks.forget("k")
    remote_acks.forget("k")
    assert journal.settled == [(9, 9)]


def test_one_that_was_forgotten_may_come_again() -> None:
    remote_acks, journal, _ = opened()
    remote_acks.add("a", "k")
    remote_acks.forget("k")
    remote_acks.add("a", "k")
    journal.end(number=1)
    assert (journal.writes, journal.settled) == ([], [])
    remote_acks.forget("k")
    assert journal.settled == [(1, 1)]


def test_a_full_disk_is_waited_for_and_another_fault_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    remote_acks, journal, later = opened()
    called: list[int] = []
    remote_acks.add("a", "k")
    remote_acks.when_stored(lambda: called.append(1))
    journal.end(error=OutOfSpace("full"))
    assert not called
    later.pop()()
    journal.end(error=StoreFailed("broken"))
    assert called == [1]
    assert "is not stored: broken" in caplog.text
    remote_acks.forget("k")
    assert journal.settled == []
