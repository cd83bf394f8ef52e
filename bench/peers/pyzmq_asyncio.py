"""The asyncio sockets of pyzmq, over libzmq."""

from __future__ import annotations

from typing import Any

import zmq.asyncio

from bench.control import Control
from bench.peers import asyncio_roles
from bench.peers.pyzmq_blocking import PyzmqSockets


def run_role(role: str, control: Control, job: dict[str, Any]) -> None:
    """Runs a role."""
    asyncio_roles.run(PyzmqSockets(zmq.asyncio.Context()), role, control, job)
