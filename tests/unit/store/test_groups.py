"""Consumer groups in the stores on disk and in memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from omq.store import memory
from omq.store.ack_set import PAGE_IDS, AckSet
from omq.store.errors import Gone, StoreError, UnknownGroup, UnknownTopic
from omq.store.interface import (
    MAX_READER_NAME_BYTES,
    Acknowledge,
    DeleteCursor,
    DeleteGroup,
    DeleteTopic,
    MoveToDeadLetter,
    SetCursor,
    SetGroup,
    Trim,
)
from omq.store.lmdb import applier, consumer_rows
from omq.store.lmdb.layout import LAST_GENERATION, acks_key, rows
from tests.support.open_store import Opened
from tests.unit.store.test_log import everywhere, of_every_kind

Again = Callable[..., Opened]
ON_DISK = pytest.mark.parametrize("kind", ["strong", "weak", "async"])


def make(log: Opened, kind: str, messages: int = 10, name: str = "t") -> int:
    """Creates a broadcast topic with messages."""
    topic = log.make(name, persistence=kind)
    if messages:
        log.append(topic, *[b"%d" % number for number in range(1, messages + 1)])
        log.wait_grown(topic, messages)
    return topic


def seen(acks: AckSet) -> tuple[int, int, list[tuple[int, int]], dict[int, int]]:
    """Returns the content of an ack set."""
    return acks.floor, acks.last_delivered, list(acks.above(acks.floor)), acks.deliveries


@of_every_kind
def test_a_group_starts_at_its_position(log: Opened, kind: str) -> None:
    topic = make(log, kind)
    for name, position in (("all", 0), ("some", 7), ("new", 10)):
        log.do(SetGroup(topic, name, position))
        assert seen(log.log.ack_set(topic, name)) == (position, position, [], {})
    assert log.log.ack_floors(topic) == {"all": 0, "some": 7, "new": 10}
    assert log.log.all_ack_floors() == {topic: {"all": 0, "some": 7, "new": 10}}


@of_every_kind
def test_groups_have_their_own_acks(log: Opened, kind: str) -> None:
    """Also those of another topic, and those whose names begin with the same letters."""
    topic, other = make(log, kind), make(log, kind, name="other")
    for name in ("a", "ab", "b"):
        log.do(SetGroup(topic, name, 0))
        log.do(SetGroup(other, name, 0))
    log.do(Acknowledge(topic, [(1, 3), (6, 6)], 8, {7: 2}, group="a"))
    log.do(Acknowledge(topic, [(2, 2)], 4, {1: 3}, group="ab"))
    log.do(Acknowledge(other, [(1, 10)], 10, group="a"))
    assert seen(log.log.ack_set(topic, "a")) == (3, 8, [(6, 6)], {7: 2})
    assert seen(log.log.ack_set(topic, "ab")) == (0, 4, [(2, 2)], {1: 3})
    assert seen(log.log.ack_set(topic, "b")) == (0, 0, [], {})
    assert log.log.ack_floors(topic) == {"a": 3, "ab": 0, "b": 0}
    assert log.log.ack_floors(other) == {"a": 10, "ab": 0, "b": 0}


@of_every_kind
def test_acks_advance_the_floor_and_drop_delivery_counts(log: Opened, kind: str) -> None:
    topic = make(log, kind)
    log.do(SetGroup(topic, "g", 2))
    log.do(Acknowledge(topic, [(4, 5), (1, 1)], 9, {3: 4, 5: 6, 7: 8, 2: 9}, group="g"))
    assert seen(log.log.ack_set(topic, "g")) == (2, 9, [(4, 5)], {3: 4, 7: 8})
    log.do(Acknowledge(topic, [(3, 3), (5, 5)], 0, {4: 1}, group="g"))
    assert seen(log.log.ack_set(topic, "g")) == (5, 9, [], {7: 8})
    assert log.log.topic(topic).first == 1, "the topic keeps them for others"


@of_every_kind
def test_a_moved_group_has_only_its_new_position(log: Opened, kind: str) -> None:
    topic = make(log, kind, 3 * PAGE_IDS)
    log.do(SetGroup(topic, "g", 0))
    log.do(Acknowledge(topic, [(5, 5), (PAGE_IDS + 3, 2 * PAGE_IDS + 9)], 2 * PAGE_IDS + 9, {7: 2}, group="g"))
    log.do(SetGroup(topic, "g", 6))
    assert seen(log.log.ack_set(topic, "g")) == (6, 6, [], {})
    log.do(Acknowledge(topic, [(8, 9)], 9, group="g"))
    assert seen(log.log.ack_set(topic, "g")) == (6, 9, [(8, 9)], {})
    log.try_(
        Acknowledge(topic, [(PAGE_IDS, PAGE_IDS)], PAGE_IDS, {7: 1}, group="g"),
        SetGroup(topic, "g", 3 * PAGE_IDS),
    )
    assert seen(log.log.ack_set(topic, "g")) == (3 * PAGE_IDS, 3 * PAGE_IDS, [], {})


@of_every_kind
def test_a_deleted_group_leaves_nothing(log: Opened, kind: str) -> None:
    topic = make(log, kind)
    for name in ("g", "other"):
        log.do(SetGroup(topic, name, 0))
        log.do(Acknowledge(topic, [(2, 4)], 5, {5: 3}, group=name))
    assert log.do(DeleteGroup(topic, "g")).found
    assert not log.do(DeleteGroup(topic, "g")).found
    assert log.log.ack_floors(topic) == {"other": 0}
    assert log.log.all_ack_floors() == {topic: {"other": 0}}
    with pytest.raises(UnknownGroup, match="no consumer group 'g'; create it with SetGroup"):
        log.do(Acknowledge(topic, [(1, 1)], 1, group="g"))
    log.do(SetGroup(topic, "g", 1))
    assert seen(log.log.ack_set(topic, "g")) == (1, 1, [], {})
    assert seen(log.log.ack_set(topic, "other")) == (0, 5, [(2, 4)], {5: 3})


@of_every_kind
def test_writes_of_one_commit_are_applied_in_their_order(log: Opened, kind: str) -> None:
    topic = make(log, kind)
    log.try_(
        SetGroup(topic, "g", 0),
        Acknowledge(topic, [(1, 5)], 5, group="g"),
        DeleteGroup(topic, "g"),
        late := Acknowledge(topic, [(6, 6)], 6, group="g"),
        SetGroup(topic, "g", 2),
        Acknowledge(topic, [(4, 4)], 4, group="g"),
    )
    assert isinstance(late.error, StoreError)
    assert seen(log.log.ack_set(topic, "g")) == (2, 4, [(4, 4)], {})


@of_every_kind
def test_what_cannot_be_written_changes_nothing(log: Opened, kind: str) -> None:
    topic = make(log, kind)
    log.do(SetGroup(topic, "g", 4))
    for write, kind_of_error, text in (
        (SetGroup(topic, "g", 11), StoreError, "no id 11"),
        (SetGroup(topic, "new", 11), StoreError, "no id 11"),
        (SetGroup(99, "g", 0), UnknownTopic, "99"),
        (DeleteGroup(99, "g"), UnknownTopic, "99"),
        (Acknowledge(topic, [(5, 11)], 0, group="g"), StoreError, "above 10"),
        (Acknowledge(topic, [(5, 5), (0, 3)], 0, group="g"), StoreError, "above 10"),
        (Acknowledge(topic, [], 11, group="g"), StoreError, "above 10"),
        (Acknowledge(topic, [(5, 5)], 5, group="unknown"), UnknownGroup, "no consumer group 'unknown'"),
        (MoveToDeadLetter(topic, 5, topic, group="unknown"), UnknownGroup, "no consumer group 'unknown'"),
    ):
        with pytest.raises(kind_of_error, match=text):
            log.do(write)
    assert log.log.ack_floors(topic) == {"g": 4}
    assert seen(log.log.ack_set(topic, "g")) == (4, 4, [], {})
    assert log.log.topic(topic).last == 10


@of_every_kind
def test_messages_that_retention_has_dropped_count_as_acknowledged(log: Opened, kind: str) -> None:
    topic = make(log, kind)
    log.do(SetGroup(topic, "g", 0))
    log.do(SetGroup(topic, "behind", 0))
    log.do(Acknowledge(topic, [(8, 8)], 8, {3: 2, 9: 4}, group="g"))
    log.do(Trim(topic, 6))
    assert log.log.topic(topic).first == 6
    log.do(Acknowledge(topic, [(7, 7)], 8, group="g"))
    assert seen(log.log.ack_set(topic, "g")) == (5, 8, [(7, 8)], {9: 4})
    log.do(Acknowledge(topic, [(6, 6)], 8, group="g"))
    assert seen(log.log.ack_set(topic, "g")) == (8, 8, [], {9: 4})
    assert log.log.ack_floors(topic)["behind"] == 0, "it has acknowledged nothing since"


@pytest.mark.parametrize("dead_kind", ["strong", "weak", "transient"])
@of_every_kind
def test_each_group_moves_its_dead_letters(log: Opened, kind: str, dead_kind: str) -> None:
    if dead_kind == "strong" and not hasattr(log.log, "_strong"):
        pytest.skip("a store in memory has no strong topics")
    topic, dead = make(log, kind), log.make("dead", persistence=dead_kind)
    for name in ("a", "b"):
        log.do(SetGroup(topic, name, 3))
        log.do(Acknowledge(topic, [], 6, {4: 2, 6: 2}, group=name))
    moved = log.do(MoveToDeadLetter(topic, 4, dead, group="a", deliveries=2, reason="max-deliveries"))
    assert (moved.first, moved.size > 0) == (1, True)
    assert seen(log.log.ack_set(topic, "a")) == (4, 6, [], {6: 2})
    assert seen(log.log.ack_set(topic, "b")) == (3, 6, [], {4: 2, 6: 2})
    assert log.do(MoveToDeadLetter(topic, 4, dead, group="b", deliveries=2, reason="max-deliveries")).first == 2
    assert log.do(MoveToDeadLetter(topic, 6, dead, group="b", deliveries=2)).first == 3
    assert seen(log.log.ack_set(topic, "b")) == (4, 6, [(6, 6)], {})
    log.wait_grown(dead, 3)
    assert [body for _, body in log.read(dead)] == [b"4", b"4", b"6"]
    assert [body for _, body in log.read(topic)] == [b"%d" % id for id in range(1, 11)]
    log.do(Trim(topic, 9))
    with pytest.raises(Gone):
        log.do(MoveToDeadLetter(topic, 7, dead, group="a"))
    assert 7 not in log.log.ack_set(topic, "a")


def generation(log: Opened, topic: int, name: str = "g") -> int:
    """Returns the generation of a group as it is stored."""
    return log.log.ack_set(topic, name).generation


@of_every_kind
def test_each_creation_and_move_raises_the_generation(log: Opened, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also that of a name that was deleted, and while the clock is set back."""
    topic, other = make(log, kind), make(log, kind, name="other")
    found = []
    for now, write in (
        (5_000, SetGroup(topic, "g", 0)),
        (5_000, SetGroup(topic, "g", 0)),
        (4_000, SetGroup(topic, "h", 0)),
        (9_000, SetGroup(other, "g", 7)),
        (9_000, DeleteGroup(topic, "g")),
        (1_000, SetGroup(topic, "g", 0)),
        (1_000, Acknowledge(topic, [(1, 1)], 1, group="g")),
    ):
        for module in (applier, memory):
            monkeypatch.setattr(module, "wall", lambda now=now: now)
        log.do(write)
        if isinstance(write, SetGroup):
            assert generation(log, write.topic_id, write.name) == write.generation
            found.append(write.generation)
    assert found == [5_000, 5_001, 5_002, 9_000, 9_001]
    assert generation(log, topic) == 9_001
    assert generation(log, topic, "h") == 5_002


