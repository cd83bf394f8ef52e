"""Programs for pyzmq, with pyzmq and with the face: the loops of the blocking peers, three parts, a Poller."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
from collections.abc import Callable
from time import perf_counter
from typing import Any

import zmq

from bench.control import Control
from bench.peers import asyncio_roles, blocking_roles, tensors
from bench.peers.pyzmq_blocking import PyzmqSockets

POLLED_SOCKETS = 100
READ_IN_TURN = 100  # messages taken of a socket that is ready
ASYNCIO = "asyncio-"  # begins the roles of `asyncio_roles`


def pull_parts(module: Any, control: Control, job: dict[str, Any]) -> None:
    """Times bursts of messages with three parts."""
    sock = module.Context().socket(module.PULL)
    sock.bind(job["endpoint"])
    control.report(endpoint=sock.getsockopt_string(module.LAST_ENDPOINT))
    recv = sock.recv_multipart
    while True:
        count = control.receive()["burst"]
        control.report(armed=True)
        recv()
        started = perf_counter()
        for _ in range(count - 1):
            recv()
        control.report(seconds=perf_counter() - started)


def push_parts(module: Any, control: Control, job: dict[str, Any]) -> None:
    """Sends bursts of messages with three parts."""
    sock = module.Context().socket(module.PUSH)
    sock.connect(job["endpoint"])
    send, message = sock.send_multipart, [b"x" * job["size"]] * 3
    while True:
        count = control.receive()["burst"]
        for _ in range(count):
            send(message)


def pull_polled(module: Any, control: Control, job: dict[str, Any]) -> None:
    """Times bursts to a hundred sockets of one Poller; takes one message of each socket that is ready."""
    context, poller, endpoints = module.Context(), module.Poller(), []
    for _ in range(POLLED_SOCKETS):
        sock = context.socket(module.PULL)
        sock.bind(job["endpoint"])
        endpoints.append(sock.getsockopt_string(module.LAST_ENDPOINT))
        poller.register(sock, module.POLLIN)
    control.report(endpoint=" ".join(endpoints))
    while True:
        count = control.receive()["burst"]
        control.report(armed=True)
        left, started = count, 0.0
        while left:
            ready = poller.poll()
            started = started or perf_counter()
            for sock, _ in ready:
                sock.recv()
            left -= len(ready)
        control.report(seconds=perf_counter() - started)


def push_polled(module: Any, control: Control, job: dict[str, Any]) -> None:
    """Sends bursts to a hundred sockets in turn, always with pyzmq: the Poller is measured."""
    push_in_turn(zmq, control, job)


def push_in_turn(module: Any, control: Control, job: dict[str, Any]) -> None:
    """Sends bursts to a hundred sockets in turn."""
    sock = module.Context().socket(module.PUSH)
    for endpoint in job["endpoint"].split():
        sock.connect(endpoint)
    send, message = sock.send, b"x" * job["size"]
    while True:
        count = control.receive()["burst"]
        for _ in range(count):
            send(message)


def pull_in_turn(module: Any, control: Control, job: dict[str, Any]) -> None:
    """Times bursts to a hundred sockets, always with pyzmq: the sender is measured."""
    context, poller, endpoints = zmq.Context(), zmq.Poller(), []
    for _ in range(POLLED_SOCKETS):
        sock = context.socket(zmq.PULL)
        sock.bind(job["endpoint"])
        endpoints.append(sock.getsockopt_string(zmq.LAST_ENDPOINT))
        poller.register(sock, zmq.POLLIN)
    control.report(endpoint=" ".join(endpoints))
    while True:
        count = control.receive()["burst"]
        control.report(armed=True)
        left, started = count, 0.0
        while left:
            ready = poller.poll()
            started = started or perf_counter()
            for sock, _ in ready:
                with contextlib.suppress(zmq.Again):
                    for _ in range(READ_IN_TURN):
                        sock.recv(zmq.DONTWAIT)
                        left -= 1
        control.report(seconds=perf_counter() - started)


def pull_frames(module: Any, control: Control, job: dict[str, Any]) -> None:
    """Times bursts of messages that are taken as frames."""
    sock = module.Context().socket(module.PULL)
    sock.bind(job["endpoint"])
    control.report(endpoint=sock.getsockopt_string(module.LAST_ENDPOINT))
    recv = sock.recv_multipart
    while True:
        count = control.receive()["burst"]
        control.report(armed=True)
        recv(copy=False)
        started = perf_counter()
        for _ in range(count - 1):
            recv(copy=False)
        control.report(seconds=perf_counter() - started)


def push_frames(module: Any, control: Control, job: dict[str, Any]) -> None:
    """Sends bursts of messages whose parts share the caller's memory where they are large."""
    sock = module.Context().socket(module.PUSH)
    sock.connect(job["endpoint"])
    send, parts = sock.send_multipart, [b"x" * job["size"], memoryview(bytearray(job["size"])), b"x" * job["size"]]
    while True:
        count = control.receive()["burst"]
        for _ in range(count):
            send(parts, copy=False)


