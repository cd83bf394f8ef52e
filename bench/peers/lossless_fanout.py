"""A PUB without high-water marks, and subscribers that count every message: nothing is dropped."""

from __future__ import annotations

from time import monotonic
from typing import Any

from bench.control import Control
from bench.peers.asyncio_roles import PROBE


def pub(sockets: Any, control: Control, job: dict[str, Any]) -> None:
    """Probes until every subscriber is there, then publishes bursts as fast as `send` takes them."""
    sock = sockets.open("PUB", hwm=0)
    control.report(endpoint=sockets.bind(sock, job["endpoint"]))
    send, message = sock.send, b"x" * job["size"]
    while not control.has_order(0.005):
        send(PROBE)
    while True:
        count = control.receive()["burst"]
        control.report(started=monotonic())  # the machine's clock: the same in every process
        for _ in range(count):
            send(message)


def sub(sockets: Any, control: Control, job: dict[str, Any]) -> None:
    """Reports the time at which the last message of a burst has come."""
    sock = sockets.open("SUB", hwm=0)
    sockets.connect(sock, job["endpoint"])
    recv, size = sock.recv, job["size"]
    recv()
    control.report(subscribed=True)
    while True:
        count = control.receive()["burst"]
        while len(recv()) != size:
            pass
        for _ in range(count - 1):
            recv()
        control.report(ended=monotonic())


ROLES = {"pub-lossless": pub, "sub-lossless": sub}
