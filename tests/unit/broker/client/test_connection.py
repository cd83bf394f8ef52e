"""Threads share a blocking client's one socket: if its reader leaves, another thread that waits reads it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from omq.broker.client import connection as module
from omq.broker.client.connection import BlockingConnection
from omq.errors import ClosedError

TIMEOUT_S = 10.0


class SharedConnection(BlockingConnection):
    """A connection without a socket, whose threads take turns at reading.

    Attributes:
        turns: An event for each thread name, set once that thread reads.
        go: The event that the reading thread waits for.
    """

    def __init__(self) -> None:
        super().__init__("inproc://unbound", TIMEOUT_S, None, {})
        self.turns = {name: threading.Event() for name in "ABC"}
        self.go = threading.Event()
        self.threads: list[threading.Thread] = []

    def _poll(self, poll_timeout: float) -> bool:
        self.turns[threading.current_thread().name].set()
        return self.go.wait(poll_timeout)

    def call(self, name: str, ready: Callable[[], bool], until: float | None = None) -> None:
        """Starts a thread of this name that waits."""

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
def connection() -> Iterator[SharedConnection]:
    connection = SharedConnection()
    yield connection
    connection.go.set()
    with connection.lock:
        connection.closed = True  # ends the waits that remain
        connection.wake_all()
    for thread in connection.threads:
        thread.join(TIMEOUT_S)
    if connection._socket is not None:
        connection._socket.stop()


def test_a_woken_waiter_whose_result_is_there_passes_reading_on(connection):
    come = threading.Event()
    connection.call("A", come.is_set)
    connection.call("B", come.is_set)
    connection.call("C", threading.Event().is_set)
    with connection.lock:  # no waiter checks before A has returned
        come.set()
        connection.go.set()
    assert connection.turns["C"].wait(TIMEOUT_S)
    assert not connection.turns["B"].is_set()


def test_a_woken_waiter_whose_timeout_expires_passes_reading_on(connection, monkeypatch):
    late, leave = threading.Event(), threading.Event()
    real = module._Waiter.sleep

    def sleep(self: module._Waiter, seconds: float | None) -> None:
        real(self, seconds)
        if seconds == 0:  # it has checked for the last time
            late.set()
            leave.wait(TIMEOUT_S)

    monkeypatch.setattr(module._Waiter, "sleep", sleep)
    come = threading.Event()
    connection.call("A", come.is_set)
    connection.call("B", threading.Event().is_set, time.monotonic() + 0.05)
    connection.call("C", threading.Event().is_set)
    assert late.wait(TIMEOUT_S)
    come.set()
    connection.go.set()
    connection.threads[0].join(TIMEOUT_S)  # A has woken B
    leave.set()
    assert connection.turns["C"].wait(TIMEOUT_S)
    assert not connection.turns["B"].is_set()