def pull_more(module: Any, control: Control, job: dict[str, Any]) -> None:
    """Times bursts of messages of two parts, taken one by one."""
    sock = module.Context().socket(module.PULL)
    sock.bind(job["endpoint"])
    control.report(endpoint=sock.getsockopt_string(module.LAST_ENDPOINT))
    recv = sock.recv
    while True:
        count = control.receive()["burst"]
        control.report(armed=True)
        recv()
        recv()
        started = perf_counter()
        for _ in range(count - 1):
            recv()
            recv()
        control.report(seconds=perf_counter() - started)


def push_more(module: Any, control: Control, job: dict[str, Any]) -> None:
    """Sends bursts of messages of two parts, part by part."""
    sock = module.Context().socket(module.PUSH)
    sock.connect(job["endpoint"])
    send, part, more = sock.send, b"x" * job["size"], module.SNDMORE
    while True:
        count = control.receive()["burst"]
        for _ in range(count):
            send(part, more)
            send(part)


def pull_stream(module: Any, control: Control, job: dict[str, Any]) -> None:
    """Times bursts to the callback of a ZMQStream."""
    stream_class = importlib.import_module(f"{module.__name__}.eventloop.zmqstream").ZMQStream

    async def run() -> None:
        sock = module.Context().socket(module.PULL)
        sock.bind(job["endpoint"])
        stream, finished, left, started = stream_class(sock), asyncio.Event(), 0, 0.0

        def take(_parts: list[bytes]) -> None:
            nonlocal left, started
            started = started or perf_counter()
            left -= 1
            if not left:
                finished.set()

        stream.on_recv(take)
        control.report(endpoint=sock.getsockopt_string(module.LAST_ENDPOINT))
        while True:
            left, started = control.receive()["burst"], 0.0
            finished.clear()
            control.report(armed=True)
            await finished.wait()
            control.report(seconds=perf_counter() - started)

    asyncio.run(run())


ROLES: dict[str, Callable[[Any, Control, dict[str, Any]], None]] = {
    "pull-parts": pull_parts,
    "push-parts": push_parts,
    "pull-frames": pull_frames,
    "push-frames": push_frames,
    "pull-more": pull_more,
    "push-more": push_more,
    "pull-polled": pull_polled,
    "push-polled": push_polled,
    "pull-stream": pull_stream,
    "push-in-turn": push_in_turn,
    "pull-in-turn": pull_in_turn,
    **tensors.ROLES,
}


def run_role(role: str, control: Control, job: dict[str, Any]) -> None:
    """Runs a role."""
    module = importlib.import_module(job["options"]["library"])
    if role.startswith(ASYNCIO):
        context = importlib.import_module(f"{module.__name__}.asyncio").Context()
        asyncio_roles.run(PyzmqSockets(context), role.removeprefix(ASYNCIO), control, job)
    elif role in ROLES:
        ROLES[role](module, control, job)
    else:
        blocking_roles.run(PyzmqSockets(module.Context()), role, control, job)
