"""The loops of the blocking peers: `send`, `recv`, one message a call, and with `send_many` and `recv_many`.

Every peer runs exactly these; only the way to open sockets differs (`SocketFactory`).
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter, perf_counter_ns
from typing import Any

from bench.control import Control
from bench.peers import connections, fairness, lossless_fanout, sparse_traffic, stuck_consumer
from bench.peers.asyncio_roles import (
    FAN_BATCH_MESSAGES,
    FAN_CHUNK_MESSAGES,
    FAN_WARMUP_S,
    PROBE,
    SocketFactory,
    bind_or_connect,
)


def pull(sockets: SocketFactory, control: Control, job: dict[str, Any]) -> None:
    """Times bursts from the first message to the last."""
    sock = sockets.open("PULL")
    bind_or_connect(sockets, sock, control, job, binds=True)
    recv = sock.recv
    while True:
        count = control.receive()["burst"]
        control.report(armed=True)
        recv()
        started = perf_counter()
        for _ in range(count - 1):
            recv()
        control.report(seconds=perf_counter() - started)


def push(sockets: SocketFactory, control: Control, job: dict[str, Any]) -> None:
    """Sends bursts as fast as `send` takes them."""
    sock = sockets.open("PUSH")
    bind_or_connect(sockets, sock, control, job, binds=False)
    send, message = sock.send, b"x" * job["size"]
    while True:
        count = control.receive()["burst"]
        for _ in range(count):
            send(message)


def pull_many(sockets: SocketFactory, control: Control, job: dict[str, Any]) -> None:
    """Times bursts like `pull`, with `recv_many`."""
    sock = sockets.open("PULL")
    control.report(endpoint=sockets.bind(sock, job["endpoint"]))
    recv_many = sock.recv_many
    while True:
        left = control.receive()["burst"]
        control.report(armed=True)
        sock.recv()
        left -= 1
        started = perf_counter()
        while left:
            left -= len(recv_many())
        control.report(seconds=perf_counter() - started)


def push_many(sockets: SocketFactory, control: Control, job: dict[str, Any]) -> None:
    """Sends bursts like `push`, with `send_many` of a hundred messages."""
    sock = sockets.open("PUSH")
    sockets.connect(sock, job["endpoint"])
    send_many, messages = sock.send_many, [b"x" * job["size"]] * 100
    while True:
        whole, rest = divmod(control.receive()["burst"], 100)
        for _ in range(whole):
            send_many(messages)
        if rest:
            send_many(messages[:rest])


def rep(sockets: SocketFactory, control: Control, job: dict[str, Any]) -> None:
    """Answers every request with itself."""
    sock = sockets.open("REP")
    control.report(endpoint=sockets.bind(sock, job["endpoint"]))
    send, recv = sock.send, sock.recv
    while True:
        send(recv())


def req(sockets: SocketFactory, control: Control, job: dict[str, Any]) -> None:
    """Times each round trip."""
    sock = sockets.open("REQ")
    sockets.connect(sock, job["endpoint"])
    time_round_trips(sock.send, sock.recv, control, job)


def time_round_trips(
    send: Callable[[bytes], object], recv: Callable[[], object], control: Control, job: dict[str, Any]
) -> None:
    """Times each round trip of the ordered bursts."""
    message = b"x" * job["size"]
    while True:
        count = control.receive()["burst"]
        trips = [0] * count
        last = perf_counter_ns()
        for index in range(count):
            send(message)
            recv()
            now = perf_counter_ns()
            trips[index] = now - last
            last = now
        control.report(trips=trips)


def pub(sockets: SocketFactory, control: Control, job: dict[str, Any]) -> None:
    """Probes until every subscriber has answered the bench, then publishes until the next order."""
    sock = sockets.open("PUB")
    control.report(endpoint=sockets.bind(sock, job["endpoint"]))
    send, message = sock.send, b"x" * job["size"]
    while not control.has_order(0.005):
        send(PROBE)
    control.receive()
    published, started = 0, perf_counter()
    while not control.has_order(0):
        for _ in range(FAN_BATCH_MESSAGES):
            send(message)
        published += FAN_BATCH_MESSAGES
    control.report(published=published / (perf_counter() - started))


def sub(sockets: SocketFactory, control: Control, job: dict[str, Any]) -> None:
    """Counts the messages that arrive in a window of time, and goes on receiving after it."""
    sock = sockets.open("SUB")
    sockets.connect(sock, job["endpoint"])
    recv, size, window = sock.recv, job["size"], job["seconds"]
    recv()
    control.report(subscribed=True)
    while len(recv()) != size:
        pass
    warm = perf_counter() + FAN_WARMUP_S
    while perf_counter() < warm:
        for _ in range(FAN_CHUNK_MESSAGES):
            recv()
    count, now = 0, perf_counter()
    started, end = now, now + window
    while now < end:
        for _ in range(FAN_CHUNK_MESSAGES):
            recv()
        count += FAN_CHUNK_MESSAGES
        now = perf_counter()
    control.report(count=count, seconds=now - started)
    while True:
        recv()


ROLES: dict[str, Callable[[SocketFactory, Control, dict[str, Any]], None]] = {
    "pull": pull,
    "push": push,
    "pull-many": pull_many,
    "push-many": push_many,
    "rep": rep,
    "req": req,
    "pub": pub,
    "sub": sub,
    **sparse_traffic.ROLES,
    **fairness.ROLES,
    **lossless_fanout.ROLES,
    "sender": stuck_consumer.sender,
    "consumer": stuck_consumer.consumer,
    "pull-connections": connections.pull,
    "pub-connections": connections.pub,
}


def run(sockets: SocketFactory, role: str, control: Control, job: dict[str, Any]) -> None:
    """Runs a role."""
    ROLES[role](sockets, control, job)
