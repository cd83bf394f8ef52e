"""A PUB without marks, and subscribers that count every message: nothing is dropped."""

from __future__ import annotations

from time import monotonic
from typing import Any

from bench.link import Link
from bench.peers.awaited import PROBE


def pub(sockets: Any, link: Link, job: dict[str, Any]) -> None:
    """Probes until every subscriber is there, then publishes bursts as fast as `send` takes them."""
    sock = sockets.open("PUB", hwm=0)
    link.tell(endpoint=sockets.bind(sock, job["endpoint"]))
    send, message = sock.send, b"x" * job["size"]
    while not link.has_order(0.005):
        send(PROBE)
    while True:
        count = link.take()["burst"]
        link.tell(started=monotonic())  # the machine's clock: the same in every process
        for _ in range(count):
            send(message)


def sub(sockets: Any, link: Link, job: dict[str, Any]) -> None:
    """Tells when the last message of a burst has come."""
    sock = sockets.open("SUB", hwm=0)
    sockets.connect(sock, job["endpoint"])
    recv, size = sock.recv, job["size"]
    recv()
    link.tell(subscribed=True)
    while True:
        count = link.take()["burst"]
        while len(recv()) != size:
            pass
        for _ in range(count - 1):
            recv()
        link.tell(ended=monotonic())


ROLES = {"pub-whole": pub, "sub-whole": sub}
