"""RADIO to DISH over UDP, and datagrams on bare sockets: at a given rate, how many arrive."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from time import perf_counter
from typing import Any

import omq
from bench.link import Link

GROUP = "g"
QUIET = 0.15  # seconds without a datagram after which a step is over
TICK = 0.001  # seconds between two bursts of a sender
_TIMEVAL = struct.pack("ll", 0, int(QUIET * 1e6))


def receive(link: Link, job: dict[str, Any]) -> None:
    """Counts what arrives in each step."""
    if job["options"]["library"] == "omq":
        dish = omq.DISH(bind="udp://127.0.0.1:*", join=GROUP, recv_timeout=QUIET)
        endpoint, take, over = dish.endpoints[0], dish.recv, omq.ReceiveTimeout
    else:
        bare = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        bare.bind(("127.0.0.1", 0))
        bare.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TIMEVAL)  # one system call a datagram
        endpoint, over = "udp://{}:{}".format(*bare.getsockname()), BlockingIOError

        def take() -> bytes:
            return bare.recv(65536)

    link.tell(endpoint=endpoint)
    while True:
        link.take()
        link.tell(armed=True)
        count = 0
        while not count:
            count = _count(take, over)
        link.tell(count=count)


def _count(take: Callable[[], bytes], over: type[Exception]) -> int:
    """Takes until nothing comes for a while."""
    count = 0
    try:
        while True:
            take()
            count += 1
    except over:
        return count


def send(link: Link, job: dict[str, Any]) -> None:
    """Sends the messages of each step, in a burst each millisecond."""
    body = b"x" * job["size"]
    if job["options"]["library"] == "omq":
        radio = omq.RADIO(connect=job["endpoint"])
        radio.wait_connected(timeout=10)

        def put() -> None:
            radio.send(body, group=GROUP)
    else:
        host, _, port = job["endpoint"].removeprefix("udp://").rpartition(":")
        bare = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        bare.connect((host, int(port)))
        bare.setblocking(False)
        datagram = b"\1g" + body

        def put() -> None:
            bare.send(datagram)

    while True:
        order = link.take()
        burst = max(1, round(order["rate"] * TICK))
        ticks = int(order["seconds"] / TICK)
        started = due = perf_counter()
        for _ in range(ticks):
            while perf_counter() < due:
                pass
            for _ in range(burst):
                put()
            due += TICK
        link.tell(sent=ticks * burst, seconds=perf_counter() - started)


def play(role: str, link: Link, job: dict[str, Any]) -> None:
    """Plays a role."""
    {"send": send, "receive": receive}[role](link, job)
