"""pyomq's blocking sockets (omq.rs on tokio)."""

from __future__ import annotations

from typing import Any

import pyomq

from bench.link import Link
from bench.peers import blocking


class _Sockets:
    def __init__(self) -> None:
        self._context = pyomq.Context()

    def open(self, kind: str, hwm: int | None = None) -> Any:
        socket = self._context.socket(getattr(pyomq, kind))
        if hwm is not None:
            socket.set_hwm(hwm)
        if kind == "SUB":
            socket.subscribe(b"")
        return socket

    def bind(self, socket: Any, endpoint: str) -> str:
        return str(socket.bind(endpoint))

    def connect(self, socket: Any, endpoint: str) -> None:
        socket.connect(endpoint)


def play(role: str, link: Link, job: dict[str, Any]) -> None:
    """Plays a role."""
    blocking.run(_Sockets(), role, link, job)
