"""A PULL, a PUSH that streams to it without end, and a quiet one that sends the time now and then.

Ages are taken between two processes: the monotonic clock is one for the whole machine.
"""

from __future__ import annotations

from struct import pack, unpack
from time import monotonic, monotonic_ns, perf_counter
from typing import Any

from bench.control import Control
from bench.peers.asyncio_roles import SocketFactory

CHUNK_MESSAGES = 100  # messages between two looks at the clock
STAMP_BYTES = 8  # the size of a quiet message; those of the stream are longer
QUIET_INTERVAL_S = 0.005  # between two quiet messages


def receiver(sockets: SocketFactory, control: Control, job: dict[str, Any]) -> None:
    """Receives, works on each message, and reports windows of time: the message count, the ages of quiet messages."""
    sock = sockets.open("PULL")
    control.report(endpoint=sockets.bind(sock, job["endpoint"]))
    recv, work, window = sock.recv, job["work"], job["seconds"]
    chunk = CHUNK_MESSAGES if work < 1e-3 else 1
    received = False
    while True:
        while not control.has_order(0):
            for _ in range(chunk):
                received = len(recv()) == STAMP_BYTES or received
        if control.receive().get("received"):
            # Waits for the first message of the quiet peer, which a library that starves it never delivers.
            end = monotonic() + window
            while not received and monotonic() < end:
                for _ in range(chunk):
                    received = len(recv()) == STAMP_BYTES or received
            control.report(received=received)
            continue
        ages: list[float] = []
        count, now = 0, perf_counter()
        started, end = now, now + window
        while now < end:
            for _ in range(chunk):
                message = recv()
                if len(message) == STAMP_BYTES:
                    ages.append((monotonic_ns() - unpack("<q", message)[0]) / 1e6)
                if work:
                    until = perf_counter() + work
                    while perf_counter() < until:
                        pass
            count += chunk
            now = perf_counter()
        control.report(count=count, seconds=now - started, ages=ages)


def stream(sockets: SocketFactory, control: Control, job: dict[str, Any]) -> None:
    """Sends without end."""
    sock = sockets.open("PUSH")
    sockets.connect(sock, job["endpoint"])
    send, message = sock.send, b"x" * job["size"]
    while True:
        send(message)


def quiet(sockets: SocketFactory, control: Control, job: dict[str, Any]) -> None:
    """Sends the time now and then, while it is ordered to."""
    sock = sockets.open("PUSH")
    sockets.connect(sock, job["endpoint"])
    sends = False
    while True:
        if control.has_order(QUIET_INTERVAL_S):
            sends = control.receive()["sends"]
            control.report(sends=sends)
        if sends:
            sock.send(pack("<q", monotonic_ns()))


ROLES = {"receiver": receiver, "stream": stream, "quiet": quiet}
