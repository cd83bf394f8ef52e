"""STREAM sockets and bare ones: bytes in one direction, as many at once as a read returns.

Each read takes up to `READ_BYTES` bytes. A bare socket makes one system call for each message that it sends;
`gathered` makes one for as many as fill a batch of omq's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Any

import uvloop

from bench.control import Control
from bench.peers import bare

READ_BYTES = 32768
BATCH_BYTES = 61376  # as omq gathers before it writes

Receive = Callable[[], bytes]
Send = Callable[[bytes], object]


def _pull(receive: Receive, control: Control, size: int) -> None:
    """Times bursts from the first bytes to the last."""
    while True:
        left = control.receive()["burst"] * size
        control.report(armed=True)
        left -= len(receive())
        started = perf_counter()
        while left:
            left -= len(receive())
        control.report(seconds=perf_counter() - started)


def _push(send: Send, control: Control, message: bytes, gathered: int = 1) -> None:
    """Sends bursts, one call a message, or a call for several."""
    several = message * gathered
    while True:
        whole, rest = divmod(control.receive()["burst"], gathered)
        for _ in range(whole):
            send(several)
        if rest:
            send(message * rest)


def _blocking(stream: Any, role: str, control: Control, job: dict[str, Any], bind: Callable[[], str]) -> None:
    if role == "stream-pull":
        control.report(endpoint=bind())
        stream.recv_multipart()
        recv_multipart = stream.recv_multipart
        _pull(lambda: recv_multipart()[1], control, job["size"])
    else:
        stream.connect(job["endpoint"])
        peer, _ = stream.recv_multipart()
        send_multipart = stream.send_multipart
        _push(lambda message: send_multipart((peer, message)), control, b"x" * job["size"])


def _omq(role: str, control: Control, job: dict[str, Any]) -> None:
    import omq

    stream = omq.STREAM()
    _blocking(stream, role, control, job, lambda: stream.bind(job["endpoint"]))


def _pyzmq(role: str, control: Control, job: dict[str, Any]) -> None:
    import zmq

    stream = zmq.Context().socket(zmq.STREAM)
    _blocking(stream, role, control, job, lambda: f"tcp://127.0.0.1:{stream.bind_to_random_port('tcp://127.0.0.1')}")


def _bare(role: str, control: Control, job: dict[str, Any]) -> None:
    if role == "stream-pull":
        accepted = bare.accept(control, job["endpoint"])
        recv = accepted.recv
        _pull(lambda: recv(READ_BYTES), control, job["size"])
    else:
        gathered = max(1, BATCH_BYTES // job["size"]) if job["options"]["library"] == "gathered" else 1
        _push(bare.dial(job["endpoint"]).sendall, control, b"x" * job["size"], gathered)


async def _asyncio_pull(receive: Callable[[], Awaitable[list[bytes]]], control: Control, size: int) -> None:
    while True:
        left = (await control.receive_async())["burst"] * size
        control.report(armed=True)
        left -= len((await receive())[1])
        started = perf_counter()
        while left:
            left -= len((await receive())[1])
        control.report(seconds=perf_counter() - started)


def _omq_asyncio(role: str, control: Control, job: dict[str, Any]) -> None:
    import omq.asyncio as omq

    async def run() -> None:
        stream = omq.STREAM()
        if role == "stream-pull":
            control.report(endpoint=stream.bind(job["endpoint"]))
            await stream.recv_multipart()
            await _asyncio_pull(stream.recv_multipart, control, job["size"])
        stream.connect(job["endpoint"])
        peer, _ = await stream.recv_multipart()
        send_multipart, message = stream.send_multipart, b"x" * job["size"]
        while True:
            for _ in range((await control.receive_async())["burst"]):
                await send_multipart((peer, message))

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


LIBRARIES = {"omq": _omq, "omq-asyncio": _omq_asyncio, "pyzmq": _pyzmq, "bare": _bare, "gathered": _bare}


def run_role(role: str, control: Control, job: dict[str, Any]) -> None:
    """Runs `stream-pull`, which listens, or `stream-push`."""
    LIBRARIES[job["options"]["library"]](role, control, job)
