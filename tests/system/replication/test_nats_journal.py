"""The journal over NATS JetStream, with real servers."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from omq.serving.cluster import Cluster
from omq.serving.cluster_member import nats_options
from omq.store.errors import DamagedError
from omq.store.replication import nats_connection, nats_consumer
from omq.store.replication.journal import (
    Fenced,
    JournalEntry,
    JournalUnavailable,
    JournalUnusable,
    Truncated,
)
from omq.store.replication.nats_connection import STREAM_NOT_FOUND, WRONG_LAST_SEQUENCE, NatsApiError, NatsOptions
from omq.store.replication.nats_journal import NatsJournal
from tests.support.nats_servers import NatsServers, nats_servers
from tests.support.waits import until
from tests.support.websocket_peer import contexts, make_certificate
from tests.system.replication.nats_journals import entries, info, opened, retried

pytestmark = [pytest.mark.xdist_group("nats")]


def with_journal(servers: NatsServers, cluster: str, test: Callable[[NatsJournal], Coroutine[Any, Any, None]]) -> None:
    """Runs a test with a new journal."""

    async def main() -> None:
        async with opened(servers, cluster) as journal:
            await test(journal)

    asyncio.run(main())


class TestEntries:
    def test_entries_are_read_in_order_from_any_of_them(self, servers: NatsServers) -> None:
        async def test(journal: NatsJournal) -> None:
            last = 0
            for number in range(20):
                last = await journal.append(b"entry %d" % number, last)
                assert last == number + 1
            found = await entries(journal)
            assert found == [JournalEntry(number + 1, b"entry %d" % number) for number in range(20)]
            assert await entries(journal, 15) == found[15:]

        with_journal(servers, "order", test)

    def test_an_append_with_an_old_sequence_is_fenced(self, servers: NatsServers) -> None:
        async def test(journal: NatsJournal) -> None:
            await journal.append(b"first", 0)
            await journal.append(b"second", 1)
            for expected in (0, 1):
                with pytest.raises(Fenced, match="another entry") as caught:
                    await journal.append(b"late", expected)
                assert caught.value.last == 2
            assert [entry.payload for entry in await entries(journal)] == [b"first", b"second"]

        with_journal(servers, "fence", test)

    def test_an_append_above_the_last_sequence_is_not_stored(self, servers: NatsServers) -> None:
        async def test(journal: NatsJournal) -> None:
            await journal.append(b"first", 0)
            with pytest.raises(JournalUnusable, match="ends at 2, but 7 was stored"):
                await journal.append(b"early", 7)
            assert [entry.payload for entry in await entries(journal)] == [b"first"]

        options = NatsOptions(servers=servers.urls, timeout=0.5)

        async def main() -> None:
            async with opened(servers, "above", options=options) as journal:
                await test(journal)

        asyncio.run(main())

    def test_last_is_reached_by_readers_and_does_not_fence_an_append(self, servers: NatsServers) -> None:
        async def test(journal: NatsJournal) -> None:
            assert await journal.last() == 1
            assert await journal.append(b"first", 0) == 2
            assert await journal.last() == 3
            assert await journal.last() == 4
            assert await journal.append(b"second", 2) == 5
            seen = []
            async with contextlib.aclosing(journal.read(0)) as reader:
                async for entry in reader:
                    seen.append(entry)
                    if entry.sequence == 5:
                        break
            assert seen == [(1, b""), (2, b"first"), (3, b""), (4, b""), (5, b"second")]

        with_journal(servers, "last", test)

    def test_appends_go_on_while_others_ask_for_the_last_sequence(self, servers: NatsServers) -> None:
        async def test(journal: NatsJournal) -> None:
            acknowledged = 0

            async def ask() -> None:
                async with opened(servers, "asked") as other:
                    for _ in range(100):
                        before = acknowledged
                        assert await other.last() >= before

            asking = asyncio.create_task(ask())
            count = 0
            while not asking.done() or not count:
                acknowledged = await journal.append(b"%d" % count, acknowledged)
                count += 1
            await asking
            assert [entry.payload for entry in await entries(journal)] == [b"%d" % number for number in range(count)]

        with_journal(servers, "asked", test)

    def test_one_journal_appends_reads_and_asks_at_once(self, servers: NatsServers) -> None:
        async def test(journal: NatsJournal) -> None:
            async def append() -> None:
                last = 0
                for number in range(200):
                    last = await journal.append(b"%d" % number, last)

            async def ask() -> None:
                for _ in range(200):
                    await journal.last()

            async def read() -> list[bytes]:
                found: list[bytes] = []
                async with contextlib.aclosing(journal.read(0)) as reader:
                    while len(found) < 200:
                        if payload := (await anext(reader)).payload:
                            found.append(payload)
                return found

            found, *_ = await asyncio.gather(read(), append(), ask())
            assert found == [b"%d" % number for number in range(200)]

        with_journal(servers, "at-once-all", test)

    def test_an_append_that_was_stored_and_rejected_is_acknowledged_once(
        self, servers: NatsServers, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An old leader of the stream rejects what the new one stores."""

        async def test(journal: NatsJournal) -> None:
            acknowledged = journal._acknowledged
            rejected = 0

            async def reject(future: asyncio.Future[Any]) -> Any:
                nonlocal rejected
                await acknowledged(future)
                rejected += 1
                raise NatsApiError(WRONG_LAST_SEQUENCE, "wrong last sequence: 0")

            monkeypatch.setattr(journal, "_acknowledged", reject)
            assert await journal.append(b"once", 0) == 1
            monkeypatch.undo()
            assert rejected == 1
            assert [entry.payload for entry in await entries(journal)] == [b"once"]

        with_journal(servers, "rejected", test)

    def test_an_empty_entry_is_rejected(self, servers: NatsServers) -> None:
        async def test(journal: NatsJournal) -> None:
            with pytest.raises(ValueError, match="payload: is empty"):
                await journal.append(b"", 0)

        with_journal(servers, "empty", test)

    def test_a_foreign_message_is_skipped(self, servers: NatsServers, caplog: pytest.LogCaptureFixture) -> None:
        async def test(journal: NatsJournal) -> None:
            await journal._connection.request(journal._subject, b"not from a broker")
            assert await journal.append(b"first", 0) == 2
            assert await entries(journal) == [(2, b"first")]
            assert "restrict who may publish to omq.journal.foreign" in caplog.text

        with_journal(servers, "foreign", test)


