"""Helpers for tests of the journal over NATS JetStream."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from omq.store.replication.journal import JournalEntry, JournalUnavailable
from omq.store.replication.nats_connection import NatsOptions
from omq.store.replication.nats_journal import NatsJournal
from tests.support.nats_servers import NatsServers

START_TIMEOUT_S = 30.0


@contextlib.asynccontextmanager
async def opened(servers: NatsServers, cluster: str, **settings: Any) -> AsyncIterator[NatsJournal]:
    """Connects as soon as the servers have a leader."""
    options = settings.pop("options", None) or NatsOptions(servers=servers.urls)
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            journal = await NatsJournal.connect(options, cluster, **settings)
            break
        except JournalUnavailable:
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(0.1)
    try:
        yield journal
    finally:
        await journal.close()


async def entries(journal: NatsJournal, after: int = 0) -> list[JournalEntry]:
    """Reads up to the end; the sequences without an entry are left out."""
    last = await journal.last()
    found = []
    async with contextlib.aclosing(journal.read(after)) as reader:
        async for entry in reader:
            if entry.payload:
                found.append(entry)
            if entry.sequence >= last:
                return found
    raise AssertionError("read has ended")


async def info(journal: NatsJournal) -> dict[str, Any]:
    found: dict[str, Any] = await journal._connection.call(f"STREAM.INFO.{journal._stream}")
    return found


async def retried(last: Callable[[], Coroutine[Any, Any, int]]) -> int:
    while True:
        try:
            return await last()
        except JournalUnavailable:
            await asyncio.sleep(0.05)
