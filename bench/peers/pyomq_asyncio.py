"""pyomq's asyncio sockets (omq.rs on tokio)."""

from __future__ import annotations

from typing import Any

import pyomq
import pyomq.asyncio

from bench.link import Link
from bench.peers import awaited


class _Sockets:
    def __init__(self) -> None:
        self._context = pyomq.asyncio.Context()

    def open(self, kind: str) -> Any:
        socket = self._context.socket(getattr(pyomq, kind))
        if kind == "SUB":
            socket.subscribe(b"")
        return socket

    def bind(self, socket: Any, endpoint: str) -> str:
        return str(socket.bind(endpoint))

    def connect(self, socket: Any, endpoint: str) -> None:
        socket.connect(endpoint)


def play(role: str, link: Link, job: dict[str, Any]) -> None:
    """Plays a role."""
    awaited.run(_Sockets(), role, link, job)