class TestChunks:
    PAYLOAD = bytes(range(256)) * 12_000  # 3 MB

    def test_an_entry_above_max_payload_is_one_entry(self, servers: NatsServers) -> None:
        async def test(journal: NatsJournal) -> None:
            last = await journal.append(self.PAYLOAD, 0)
            assert last > 1
            last = await journal.append(b"small", last)
            assert await entries(journal) == [(last - 1, self.PAYLOAD), (last, b"small")]

        with_journal(servers, "chunks", test)

    @pytest.mark.parametrize("stored", [1, 2])
    def test_an_interrupted_entry_is_dropped(self, servers: NatsServers, stored: int) -> None:
        async def test(journal: NatsJournal) -> None:
            chunks = journal._chunks(self.PAYLOAD, "0")
            assert len(chunks) > 2
            assert await journal._append(chunks[:stored], 0) == (stored, {})
            with pytest.raises(Fenced) as caught:
                await journal.append(b"another", 0)
            assert caught.value.last == stored
            last = await journal.append(b"another", stored)
            assert await journal._append(chunks[stored:], last) == (len(chunks) - stored, {})  # they are late
            last = await journal.append(self.PAYLOAD, last + len(chunks) - stored)
            assert await entries(journal) == [(stored + 1, b"another"), (last, self.PAYLOAD)]

        with_journal(servers, f"interrupted{stored}", test)

    def test_readers_reach_the_end_behind_an_unfinished_entry(self, servers: NatsServers) -> None:
        async def test(journal: NatsJournal) -> None:
            await journal._append(journal._chunks(self.PAYLOAD, "0")[:2], 0)
            assert await entries(journal) == []

        with_journal(servers, "unfinished", test)

    def test_readers_get_each_chunk(self, servers: NatsServers) -> None:
        async def test(journal: NatsJournal) -> None:
            last = await journal.append(self.PAYLOAD, 0)
            async with contextlib.aclosing(journal.read(0)) as reader:
                found = [await anext(reader) for _ in range(last)]
            assert found == [*((number, None) for number in range(1, last)), (last, self.PAYLOAD)]

        with_journal(servers, "each-chunk", test)

    @pytest.mark.parametrize("slow", [False, True])
    def test_each_chunk_that_is_stored_is_reported(
        self, servers: NatsServers, slow: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(nats_connection, "CHUNK_TIME_S", 0.0 if slow else 60.0)

        async def test(journal: NatsJournal) -> None:
            events: list[int] = []  # the index of a chunk that is sent, and again once it is stored

            def sending() -> Callable[[], None]:
                index = len({*events})
                events.append(index)
                return lambda: events.append(index)

            last = await journal.append(self.PAYLOAD * 3, 0, sending)
            assert [index for index in range(last) if events.count(index) == 2] == [*range(last)]
            stored = [index for place, index in enumerate(events) if index in events[:place]]
            assert stored == [*range(last)]
            in_turn = [index for index in range(last) for _ in range(2)]
            assert (events == in_turn) == slow  # a slow one is sent once the one before it is stored
            assert events[:2] == [0, 0]

        with_journal(servers, f"reported{slow}", test)

    def test_a_chunk_after_one_that_was_interrupted_is_not_reported(
        self, servers: NatsServers, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def test(journal: NatsJournal, other: NatsJournal) -> None:
            monkeypatch.setattr(nats_connection, "CHUNK_TIME_S", 60.0)  # no chunk takes long
            chunks = journal._chunks(self.PAYLOAD * 2, "0")
            send = journal._connection.send
            reported = []

            async def send_after_another(messages: Any, *given: Any, **options: Any) -> Any:
                if f".{interrupted}.0" in messages[0][2]["Omq-Entry"]:
                    await other.last()
                return await send(messages, *given, **options)

            def sending() -> Callable[[], None]:
                return lambda: reported.append(True)

            interrupted = 3
            monkeypatch.setattr(journal._connection, "send", send_after_another)
            stored, strays = await journal._append(chunks, 0, sending)
            monkeypatch.undo()
            assert 1 <= stored == len(reported) <= interrupted  # the message may overtake the chunk before
            assert strays  # they were on their way
            assert min(strays) == stored + 2
            assert await entries(journal) == []

        async def main() -> None:
            async with opened(servers, "rest") as journal, opened(servers, "rest") as other:
                await test(journal, other)

        asyncio.run(main())

    def test_a_chunk_that_was_stored_and_rejected_is_found(
        self, servers: NatsServers, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An old leader of the stream rejects what the new one stores."""

        async def test(journal: NatsJournal) -> None:
            acknowledged = journal._acknowledged
            answers: list[Any] = []

            async def reject(future: asyncio.Future[Any]) -> Any:
                answers.append(await acknowledged(future))
                if len(answers) == 3:
                    raise NatsApiError(WRONG_LAST_SEQUENCE, "wrong last sequence: 0")
                return answers[-1]

            monkeypatch.setattr(nats_connection, "CHUNK_TIME_S", 60.0)
            monkeypatch.setattr(journal, "_acknowledged", reject)
            payload = self.PAYLOAD + bytes(100_000)  # one chunk more, which was sent before the third is rejected
            last = await journal.append(payload, 0)
            monkeypatch.undo()
            assert last == len(answers) == 4
            assert await entries(journal) == [(last, payload)]

        with_journal(servers, "found", test)

    def test_a_question_for_the_last_sequence_in_between_does_not_fence(self, servers: NatsServers) -> None:
        async def test(journal: NatsJournal) -> None:
            async with opened(servers, "between") as other:
                last = 0
                for _ in range(5):
                    appended, _ = await asyncio.gather(journal.append(self.PAYLOAD, last), other.last())
                    last = appended
                assert [entry.payload for entry in await entries(journal)] == [self.PAYLOAD] * 5

        with_journal(servers, "between", test)


class TestTruncation:
    def test_a_reader_below_the_first_sequence_needs_the_snapshot(self, servers: NatsServers, tmp_path: Path) -> None:
        async def test(journal: NatsJournal) -> None:
            for number in range(10):
                await journal.append(b"%d" % number, number)
            await journal.put_snapshot(6, snapshot_in(tmp_path, 100))
            await journal.truncate(6)
            with pytest.raises(Truncated, match="load the snapshot") as caught:
                await entries(journal, 3)
            assert caught.value.first == 6
            assert [entry.sequence for entry in await entries(journal, 5)] == [6, 7, 8, 9, 10]
            with pytest.raises(ValueError, match="below: 100 is not valid; the last sequence is"):
                await journal.truncate(100)
            assert (await info(journal))["state"]["first_seq"] == 6

        with_journal(servers, "truncated", test)

    def test_the_size_is_that_of_what_is_kept(self, servers: NatsServers) -> None:
        async def test(journal: NatsJournal) -> None:
            assert await journal.size() == 0
            last = 0
            for _ in range(10):
                last = await journal.append(bytes(10_000), last)
            assert 100_000 <= await journal.size() < 110_000
            await journal.truncate(last)
            assert 10_000 <= await journal.size() < 11_000

        with_journal(servers, "size", test)

    def test_a_reader_of_a_truncated_journal_with_nothing_left(self, servers: NatsServers) -> None:
        async def test(journal: NatsJournal) -> None:
            await journal.append(b"first", 0)
            await journal.truncate(2)
            await journal.append(b"second", 1)
            assert await entries(journal, 1) == [(2, b"second")]

        with_journal(servers, "nothing-left", test)

    def test_a_purge_without_a_snapshot_is_reported(
        self, servers: NatsServers, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(nats_consumer, "MAX_OUTAGE_S", 2.0)

        async def test(journal: NatsJournal) -> None:
            for number in range(3):
                await journal.append(b"%d" % number, number)
            assert await journal.is_complete()
            await journal._connection.call(f"STREAM.PURGE.{journal._stream}")
            assert not await journal.is_complete()
            with pytest.raises(
                JournalUnavailable, match=r"was purged up to 3, and there is no snapshot\. A leader stores"
            ):
                await entries(journal, 1)

        with_journal(servers, "purged", test)

    @pytest.mark.slow
    def test_a_deleted_stream_is_reported(self, servers: NatsServers) -> None:
        async def test(journal: NatsJournal) -> None:
            await journal.append(b"first", 0)
            await journal._connection.call(f"STREAM.DELETE.{journal._stream}")
            with pytest.raises(JournalUnusable, match="'OMQ_deleted' was deleted; keep the directories"):
                await journal.append(b"second", 1)
            with pytest.raises(JournalUnusable, match="was deleted; keep the directories"):
                await anext(journal.read(0))
            async with opened(servers, "deleted") as other:
                assert other.identity != journal.identity
                await other.append(b"other", 0)
                with pytest.raises(JournalUnusable, match="was deleted and created again"):
                    await anext(journal.read(0))
                with pytest.raises(JournalUnusable, match="ends at 2, but 3 was stored"):
                    await anext(other.read(3))

        with_journal(servers, "deleted", test)

    def test_a_deleted_stream_is_not_created_again_next_to_its_snapshot(
        self, servers: NatsServers, tmp_path: Path
    ) -> None:
        (tmp_path / "data").write_bytes(b"old")

        async def test(journal: NatsJournal) -> None:
            for number in range(5):
                await journal.append(b"%d" % number, number)
            await journal.put_snapshot(5, tmp_path)
            options = NatsOptions(servers=servers.urls)
            with pytest.raises(
                JournalUnusable, match=r"'OMQ_kept' exists, with the sequences 1 to 5; .* `nats stream rm"
            ):
                await NatsJournal.check_missing(options, "kept")
            await journal._connection.call(f"STREAM.DELETE.{journal._stream}")
            with pytest.raises(JournalUnusable, match="was deleted, and its snapshot up to 5 is still there; keep the"):
                await NatsJournal.connect(options, "kept")
            await NatsJournal.check_missing(options, "kept")
            (tmp_path / "data").write_bytes(b"new")
            await NatsJournal.restore(options, "kept", 3, tmp_path, b"first")
            async with opened(servers, "kept") as other:
                with pytest.raises(Truncated, match="begins at 4"):
                    await entries(other)
                assert await other.get_snapshot(tmp_path / "copy") == 3
                assert (tmp_path / "copy" / "data").read_bytes() == b"new"
                assert await entries(other, 3) == [(4, b"first")]

        with_journal(servers, "kept", test)

    @pytest.mark.parametrize("size", [10, 2_500_000])
    def test_an_entry_is_found_by_its_last_sequence(self, servers: NatsServers, size: int) -> None:
        async def test(journal: NatsJournal) -> None:
            last = await journal.append(bytes(size), 0)
            mark = await journal.last()
            assert await journal.entry(last) == bytes(size)
            assert await journal.entry(mark) == b""
            assert await journal.entry(mark + 1) is None
            if last > 1:
                assert await journal.entry(last - 1) == b""
                await journal.truncate(last)
                assert await journal.entry(last) is None

        with_journal(servers, f"found{size}", test)

    def test_a_server_that_does_not_know_the_stream_yet_is_asked_again(
        self, servers: NatsServers, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def test(journal: NatsJournal) -> None:
            await journal.append(b"first", 0)
            call, ignorant = journal._connection.call, 3

            async def answer(name: str, *given: Any, **options: Any) -> Any:
                nonlocal ignorant
                if ignorant and name.startswith("STREAM.INFO"):
                    ignorant -= 1
                    raise NatsApiError(STREAM_NOT_FOUND, "stream not found")
                return await call(name, *given, **options)

            monkeypatch.setattr(journal._connection, "call", answer)
            assert await entries(journal) == [(1, b"first")]
            assert ignorant == 0

        with_journal(servers, "ignorant", test)

    def test_nodes_create_the_journal_at_once(self, servers: NatsServers) -> None:
        async def create(cluster: str, number: int) -> str:
            urls = servers.urls[number:] + servers.urls[:number]
            async with opened(servers, cluster, options=NatsOptions(servers=urls)) as journal:
                await journal.last()
                return journal.identity

        async def main() -> None:
            for round in range(10):
                found = await asyncio.gather(*(create(f"at-once{round}", number) for number in range(3)))
                assert len({*found}) == 1

        asyncio.run(main())


def snapshot_in(directory: Path, size: int, name: str = "snapshot") -> Path:
    """Creates the files of a snapshot."""
    found = directory / name
    (found / "weak").mkdir(parents=True)
    (found / "data.mdb").write_bytes(bytes(range(256)) * (size // 256 + 1))
    (found / "weak" / "data.mdb").write_bytes(name.encode() * 10)
    (found / "empty").touch()
    return found


def files_of(directory: Path) -> dict[str, bytes]:
    return {
        path.relative_to(directory).as_posix(): path.read_bytes() for path in directory.rglob("*") if path.is_file()
    }


class TestSnapshots:
    def test_the_newest_snapshot_replaces_the_others(self, servers: NatsServers, tmp_path: Path) -> None:
        async def test(journal: NatsJournal) -> None:
            assert await journal.get_snapshot(tmp_path / "none") is None
            assert not (tmp_path / "none").exists()
            small, large = snapshot_in(tmp_path, 10, "small"), snapshot_in(tmp_path, 5_000_000, "large")
            assert await journal.put_snapshot(3, small) == 0
            sent: list[tuple[int, int]] = []
            assert await journal.put_snapshot(8, large, lambda *progress: sent.append(progress)) == 3
            assert await journal.put_snapshot(7, small) == 0  # late
            received: list[tuple[int, int]] = []
            assert await journal.get_snapshot(tmp_path / "got", lambda *progress: received.append(progress)) == 8
            assert files_of(tmp_path / "got") == files_of(large)
            assert sent == sorted(sent)
            assert sent[-1][0] == sent[-1][1] > 5_000_000
            assert received[-1][0] == received[-1][1] > 5_000_000
            assert len(await journal._snapshots._subjects()) == 1

        with_journal(servers, "snapshots", test)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["got", "large", "small"]

    def test_two_nodes_put_snapshots_at_once(self, servers: NatsServers, tmp_path: Path) -> None:
        async def test(journal: NatsJournal) -> None:
            async with opened(servers, "at-once") as other:
                first, second = snapshot_in(tmp_path, 2_000_000, "first"), snapshot_in(tmp_path, 2_000_000, "second")
                for round in range(4):
                    await asyncio.gather(
                        journal.put_snapshot(2 * round, first), other.put_snapshot(2 * round + 1, second)
                    )
                    position = await journal.get_snapshot(tmp_path / f"got{round}")
                    wanted = first if position == 2 * round else second
                    assert files_of(tmp_path / f"got{round}") == files_of(wanted)

        with_journal(servers, "at-once", test)

    def test_an_interrupted_upload_is_deleted_by_the_next(self, servers: NatsServers, tmp_path: Path) -> None:
        async def test(journal: NatsJournal) -> None:
            snapshot = snapshot_in(tmp_path, 3_000_000)
            await journal.put_snapshot(1, snapshot)
            with pytest.raises(RuntimeError, match="interrupted"):
                await journal.put_snapshot(2, snapshot, interrupt)
            assert await journal.get_snapshot(tmp_path / "first") == 1
            await journal.put_snapshot(3, snapshot)
            assert len(await journal._snapshots._subjects()) == 1
            assert await journal.get_snapshot(tmp_path / "third") == 3

        def interrupt(sent: int, total: int) -> None:
            if sent > total / 2:
                raise RuntimeError("interrupted")

        with_journal(servers, "upload", test)

    def test_a_cancelled_upload_ends(self, servers: NatsServers, tmp_path: Path) -> None:
        async def test(journal: NatsJournal) -> None:
            snapshot = snapshot_in(tmp_path, 5_000_000)
            begun = asyncio.Event()
            uploading = asyncio.create_task(journal.put_snapshot(1, snapshot, lambda *_: begun.set()))
            await begun.wait()
            uploading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await uploading
            assert await journal.get_snapshot(tmp_path / "got") is None
            sent = (await journal._connection.call("STREAM.INFO.OBJ_omq_cancelled"))["state"]["last_seq"]
            assert sent < 20

        with_journal(servers, "cancelled", test)

    def test_a_damaged_snapshot_is_rejected(self, servers: NatsServers, tmp_path: Path) -> None:
        async def test(journal: NatsJournal) -> None:
            await journal.put_snapshot(1, snapshot_in(tmp_path, 1_000_000))
            (subject,) = await journal._snapshots._subjects()
            await journal._connection.call("STREAM.PURGE.OBJ_omq_damaged", {"filter": subject, "keep": 1})
            with pytest.raises(DamagedError, match="has lost chunks"):
                await journal.get_snapshot(tmp_path / "got")
            newest = await journal._snapshots._newest()
            assert newest is not None
            for _ in range(newest.chunks - 1):
                await journal._connection.request(subject, b"other")
            with pytest.raises(DamagedError):
                await journal.get_snapshot(tmp_path / "got")
            assert not (tmp_path / "got").exists()

        with_journal(servers, "damaged", test)


class TestSettings:
    def test_a_stream_with_other_settings_is_rejected(self, servers: NatsServers) -> None:
        async def test(journal: NatsJournal) -> None:
            config = journal._config
            wrong = {"num_replicas": 1, "max_age": 3600 * 10**9, "deny_delete": False, "storage": "memory"}
            for number, (name, value) in enumerate(wrong.items()):
                stream = f"OMQ_settings{number}"
                changed = {
                    **config,
                    "name": stream,
                    "subjects": [f"omq.journal.settings{number}"],
                    "metadata": {"omq-cluster": f"settings{number}", "omq-journal": "x", "omq-lease": "2.0"},
                    name: value,
                }
                await journal._connection.call(f"STREAM.CREATE.{stream}", changed)
                with pytest.raises(JournalUnusable, match=f"{name} {value!r} instead of .*nats stream edit {stream}"):
                    await NatsJournal.connect(NatsOptions(servers=servers.urls), f"settings{number}")

        with_journal(servers, "settings", test)

    def test_the_lease_of_the_cluster_is_that_of_the_stream(
        self, servers: NatsServers, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def test() -> None:
            async with opened(servers, "lease", lease=1.5) as first, opened(servers, "lease", lease=0.5) as second:
                assert (first.lease, second.lease) == (1.5, 1.5)
            assert [record.getMessage() for record in caplog.records if "lease" in record.getMessage()] == [
                "the cluster 'lease' has a lease of 1.5 s since its journal was created; lease=0.5 is ignored"
            ]
            options = NatsOptions(servers=servers.urls)
            for lease in (0, -1.0, math.inf, math.nan):
                with pytest.raises(ValueError, match=r"lease: .* is not valid; expected"):
                    await NatsJournal.connect(options, "lease", lease=lease)
            for number, lease_text in enumerate(["", "x", "0", "nan"]):
                name = f"lease{number}"
                stream = {**first._config, "name": f"OMQ_{name}", "subjects": [f"omq.journal.{name}"]}
                stream["metadata"] = {"omq-cluster": name, "omq-journal": "x", "omq-lease": lease_text}
                async with opened(servers, "lease", lease=1.5) as journal:
                    await journal._connection.call(f"STREAM.CREATE.OMQ_{name}", stream)
                with pytest.raises(JournalUnusable, match=f"omq-lease '{lease_text}' in its metadata"):
                    await NatsJournal.connect(options, name)

        asyncio.run(test())

    def test_the_stream_of_another_cluster_is_rejected(self, servers: NatsServers) -> None:
        async def test(journal: NatsJournal) -> None:
            for name, subject in (("OMQ_taken", "taken"), ("taken2", "omq.journal.free")):
                config = {**journal._config, "name": name, "subjects": [subject], "metadata": {"omq-cluster": "theirs"}}
                await journal._connection.call(f"STREAM.CREATE.{name}", config)
            options = NatsOptions(servers=servers.urls)
            with pytest.raises(
                JournalUnusable, match="not the journal of the cluster 'taken': its metadata name 'theirs'"
            ):
                await NatsJournal.connect(options, "taken")
            with pytest.raises(JournalUnusable, match="another stream has the subject of the journal"):
                await NatsJournal.connect(options, "free")
            with pytest.raises(JournalUnusable, match="'OMQ_missing' was deleted; keep the directories"):
                await NatsJournal.connect(options, "missing", create=False)

        with_journal(servers, "mine", test)

    @pytest.mark.parametrize("name", ["", "a.b", "a b", "*", "x" * 65])
    def test_a_name_that_nats_does_not_allow_is_rejected(self, servers: NatsServers, name: str) -> None:
        with pytest.raises(ValueError, match=r"cluster: .* is not a valid name"):
            asyncio.run(NatsJournal.connect(NatsOptions(servers=servers.urls), name))

    def test_urls_are_checked_and_passwords_are_not_shown(self, servers: NatsServers) -> None:
        with pytest.raises(ValueError, match="servers: 'http://host:1' is not valid"):
            NatsOptions(servers=["http://me:secret@host:1"])
        with pytest.raises(ValueError, match="servers: is empty"):
            NatsOptions(servers=[])
        port = servers.urls[0].rpartition(":")[2]
        options = NatsOptions(servers=[f"nats://me:secret@127.0.0.2:{port}"], password="secret", token="secret")
        assert "secret" not in repr(options)
        with pytest.raises(JournalUnavailable, match="no NATS server is reachable") as caught:
            asyncio.run(NatsJournal.connect(options, "unreachable"))
        assert "secret" not in str(caught.value)
        assert f"nats://127.0.0.2:{port}: [Errno 111]" in str(caught.value)


async def fill(journal: NatsJournal, last: int) -> None:
    for _ in range(20):
        last = await journal.append(bytes(500_000), last)


def limited(permissions: str) -> str:
    """Returns the configuration of servers with one user."""
    return f"authorization {{ users: [{{ user: me, password: secret, permissions: {{ {permissions} }} }}] }}"


def me(servers: NatsServers) -> NatsOptions:
    return NatsOptions(servers=servers.urls, user="me", password="secret", timeout=3)


class TestOneServer:
    def test_a_refused_user_is_named(self, tmp_path: Path) -> None:
        with nats_servers(tmp_path, 1, options="authorization { user: u, password: p }") as servers:
            for wrong in ({}, {"user": "u", "password": "secret"}):
                options = NatsOptions(servers=servers.urls, **wrong)  # type: ignore[arg-type]
                until(lambda: servers[0].log.exists() and "Server is ready" in servers[0].log.read_text())
                with pytest.raises(JournalUnavailable, match="correct the user and the password") as caught:
                    asyncio.run(NatsJournal.connect(options, "refused"))
                assert "secret" not in str(caught.value)

    def test_a_certificate_that_is_not_trusted_is_named(self, tmp_path: Path) -> None:
        certificate = make_certificate(tmp_path)

        async def connect(cluster: Cluster) -> None:
            journal = await NatsJournal.connect(nats_options(cluster, "broker"), cluster.name, replicas=1)
            await journal.close()

        tls = f'tls {{ cert_file: "{certificate}", key_file: "{certificate}" }}'
        with nats_servers(tmp_path, 1, options=tls) as servers:
            until(lambda: servers[0].log.exists() and "Server is ready" in servers[0].log.read_text())
            for scheme in ("tls", "nats"):
                urls = [f"{scheme}{url.removeprefix('nats')}" for url in servers.urls]
                with pytest.raises(
                    JournalUnavailable, match=r"CERTIFICATE_VERIFY_FAILED.*; give the certificate of the"
                ):
                    asyncio.run(connect(Cluster(name="signed", servers=urls)))
                asyncio.run(connect(Cluster(name="signed", servers=urls, ca=certificate)))

    def test_the_permissions_on_the_page_are_enough(self, tmp_path: Path) -> None:
        page = (Path(__file__).parents[3] / "docs" / "howto" / "replicate.md").read_text("utf-8")
        given = page.partition("permissions: {")[2].partition("}\n")[0].replace("NAME", "limited")

        async def main(servers: NatsServers) -> None:
            (tmp_path / "snapshot").mkdir()
            (tmp_path / "snapshot" / "file").write_bytes(bytes(10_000_000))
            async with opened(servers, "limited", options=me(servers), replicas=1) as journal:
                announcements = journal.announcements()
                announced = asyncio.ensure_future(anext(announcements))
                while not announced.done():
                    await journal.announce(b"node")
                    await asyncio.wait([announced], timeout=0.1)
                last = 0
                for _ in range(100):  # flow control
                    last = await journal.append(bytes(500_000), last)
                assert len(await entries(journal)) == 100
                assert await journal.put_snapshot(50, tmp_path / "snapshot") == 0
                assert await journal.put_snapshot(last, tmp_path / "snapshot") == 50
                await journal.truncate(51)
                assert await journal.get_snapshot(tmp_path / "copy") == last
                assert await journal.size() < 100 * 500_000
                await announcements.aclose()

        with nats_servers(tmp_path, 1, options=limited(given)) as servers:
            asyncio.run(main(servers))
            assert "Permissions Violation" not in servers[0].log.read_text()

    @pytest.mark.parametrize(
        ("denied", "text"),
        [
            ("publish: { deny: 'omq.journal.>' }", 'publish to "omq.journal.denied"'),
            ("publish: { deny: '$JS.API.>' }", 'publish to "$js.api.stream.info.omq_denied"'),
            ("subscribe: { deny: '_INBOX.>' }", 'subscription to "_inbox.'),
        ],
    )
    def test_a_missing_permission_is_named(self, tmp_path: Path, denied: str, text: str) -> None:
        async def main(servers: NatsServers) -> None:
            until(lambda: servers[0].log.exists() and "Server is ready" in servers[0].log.read_text())

            async def use() -> None:
                journal = await NatsJournal.connect(me(servers), "denied", replicas=1)
                try:
                    await journal.append(b"first", 0)
                finally:
                    await journal.close()

            with pytest.raises(JournalUnavailable, match="give the user of the brokers this permission") as caught:
                await use()
            assert text in str(caught.value)

        with nats_servers(tmp_path, 1, options=limited(denied)) as servers:
            asyncio.run(main(servers))

    def test_a_missing_permission_for_announcements_is_logged_once(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def main(servers: NatsServers) -> None:
            async with opened(servers, "quiet", options=me(servers), replicas=1) as journal:
                for _ in range(3):
                    await journal.announce(b"node")
                    last = await journal.last()
                await journal.append(b"first", last)  # the connection is kept

        denied = "publish: { deny: 'omq.members.>' }"
        with nats_servers(tmp_path, 1, options=limited(denied)) as servers:
            asyncio.run(main(servers))
            url = servers.urls[0]
        assert [record.getMessage() for record in caplog.records if "permission" in record.getMessage()] == [
            f'{url}: permissions violation for publish to "omq.members.quiet"; give the user of the brokers this '
            "permission"
        ]

    def test_three_replicas_need_a_cluster(self, tmp_path: Path) -> None:
        async def main(servers: NatsServers) -> None:
            async with opened(servers, "one", replicas=1) as journal:
                assert await journal.append(b"first", 0) == 1
                assert await journal.last() == 2
                with pytest.raises(Fenced):
                    await journal.append(b"late", 0)
                with pytest.raises(JournalUnusable, match="num_replicas 1 instead of 3"):
                    await NatsJournal.connect(NatsOptions(servers=servers.urls), "one")
                with pytest.raises(JournalUnusable, match="run at least three servers as a cluster"):
                    await NatsJournal.connect(NatsOptions(servers=servers.urls), "three")

        with nats_servers(tmp_path, 1) as servers:
            asyncio.run(main(servers))

    def test_servers_without_jetstream_are_reported(self, tmp_path: Path) -> None:
        async def main(servers: NatsServers) -> None:
            with pytest.raises(JournalUnusable, match="run without JetStream; add `jetstream"):
                async with opened(servers, "none"):
                    pass

        with nats_servers(tmp_path, 1, jetstream=False) as servers:
            asyncio.run(main(servers))

    def test_an_account_without_jetstream_is_reported(self, tmp_path: Path) -> None:
        async def main(servers: NatsServers) -> None:
            options = NatsOptions(servers=servers.urls, user="me", password="secret")
            with pytest.raises(JournalUnusable, match="enable JetStream for the account of this user"):
                async with opened(servers, "none", options=options):
                    pass

        accounts = "accounts { A: { users: [{user: me, password: secret}] } }"
        with nats_servers(tmp_path, 1, options=accounts) as servers:
            asyncio.run(main(servers))

    def test_limits_of_the_account_are_reported(self, tmp_path: Path) -> None:
        async def main(servers: NatsServers) -> None:
            options = NatsOptions(servers=servers.urls, user="me", password="secret")
            async with opened(servers, "one", options=options, replicas=1) as journal:
                with pytest.raises(JournalUnusable, match="raise the maximum of streams of the account"):
                    await NatsJournal.connect(options, "two", replicas=1)
                with pytest.raises(JournalUnavailable, match="raise the JetStream limits of the account"):
                    await fill(journal, 0)
                assert (await info(journal))["state"]["messages"] > 3  # what is stored stays readable

        limits = "jetstream: { max_file: 4MB, max_streams: 1 }"
        accounts = f"accounts {{ A: {{ users: [{{user: me, password: secret}}], {limits} }} }}"
        with nats_servers(tmp_path, 1, options=accounts) as servers:
            asyncio.run(main(servers))

    @pytest.mark.parametrize(("name", "value"), [("max_msgs", 3), ("max_bytes", 5000)])
    def test_the_limit_of_the_stream_is_named(self, tmp_path: Path, name: str, value: int) -> None:
        async def test() -> None:
            options = NatsOptions(servers=servers.urls, timeout=1.0)
            async with opened(servers, "limited", replicas=1, options=options) as journal:
                config = (await info(journal))["config"]
                await journal._connection.call(f"STREAM.UPDATE.{journal._stream}", {**config, name: value})
                text = f"the stream 'OMQ_limited' has {name}={value}; raise or remove this limit"

                async def append_all() -> None:
                    for last in range(10):
                        await journal.append(bytes(1000), last)

                with pytest.raises(JournalUnavailable, match=text):
                    await append_all()
                assert text in journal.failure
                await journal._connection.call(f"STREAM.UPDATE.{journal._stream}", config)
                last = (await info(journal))["state"]["last_seq"]
                assert await journal.append(b"x", last) == last + 1
                assert journal.failure == ""

        with nats_servers(tmp_path, 1) as servers:
            asyncio.run(test())

    def test_full_servers_are_reported_and_work_again_with_space(self, tmp_path: Path) -> None:
        async def main(servers: NatsServers) -> None:
            async with opened(servers, "full", replicas=1) as journal:
                with pytest.raises(JournalUnavailable, match="free space on the disks of the servers"):
                    await fill(journal, 0)
                last = (await info(journal))["state"]["last_seq"]
                await journal.truncate(last)
                last = await journal.append(b"again", last)
                assert [len(entry.payload) for entry in await entries(journal, last - 2)] == [500_000, 5]

        with nats_servers(tmp_path, 1, limits="max_file_store: 4MB") as servers:
            asyncio.run(main(servers))

    def test_a_user_logs_in_by_url_or_by_options(self, tmp_path: Path) -> None:
        async def main(servers: NatsServers) -> None:
            url = servers.urls[0]
            options = NatsOptions(servers=[url], user="me", password="secret")
            async with opened(servers, "user", options=options, replicas=1) as journal:
                await journal.append(b"first", 0)
            with pytest.raises(JournalUnavailable, match="Authorization Violation"):
                await NatsJournal.connect(NatsOptions(servers=[url], user="me", password="wrong"), "user")
            options = NatsOptions(servers=[url.replace("//", "//me:secret@")])
            async with opened(servers, "user", options=options, replicas=1) as journal:
                assert [entry.payload for entry in await entries(journal)] == [b"first"]

        with nats_servers(tmp_path, 1, options="authorization { user: me, password: secret }") as servers:
            asyncio.run(main(servers))

    def test_a_small_max_payload_makes_more_chunks(self, tmp_path: Path) -> None:
        async def main(servers: NatsServers) -> None:
            async with opened(servers, "small", replicas=1) as journal:
                payload = bytes(range(256)) * 2000
                last = await journal.append(payload, 0)
                assert last > 40
                assert await entries(journal) == [(last, payload)]

        with nats_servers(tmp_path, 1, options="max_payload: 10KB") as servers:
            asyncio.run(main(servers))
        with (
            nats_servers(tmp_path, 1, options="max_payload: 2KB") as servers,
            pytest.raises(JournalUnusable, match="set at least 8192"),
        ):
            asyncio.run(main(servers))

    def test_a_reader_continues_after_a_restart_of_the_server(self, tmp_path: Path) -> None:
        async def main(servers: NatsServers) -> None:
            async with (
                opened(servers, "restart", replicas=1) as journal,
                contextlib.aclosing(journal.read(0)) as reader,
            ):
                for number in range(50):
                    await journal.append(b"%d" % number, number)
                    assert await anext(reader) == (number + 1, b"%d" % number)
                servers[0].kill()
                with pytest.raises(JournalUnavailable):
                    await journal.append(b"lost", 50)
                servers[0].start()
                last = await retried(journal.last)
                await journal.append(b"again", last)
                found = [await anext(reader) for _ in range(last + 1 - 50)]
                assert [entry.sequence for entry in found] == [*range(51, last + 2)]
                assert [entry.payload for entry in found if entry.payload] == [b"again"]

        with nats_servers(tmp_path, 1, sync_always=True) as servers:
            asyncio.run(main(servers))

    def test_the_certificate_of_a_server_is_verified(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        certificate = make_certificate(tmp_path)

        async def main(servers: NatsServers) -> None:
            options = NatsOptions(servers=servers.urls, tls=contexts(certificate)[1])
            async with opened(servers, "tls", options=options, replicas=1) as journal:
                await journal.append(b"first", 0)
                assert [entry.payload for entry in await entries(journal)] == [b"first"]
            with pytest.raises(JournalUnavailable, match="certificate verify failed"):
                await NatsJournal.connect(
                    NatsOptions(servers=[url.replace("nats", "tls", 1) for url in servers.urls]), "t"
                )
            async with opened(servers, "tls", options=options, replicas=1) as journal:
                assert servers[0].process is not None
                servers[0].process.terminate()
                with pytest.raises(JournalUnavailable):
                    await journal.append(b"second", 1)
            assert "eof_received" not in caplog.text

        tls = f'tls {{ cert_file: "{certificate}", key_file: "{certificate}" }}'
        with nats_servers(tmp_path, 1, options=tls) as servers:
            asyncio.run(main(servers))
