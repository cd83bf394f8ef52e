"""The loops of sparse traffic, for blocking peers: tails of bursts, paced streams, and idle sockets.

Lags are taken between two processes: the monotonic clock is one for the whole machine.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from struct import pack, unpack_from
from time import monotonic, monotonic_ns, process_time, sleep
from typing import Any

from bench.control import Control
from bench.peers.asyncio_roles import SocketFactory

BURST_MESSAGES = 3  # messages, of which the last is the tail
COMPUTE_S = 0.05  # of pure Python after each burst
END = b"end"
SETTLE_S = 0.5  # before the CPU of idle sockets is measured
ENDPOINT = "tcp://127.0.0.1:*"


def send_bursts(sockets: SocketFactory, control: Control, job: dict[str, Any]) -> None:
    """Sends a few messages with the time of each, then computes without a call to the socket; again and again."""
    sock = sockets.open("PUSH")
    sockets.connect(sock, job["endpoint"])
    send = sock.send
    while True:
        for _ in range(control.receive()["burst"]):
            for _ in range(BURST_MESSAGES):
                send(pack("<q", monotonic_ns()))
            busy = monotonic() + COMPUTE_S
            while monotonic() < busy:
                for _ in range(100):
                    pass


def receive_bursts(sockets: SocketFactory, control: Control, job: dict[str, Any]) -> None:
    """Reports the nanoseconds from `send` to `recv` of the last message of each burst."""
    sock = sockets.open("PULL")
    control.report(endpoint=sockets.bind(sock, job["endpoint"]))
    recv = sock.recv
    while True:
        lags = []
        count = control.receive()["burst"]
        control.report(armed=True)
        for _ in range(count):
            for _ in range(BURST_MESSAGES - 1):
                recv()
            sent = unpack_from("<q", recv())[0]
            lags.append(monotonic_ns() - sent)
        control.report(lags=lags)


def send_paced(sockets: SocketFactory, control: Control, job: dict[str, Any]) -> None:
    """Sends at a steady pace, or not at all, for a while; then the message `END`."""
    sock = sockets.open("PUSH")
    sockets.connect(sock, job["endpoint"])
    send, message = sock.send, b"x" * job["size"]
    while True:
        order = control.receive()
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


def receive_paced(sockets: SocketFactory, control: Control, job: dict[str, Any]) -> None:
    """Receives until `END`; reports the seconds of CPU per second."""
    sock = sockets.open("PULL")
    control.report(endpoint=sockets.bind(sock, job["endpoint"]))
    recv = sock.recv
    while True:
        control.receive()
        control.report(armed=True)
        started, used = monotonic(), process_time()
        while recv() != END:
            pass
        control.report(cpu=(process_time() - used) / (monotonic() - started))


def idle(sockets: SocketFactory, control: Control, job: dict[str, Any]) -> None:
    """Connects sockets in pairs, and reports their CPU while no thread calls, or one waits in `recv` of each PULL."""
    pairs = []
    for _ in range(job["sockets"] // 2):
        pull, push = sockets.open("PULL"), sockets.open("PUSH")
        sockets.connect(push, sockets.bind(pull, ENDPOINT))
        push.send(b"x")
        pull.recv()
        pairs.append((pull, push))
    if job["waiting"]:
        for pull, _ in pairs:
            threading.Thread(target=pull.recv, daemon=True).start()
    sleep(SETTLE_S)
    used = process_time()
    sleep(job["seconds"])
    control.report(cpu=process_time() - used)
    control.receive()


ROLES: dict[str, Callable[[SocketFactory, Control, dict[str, Any]], None]] = {
    "burst-sender": send_bursts,
    "burst-receiver": receive_bursts,
    "paced-sender": send_paced,
    "paced-receiver": receive_paced,
    "idle": idle,
}
