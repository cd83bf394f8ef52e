"""STREAM sockets and bare ones: bytes one way, and as many of them at once as a read brings.

Each read takes up to `READ` bytes. A bare socket makes one system call for each message that it sends; `gathered` makes
one for as many as fill a batch of omq's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Any

import uvloop

from bench.link import Link
from bench.peers import bare

READ = 32768  # bytes
BATCH = 61376  # bytes: what omq gathers before it writes

Receive = Callable[[], bytes]
Send = Callable[[bytes], object]


def _pull(receive: Receive, link: Link, size: int) -> None:
    """Times bursts from the first bytes to the last."""
    while True:
        left = link.take()["burst"] * size
        link.tell(armed=True)
        left -= len(receive())
        started = perf_counter()
        while left:
            left -= len(receive())
        link.tell(seconds=perf_counter() - started)


def _push(send: Send, link: Link, message: bytes, gathered: int = 1) -> None:
    """Sends bursts, one call a message, or a call for several."""
    several = message * gathered
    while True:
        whole, rest = divmod(link.take()["burst"], gathered)
        for _ in range(whole):
            send(several)
        if rest:
            send(message * rest)


def _blocking(stream: Any, role: str, link: Link, job: dict[str, Any], bind: Callable[[], str]) -> None:
    if role == "stream-pull":
        link.tell(endpoint=bind())
        stream.recv_multipart()
        recv_multipart = stream.recv_multipart
        _pull(lambda: recv_multipart()[1], link, job["size"])
    else:
        stream.connect(job["endpoint"])
        peer, _ = stream.recv_multipart()
        send_multipart = stream.send_multipart
        _push(lambda message: send_multipart((peer, message)), link, b"x" * job["size"])


def _omq(role: str, link: Link, job: dict[str, Any]) -> None:
    import omq

    stream = omq.STREAM()
    _blocking(stream, role, link, job, lambda: stream.bind(job["endpoint"]))


def _pyzmq(role: str, link: Link, job: dict[str, Any]) -> None:
    import zmq

    stream = zmq.Context().socket(zmq.STREAM)
    _blocking(stream, role, link, job, lambda: f"tcp://127.0.0.1:{stream.bind_to_random_port('tcp://127.0.0.1')}")


def _bare(role: str, link: Link, job: dict[str, Any]) -> None:
    if role == "stream-pull":
        accepted = bare.accept(link, job["endpoint"])
        recv = accepted.recv
        _pull(lambda: recv(READ), link, job["size"])
    else:
        gathered = max(1, BATCH // job["size"]) if job["options"]["library"] == "gathered" else 1
        _push(bare.dial(job["endpoint"]).sendall, link, b"x" * job["size"], gathered)


async def _asyncio_pull(receive: Callable[[], Awaitable[list[bytes]]], link: Link, size: int) -> None:
    while True:
        left = (await link.next())["burst"] * size
        link.tell(armed=True)
        left -= len((await receive())[1])
        started = perf_counter()
        while left:
            left -= len((await receive())[1])
        link.tell(seconds=perf_counter() - started)


def _omq_asyncio(role: str, link: Link, job: dict[str, Any]) -> None:
    import omq.asyncio as omq

    async def play() -> None:
        stream = omq.STREAM()
        if role == "stream-pull":
            link.tell(endpoint=stream.bind(job["endpoint"]))
            await stream.recv_multipart()
            await _asyncio_pull(stream.recv_multipart, link, job["size"])
        stream.connect(job["endpoint"])
        peer, _ = await stream.recv_multipart()
        send_multipart, message = stream.send_multipart, b"x" * job["size"]
        while True:
            for _ in range((await link.next())["burst"]):
                await send_multipart((peer, message))

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(play())


LIBRARIES = {"omq": _omq, "omq-asyncio": _omq_asyncio, "pyzmq": _pyzmq, "bare": _bare, "gathered": _bare}


def play(role: str, link: Link, job: dict[str, Any]) -> None:
    """Plays `stream-pull`, which listens, or `stream-push`."""
    LIBRARIES[job["options"]["library"]](role, link, job)
