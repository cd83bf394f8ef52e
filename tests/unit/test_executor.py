"""Work in a thread next to a loop."""

from __future__ import annotations

import time

import pytest

from omq import executor
from omq.executor import resting, run_blocking


def test_resting_sleeps_after_each_piece_of_work(monkeypatch: pytest.MonkeyPatch) -> None:
    sleeps: list[float] = []
    now = 0.0
    monkeypatch.setattr(executor.time, "perf_counter", lambda: now)
    monkeypatch.setattr(executor.time, "sleep", sleeps.append)
    seen = []
    for item in resting(range(100)):
        seen.append(item)
        now += 0.0002
    assert seen == list(range(100))
    assert len(sleeps) == 33


def test_resting_lets_another_thread_work() -> None:
    began, busy = time.perf_counter(), time.thread_time()
    for _ in resting(range(50)):
        end = time.perf_counter() + 0.0006
        while time.perf_counter() < end:
            pass
    assert time.thread_time() - busy < 0.9 * (time.perf_counter() - began)


def test_a_coroutine_runs_to_its_end_at_once() -> None:
    async def inner(number: int) -> int:
        return number + 1

    async def outer() -> int:
        return await inner(1) + await inner(2)

    assert run_blocking(outer) == 5
