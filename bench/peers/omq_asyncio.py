"""omq's asyncio twin."""

from __future__ import annotations

from typing import Any

import omq.asyncio
from bench.link import Link
from bench.peers import awaited


class _Sockets:
    def open(self, kind: str) -> Any:
        options = {"subscribe": b""} if kind == "SUB" else {}
        return getattr(omq.asyncio, kind)(**options)

    def bind(self, socket: Any, endpoint: str) -> str:
        return str(socket.bind(endpoint))

    def connect(self, socket: Any, endpoint: str) -> None:
        socket.connect(endpoint)


def play(role: str, link: Link, job: dict[str, Any]) -> None:
    """Plays a role."""
    awaited.run(_Sockets(), role, link, job)
