"""Sockets of omq's face, closed after each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import omq.zmq as zmq


class KeepingContext(zmq.Context[Any]):
    """A context that keeps its sockets."""

    kept: list[Any]

    def _add_socket(self, socket: Any) -> None:
        self.__dict__.setdefault("kept", []).append(socket)
        super()._add_socket(socket)


@pytest.fixture
def context() -> Iterator[zmq.Context[Any]]:
    """A context that is destroyed after the test."""
    made = KeepingContext()
    yield made
    made.destroy(linger=0)


@pytest.fixture
def pair_of(context: zmq.Context[Any]) -> Callable[[int, int], tuple[Any, Any]]:
    """Makes a bound socket of one type, and one of another type that is connected to it."""

    def make(bound: int, connected: int) -> tuple[Any, Any]:
        first, second = context.socket(bound), context.socket(connected)
        first.rcvtimeo = second.rcvtimeo = 10_000
        first.bind("tcp://127.0.0.1:*")
        second.connect(first.last_endpoint.decode())
        return first, second

    return make
