"""Clients of a bus on bare sockets, which cost next to nothing: the same for both routers."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Final

from bench.proxy.__main__ import WARM, playing, processor_time, until
from bench.proxy.clients import Progress, receive, send

HEAD: Final = b"/bench/CSTR/CSTR/1/1/\0"
GROUP: Final = b"/bench/CSTR/CSTR/"


class Share:
    """What a receiver has of one of several publishers, about.

    Args:
        progress: Its progress.
        publishers: How many there are.
    """

    def __init__(self, progress: Progress, publishers: int) -> None:
        self._progress = progress
        self._publishers = publishers

    @property
    def count(self) -> int:
        """Messages."""
        return self._progress.count // self._publishers


def carried(
    pid: int, publish: str, subscribe: str, size: int, publishers: int, subscribers: int, seconds: float
) -> tuple[float, float]:
    """What a router carries from some publishers to some subscribers, each in a process of its own.

    Args:
        pid: The router's process.
        publish: Its endpoint for publishers.
        subscribe: That for subscribers.
        size: Bytes of a publication, its identifier among them.
        publishers: How many publish.
        subscribers: How many take all of that.
        seconds: How long they are counted.

    Returns:
        Messages a second that reach each subscriber, and microseconds of the router's processor time for each of them.
    """
    progress = [Progress() for _ in range(subscribers)]
    with ExitStack() as kept:
        for one in progress:
            kept.enter_context(playing((receive, (subscribe, b"SUB", size, one, GROUP))))
        until(lambda: all(one.there for one in progress), "not all subscribers have come")
        shares = [Share(one, publishers) for one in progress]
        for _ in range(publishers):
            kept.enter_context(playing((send, (publish, b"PUB", HEAD + bytes(size - len(HEAD)), *shares))))
        until(lambda: all(one.count for one in progress), "no publication has come through")
        time.sleep(WARM)
        begun, counted, worked = time.monotonic(), [one.count for one in progress], processor_time(pid)
        time.sleep(seconds)
        counts = [one.count - before for one, before in zip(progress, counted, strict=True)]
        worked = processor_time(pid) - worked
        spent = time.monotonic() - begun
    return min(counts) / spent, worked / max(1, sum(counts)) * 1e6
