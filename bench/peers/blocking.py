"""The loops of the blocking peers: `send`, `recv`, one message a call; `send_many` beside them.

Every peer runs exactly these; what differs is how its sockets are opened (`Sockets`).
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter, perf_counter_ns
from typing import Any

from bench.link import Link
from bench.peers import fair, hub, sparse, whole, workers
from bench.peers.awaited import FAN_BATCH, FAN_CHUNK, FAN_WARM, PROBE, Sockets, meet


def pull(sockets: Sockets, link: Link, job: dict[str, Any]) -> None:
    """Times bursts from the first message to the last."""
    sock = sockets.open("PULL")
    meet(sockets, sock, link, job, binds=True)
    recv = sock.recv
    while True:
        count = link.take()["burst"]
        link.tell(armed=True)
        recv()
        started = perf_counter()
        for _ in range(count - 1):
            recv()
        link.tell(seconds=perf_counter() - started)


def push(sockets: Sockets, link: Link, job: dict[str, Any]) -> None:
    """Sends bursts as fast as `send` takes them."""
    sock = sockets.open("PUSH")
    meet(sockets, sock, link, job, binds=False)
    send, message = sock.send, b"x" * job["size"]
    while True:
        count = link.take()["burst"]
        for _ in range(count):
            send(message)


def pull_many(sockets: Sockets, link: Link, job: dict[str, Any]) -> None:
    """As `pull`, with `recv_many`."""
    sock = sockets.open("PULL")
    link.tell(endpoint=sockets.bind(sock, job["endpoint"]))
    recv_many = sock.recv_many
    while True:
        left = link.take()["burst"]
        link.tell(armed=True)
        sock.recv()
        left -= 1
        started = perf_counter()
        while left:
            left -= len(recv_many())
        link.tell(seconds=perf_counter() - started)


def push_many(sockets: Sockets, link: Link, job: dict[str, Any]) -> None:
    """As `push`, with `send_many` of a hundred messages."""
    sock = sockets.open("PUSH")
    sockets.connect(sock, job["endpoint"])
    send_many, messages = sock.send_many, [b"x" * job["size"]] * 100
    while True:
        whole, rest = divmod(link.take()["burst"], 100)
        for _ in range(whole):
            send_many(messages)
        if rest:
            send_many(messages[:rest])


def rep(sockets: Sockets, link: Link, job: dict[str, Any]) -> None:
    """Answers every request with itself."""
    sock = sockets.open("REP")
    link.tell(endpoint=sockets.bind(sock, job["endpoint"]))
    send, recv = sock.send, sock.recv
    while True:
        send(recv())


def req(sockets: Sockets, link: Link, job: dict[str, Any]) -> None:
    """Times each round trip."""
    sock = sockets.open("REQ")
    sockets.connect(sock, job["endpoint"])
    time_trips(sock.send, sock.recv, link, job)


def time_trips(send: Callable[[bytes], object], recv: Callable[[], object], link: Link, job: dict[str, Any]) -> None:
    """Times each round trip of each burst that is asked for."""
    message = b"x" * job["size"]
    while True:
        count = link.take()["burst"]
        trips = [0] * count
        last = perf_counter_ns()
        for index in range(count):
            send(message)
            recv()
            now = perf_counter_ns()
            trips[index] = now - last
            last = now
        link.tell(trips=trips)


def pub(sockets: Sockets, link: Link, job: dict[str, Any]) -> None:
    """Probes until every subscriber has answered the bench, then publishes until told to stop."""
    sock = sockets.open("PUB")
    link.tell(endpoint=sockets.bind(sock, job["endpoint"]))
    send, message = sock.send, b"x" * job["size"]
    while not link.has_order(0.005):
        send(PROBE)
    link.take()
    published, started = 0, perf_counter()
    while not link.has_order(0):
        for _ in range(FAN_BATCH):
            send(message)
        published += FAN_BATCH
    link.tell(published=published / (perf_counter() - started))


def sub(sockets: Sockets, link: Link, job: dict[str, Any]) -> None:
    """Counts what arrives in a window of time, and goes on receiving after it."""
    sock = sockets.open("SUB")
    sockets.connect(sock, job["endpoint"])
    recv, size, window = sock.recv, job["size"], job["seconds"]
    recv()
    link.tell(subscribed=True)
    while len(recv()) != size:
        pass
    warm = perf_counter() + FAN_WARM
    while perf_counter() < warm:
        for _ in range(FAN_CHUNK):
            recv()
    count, now = 0, perf_counter()
    started, end = now, now + window
    while now < end:
        for _ in range(FAN_CHUNK):
            recv()
        count += FAN_CHUNK
        now = perf_counter()
    link.tell(count=count, seconds=now - started)
    while True:
        recv()


ROLES: dict[str, Callable[[Sockets, Link, dict[str, Any]], None]] = {
    "pull": pull,
    "push": push,
    "pull-many": pull_many,
    "push-many": push_many,
    "rep": rep,
    "req": req,
    "pub": pub,
    "sub": sub,
    **sparse.ROLES,
    **fair.ROLES,
    **whole.ROLES,
    "spout": workers.spout,
    "worker": workers.worker,
    "pull-crowd": hub.pull_crowd,
    "pub-crowd": hub.pub_crowd,
}


def run(sockets: Sockets, role: str, link: Link, job: dict[str, Any]) -> None:
    """Plays a role."""
    ROLES[role](sockets, link, job)
