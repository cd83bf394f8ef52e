"""The asyncio sockets of pyomq (omq.rs on tokio)."""

from __future__ import annotations

from typing import Any

import pyomq.asyncio

from bench.control import Control
from bench.peers import asyncio_roles
from bench.peers.pyomq_blocking import PyomqSockets


def run_role(role: str, control: Control, job: dict[str, Any]) -> None:
    """Runs a role."""
    asyncio_roles.run(PyomqSockets(pyomq.asyncio.Context()), role, control, job)