@ON_DISK
def test_a_generation_outlives_the_process(again: Again, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    log = again()
    topic = make(log, kind)
    first = log.do(SetGroup(topic, "g", 3)).generation
    log = again()
    assert generation(log, topic) == first
    monkeypatch.setattr(applier, "wall", lambda: 5)
    log.do(DeleteGroup(topic, "g"))
    assert log.do(SetGroup(topic, "g", 3)).generation == first + 1


@pytest.mark.parametrize("row", [None, b"damaged", b""])
def test_the_time_makes_a_generation_new_without_a_record_of_the_last_one(row: bytes | None) -> None:
    """A power failure may have undone it, next to the dead letters of another engine that have it."""
    found: dict[bytes, bytes | None] = {LAST_GENERATION: row}

    class Transaction:
        get, put = found.get, found.__setitem__

    assert consumer_rows.next_generation(Transaction, 7_000) == 7_000
    assert consumer_rows.next_generation(Transaction, 6_000) == 7_001


@of_every_kind
def test_acks_of_an_earlier_generation_are_ignored(log: Opened, kind: str) -> None:
    topic = make(log, kind)
    before = log.do(SetGroup(topic, "g", 2)).generation
    assert log.do(Acknowledge(topic, [(3, 4)], 5, group="g", generation=before)).floor == 4
    now = log.do(SetGroup(topic, "g", 2)).generation
    assert log.do(Acknowledge(topic, [(3, 9)], 9, {10: 2}, group="g", generation=before)).floor == 0
    assert seen(log.log.ack_set(topic, "g")) == (2, 2, [], {})
    assert log.do(Acknowledge(topic, [(4, 4)], 4, group="g", generation=now)).floor == 2
    assert seen(log.log.ack_set(topic, "g")) == (2, 4, [(4, 4)], {})


@pytest.mark.parametrize("change", ["moved", "created again"])
@pytest.mark.parametrize("dead_kind", ["strong", "weak", "transient"])
@of_every_kind
def test_each_generation_moves_the_same_dead_letter_once(log: Opened, kind: str, dead_kind: str, change: str) -> None:
    if dead_kind == "strong" and not hasattr(log.log, "_strong"):
        pytest.skip("a store in memory has no strong topics")
    topic, dead = make(log, kind), log.make("dead", persistence=dead_kind)
    for number in (1, 2):
        if change == "created again":
            log.do(DeleteGroup(topic, "g"))
        now = log.do(SetGroup(topic, "g", 3)).generation
        moved = log.do(MoveToDeadLetter(topic, 4, dead, group="g", generation=now))
        assert (moved.first, moved.size > 0, moved.floor) == (number, True, 4)
        assert seen(log.log.ack_set(topic, "g")) == (4, 3, [], {})


@pytest.mark.parametrize("dead_kind", ["strong", "weak", "transient"])
@of_every_kind
def test_a_dead_letter_of_an_earlier_generation_is_not_acknowledged(log: Opened, kind: str, dead_kind: str) -> None:
    """Its move may be in progress between two engines while the group is moved back."""
    if dead_kind == "strong" and not hasattr(log.log, "_strong"):
        pytest.skip("a store in memory has no strong topics")
    topic, dead = make(log, kind), log.make("dead", persistence=dead_kind)
    before = log.do(SetGroup(topic, "g", 3)).generation
    log.do(SetGroup(topic, "g", 3))
    moved = log.do(MoveToDeadLetter(topic, 4, dead, group="g", generation=before))
    assert (moved.first, moved.floor) == (1, 0)
    assert seen(log.log.ack_set(topic, "g")) == (3, 3, [], {})


@everywhere
def test_a_deleted_topic_takes_its_groups_along(log: Opened) -> None:
    topic = make(log, "weak")
    log.do(SetGroup(topic, "g", 0))
    log.do(DeleteTopic(topic))
    assert log.log.all_ack_floors() == {}
    with pytest.raises(UnknownTopic):
        log.log.ack_floors(topic)
    again = make(log, "weak", 0)
    assert log.log.ack_floors(again) == {}


@of_every_kind
def test_cursors_and_groups_of_one_name_are_separate(log: Opened, kind: str) -> None:
    topic = make(log, kind)
    log.do(SetCursor(topic, "n", 3))
    log.do(SetGroup(topic, "n", 7))
    log.do(Acknowledge(topic, [(8, 8)], 8, group="n"))
    assert (log.log.cursors(topic), log.log.ack_floors(topic)) == ({"n": 3}, {"n": 8})
    log.do(DeleteGroup(topic, "n"))
    assert (log.log.cursors(topic), log.log.ack_floors(topic)) == ({"n": 3}, {})


@ON_DISK
def test_groups_survive_a_reopening(again: Again, kind: str) -> None:
    log = again()
    topic = make(log, kind, 2 * PAGE_IDS)
    for name in ("a", "b", "deleted", "moved"):
        log.do(SetGroup(topic, name, 5))
        log.do(Acknowledge(topic, [(8, 9), (PAGE_IDS + 1, PAGE_IDS + 1)], PAGE_IDS + 1, {7: 2}, group=name))
    log.do(Acknowledge(topic, [(6, 6)], 0, group="b"))
    log.do(DeleteGroup(topic, "deleted"))
    log.do(SetGroup(topic, "moved", 8))
    log = again()
    above = [(8, 9), (PAGE_IDS + 1, PAGE_IDS + 1)]
    assert log.log.ack_floors(topic) == {"a": 5, "b": 6, "moved": 8}
    assert seen(log.log.ack_set(topic, "a")) == (5, PAGE_IDS + 1, above, {7: 2})
    assert seen(log.log.ack_set(topic, "b")) == (6, PAGE_IDS + 1, above, {7: 2})
    assert seen(log.log.ack_set(topic, "moved")) == (8, 8, [], {})
    log.do(Acknowledge(topic, [(7, 7)], 0, group="b"))
    assert seen(log.log.ack_set(topic, "b")) == (9, PAGE_IDS + 1, above[1:], {})


@ON_DISK
def test_rows_that_are_not_needed_are_deleted(store: Opened, kind: str) -> None:
    topic = make(store, kind, 2 * PAGE_IDS)
    store.do(SetGroup(topic, "g", 0))
    store.do(Acknowledge(topic, [(2, 2), (PAGE_IDS + 5, PAGE_IDS + 5)], 0, {1: 2, PAGE_IDS: 3}, group="g"))

    def kept() -> list[int]:
        engine = store.log._engines[topic]
        with engine.environment.read() as reading:
            return [len(list(rows(reading, acks_key(one, topic, "g")))) for one in (b"w", b"s", b"r")]

    assert kept() == [1, 2, 2]
    store.do(Acknowledge(topic, [(1, PAGE_IDS + 4)], 0, group="g"))
    assert kept() == [1, 0, 0]
    store.do(Acknowledge(topic, [(PAGE_IDS + 9, PAGE_IDS + 9)], 0, {PAGE_IDS + 8: 2}, group="g"))
    store.do(SetGroup(topic, "g", 1))
    assert kept() == [1, 0, 0]
    store.do(DeleteGroup(topic, "g"))
    assert kept() == [0, 0, 0]


@of_every_kind
def test_a_group_that_does_not_exist_has_no_acks(log: Opened, kind: str) -> None:
    topic = make(log, kind)
    log.do(SetGroup(topic, "g", 0))
    log.do(DeleteGroup(topic, "g"))
    for name in ("g", "never"):
        with pytest.raises(StoreError, match=f"topic {topic} has no consumer group '{name}'"):
            log.log.ack_set(topic, name)
    assert log.log.ack_set(topic).floor == 0, "the acks of the topic itself"


@of_every_kind
def test_a_name_that_is_too_long_is_refused(log: Opened, kind: str) -> None:
    topic, longest = make(log, kind), "\u00e9" * 127 + "x"
    long = longest + "x"
    assert (len(longest.encode()), MAX_READER_NAME_BYTES) == (255, 255)
    for reader, write in (
        ("group", SetGroup(topic, long, 0)),
        ("group", DeleteGroup(topic, long)),
        ("group", Acknowledge(topic, [(1, 1)], 1, group=long)),
        ("group", MoveToDeadLetter(topic, 1, topic, group=long)),
        ("cursor", SetCursor(topic, long, 1)),
        ("cursor", DeleteCursor(topic, long)),
    ):
        with pytest.raises(StoreError, match=f"the name of the {reader} has 256 bytes; at most 255 are allowed"):
            log.do(write)
    with pytest.raises(StoreError, match="the name of the group has 256 bytes"):
        log.log.ack_set(topic, long)
    assert (log.log.ack_floors(topic), log.log.cursors(topic)) == ({}, {})
    log.do(SetGroup(topic, longest, 0))
    log.do(SetCursor(topic, longest, 3))
    log.do(Acknowledge(topic, [(2, 2)], 2, {1: 1}, group=longest))
    assert (log.log.ack_floors(topic), log.log.cursors(topic)) == ({longest: 0}, {longest: 3})
    assert log.do(DeleteGroup(topic, longest)).found
    assert log.do(DeleteCursor(topic, longest)).found
