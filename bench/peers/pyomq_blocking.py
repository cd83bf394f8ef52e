"""The blocking sockets of pyomq (omq.rs on tokio)."""

from __future__ import annotations

from typing import Any

import pyomq

from bench.control import Control
from bench.peers import blocking_roles


class PyomqSockets:
    """Opens sockets of pyomq.

    Args:
        context: A context of `pyomq`, or of `pyomq.asyncio`.
    """

    def __init__(self, context: Any) -> None:
        self._context = context

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


def run_role(role: str, control: Control, job: dict[str, Any]) -> None:
    """Runs a role."""
    blocking_roles.run(PyomqSockets(pyomq.Context()), role, control, job)
