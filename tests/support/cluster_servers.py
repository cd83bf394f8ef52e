"""Brokers of a cluster in this process, on a journal in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from omq.broker.server import AsyncServer
from omq.serving import cluster_member
from omq.serving.cluster import Cluster
from tests.support.async_waits import until
from tests.support.memory_journal import JournalThread, RemoteJournal

LEASE_S: Final = 0.6


class ClusterServer:
    """A broker of a cluster.

    Args:
        journal: The servers of the journal.
        directory: Its directory.
        name: Its id.
        options: More options of the server.
    """

    def __init__(self, journal: JournalThread, directory: Path, name: str, options: dict[str, Any]) -> None:
        self.name = name
        self.journal: RemoteJournal = journal.node()
        self.journal.faults.timeout = 0.2
        settings = {"servers_sync": True} | {
            key: options.pop(key) for key in ("servers_sync", "advertise") if key in options
        }
        cluster = Cluster(name="test", servers="nats://memory", node=name, **settings)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cluster_member, "_nats", lambda *_: lambda create: self._connect())
            self.server = AsyncServer(directory / name, **{"cluster": cluster, **options})

    async def _connect(self) -> RemoteJournal:
        return self.journal

    @property
    def endpoint(self) -> str:
        return self.server.endpoints["zmtp"]

    @property
    def leads(self) -> bool:
        return self.server.leader is True


class ClusterServers:
    """The brokers of a cluster.

    Args:
        journal: The servers of the journal.
        nodes: The brokers.
    """

    def __init__(self, journal: JournalThread, nodes: list[ClusterServer]) -> None:
        self.journal = journal
        self.nodes = nodes

    async def leader(self, *others: ClusterServer) -> ClusterServer:
        """Waits until a broker leads that is not one of these, and returns it."""
        found: list[ClusterServer] = []

        def leads() -> bool:
            found[:] = [node for node in self.nodes if node.leads and node not in others]
            return bool(found)

        await until(leads)
        return found[0]


@asynccontextmanager
async def cluster_servers(directory: Path, count: int = 2, **options: Any) -> AsyncIterator[ClusterServers]:
    """Runs brokers of a cluster in this loop until the end of the block."""
    journal = JournalThread()
    journal.servers.lease = LEASE_S
    nodes = [ClusterServer(journal, directory, f"b{number}", dict(options)) for number in range(count)]
    try:
        await asyncio.gather(*(node.server.start() for node in nodes))
        yield ClusterServers(journal, nodes)
    finally:
        await asyncio.gather(*(node.server.close() for node in nodes))
        journal.close()
