"""The ack checkpoints of a node."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from omq.pzq.cluster.ack_checkpoints import FILE, AckCheckpoints
from omq.pzq.cluster.acked_keys import MAX_RANGES, AckCheckpoint, AckedKeys, parse_checkpoints
from omq.pzq.device.queue import DeviceQueue
from omq.store.ack_set import AckSet
from omq.store.errors import DamagedError
from omq.store.interface import TopicState
from tests.unit.pzq.cluster.sample_keys import STEM, STORE


class Opened:
    """An account of one queue, of which numbers are settled."""

    def __init__(self, directory: Path, settled: AckSet | Exception, first: int = 1, **more: Any) -> None:
        state = TopicState(7, "delivery", "round_robin", "weak", {}, first, 100, 0, **more)
        self.settled = settled
        store = SimpleNamespace(id=STORE, ack_set=lambda id, group="": AckSet(), topic=lambda id: state)
        async_store: Any = SimpleNamespace(store=store)
        self.queue = DeviceQueue(async_store, state, lambda seconds, call: None)
        store.ack_set = self._settled
        self.acked = AckedKeys()
        self.checkpoints = AckCheckpoints(directory, async_store, "a", [self.queue], self.acked)

    def _settled(self, id: int, group: str = "") -> AckSet:
        if isinstance(self.settled, Exception):
            raise self.settled
        return self.settled

    async def acked_ranges(self, newest: int = 0) -> list[tuple[int, int]]:
        self.checkpoints.tick(newest)
        found: list[tuple[int, int]] = self.acked.to_json().get("a", {}).get(STEM, [0, []])[1]
        return found

    async def written(self) -> None:
        """The file that is being written is there."""
        if (writing := self.checkpoints._writing) is not None:
            await asyncio.wait([writing])


def settled(floor: int, *ranges: tuple[int, int]) -> AckSet:
    found = AckSet(floor)
    for each in ranges:
        found.add(*each)
    return found


async def test_what_is_settled_is_stated_but_for_what_is_lost(tmp_path: Path) -> None:
    opened = Opened(tmp_path, settled(20, (30, 31), (33, 50)), jumped=((3, 4),))
    opened.queue.lost.add(40, 60)
    assert await opened.acked_ranges() == [(1, 2), (5, 20), (30, 31), (33, 39)]
    await opened.checkpoints.close()


async def test_what_a_topic_does_not_keep_any_more_is_acknowledged(tmp_path: Path) -> None:
    assert await Opened(tmp_path, settled(3), first=6).acked_ranges() == [(1, 5)]


async def test_of_many_crashes_the_last_are_stated(tmp_path: Path) -> None:
    lost = [(number, number) for number in range(2, 4 * MAX_RANGES, 2)]
    last = 4 * MAX_RANGES
    stated = await Opened(tmp_path, settled(last, (last + 100, last + 101)), jumped=tuple(lost)).acked_ranges()
    assert len(stated) == MAX_RANGES // 2 + 1
    assert stated[-3:] == [(last - 3, last - 3), (last - 1, last), (last + 100, last + 101)]


async def test_of_many_ranges_the_first_are_stated(tmp_path: Path) -> None:
    every = [(number, number) for number in range(2, 4 * MAX_RANGES, 2)]
    assert await Opened(tmp_path, settled(0, *every)).acked_ranges() == every[:MAX_RANGES]


async def test_what_is_stated_is_kept_and_found_again(tmp_path: Path) -> None:
    opened = Opened(tmp_path, settled(20))
    opened.acked.merge(parse_checkpoints({"b": {STEM: [5, [[1, 2]]]}}))
    await opened.acked_ranges()
    await opened.written()
    assert opened.checkpoints.load() == parse_checkpoints(opened.acked.to_json())
    opened.settled = settled(25)
    await opened.checkpoints.close()
    assert opened.checkpoints.load()["a"][STEM].ranges == [(1, 25)]
    assert os.listdir(tmp_path) == [FILE]


async def test_a_statement_is_newer_than_the_last_one_where_the_clock_was_set_back(tmp_path: Path) -> None:
    opened = Opened(tmp_path, settled(20))
    opened.acked.add_checkpoint("a", STEM, AckCheckpoint(1 << 60, []))
    assert await opened.acked_ranges() == [(1, 20)]
    assert opened.acked.to_json()["a"][STEM][0] == (1 << 60) + 1
    await opened.checkpoints.close()


async def test_a_statement_is_as_new_as_the_newest_message_where_the_clock_was_set_back(tmp_path: Path) -> None:
    opened = Opened(tmp_path, settled(20))
    assert await opened.acked_ranges(newest=1 << 58) == [(1, 20)]
    assert opened.acked.to_json()["a"][STEM][0] == 1 << 58
    await opened.checkpoints.close()


@pytest.mark.parametrize("text", ["", "[]", "{", '{"x": 1}', "[" * 100_000, "\0"])
def test_a_file_that_cannot_be_used_is_passed_over_and_logged(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / FILE).write_text(text)
    assert Opened(tmp_path, settled(1)).checkpoints.load() == {}
    assert f"{FILE} is ignored" in caplog.text


async def test_where_it_cannot_be_kept_or_sent_that_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omq.pzq.cluster.ack_checkpoints.STATE_INTERVAL_S", 0.0)
    monkeypatch.setattr("omq.pzq.cluster.ack_checkpoints.WRITE_INTERVAL_S", 0.0)
    opened = Opened(tmp_path / "missing", settled(20))
    for floor in range(1, 6):
        opened.settled = settled(floor) if floor < 4 else DamagedError("a row")
        opened.checkpoints._next = 0.0
        await opened.acked_ranges()
        await opened.written()
    await opened.checkpoints.close()
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [text.split(":")[0] for text in warnings] == ["cluster", "cluster"]
    assert "is not written" in warnings[0]
    assert "do not get them: a row" in warnings[1]
