"""One side of a connection, in a process of its own: `python -m tests.shutdown.peer_process JSON`.

It speaks through standard output, a line an event: `at ENDPOINT`, `begun`, `ended`, and last what it has received.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Iterator
from typing import Any

from tests.support.socket_types import GROUP, NUMBERED, SENDER, options_of

LONG = 40.0  # seconds for what comes for sure
IDLE_TIMEOUT_S = 3.0  # seconds without a message after which none comes any more
BURST = 100  # messages sent in one go

#: Our names of options, and libzmq's.
NAMES = {
    "recv_buffer": "RCVBUF",
    "send_buffer": "SNDBUF",
    "recv_hwm": "RCVHWM",
    "send_hwm": "SNDHWM",
    "linger": "LINGER",
    "heartbeat_interval": "HEARTBEAT_IVL",
    "heartbeat_timeout": "HEARTBEAT_TIMEOUT",
}
IN_MS = ("linger", "heartbeat_interval", "heartbeat_timeout")


class Blocking:
    """omq's blocking twin."""

    def __init__(self, kind: str, options: dict[str, Any]) -> None:
        import omq

        self._kind = kind
        self._route: dict[str, Any] = {}
        self._socket = getattr(omq, kind)(**options)
        self._omq = omq

    def _do(self, work: Any) -> Any:
        return work()

    def bind(self, endpoint: str) -> str:
        return str(self._do(lambda: self._socket.bind(endpoint)))

    def connect(self, endpoint: str) -> None:
        if self._kind == "PEER":
            self._route = {"routing_id": self._do(lambda: self._socket.connect_peer(endpoint, timeout=LONG))}
        else:
            self._do(lambda: self._socket.connect(endpoint))

    def wait_connected(self) -> None:
        """Waits until messages can be sent, and learns the keyword that `send` needs."""
        if self._kind == "RADIO":
            self._do(lambda: self._socket.wait_subscribed(GROUP, timeout=LONG))
            self._route = {"group": GROUP}
        elif self._kind in NUMBERED and not self._route:
            self._route = {"routing_id": self._do(lambda: self._socket.recv_message(timeout=LONG)).routing_id}
        else:
            self._do(lambda: self._socket.wait_connected(timeout=LONG))

    def send_all(self, messages: list[bytes]) -> None:
        for message in messages:
            self._socket.send(message, timeout=LONG, **self._route)

    def receive(self, timeout: float) -> bytes | None:
        with contextlib.suppress(self._omq.ReceiveTimeout):
            return bytes(self._socket.recv(timeout=timeout))
        return None

    def undo(self, call: str, endpoint: str) -> None:
        self._do(lambda: getattr(self._socket, call)(endpoint))

    def close(self) -> None:
        self._socket.close()
        self._omq.Context.default().term()


class Looped(Blocking):
    """omq's asyncio twin, in a loop that runs while a call does: who works elsewhere keeps it from running."""

    def __init__(self, kind: str, options: dict[str, Any]) -> None:
        import uvloop

        import omq.asyncio as omq

        self._kind = kind
        self._route = {}
        self._loop = uvloop.new_event_loop()
        asyncio.set_event_loop(self._loop)
        self._omq = omq
        self._socket = self._do(lambda: getattr(omq, kind)(**options))

    def _do(self, work: Any) -> Any:
        async def run() -> Any:
            result = work()
            return await result if asyncio.iscoroutine(result) else result

        return self._loop.run_until_complete(run())

    def send_all(self, messages: list[bytes]) -> None:
        async def run() -> None:
            for message in messages:
                await self._socket.send(message, timeout=LONG, **self._route)

        self._do(run)

    def receive(self, timeout: float) -> bytes | None:
        async def run() -> bytes | None:
            with contextlib.suppress(self._omq.ReceiveTimeout):
                return bytes(await self._socket.recv(timeout=timeout))
            return None

        got: bytes | None = self._do(run)
        return got

    def rest(self, seconds: float) -> None:
        self._do(lambda: asyncio.sleep(seconds))

    def close(self) -> None:
        self._do(lambda: self._socket.close())


