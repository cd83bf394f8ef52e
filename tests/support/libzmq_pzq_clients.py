"""Clients as they are written for the original: pyzmq sockets, and nothing that knows of omq."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import zmq

TIMEOUT_MS = 10_000  # milliseconds


@contextlib.contextmanager
def raw(kind: int, endpoint: str, **options: Any) -> Iterator[zmq.Socket[bytes]]:
    """A connected socket."""
    context = zmq.Context()
    socket = context.socket(kind)
    socket.linger = 0
    socket.rcvtimeo = TIMEOUT_MS
    for name, value in options.items():
        setattr(socket, name, value)
    socket.connect(endpoint)
    try:
        yield socket
    finally:
        socket.close()
        context.term()


@contextlib.contextmanager
def clients(device: Any, **options: Any) -> Iterator[tuple[zmq.Socket[bytes], zmq.Socket[bytes]]]:
    """A producer and a consumer of a device."""
    with (
        raw(zmq.DEALER, device.endpoints["receive"], **options) as producer,
        raw(zmq.ROUTER, device.endpoints["send"], **options) as consumer,
    ):
        yield producer, consumer


def asked(producer: zmq.Socket[bytes], *frames: bytes) -> list[bytes]:
    """Returns a device's answer to a producer."""
    producer.send_multipart(frames)
    return producer.recv_multipart()


def figures(endpoint: str) -> dict[str, Any]:
    """Returns a device's stats."""
    with raw(zmq.REQ, endpoint) as monitor:
        monitor.send_multipart([b"MONITOR", b"JSON"])
        found: dict[str, Any] = json.loads(monitor.recv())
        return found
