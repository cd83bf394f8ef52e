"""RADIO to DISH over UDP, and datagrams on bare sockets: the number that arrives at a given rate."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from time import perf_counter
from typing import Any

import omq
from bench.control import Control

GROUP = "g"
IDLE_TIMEOUT_S = 0.15  # without a datagram after which a step is over
TICK_S = 0.001  # between two bursts of a sender
_TIMEVAL = struct.pack("ll", 0, int(IDLE_TIMEOUT_S * 1e6))


def receive(control: Control, job: dict[str, Any]) -> None:
    """Counts the messages that arrive in each step."""
    if job["options"]["library"] == "omq":
        dish = omq.DISH(bind="udp://127.0.0.1:*", join=GROUP, recv_timeout=IDLE_TIMEOUT_S)
        endpoint, take, over = dish.endpoints[0], dish.recv, omq.ReceiveTimeout
    else:
        bare = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        bare.bind(("127.0.0.1", 0))
        bare.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TIMEVAL)  # one system call a datagram
        endpoint, over = "udp://{}:{}".format(*bare.getsockname()), BlockingIOError

        def take() -> bytes:
            return bare.recv(65536)

    control.report(endpoint=endpoint)
    while True:
        control.receive()
        control.report(armed=True)
        count = 0
        while not count:
            count = _count(take, over)
        control.report(count=count)


def _count(take: Callable[[], bytes], over: type[Exception]) -> int:
    """Receives until nothing comes for a while."""
    count = 0
    try:
        while True:
            take()
            count += 1
    except over:
        return count


def send(control: Control, job: dict[str, Any]) -> None:
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
        order = control.receive()
        burst = max(1, round(order["rate"] * TICK_S))
        ticks = int(order["seconds"] / TICK_S)
        started = due = perf_counter()
        for _ in range(ticks):
            while perf_counter() < due:
                pass
            for _ in range(burst):
                put()
            due += TICK_S
        control.report(sent=ticks * burst, seconds=perf_counter() - started)


def run_role(role: str, control: Control, job: dict[str, Any]) -> None:
    """Runs a role."""
    {"send": send, "receive": receive}[role](control, job)
