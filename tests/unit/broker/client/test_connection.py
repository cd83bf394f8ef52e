"""How threads share a blocking client's one socket: whoever leaves, another one that waits reads it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from omq.broker.client import connection as module
from omq.broker.client.connection import BlockingConnection
from omq.errors import ClosedError

PATIENCE = 10.0


class Stage(BlockingConnection):
    """A caller whose threads take turns at nothing; the test knows whose turn it is.

    Attributes:
        turns: By name of a thread: set once it reads.
        go: What a thread that reads waits for.
    """

    def __init__(self) -> None:
        super().__init__("inproc://nobody", PATIENCE, None, {})
        self.turns = {name: threading.Event() for name in "ABC"}
        self.go = threading.Event()
        self.threads: list[threading.Thread] = []

    def _turn(self, nap: float) -> bool:
        self.turns[threading.current_thread().name].set()
        return self.go.wait(nap)

    def call(self, name: str, ready: Callable[[], bool], until: float | None = None) -> None:
        """A thread of this name waits."""

        def wait() -> None:
            with contextlib.suppress(ClosedError):  # the test is over
                self.wait(ready, until)

        thread = threading.Thread(target=wait, name=name, daemon=True)
        before = len(self._waiters)
        thread.start()
        self.threads.append(thread)
        while not (self.turns[name].is_set() or len(self._waiters) > before):
            time.sleep(0.0005)


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage()
    yield stage
    stage.go.set()
    with stage.lock:
        stage.closed = True  # who still waits is told so
        stage.wake_all()
    for thread in stage.threads:
        thread.join(PATIENCE)
    if stage._socket is not None:
        stage._socket.stop()


def test_who_is_woken_to_read_and_has_what_it_waits_for_passes_the_turn_on(stage):
    come = threading.Event()
    stage.call("A", come.is_set)
    stage.call("B", come.is_set)
    stage.call("C", threading.Event().is_set)
    with stage.lock:  # nobody looks before A has left
        come.set()
        stage.go.set()
    assert stage.turns["C"].wait(PATIENCE)
    assert not stage.turns["B"].is_set()


def test_who_is_woken_to_read_as_its_time_is_up_passes_the_turn_on(stage, monkeypatch):
    late, leave = threading.Event(), threading.Event()
    real = module._Waiter.sleep

    def sleep(self: module._Waiter, seconds: float | None) -> None:
        real(self, seconds)
        if seconds == 0:  # its last look is behind it
            late.set()
            leave.wait(PATIENCE)

    monkeypatch.setattr(module._Waiter, "sleep", sleep)
    come = threading.Event()
    stage.call("A", come.is_set)
    stage.call("B", threading.Event().is_set, time.monotonic() + 0.05)
    stage.call("C", threading.Event().is_set)
    assert late.wait(PATIENCE)
    come.set()
    stage.go.set()
    stage.threads[0].join(PATIENCE)  # A has woken B
    leave.set()
    assert stage.turns["C"].wait(PATIENCE)
    assert not stage.turns["B"].is_set()
