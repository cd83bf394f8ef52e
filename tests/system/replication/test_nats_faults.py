"""The journal over NATS JetStream while servers are killed, paused, and lose their disks."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from omq.store.replication.journal import Fenced, JournalEntry, JournalUnavailable
from omq.store.replication.nats_connection import NatsOptions
from omq.store.replication.nats_journal import MAX_CHUNK_BYTES, NatsJournal
from tests.support.nats_servers import NatsServer, NatsServers, nats_servers
from tests.system.replication.nats_journals import entries, info, opened, retried

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("nats"), pytest.mark.timeout(180)]


async def leader_of(journal: NatsJournal, servers: NatsServers) -> NatsServer:
    return servers.named((await info(journal))["cluster"]["leader"])


class Writer:
    """Appends with the last sequence that it knows, and notes every outcome.

    Args:
        journal: The journal.
        name: The beginning of its entries.
        size: The bytes of an entry.
        pause: Seconds between its entries.
    """

    def __init__(self, journal: NatsJournal, name: str, size: int = 0, pause: float = 0.0) -> None:
        self.acknowledged: dict[bytes, int] = {}
        self.fenced: set[bytes] = set()
        self.unknown: set[bytes] = set()
        self.stop = False
        self._journal = journal
        self._name = name
        self._size = size
        self._pause = pause

    async def run(self) -> None:
        last = await retried(self._journal.last)
        count = 0
        while not self.stop:
            payload = f"{self._name}{count}.".encode().ljust(self._size, b".")
            count += 1
            await asyncio.sleep(self._pause)
            try:
                last = self.acknowledged[payload] = await self._journal.append(payload, last)
            except Fenced as fenced:
                self.fenced.add(payload)
                last = fenced.last or await retried(self._journal.last)
            except JournalUnavailable:
                self.unknown.add(payload)
                last = await retried(self._journal.last)

    def count(self) -> int:
        return len(self.acknowledged)


async def grown(writer: Writer, count: int) -> None:
    """Waits until a number of appends more are acknowledged."""
    wanted = writer.count() + count
    while writer.count() < wanted:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def writing(servers: NatsServers, size: int = 0) -> AsyncIterator[tuple[NatsJournal, Writer]]:
    """Two writers that fence each other, and a reader; at the end the journal must agree with all of them."""
    async with (
        opened(servers, "faults", options=NatsOptions(servers=servers.urls, timeout=3)) as first,
        opened(servers, "faults", options=NatsOptions(servers=servers.urls[::-1], timeout=3)) as second,
        opened(servers, "faults") as third,
    ):
        # Two that write chunks all the time would interrupt each other for ever.
        writers = [Writer(first, "first ", size), Writer(second, "second ", pause=0.5 if size > MAX_CHUNK_BYTES else 0)]
        followed: list[JournalEntry] = []

        async def follow() -> None:
            async with contextlib.aclosing(third.read(0)) as reader:
                async for entry in reader:
                    followed.append(entry)  # noqa: PERF401 # seen as it grows

        following = asyncio.create_task(follow())
        tasks = [asyncio.create_task(writer.run()) for writer in writers]
        await grown(writers[0], 10)
        yield first, writers[0]
        for writer in writers:
            writer.stop = True
        await asyncio.gather(*tasks)
        end = await retried(first.last)
        while not followed or followed[-1].sequence < end:
            assert not following.done(), following.exception()
            await asyncio.sleep(0.01)
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await following
        sequences = [entry.sequence for entry in followed]
        assert sequences == sorted({*sequences})
        read = [entry for entry in followed if entry.payload]
        assert read == [entry for entry in await entries(second) if entry.sequence <= end]
        stored = {entry.payload: entry.sequence for entry in read}
        assert len(stored) == len(read)  # nothing is there twice
        for writer in writers:
            assert writer.acknowledged.items() <= stored.items()
            assert not writer.fenced & stored.keys()
        rest = stored.keys() - writers[0].acknowledged.keys() - writers[1].acknowledged.keys()
        assert rest <= writers[0].unknown | writers[1].unknown
        assert writers[0].fenced | writers[1].fenced


@pytest.mark.parametrize("size", [100, 3_000_000], ids=["small", "chunks"])
def test_the_leader_is_killed_during_appends(tmp_path: Path, size: int) -> None:
    async def main(servers: NatsServers) -> None:
        async with writing(servers, size) as (journal, writer):
            for _ in range(2):
                leader = await leader_of(journal, servers)
                leader.kill()
                await grown(writer, 5)
                leader.start()
                await grown(writer, 5)

    with nats_servers(tmp_path) as servers:
        asyncio.run(main(servers))


def test_the_leader_is_paused_during_appends(tmp_path: Path) -> None:
    async def main(servers: NatsServers) -> None:
        async with writing(servers) as (journal, writer):
            for _ in range(2):
                leader = await leader_of(journal, servers)
                leader.pause()
                await grown(writer, 50)
                leader.resume()
                await grown(writer, 50)

    with nats_servers(tmp_path) as servers:
        asyncio.run(main(servers))


def test_each_server_is_restarted_in_turn(tmp_path: Path) -> None:
    async def main(servers: NatsServers) -> None:
        async with writing(servers) as (_, writer):
            for server in servers.all:
                server.kill()
                await grown(writer, 20)
                server.start()
                await grown(writer, 20)

    with nats_servers(tmp_path, sync_always=True) as servers:
        asyncio.run(main(servers))


def test_an_empty_server_gets_the_entries_again(tmp_path: Path) -> None:
    async def main(servers: NatsServers) -> None:
        async with opened(servers, "wiped") as journal:
            last = 0
            for number in range(100):
                last = await journal.append(b"%d" % number, last)
            empty = servers[0]
            empty.kill()
            empty.wipe()
            empty.start()
            started = time.monotonic()
            while not await current(journal, empty, started):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            servers[1].kill()
            last = await retried(journal.last)
            while True:
                with contextlib.suppress(JournalUnavailable):
                    await journal.append(b"after", last)
                    break
                last = await retried(journal.last)
            assert [entry.payload for entry in await entries(journal)][:100] == [
                b"%d" % number for number in range(100)
            ]

    async def current(journal: NatsJournal, server: NatsServer, started: float) -> bool:
        """Returns True when a server has answered the leader since it was started, and has all entries."""
        with contextlib.suppress(JournalUnavailable):
            cluster = (await info(journal))["cluster"]
            # A server that knows of no leader calls itself current, whatever it has.
            for replica in cluster.get("replicas", []) if cluster.get("leader") else []:
                answered = replica["active"] / 1e9 < time.monotonic() - started
                if replica["name"] == server.name and replica["current"] and answered:
                    return True
        return False

    with nats_servers(tmp_path) as servers:
        asyncio.run(main(servers))


def test_one_of_three_servers_is_no_majority(tmp_path: Path) -> None:
    async def main(servers: NatsServers) -> None:
        options = NatsOptions(servers=servers.urls, timeout=2)
        async with opened(servers, "majority", options=options) as journal:
            last = await journal.append(b"first", 0)
            for server in servers.all[1:]:
                server.kill()
            with pytest.raises(JournalUnavailable):  # it may have been connected to one of these
                await journal.append(b"second", last)
            with pytest.raises(JournalUnavailable, match="majority of"):
                await journal.last()
            for server in servers.all[1:]:
                server.start()
            last = await retried(journal.last)
            while True:
                with contextlib.suppress(JournalUnavailable):
                    await journal.append(b"third", last)
                    break
                last = await retried(journal.last)
            found = [entry.payload for entry in await entries(journal)]
            assert found[0] == b"first"
            assert found.count(b"third") >= 1
            assert found.count(b"second") <= 1

    with nats_servers(tmp_path) as servers:
        asyncio.run(main(servers))


def test_a_snapshot_survives_a_killed_server(tmp_path: Path) -> None:
    async def main(servers: NatsServers) -> None:
        snapshot = tmp_path / "snapshot"
        snapshot.mkdir()
        (snapshot / "data.mdb").write_bytes(bytes(range(256)) * 100_000)
        async with opened(servers, "snapshot") as journal:
            await journal.put_snapshot(5, snapshot)
            servers[0].kill()
            while True:
                with contextlib.suppress(JournalUnavailable):
                    assert await journal.get_snapshot(tmp_path / "got") == 5
                    break
            assert (tmp_path / "got" / "data.mdb").read_bytes() == (snapshot / "data.mdb").read_bytes()

    with nats_servers(tmp_path) as servers:
        asyncio.run(main(servers))
