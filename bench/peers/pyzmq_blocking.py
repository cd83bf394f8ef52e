"""pyzmq's blocking sockets over libzmq."""

from __future__ import annotations

from typing import Any

import zmq

from bench.link import Link
from bench.peers import blocking


class _Sockets:
    def __init__(self) -> None:
        self._context = zmq.Context()

    def open(self, kind: str, hwm: int | None = None) -> Any:
        socket = self._context.socket(getattr(zmq, kind))
        if hwm is not None:
            socket.set_hwm(hwm)
        if kind == "SUB":
            socket.subscribe(b"")
        return socket

    def bind(self, socket: Any, endpoint: str) -> str:
        socket.bind(endpoint)
        return str(socket.getsockopt_string(zmq.LAST_ENDPOINT))

    def connect(self, socket: Any, endpoint: str) -> None:
        socket.connect(endpoint)


def play(role: str, link: Link, job: dict[str, Any]) -> None:
    """Plays a role."""
    blocking.run(_Sockets(), role, link, job)
