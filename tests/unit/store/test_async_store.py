"""Reports of a full disk."""

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
from omq.store.lmdb.store import Store


class Room:
    """Says whether its disk is full."""

    full = False


def test_a_full_disk_is_told_once_and_so_is_its_end(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr("omq.store.async_store.time.monotonic", lambda: now[0])
    journal: Any = AsyncStore.__new__(AsyncStore)
    journal._full = journal._failed = False
    journal._log, journal._server = logging.getLogger("omq.broker"), "broker"
    store = journal.store = Room()
    with caplog.at_level(logging.WARNING):
        for error in (None, OutOfSpace("no space"), OutOfSpace("no space"), UnknownTopic("t"), OutOfSpace("no space")):
            journal._log_space(error)
        assert journal.full
        assert [record.levelname for record in caplog.records] == ["ERROR"]
        journal._log_space(UnknownTopic("t"))
        assert journal.full
        # What is small may fit where all else is refused.
        journal._log_space(None)
        now[0] += 9
        journal._log_space(OutOfSpace("no space"))
        now[0] += 9
        journal._log_space(StagesFull("of a topic in memory"))
        journal._log_space(None)
        assert journal.full
        now[0] += 2
        store.full = True  # it keeps what it has acknowledged and not written
        journal._log_space(None)
        assert journal.full
        store.full = False  # as nobody has to store something for
        assert not journal.full
        journal._log_space(StagesFull("of a topic in memory"))
        assert not journal.full
        assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]


async def test_a_loop_that_lingers_is_told_before_its_turn_is_over(tmp_path: Path) -> None:
    journal = AsyncStore(lambda grown: None, logging.getLogger("omq.test"), "test")
    await journal.open(lambda notify, appended: Store(tmp_path, notify=notify, appended=appended))
    journal.linger(10)  # nothing is under way
    topic = (await journal.do(MakeTopic("t", "round_robin", "weak"))).topic_id
    for count in range(1, 100):
        done: list[Append] = []
        journal.submit(Append(topic, encode([b"body"]), 1), done.append)
        journal.flush()
        while not done:  # no turn of the loop is between
            journal.linger(10)
        assert done[0].first == count
    await journal.close()


async def test_what_is_flushed_at_once_is_done_before_the_call_ends(tmp_path: Path) -> None:
    grown: list[tuple[int, int]] = []
    journal = AsyncStore(lambda topics: grown.extend(topics.items()), logging.getLogger("omq.test"), "test")
    await journal.open(lambda notify, appended: Store(tmp_path, notify=notify, appended=appended))
    for kind in ("weak", "strong"):
        topic = (await journal.do(MakeTopic(kind, "round_robin", kind))).topic_id
        threads: set[int] = set()

        def done(write: Append, threads: set[int] = threads, firsts: list[int] = (firsts := [])) -> None:
            threads.add(threading.get_ident())
            firsts.append(write.first)

        for count in range(1, 51):
            journal.submit(Append(topic, encode([b"body"]), 1), done)
            if count % 10 == 0:  # something is under way: what comes now is not to overtake it
                journal.flush()
                journal.submit(Append(topic, encode([b"body"]), 1), done)
            journal.flush_at_once(10)
        while len(firsts) < 55:
            journal.linger(10)
        assert firsts == list(range(1, 56))
        assert threads == {threading.get_ident()}
    await journal.close()
    assert grown == sorted(grown)
    assert dict(grown) == {1: 55, 2: 55}


async def test_a_loop_that_is_told_at_once_is_told_in_no_other_way(tmp_path: Path) -> None:
    journal = AsyncStore(lambda grown: None, logging.getLogger("omq.test"), "test")
    await journal.open(lambda notify, appended: Store(tmp_path, notify=notify, appended=appended))
    topic = (await journal.do(MakeTopic("t", "round_robin", "weak"))).topic_id
    done: list[Append] = []
    for _ in range(10):
        journal.add(Append(topic, encode([b"body"]), 1), done.append)
        journal.flush_at_once(10)
    assert [write.first for write in done] == list(range(1, 11))
    assert not journal._news
    assert journal._bell.empty()
    journal.add(Append(topic, encode([b"body"]), 1), done.append)
    await asyncio.sleep(0.05)
    assert len(done) == 10  # nobody has flushed
    journal.flush()
    await journal.close()
    assert [write.first for write in done] == list(range(1, 12))


