"""Tensors between processes, as inference servers send them: a msgpack header, and the memory as a part of its own.

Nothing is copied in Python, and memory is used again when its tracker is done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Any

from bench.control import Control

#: What msgpack makes of ["float32", [rows, 256], 1].
HEADER = b"\x93\xa7float32\x92\xcd\x04\x00\xcd\x01\x00\x01"
TENSORS_IN_TURN = 8


def _take(sock: Any, control: Control) -> None:
    recv = sock.recv_multipart
    while True:
        count = control.receive()["burst"]
        control.report(armed=True)
        recv(copy=False)
        started = perf_counter()
        for _ in range(count - 1):
            frames = recv(copy=False)
            memoryview(frames[1])[0]
        control.report(seconds=perf_counter() - started)


def _give(sock: Any, control: Control, job: dict[str, Any], head: list[bytes]) -> None:
    tensors = deque(memoryview(bytearray(job["size"])) for _ in range(TENSORS_IN_TURN))
    pending: deque[Any] = deque()
    send = sock.send_multipart
    while True:
        count = control.receive()["burst"]
        for number in range(count):
            if not tensors:
                pending[0][0].wait()
            while pending and pending[0][0].done:
                tensors.append(pending.popleft()[1])
            tensor = tensors.popleft()
            tensor[0] = number & 255
            pending.append((send([*head, HEADER, tensor], copy=False, track=True), tensor))


def pull(module: Any, control: Control, job: dict[str, Any]) -> None:
    """Times bursts of tensors at a PULL."""
    sock = module.Context().socket(module.PULL)
    sock.bind(job["endpoint"])
    control.report(endpoint=sock.getsockopt_string(module.LAST_ENDPOINT))
    _take(sock, control)


def push(module: Any, control: Control, job: dict[str, Any]) -> None:
    """Sends bursts of tensors from a PUSH."""
    sock = module.Context().socket(module.PUSH)
    sock.connect(job["endpoint"])
    _give(sock, control, job, [])


def dealer(module: Any, control: Control, job: dict[str, Any]) -> None:
    """Times bursts of tensors at a DEALER."""
    sock = module.Context().socket(module.DEALER)
    sock.bind(job["endpoint"])
    control.report(endpoint=sock.getsockopt_string(module.LAST_ENDPOINT))
    sock.send(b"ready")
    _take(sock, control)


def router(module: Any, control: Control, job: dict[str, Any]) -> None:
    """Sends bursts of tensors from a ROUTER."""
    sock = module.Context().socket(module.ROUTER)
    sock.connect(job["endpoint"])
    _give(sock, control, job, [sock.recv_multipart()[0]])


ROLES: dict[str, Callable[[Any, Control, dict[str, Any]], None]] = {
    "pull-tensors": pull,
    "push-tensors": push,
    "dealer-tensors": dealer,
    "router-tensors": router,
}
