"""The types whose messages have one part, and the classic ones that they stand next to: omq's, or pyomq's.

A role is a verb and a type: `send SCATTER`, `receive GATHER`, `ask CLIENT`, `answer SERVER`. pyomq's runs in an
interpreter of its own, so nothing here imports the other peers.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter, perf_counter_ns
from typing import Any

from bench.control import Control


def _opened(library: str, kind: str, bind: str | None = None, connect: str | None = None) -> tuple[Any, str]:
    """A socket, and the endpoint that it has bound."""
    if library == "omq":
        import omq

        ours = getattr(omq, kind)(bind=bind, connect=connect)
        return ours, ours.endpoints[0] if bind else ""
    import pyomq

    theirs = pyomq.Context.instance().socket(getattr(pyomq, kind))
    if connect:
        theirs.connect(connect)
    if bind:
        theirs.bind(bind)
    return theirs, theirs.getsockopt(pyomq.LAST_ENDPOINT).decode() if bind else ""


def receive(library: str, kind: str, control: Control, job: dict[str, Any]) -> None:
    """Times bursts from the first message to the last."""
    sock, endpoint = _opened(library, kind, bind=job["endpoint"])
    control.report(endpoint=endpoint)
    recv = sock.recv
    while True:
        count = control.receive()["burst"]
        control.report(armed=True)
        recv()
        started = perf_counter()
        for _ in range(count - 1):
            recv()
        control.report(seconds=perf_counter() - started)


def send(library: str, kind: str, control: Control, job: dict[str, Any]) -> None:
    """Sends bursts as fast as `send` takes them."""
    sock, _ = _opened(library, kind, connect=job["endpoint"])
    give, message = sock.send, b"x" * job["size"]
    while True:
        for _ in range(control.receive()["burst"]):
            give(message)


def answer(library: str, kind: str, control: Control, job: dict[str, Any]) -> None:
    """Answers every request with itself."""
    sock, endpoint = _opened(library, kind, bind=job["endpoint"])
    control.report(endpoint=endpoint)
    give = sock.send
    if kind != "SERVER":
        recv = sock.recv
        while True:
            give(recv())
    elif library == "omq":
        recv_message = sock.recv_message
        while True:
            message = recv_message()
            give(message.body, routing_id=message.routing_id)
    else:
        while True:
            frame = sock.recv(copy=False)
            give(frame.bytes, routing_id=frame.routing_id)


def ask(library: str, kind: str, control: Control, job: dict[str, Any]) -> None:
    """Times each round trip of each burst that is asked for."""
    sock, _ = _opened(library, kind, connect=job["endpoint"])
    give, recv, message = sock.send, sock.recv, b"x" * job["size"]
    while True:
        trips = [0] * control.receive()["burst"]
        last = perf_counter_ns()
        for index in range(len(trips)):
            give(message)
            recv()
            now = perf_counter_ns()
            trips[index] = now - last
            last = now
        control.report(trips=trips)


_VERBS: dict[str, Callable[[str, str, Control, dict[str, Any]], None]] = {
    "receive": receive,
    "send": send,
    "answer": answer,
    "ask": ask,
}


def run_role(role: str, control: Control, job: dict[str, Any]) -> None:
    """Runs a role."""
    verb, kind = role.split()
    _VERBS[verb](job["options"]["library"], kind, control, job)
