"""One process of `omq bench`: `python -m omq.cli.bench.worker LIBRARY ROLE ENDPOINT BYTES`.

It reads the size of a burst from each line of standard input, and prints its results on standard output, a line of JSON
each. One that binds prints its endpoint first. The loops are those of the project's own benchmarks.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from time import perf_counter, perf_counter_ns
from typing import Any, Final

#: The roles that bind their socket; the others connect.
BINDERS: Final = ("pull", "rep", "pub")


class BenchWorker:
    """The socket of this process, and its control.

    Args:
        library: `omq` or `pyzmq`.
        role: One of `ROLES`.
        endpoint: The endpoint to bind, or to connect to.
        size: Bytes of a message.
    """

    def __init__(self, library: str, role: str, endpoint: str, size: int) -> None:
        self._out = os.dup(1)
        os.dup2(2, 1)  # the output of a library must not end up between the results
        self.message = b"x" * size
        self.socket = open_socket(library, role)
        if role not in BINDERS:
            self.socket.connect(endpoint)
            return
        self.socket.bind(endpoint)
        bound = self.socket.endpoints[0] if library == "omq" else self.socket.last_endpoint.decode().rstrip("\0")
        self.report(bound)

    def report(self, result: Any) -> None:
        """Prints a result."""
        os.write(self._out, json.dumps(result).encode() + b"\n")

    def bursts(self) -> Iterator[int]:
        """Yields the sizes of the bursts until standard input ends."""
        yield from map(int, sys.stdin)


def open_socket(library: str, role: str) -> Any:
    """Returns a socket of a library with its defaults.

    A publisher is an XPUB, which receives the subscription, and waits for its subscriber instead of dropping.
    """
    options: dict[str, Any] = {"subscribe": b""} if role == "sub" else {"xpub_nodrop": True} if role == "pub" else {}
    kind = "XPUB" if role == "pub" else role.upper()
    if library == "omq":
        import omq

        return getattr(omq, kind)(**options)
    import zmq

    socket: Any = zmq.Context.instance().socket(getattr(zmq, kind))
    if role == "sub":
        socket.subscribe(b"")
    elif role == "pub":
        socket.setsockopt(zmq.XPUB_NODROP, 1)
    return socket


def receive(worker: BenchWorker) -> None:
    """Times bursts from the first message to the last."""
    recv = worker.socket.recv
    for count in worker.bursts():
        worker.report("armed")
        recv()
        started = perf_counter()
        for _ in range(count - 1):
            recv()
        worker.report(perf_counter() - started)


def send(worker: BenchWorker) -> None:
    """Sends bursts as fast as `send` takes them."""
    send, message = worker.socket.send, worker.message
    for count in worker.bursts():
        for _ in range(count):
            send(message)


def publish(worker: BenchWorker) -> None:
    """Sends bursts like `send`, once a subscription has arrived."""
    worker.socket.recv()
    send(worker)


def reply(worker: BenchWorker) -> None:
    """Answers every request with itself."""
    send, recv = worker.socket.send, worker.socket.recv
    while True:
        send(recv())


def request(worker: BenchWorker) -> None:
    """Times each round trip, in nanoseconds."""
    send, recv, message = worker.socket.send, worker.socket.recv, worker.message
    for count in worker.bursts():
        trips = [0] * count
        last = perf_counter_ns()
        for index in range(count):
            send(message)
            recv()
            now = perf_counter_ns()
            trips[index] = now - last
            last = now
        worker.report(trips)


ROLES: Final[dict[str, Callable[[BenchWorker], None]]] = {
    "pull": receive,
    "push": send,
    "sub": receive,
    "pub": publish,
    "rep": reply,
    "req": request,
}


def main(library: str, role: str, endpoint: str, size: str) -> None:
    """Runs a role until standard input ends, or the process is killed."""
    ROLES[role](BenchWorker(library, role, endpoint, int(size)))


if __name__ == "__main__":
    main(*sys.argv[1:])
