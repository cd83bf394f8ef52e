"""A PULL, a PUSH that streams to it without end, and a quiet one that says now and then what time it is.

Ages are taken between two processes: the monotonic clock is one for the whole machine.
"""

from __future__ import annotations

from struct import pack, unpack
from time import monotonic, monotonic_ns, perf_counter
from typing import Any

from bench.link import Link
from bench.peers.awaited import Sockets

CHUNK = 100  # messages between two looks at the clock
STAMP = 8  # bytes of a quiet message; those of the stream are longer
REST = 0.005  # seconds between two quiet messages


def basin(sockets: Sockets, link: Link, job: dict[str, Any]) -> None:
    """Receives, works on each message, and tells of windows of time: how many came, and how old the quiet ones were."""
    sock = sockets.open("PULL")
    link.tell(endpoint=sockets.bind(sock, job["endpoint"]))
    recv, work, window = sock.recv, job["work"], job["seconds"]
    chunk = CHUNK if work < 1e-3 else 1
    heard = False
    while True:
        while not link.has_order(0):
            for _ in range(chunk):
                heard = len(recv()) == STAMP or heard
        if link.take().get("heard"):
            # The quiet peer's first word is worth waiting for; a library that starves it never lets it through.
            end = monotonic() + window
            while not heard and monotonic() < end:
                for _ in range(chunk):
                    heard = len(recv()) == STAMP or heard
            link.tell(heard=heard)
            continue
        ages: list[float] = []
        count, now = 0, perf_counter()
        started, end = now, now + window
        while now < end:
            for _ in range(chunk):
                message = recv()
                if len(message) == STAMP:
                    ages.append((monotonic_ns() - unpack("<q", message)[0]) / 1e6)
                if work:
                    until = perf_counter() + work
                    while perf_counter() < until:
                        pass
            count += chunk
            now = perf_counter()
        link.tell(count=count, seconds=now - started, ages=ages)


def stream(sockets: Sockets, link: Link, job: dict[str, Any]) -> None:
    """Sends without end."""
    sock = sockets.open("PUSH")
    sockets.connect(sock, job["endpoint"])
    send, message = sock.send, b"x" * job["size"]
    while True:
        send(message)


def murmur(sockets: Sockets, link: Link, job: dict[str, Any]) -> None:
    """Sends what time it is, now and then, and is silent in between when it is told so."""
    sock = sockets.open("PUSH")
    sockets.connect(sock, job["endpoint"])
    speaks = False
    while True:
        if link.has_order(REST):
            speaks = link.take()["speak"]
            link.tell(speaks=speaks)
        if speaks:
            sock.send(pack("<q", monotonic_ns()))


ROLES = {"basin": basin, "stream": stream, "murmur": murmur}
