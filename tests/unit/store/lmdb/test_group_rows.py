"""The rows of consumer groups on disk: commits that fail, and damage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest
from click.testing import CliRunner

from omq._core import blocks
from omq.broker.errors import Damaged
from omq.cli.main import main
from omq.store.ack_set import PAGE_IDS
from omq.store.errors import DamagedError, OutOfSpace, StoreError
from omq.store.interface import Acknowledge, Append, DeleteGroup, MoveToDeadLetter, SetGroup, Trim
from omq.store.lmdb.layout import NUMBER, acks_key
from tests.support.broker_core import RecordingSink, append, core, until
from tests.support.lmdb_faults import Failing, NoRoom, spoil
from tests.support.open_store import Opened
from tests.unit.store.test_groups import make, seen

Again = Callable[..., Opened]


def fill(directory: Path) -> int:
    """Makes a store with two groups that have acks and delivery counts; returns the topic's id."""
    with Opened.on_disk(directory) as log:
        topic = make(log, "strong", 20)
        for name in ("g", "other"):
            log.do(SetGroup(topic, name, 2))
            log.do(Acknowledge(topic, [(4, 6), (9, 9)], 12, {3: 2}, group=name))
    return topic


@pytest.mark.parametrize("kind", ["strong", "weak"])
def test_a_commit_without_space_changes_no_group(store: Opened, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    topic, dead = make(store, kind), store.make("dead", persistence=kind)
    for name in ("g", "h"):
        store.do(SetGroup(topic, name, 0))
        store.do(Acknowledge(topic, [(2, 3)], 5, {4: 2}, group=name))
    before = seen(store.log.ack_set(topic, "g"))
    full = NoRoom(store.log._engines[topic].environment, monkeypatch, every=True).full
    full.set()
    writes = [
        Acknowledge(topic, [(1, 1), (7, 7)], 8, {5: 2}, group="g"),
        SetGroup(topic, "h", 9),
        SetGroup(topic, "new", 3),
        MoveToDeadLetter(topic, 4, dead, group="g"),
        DeleteGroup(topic, "g"),
        Append(topic, blocks.encode([b"x"]), 1),
    ]
    store.try_(*writes)
    assert all(isinstance(write.error, OutOfSpace) for write in writes)
    assert store.log.broken is None
    assert seen(store.log.ack_set(topic, "g")) == before
    assert store.log.ack_floors(topic) == {"g": 0, "h": 0}
    full.clear()
    store.do(Acknowledge(topic, [(8, 8)], 9, group="g"))
    assert seen(store.log.ack_set(topic, "g")) == (0, 9, [(2, 3), (8, 8)], {4: 2}), "nothing of the failed writes"
    store.do(Acknowledge(topic, [(1, 1)], 0, group="h"))
    assert store.log.ack_floors(topic) == {"g": 0, "h": 3}
    assert store.log.topic(dead).last == 0
    assert store.do(MoveToDeadLetter(topic, 4, dead, group="g")).first == 1
    assert seen(store.log.ack_set(topic, "g")) == (0, 9, [(2, 4), (8, 8)], {})


def test_a_group_of_writes_that_is_retried_counts_once(store: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = make(store, "weak")
    store.do(SetGroup(topic, "g", 0))
    environment = store.log._weak
    begin, errors = environment.begin, [lmdb.MapFullError("small")]
    with monkeypatch.context() as failing:
        failing.setattr(environment, "begin", lambda: Failing(begin(), errors))
        failing.setattr(environment, "grow", lambda: None)
        store.try_(
            Acknowledge(topic, [(2, 2)], 2, {1: 2}, group="g"),
            Trim(topic, 2),
            Acknowledge(topic, [(4, 4)], 4, group="g"),
        )
    assert errors == []
    assert seen(store.log.ack_set(topic, "g")) == (2, 4, [(4, 4)], {})


ROWS = {
    "the floor": (acks_key(b"w", 1, "g"), "the ack floor of group 'g' of topic 1"),
    "a page": (acks_key(b"s", 1, "g") + NUMBER.pack(0), "an acks page of group 'g' of topic 1"),
    "a count": (acks_key(b"r", 1, "g") + NUMBER.pack(3), "a delivery count of group 'g' of topic 1"),
}


@pytest.fixture(params=sorted(ROWS))
def damaged(request: pytest.FixtureRequest, directory: Path) -> str:
    """Damages a row of the group `g`; returns its description."""
    assert fill(directory) == 1
    key, text = ROWS[request.param]
    spoil(directory, key)
    return text


def test_the_damaged_row_is_named(directory: Path, damaged: str) -> None:
    result = CliRunner().invoke(main, ["store", "verify", str(directory)], catch_exceptions=False)
    assert result.exit_code == 1
    assert f"{damaged} is damaged" in result.output
    assert "'other'" not in result.output


def test_damage_of_one_group_affects_no_other(again: Again, damaged: str) -> None:
    log = again()
    with pytest.raises(DamagedError, match="damaged"):
        log.log.ack_set(1, "g")
    with pytest.raises(StoreError, match="damaged"):
        log.do(Acknowledge(1, [(3, 3)], 3, group="g"))
    with pytest.raises(StoreError, match="damaged"):
        log.do(MoveToDeadLetter(1, 3, 1, group="g"))
    floors = log.log.ack_floors(1)
    assert floors == {"g": -1 if "floor" in damaged else 2, "other": 2}
    assert seen(log.log.ack_set(1, "other")) == (2, 12, [(4, 6), (9, 9)], {3: 2})
    log.do(Acknowledge(1, [(3, 3)], 12, group="other"))
    assert log.log.ack_floors(1)["other"] == 6
    log.do(SetGroup(1, "g", 5))
    assert seen(log.log.ack_set(1, "g")) == (5, 5, [], {})
    log = again()
    assert seen(log.log.ack_set(1, "g")) == (5, 5, [], {})


def test_a_damaged_group_can_be_deleted(again: Again, damaged: str) -> None:
    log = again()
    log.do(DeleteGroup(1, "g"))
    log.do(SetGroup(1, "g", PAGE_IDS // PAGE_IDS))
    assert seen(log.log.ack_set(1, "g")) == (1, 1, [], {})


async def test_a_broker_starts_with_a_damaged_group_and_a_seek_repairs_it(
    directory: Path, damaged: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with core(directory) as broker:
        topic = broker.topic("t")
        assert "group_damaged" in {getattr(record, "event", "") for record in caplog.records}
        assert [group["name"] for group in topic.group_stats()] == ["other"]
        other = RecordingSink()
        broker.consume(topic, other, group="other")
        await until(lambda: other.ids == [3, 7, 8, *range(10, 21)])
        with pytest.raises(Damaged, match="seek the group"):
            broker.consume(topic, RecordingSink(), group="g")
        await topic.seek_group("g", 15)
        sink = RecordingSink()
        consumer = broker.consume(topic, sink, group="g")
        await append(broker, topic, [b"21"])
        await until(lambda: sink.ids == list(range(16, 22)))
        consumer.ack([(16, 21)])
        await topic.flushed()
    async with core(directory) as broker:
        groups = {group["name"]: group["lag"] for group in broker.topic("t").group_stats()}
        assert groups == {"g": 0, "other": 15}
