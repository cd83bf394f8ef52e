"""What the journal says of a disk that is full."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from omq.store.errors import StagesFull, StoreFull, UnknownTopic
from omq.store.journal import Journal


class Store:
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
    store = journal.store = Store()
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
