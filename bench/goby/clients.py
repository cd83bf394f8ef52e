"""Clients of a bus on bare sockets, which cost next to nothing: the same for both routers."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Final

from bench.proxy.__main__ import WARMUP_S, client_process, processor_time, wait_until
from bench.proxy.clients import ReceiveCounter, receive, send

HEAD: Final = b"/bench/CSTR/CSTR/1/1/\0"
GROUP: Final = b"/bench/CSTR/CSTR/"


class PublisherShare:
    """The approximate progress of a receiver with one of several publishers.

    Args:
        progress: Its progress.
        publishers: The number of publishers.
    """

    def __init__(self, progress: ReceiveCounter, publishers: int) -> None:
        self._progress = progress
        self._publishers = publishers

    @property
    def count(self) -> int:
        """The number of messages."""
        return self._progress.count // self._publishers


def measure(
    pid: int, publish: str, subscribe: str, size: int, publishers: int, subscribers: int, seconds: float
) -> tuple[float, float]:
    """Measures a router between publishers and subscribers, each in a process of its own.

    Args:
        pid: The router's process.
        publish: Its endpoint for publishers.
        subscribe: Its endpoint for subscribers.
        size: Bytes of a publication, its identifier among them.
        publishers: The number of publishers.
        subscribers: The number of subscribers, each of which receives everything.
        seconds: The time of counting.

    Returns:
        Messages a second that reach each subscriber, and microseconds of the router's processor time for each of them.
    """
    progress = [ReceiveCounter() for _ in range(subscribers)]
    with ExitStack() as kept:
        for one in progress:
            kept.enter_context(client_process((receive, (subscribe, b"SUB", size, one, GROUP))))
        wait_until(lambda: all(one.ready for one in progress), "not all subscribers have come")
        shares = [PublisherShare(one, publishers) for one in progress]
        for _ in range(publishers):
            kept.enter_context(client_process((send, (publish, b"PUB", HEAD + bytes(size - len(HEAD)), *shares))))
        wait_until(lambda: all(one.count for one in progress), "no publication has come through")
        time.sleep(WARMUP_S)
        begun, counted, worked = time.monotonic(), [one.count for one in progress], processor_time(pid)
        time.sleep(seconds)
        counts = [one.count - before for one, before in zip(progress, counted, strict=True)]
        worked = processor_time(pid) - worked
        spent = time.monotonic() - begun
    return min(counts) / spent, worked / max(1, sum(counts)) * 1e6
