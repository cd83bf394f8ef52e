"""The handle of a store in an event loop."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from omq._core.blocks import encode
from omq.store.async_store import AsyncStore
from omq.store.errors import OutOfSpace, StagesFull, StoreClosed, UnknownTopic
from omq.store.interface import Acknowledge, Append, MakeTopic
from omq.store.lmdb.store import LmdbStore
from omq.store.memory import MemoryStore
from tests.support.broker_core import FailingStore


class Room:
    """A store whose disk may be full."""

    full = False


def test_a_full_disk_and_its_end_are_logged_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr("omq.store.async_store.time.monotonic", lambda: now[0])
    async_store: Any = AsyncStore.__new__(AsyncStore)
    async_store._full = async_store._failed = False
    async_store._log, async_store._server = logging.getLogger("omq.broker"), "broker"
    store = async_store.store = Room()
    with caplog.at_level(logging.WARNING):
        for error in (None, OutOfSpace("no space"), OutOfSpace("no space"), UnknownTopic("t"), OutOfSpace("no space")):
            async_store._log_space(error)
        assert async_store.full
        assert [record.levelname for record in caplog.records] == ["ERROR"]
        async_store._log_space(UnknownTopic("t"))
        assert async_store.full
        # A small write may succeed while others are refused.
        async_store._log_space(None)
        now[0] += 9
        async_store._log_space(OutOfSpace("no space"))
        now[0] += 9
        async_store._log_space(StagesFull("of a topic in memory"))
        async_store._log_space(None)
        assert async_store.full
        now[0] += 2
        store.full = True  # it has pending appends
        async_store._log_space(None)
        assert async_store.full
        store.full = False  # it becomes false without a write
        assert not async_store.full
        async_store._log_space(StagesFull("of a topic in memory"))
        assert not async_store.full
        assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]


async def test_the_disk_is_not_full_once_a_write_has_found_room() -> None:
    async_store = AsyncStore(lambda grown: None, logging.getLogger("omq.test"), "test")
    await async_store.open(lambda notify, appended: MemoryStore(notify=notify, appended=appended))
    topic = (await async_store.do(MakeTopic("t", "round_robin", "weak"))).topic_id
    store = async_store.store
    for _ in range(2):
        async_store.store = FailingStore(store, OutOfSpace("no space"))
        for _ in range(2):
            with pytest.raises(OutOfSpace):
                await async_store.do(Append(topic, encode([b"body"]), 1))
            assert async_store.full
        async_store.store = store
        await async_store.do(Append(topic, encode([b"body"]), 1))
        assert not async_store.full
    await async_store.close()


async def test_wait_results_returns_within_the_turn(tmp_path: Path) -> None:
    async_store = AsyncStore(lambda grown: None, logging.getLogger("omq.test"), "test")
    await async_store.open(lambda notify, appended: LmdbStore(tmp_path, notify=notify, appended=appended))
    async_store.wait_results(10)  # no write is outstanding
    topic = (await async_store.do(MakeTopic("t", "round_robin", "weak"))).topic_id
    for count in range(1, 100):
        done: list[Append] = []
        async_store.submit(Append(topic, encode([b"body"]), 1), done.append)
        async_store.flush()
        while not done:  # without a turn of the loop in between
            async_store.wait_results(10)
        assert done[0].first == count
    await async_store.close()


async def test_flush_at_once_returns_results_within_the_call(tmp_path: Path) -> None:
    grown: list[tuple[int, int]] = []
    async_store = AsyncStore(lambda topics: grown.extend(topics.items()), logging.getLogger("omq.test"), "test")
    await async_store.open(lambda notify, appended: LmdbStore(tmp_path, notify=notify, appended=appended))
    for kind in ("weak", "strong"):
        topic = (await async_store.do(MakeTopic(kind, "round_robin", kind))).topic_id
        threads: set[int] = set()

        def done(write: Append, threads: set[int] = threads, firsts: list[int] = (firsts := [])) -> None:
            threads.add(threading.get_ident())
            firsts.append(write.first)

        for count in range(1, 51):
            async_store.submit(Append(topic, encode([b"body"]), 1), done)
            if count % 10 == 0:  # with a write in progress, which later ones must not overtake
                async_store.flush()
                async_store.submit(Append(topic, encode([b"body"]), 1), done)
            async_store.flush_at_once(10)
        while len(firsts) < 55:
            async_store.wait_results(10)
        assert firsts == list(range(1, 56))
        assert threads == {threading.get_ident()}
    await async_store.close()
    assert grown == sorted(grown)
    assert dict(grown) == {1: 55, 2: 55}


async def test_results_of_flush_at_once_are_returned_once(tmp_path: Path) -> None:
    async_store = AsyncStore(lambda grown: None, logging.getLogger("omq.test"), "test")
    await async_store.open(lambda notify, appended: LmdbStore(tmp_path, notify=notify, appended=appended))
    topic = (await async_store.do(MakeTopic("t", "round_robin", "weak"))).topic_id
    done: list[Append] = []
    for _ in range(10):
        async_store.add(Append(topic, encode([b"body"]), 1), done.append)
        async_store.flush_at_once(10)
    assert [write.first for write in done] == list(range(1, 11))
    assert not async_store._results
    assert async_store._wakeups.empty()
    async_store.add(Append(topic, encode([b"body"]), 1), done.append)
    await asyncio.sleep(0.05)
    assert len(done) == 10  # not flushed yet
    async_store.flush()
    await async_store.close()
    assert [write.first for write in done] == list(range(1, 12))


def note(async_store: AsyncStore) -> None:
    """Flushes the added writes to the write-ahead log. Retries while the store itself writes."""
    while not async_store._write_here(allow_wal=True):
        time.sleep(0)


async def test_logged_appends_are_answered_at_once_and_readable_after_catch_up(tmp_path: Path) -> None:
    grown: list[dict[int, int]] = []
    async_store = AsyncStore(grown.append, logging.getLogger("omq.test"), "test")
    await async_store.open(
        lambda notify, appended: LmdbStore(tmp_path, notify=notify, appended=appended, flush_interval=1000.0)
    )
    topic = (await async_store.do(MakeTopic("t", "round_robin", "weak"))).topic_id
    done: list[Append] = []
    for _ in range(3):
        async_store.add(Append(topic, encode([b"body"]), 1), done.append)
        note(async_store)
    assert [write.first for write in done] == [1, 2, 3]
    assert grown == []
    async_store.catch_up()
    assert grown == [{topic: 3}]
    async_store.catch_up()
    await async_store.close()
    assert grown == [{topic: 3}]


async def test_a_single_ack_is_written_in_the_loop(tmp_path: Path) -> None:
    threads: list[str] = []

    def opened(notify: Any, appended: Any) -> LmdbStore:
        def note(writes: list[Any]) -> None:
            threads.append(threading.current_thread().name)
            notify(writes)

        return LmdbStore(tmp_path, notify=note, appended=appended)

    async_store = AsyncStore(lambda grown: None, logging.getLogger("omq.test"), "test")
    await async_store.open(opened)
    topic = (await async_store.do(MakeTopic("t", "round_robin", "weak"))).topic_id
    await async_store.do(Append(topic, encode([b"body"] * 9), 9))
    me = threading.current_thread().name
    for id in range(1, 10):
        threads.clear()
        while threads != [me]:  # a write of the store itself may be in progress
            threads.clear()
            await async_store.do(Acknowledge(topic, [(id, id)], id))
    # An ack among other writes goes with them to the store's thread.
    writes = [Acknowledge(topic, [(1, 9)], 9), Append(topic, encode([b"more"]), 1)]
    threads.clear()
    await asyncio.gather(*(async_store.do(write) for write in writes))
    assert set(threads) == {"omq-store-weak"}  # it may have taken the first before it saw the second
    assert async_store.store.ack_set(topic).floor == 9
    await async_store.close()


def test_write_at_once_refuses_writes_that_would_wait(tmp_path: Path) -> None:
    last_delivered: queue.SimpleQueue[Any] = queue.SimpleQueue()
    hold, held = threading.Event(), threading.Event()

    def notify(writes: list[Any]) -> None:
        last_delivered.put((threading.current_thread().name, writes))
        if any(write.context == "hold" for write in writes):
            held.set()
            hold.wait(10)

    store = LmdbStore(tmp_path, notify=notify, appended=lambda grown: None)
    topics = {}
    for kind in ("weak", "strong"):
        store.submit(MakeTopic(kind, "round_robin", kind))
        topics[kind] = last_delivered.get(timeout=10)[1][0].topic_id
    record = encode([b"body"])
    assert not store.write_at_once([Append(topics["strong"], record, 1)])
    assert not store.write_at_once([Append(topics["weak"], record, 1), Append(topics["strong"], record, 1)])
    assert not store.write_at_once([MakeTopic("more", "round_robin", "weak")])
    assert not store.write_at_once([Append(99, record, 1)])
    assert last_delivered.empty()
    assert store.write_at_once([Append(topics["weak"], record, 1)])
    name, (write,) = last_delivered.get(timeout=10)
    assert (name, write.first, write.error) == (threading.current_thread().name, 1, None)
    store.submit(Append(topics["weak"], record, 1, context="hold"))
    held.wait(10)
    assert not store.write_at_once([Append(topics["weak"], record, 1)])
    hold.set()
    assert last_delivered.get(timeout=10)[1][0].first == 2
    store.close()
    with pytest.raises(StoreClosed):
        store.write_at_once([Append(topics["weak"], record, 1)])
