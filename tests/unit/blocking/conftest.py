"""Blocking sockets for tests: stopped when the test ends, every wait bounded, every thread's failure reported."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import omq
from tests.support.socket_types import fitting
from tests.support.waits import BOUND, until


class Sockets:
    """Makes sockets of a context of the test's own."""

    def __init__(self) -> None:
        self.context = omq.Context()
        self._made: list[omq.Socket] = []

    def __call__(self, kind: type[omq.Socket], **options: Any) -> Any:
        socket = kind(self.context, **options)
        self._made.append(socket)
        return socket

    def linked(self, one: type[omq.Socket], other: type[omq.Socket], endpoint: str, **options: Any) -> Any:
        """Two sockets: the first bound, the second connected, both knowing it; options for whom they fit."""
        bound = self(one, bind=endpoint, **fitting(one.socket_type, options))
        dialled = self(other, connect=bound.endpoints[0], **fitting(other.socket_type, options))
        bound.wait_connected(timeout=BOUND)
        dialled.wait_connected(timeout=BOUND)
        return bound, dialled

    def stop(self) -> None:
        for socket in self._made:
            socket.stop()
        self.context.term(linger=0)


@pytest.fixture
def make() -> Iterator[Sockets]:
    sockets = Sockets()
    yield sockets
    sockets.stop()


class Crew:
    """Threads whose results and failures come back to the test."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self._results: dict[int, Any] = {}
        self._failures: list[BaseException] = []

    def __call__(self, work: Callable[..., Any], *arguments: Any) -> threading.Thread:
        place = len(self._threads)

        def run() -> None:
            try:
                self._results[place] = work(*arguments)
            except BaseException as error:
                self._failures.append(error)

        thread = threading.Thread(target=run, daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def join(self, bound: float = BOUND) -> list[Any]:
        """Waits for all of them; gives what they returned, in the order of their start."""
        for thread in self._threads:
            thread.join(bound)
        if self._failures:
            raise self._failures[0]
        assert not any(thread.is_alive() for thread in self._threads), "a thread hangs"
        return [self._results[place] for place in range(len(self._threads))]


@pytest.fixture
def crew() -> Crew:
    return Crew()


def asleep(socket: omq.Socket, crew_size: int = 1) -> None:
    """Waits until *crew_size* calls sleep on a socket."""
    until(lambda: socket.readable.waiting + socket.writable.waiting >= crew_size, "a call that sleeps")
