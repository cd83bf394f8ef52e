"""The blocking sockets of pyzmq, over libzmq."""

from __future__ import annotations

from typing import Any

import zmq

from bench.control import Control
from bench.peers import blocking_roles


class PyzmqSockets:
    """Opens sockets of pyzmq.

    Args:
        context: A context of `zmq`, or of `zmq.asyncio`.
    """

    def __init__(self, context: Any) -> None:
        self._context = context

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


def run_role(role: str, control: Control, job: dict[str, Any]) -> None:
    """Runs a role."""
    blocking_roles.run(PyzmqSockets(zmq.Context()), role, control, job)
