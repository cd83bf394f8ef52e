"""The asyncio sockets of omq."""

from __future__ import annotations

from typing import Any

import omq.asyncio
from bench.control import Control
from bench.peers import asyncio_roles
from bench.peers.omq_blocking import OmqSockets


def run_role(role: str, control: Control, job: dict[str, Any]) -> None:
    """Runs a role."""
    asyncio_roles.run(OmqSockets(omq.asyncio, {}), role, control, job)