def note(journal: AsyncStore) -> None:
    """Has what was added noted; the store may do something of its own before."""
    while not journal._write_here(note=True):
        time.sleep(0)


async def test_what_is_noted_is_handed_on_at_once_and_grows_with_the_catching_up(tmp_path: Path) -> None:
    grown: list[dict[int, int]] = []
    journal = AsyncStore(grown.append, logging.getLogger("omq.test"), "test")
    await journal.open(
        lambda notify, appended: Store(tmp_path, notify=notify, appended=appended, flush_interval=1000.0)
    )
    topic = (await journal.do(MakeTopic("t", "round_robin", "weak"))).topic_id
    done: list[Append] = []
    for _ in range(3):
        journal.add(Append(topic, encode([b"body"]), 1), done.append)
        note(journal)
    assert [write.first for write in done] == [1, 2, 3]
    assert grown == []
    journal.catch_up()
    assert grown == [{topic: 3}]
    journal.catch_up()
    await journal.close()
    assert grown == [{topic: 3}]


async def test_a_settlement_that_stands_alone_is_written_in_the_loop(tmp_path: Path) -> None:
    threads: list[str] = []

    def opened(notify: Any, appended: Any) -> Store:
        def note(writes: list[Any]) -> None:
            threads.append(threading.current_thread().name)
            notify(writes)

        return Store(tmp_path, notify=note, appended=appended)

    journal = AsyncStore(lambda grown: None, logging.getLogger("omq.test"), "test")
    await journal.open(opened)
    topic = (await journal.do(MakeTopic("t", "round_robin", "weak"))).topic_id
    await journal.do(Append(topic, encode([b"body"] * 9), 9))
    me = threading.current_thread().name
    for id in range(1, 10):
        threads.clear()
        while threads != [me]:  # the store may do something of its own
            threads.clear()
            await journal.do(Acknowledge(topic, [(id, id)], id))
    # What stands beside others goes with them.
    writes = [Acknowledge(topic, [(1, 9)], 9), Append(topic, encode([b"more"]), 1)]
    threads.clear()
    await asyncio.gather(*(journal.do(write) for write in writes))
    assert threads == ["omq-store-weak"]
    assert journal.store.settled(topic).watermark == 9
    await journal.close()


def test_a_write_at_once_is_refused_where_it_would_wait(tmp_path: Path) -> None:
    handed: queue.SimpleQueue[Any] = queue.SimpleQueue()
    hold, held = threading.Event(), threading.Event()

    def notify(writes: list[Any]) -> None:
        handed.put((threading.current_thread().name, writes))
        if any(write.context == "hold" for write in writes):
            held.set()
            hold.wait(10)

    store = Store(tmp_path, notify=notify, appended=lambda grown: None)
    topics = {}
    for kind in ("weak", "strong"):
        store.submit(MakeTopic(kind, "round_robin", kind))
        topics[kind] = handed.get(timeout=10)[1][0].topic_id
    record = encode([b"body"])
    assert not store.write_at_once([Append(topics["strong"], record, 1)])
    assert not store.write_at_once([Append(topics["weak"], record, 1), Append(topics["strong"], record, 1)])
    assert not store.write_at_once([MakeTopic("more", "round_robin", "weak")])
    assert not store.write_at_once([Append(99, record, 1)])
    assert handed.empty()
    assert store.write_at_once([Append(topics["weak"], record, 1)])
    name, (write,) = handed.get(timeout=10)
    assert (name, write.first, write.error) == (threading.current_thread().name, 1, None)
    store.submit(Append(topics["weak"], record, 1, context="hold"))
    held.wait(10)
    assert not store.write_at_once([Append(topics["weak"], record, 1)])
    hold.set()
    assert handed.get(timeout=10)[1][0].first == 2
    store.close()
    with pytest.raises(StoreClosed):
        store.write_at_once([Append(topics["weak"], record, 1)])
