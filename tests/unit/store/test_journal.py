"""What the journal says of a disk that is full."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from omq._core.blocks import encode
from omq.store.errors import StagesFull, StoreFull, UnknownTopic
from omq.store.interface import Append, MakeTopic
from omq.store.journal import Journal
from omq.store.lmdb.store import Store


class Room:
    """Says whether its disk is full."""

    full = False


def test_a_full_disk_is_told_once_and_so_is_its_end(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr("omq.store.journal.time.monotonic", lambda: now[0])
    journal: Any = Journal.__new__(Journal)
    journal.full = journal._failed = False
    journal._log, journal._server = logging.getLogger("omq.broker"), "broker"
    store = journal.store = Room()
    with caplog.at_level(logging.WARNING):
        for error in (None, StoreFull("no space"), StoreFull("no space"), UnknownTopic("t"), StoreFull("no space")):
            journal._note(error)
        assert journal.full
        assert [record.levelname for record in caplog.records] == ["ERROR"]
        journal._note(UnknownTopic("t"))
        assert journal.full
        # What is small may fit where all else is refused.
        journal._note(None)
        now[0] += 9
        journal._note(StoreFull("no space"))
        now[0] += 9
        journal._note(StagesFull("of a topic in memory"))
        journal._note(None)
        assert journal.full
        now[0] += 2
        store.full = True  # it keeps what it has acknowledged and not written
        journal._note(None)
        assert journal.full
        store.full = False
        journal._note(None)
        journal._note(None)
        assert not journal.full
        journal._note(StagesFull("of a topic in memory"))
        assert not journal.full
        assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]


async def test_a_loop_that_lingers_is_told_before_its_turn_is_over(tmp_path: Path) -> None:
    journal = Journal(lambda grown: None, logging.getLogger("omq.test"), "test")
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
