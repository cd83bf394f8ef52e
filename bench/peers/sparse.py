"""The loops of sparse traffic, for blocking peers: tails of bursts, streams that tick, and silence.

Lags are taken between two processes: the monotonic clock is one for the whole machine.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from struct import pack, unpack_from
from time import monotonic, monotonic_ns, process_time, sleep
from typing import Any

from bench.link import Link
from bench.peers.awaited import Sockets

BURST = 3  # messages, of which the last is the tail
COMPUTE = 0.05  # seconds of pure Python after each burst
END = b"end"
SETTLE = 0.5  # seconds before silence is measured
FAR = "tcp://127.0.0.1:*"


def drip(sockets: Sockets, link: Link, job: dict[str, Any]) -> None:
    """Sends a few messages that say when, then computes and leaves the socket alone; again and again."""
    sock = sockets.open("PUSH")
    sockets.connect(sock, job["endpoint"])
    send = sock.send
    while True:
        for _ in range(link.take()["burst"]):
            for _ in range(BURST):
                send(pack("<q", monotonic_ns()))
            busy = monotonic() + COMPUTE
            while monotonic() < busy:
                for _ in range(100):
                    pass


def drops(sockets: Sockets, link: Link, job: dict[str, Any]) -> None:
    """Tells how long after its `send` the last message of each burst was received, in nanoseconds."""
    sock = sockets.open("PULL")
    link.tell(endpoint=sockets.bind(sock, job["endpoint"]))
    recv = sock.recv
    while True:
        lags = []
        count = link.take()["burst"]
        link.tell(armed=True)
        for _ in range(count):
            for _ in range(BURST - 1):
                recv()
            sent = unpack_from("<q", recv())[0]
            lags.append(monotonic_ns() - sent)
        link.tell(lags=lags)


def beat(sockets: Sockets, link: Link, job: dict[str, Any]) -> None:
    """Sends at a steady pace, or nothing at all, for a while; then the word that it is over."""
    sock = sockets.open("PUSH")
    sockets.connect(sock, job["endpoint"])
    send, message = sock.send, b"x" * job["size"]
    while True:
        order = link.take()
        now = monotonic()
        end = now + order["seconds"]
        step = 1 / order["hertz"] if order["hertz"] else order["seconds"]
        due = now + step
        while due < end:
            sleep(max(0.0, due - monotonic()))
            send(message)
            due += step
        sleep(max(0.0, end - monotonic()))
        send(END)


def listen(sockets: Sockets, link: Link, job: dict[str, Any]) -> None:
    """Receives until the word that it is over; tells the seconds of CPU that this took, per second."""
    sock = sockets.open("PULL")
    link.tell(endpoint=sockets.bind(sock, job["endpoint"]))
    recv = sock.recv
    while True:
        link.take()
        link.tell(armed=True)
        started, used = monotonic(), process_time()
        while recv() != END:
            pass
        link.tell(cpu=(process_time() - used) / (monotonic() - started))


def idle(sockets: Sockets, link: Link, job: dict[str, Any]) -> None:
    """Ten sockets, connected two by two; nobody calls, or a thread each waits in the receiving ones."""
    pairs = []
    for _ in range(job["sockets"] // 2):
        pull, push = sockets.open("PULL"), sockets.open("PUSH")
        sockets.connect(push, sockets.bind(pull, FAR))
        push.send(b"x")
        pull.recv()
        pairs.append((pull, push))
    if job["waiting"]:
        for pull, _ in pairs:
            threading.Thread(target=pull.recv, daemon=True).start()
    sleep(SETTLE)
    used = process_time()
    sleep(job["seconds"])
    link.tell(cpu=process_time() - used)
    link.take()


ROLES: dict[str, Callable[[Sockets, Link, dict[str, Any]], None]] = {
    "drip": drip,
    "drops": drops,
    "beat": beat,
    "listen": listen,
    "idle": idle,
}