class Libzmq:
    """pyzmq."""

    def __init__(self, kind: str, options: dict[str, Any]) -> None:
        import zmq

        self._zmq = zmq
        self._context = zmq.Context()
        self._socket = self._context.socket(getattr(zmq, kind))
        for name, value in {"linger": None, **options}.items():
            number = -1 if value is None else round(value * 1000) if name in IN_MS else value
            self._socket.setsockopt(getattr(zmq, NAMES[name]), number)

    def bind(self, endpoint: str) -> str:
        self._socket.bind(endpoint)
        return bytes(self._socket.getsockopt(self._zmq.LAST_ENDPOINT)).rstrip(b"\0").decode()

    def connect(self, endpoint: str) -> None:
        self._monitor: Any = self._socket.get_monitor_socket(self._zmq.EVENT_HANDSHAKE_SUCCEEDED)
        self._socket.connect(endpoint)

    def wait_connected(self) -> None:
        if hasattr(self, "_monitor"):
            assert self._monitor.poll(LONG * 1000), "no peer"
            self._socket.disable_monitor()
            self._monitor.close()

    def send_all(self, messages: list[bytes]) -> None:
        self._socket.sndtimeo = round(LONG * 1000)
        for message in messages:
            self._socket.send(message)

    def receive(self, timeout: float) -> bytes | None:
        return bytes(self._socket.recv()) if self._socket.poll(timeout * 1000) else None

    def undo(self, call: str, endpoint: str) -> None:
        getattr(self._socket, call)(endpoint)

    def close(self) -> None:
        if hasattr(self, "_monitor") and not self._monitor.closed:
            self._socket.disable_monitor()
            self._monitor.close()
        self._socket.close()
        self._context.term()


LIBRARIES: dict[str, Any] = {"omq": Blocking, "asyncio": Looped, "zmq": Libzmq}


def report(*words: object) -> None:
    print(*words, flush=True)


def messages(count: int, size: int, base: int = 0) -> Iterator[list[bytes]]:
    for first in range(base, base + count, BURST):
        numbers = range(first, min(first + BURST, base + count))
        yield [number.to_bytes(8, "big") + bytes(max(0, size - 8)) for number in numbers]


def play(part: dict[str, Any]) -> None:
    """Does what a part describes: see `tests.shutdown.process_pair.Part`."""
    own = options_of(part["kind"], SENDER.get(part["kind"], "")) if part["takes"] else {}
    seat = LIBRARIES[part["library"]](part["kind"], {**own, **part["options"]})
    endpoint = part["endpoint"]
    if part["visits"]:
        visit(seat, part)
    elif part["binds"]:
        endpoint = seat.bind(endpoint)
        report("at", endpoint)
    else:
        seat.connect(endpoint)
    if part["sends"] and not part["visits"]:
        if not part["binds"] or part["end"] == "unbind":
            seat.wait_connected()
        for burst in messages(part["sends"], part["size"]):
            seat.send_all(burst)
    report("begun")
    got = take(seat, part) if part["takes"] else []
    if part["end"] in ("disconnect", "unbind"):
        seat.undo(part["end"], endpoint)
        report("ended")
        # Lives on, and so does its loop.
        if isinstance(seat, Looped):
            seat.rest(part["lives"])
        else:
            time.sleep(part["lives"])
    elif part["end"] == "close":
        seat.close()
        report("ended")
        sys.stdin.read() if part["waits"] else None
    report(json.dumps(got))


def visit(seat: Any, part: dict[str, Any]) -> None:
    """Sends to one endpoint after another, and waits for none of them."""
    for place, endpoint in enumerate(part["visits"]):
        seat.connect(endpoint)
        for burst in messages(part["sends"], part["size"], place * part["sends"]):
            seat.send_all(burst)
        seat.undo("disconnect", endpoint)


def take(seat: Any, part: dict[str, Any]) -> list[int]:
    """Takes messages until all are there, or none comes any more; gives their numbers."""
    got: list[int] = []
    timeout = LONG
    while len(got) < part["takes"]:
        message = seat.receive(timeout)
        if message is None:
            break
        got.append(int.from_bytes(message[:8], "big"))
        timeout = IDLE_TIMEOUT_S
        if len(got) == 1:
            work(seat, part)
        elif part["pace"]:
            time.sleep(part["pace"])
    return got


def work(seat: Any, part: dict[str, Any]) -> None:
    """Is at something else, and may report something while it is."""
    for _ in range(part["chats"]):
        seat.send_all([b"chat"])
        time.sleep(part["absent"] / part["chats"])
    if not part["chats"]:
        time.sleep(part["absent"])


if __name__ == "__main__":
    play(json.loads(sys.argv[1]))
