"""The interface of stores, on disk and in memory."""

import random
from typing import Any

import pytest

from omq._core import blocks
from omq.store.errors import Gone, StageError, StoreClosed, StoreError, TopicFull, UnknownTopic
from omq.store.interface import (
    BLOCK_BYTES,
    AbortStage,
    Acknowledge,
    Append,
    CommitStages,
    DeleteCursor,
    DeleteTopic,
    MakeTopic,
    MoveToDeadLetter,
    SetCursor,
    Stage,
    Trim,
)
from omq.store.memory import MemoryStore
from tests.support.open_store import Opened

KINDS = [
    *(("disk", kind) for kind in ("strong", "weak", "async", "transient")),
    *(("memory", kind) for kind in ("weak", "async", "transient")),
]
of_every_kind = pytest.mark.parametrize(("place", "kind"), KINDS, indirect=["place"])
everywhere = pytest.mark.parametrize("place", ["disk", "memory"], indirect=True)


@of_every_kind
def test_ids_begin_at_one_and_are_dense(log: Opened, kind: str) -> None:
    topic = log.make("t", persistence=kind)
    state = log.log.topic(topic)
    assert (state.first, state.last, state.bytes) == (1, 0, 0)
    assert log.append(topic, b"a", b"b").first == 1
    assert log.append(topic, b"c").first == 3
    log.wait_grown(topic, 3)
    assert log.read(topic) == [(1, b"a"), (2, b"b"), (3, b"c")]
    state = log.log.topic(topic)
    assert (state.first, state.last, state.bytes) == (1, 3, 30)


@of_every_kind
def test_appends_that_come_together_are_joined(log: Opened, kind: str) -> None:
    topic = log.make("t", persistence=kind)
    many = [Append(topic, blocks.encode([b"%d" % i]), 1) for i in range(100)]
    log.try_(*many)
    assert [write.first for write in many] == list(range(1, 101))
    log.wait_grown(topic, 100)
    with log.log.read(topic) as reader:
        found = list(reader.blocks(1))
        assert sum(blocks.read_header(header)[1] for header, _ in found) == 100
        assert len(found) < 20


@of_every_kind
def test_large_appends_are_split(log: Opened, kind: str) -> None:
    topic = log.make("t", persistence=kind)
    bodies = [bytes([i]) * 10_000 for i in range(250)]
    log.append(topic, *bodies)
    log.wait_grown(topic, 250)
    with log.log.read(topic) as reader:
        assert all(len(records) <= BLOCK_BYTES for _, records in reader.blocks(1))
    assert log.read(topic) == list(enumerate(bodies, 1))
    log.append(topic, bytes(3_000_000))
    log.wait_grown(topic, 251)
    assert log.read(topic, 251) == [(251, bytes(3_000_000))]


@of_every_kind
def test_a_range_of_ids_is_read(log: Opened, kind: str) -> None:
    topic = log.make("t", persistence=kind)
    every = []
    for i in range(10):
        bodies = [b"%d/%d" % (i, j) for j in range(5)]
        log.append(topic, *bodies)
        every += bodies
    log.wait_grown(topic, 50)
    for start, stop in ((1, 2), (3, 4), (5, 7), (1, 51), (50, 51), (50, 99), (51, 60), (17, 17), (22, 48)):
        assert log.read(topic, start, stop) == list(enumerate(every, 1))[start - 1 : stop - 1], (start, stop)
    assert log.read(topic, 60) == []


@of_every_kind
def test_a_repetition_does_not_append(log: Opened, kind: str) -> None:
    topic, other = log.make("t", persistence=kind), log.make("u", persistence=kind)
    first = log.append(topic, b"a", producer=b"p", sequence=1)
    assert not first.duplicate
    log.append(topic, b"b", producer=b"p", sequence=2)
    for _ in range(2):
        again = log.append(topic, b"a", producer=b"p", sequence=1)
        assert (again.first, again.timestamp, again.duplicate) == (1, first.timestamp, True)
    assert not log.append(topic, b"c", producer=b"q", sequence=1).duplicate
    assert not log.append(other, b"d", producer=b"p", sequence=1).duplicate
    assert log.append(topic, b"e", producer=b"p", sequence=5).first == 4
    assert log.append(topic, b"f", producer=b"p", sequence=3).first == 5
    together = [Append(topic, blocks.encode([b"x"]), 1, b"p", 9) for _ in range(3)]
    log.try_(*together)
    assert [write.first for write in together] == [6, 6, 6]
    assert [write.duplicate for write in together] == [False, True, True]
    log.wait_grown(topic, 6)
    assert [body for _, body in log.read(topic)] == [b"a", b"b", b"c", b"e", b"f", b"x"]


@of_every_kind
def test_confirmed_answers_are_dropped_and_stay_repetitions(log: Opened, kind: str) -> None:
    topic = log.make("t", persistence=kind)
    for sequence in range(1, 301):
        log.log.submit(Append(topic, blocks.encode([b"%d" % sequence]), 1, b"p", sequence, max(sequence - 5, 0)))
    assert log.append(topic, b"last", producer=b"p", sequence=301, first_outstanding=296).first == 301
    late = log.append(topic, b"late", producer=b"p", sequence=3)
    assert late.duplicate
    assert log.append(topic, b"late", producer=b"p", sequence=298).first == 298
    log.wait_grown(topic, 301)
    assert log.log.topic(topic).last == 301


@everywhere
def test_unknown_topics_are_refused(log: Opened) -> None:
    topic = log.make("t", persistence="weak")
    for write in (
        Append(99, blocks.encode([b""]), 1),
        Acknowledge(99, []),
        SetCursor(99, "n", 1),
        DeleteCursor(99, "n"),
        Trim(99, 1),
        Stage(99, blocks.encode([b""]), 1, b"s"),
        DeleteTopic(99),
        MoveToDeadLetter(99, 1, topic),
    ):
        with pytest.raises(UnknownTopic):
            log.do(write)
    for call in (log.log.topic, log.log.cursors, log.log.ack_set):
        with pytest.raises(UnknownTopic):
            call(99)
    with pytest.raises(UnknownTopic), log.log.read(99):
        pass


@of_every_kind
def test_a_topic_is_created_once_and_deleted_completely(log: Opened, kind: str) -> None:
    topic = log.make("t", persistence=kind, colour="blue")
    assert log.do(MakeTopic("t", "round_robin", kind, {})).found
    assert log.log.topic(topic).settings == {"colour": "blue"}
    log.append(topic, *[b"x"] * 100, producer=b"p", sequence=1)
    log.do(SetCursor(topic, "n", 5))
    log.do(DeleteTopic(topic))
    assert log.log.topics() == []
    with pytest.raises(UnknownTopic):
        log.append(topic, b"x")
    other = log.make("t", persistence=kind)
    assert other > topic
    assert log.read(other) == []
    assert log.log.cursors(other) == {}
    assert log.log.all_cursors() == {}


@of_every_kind
def test_cursors_are_stored_by_name(log: Opened, kind: str) -> None:
    topic, other = log.make("t", persistence=kind), log.make("u", persistence=kind)
    log.do(SetCursor(topic, "ä", 5))
    log.do(SetCursor(topic, "b", 6))
    log.do(SetCursor(topic, "b", 7))
    log.do(SetCursor(other, "c", 1))
    log.make("none", persistence=kind)
    assert log.log.cursors(topic) == {"ä": 5, "b": 7}
    assert log.log.all_cursors() == {topic: {"ä": 5, "b": 7}, other: {"c": 1}}
    assert log.do(DeleteCursor(topic, "b")).found
    assert not log.do(DeleteCursor(topic, "b")).found
    assert log.log.cursors(topic) == {"ä": 5}


@of_every_kind
def test_the_newest_messages_are_kept_by_count(log: Opened, kind: str) -> None:
    topic = log.make("t", persistence=kind, max_messages=7)
    for i in range(10):
        log.append(topic, *[b"%d" % i] * 3)
    log.wait_grown(topic, 30)
    log.do(Trim(topic, 1))
    assert log.log.topic(topic).first == 24
    assert [id for id, _ in log.read(topic)] == list(range(24, 31))
    with pytest.raises(Gone) as gone:
        log.read(topic, 23)
    assert gone.value.first == 24


@of_every_kind
def test_the_newest_messages_are_kept_by_bytes(log: Opened, kind: str) -> None:
    topic = log.make("t", persistence=kind, max_bytes=1000)
    for i in range(20):
        log.append(topic, bytes([i]) * 191)
    log.do(Trim(topic, 1))
    assert [id for id, _ in log.read(topic)] == [16, 17, 18, 19, 20]
    log.append(topic, bytes(5000))
    log.do(Trim(topic, 1))
    assert [id for id, _ in log.read(topic)] == [21]


@of_every_kind
def test_max_bytes_is_exact_to_the_message(log: Opened, kind: str) -> None:
    topic = log.make("t", persistence=kind, max_bytes=100_000)
    bodies = [b"%991d" % i for i in range(1, 301)]  # records of 1,000 bytes
    log.append(topic, *bodies)
    log.do(Trim(topic, 1))
    assert log.read(topic) == list(enumerate(bodies, 1))[200:]
    log.append(topic, b"%1991d" % 301)
    log.do(Trim(topic, 1))
    assert log.log.topic(topic).first == 203


@of_every_kind
def test_max_bytes_is_used_fully(log: Opened, kind: str) -> None:
    most = 50_000
    topic = log.make("t", persistence=kind, max_bytes=most)
    dice = random.Random(7)
    sizes: list[int] = []
    for _ in range(40):
        bodies = [bytes(dice.choice((0, 30, 5000, 60_000)) + dice.randrange(50)) for _ in range(dice.randrange(1, 90))]
        sizes += [len(body) + 9 for body in bodies]
        log.append(topic, *bodies)
        log.do(Trim(topic, 1))
        kept = next((n - 1 for n in range(1, len(sizes) + 1) if sum(sizes[-n:]) > most), len(sizes))
        assert log.log.topic(topic).first == len(sizes) - max(kept, 1) + 1
        assert [len(body) + 9 for _, body in log.read(topic)] == sizes[-max(kept, 1) :]


@of_every_kind
def test_trimmed_messages_are_dropped(log: Opened, kind: str) -> None:
    topic = log.make("t", persistence=kind)
    log.append(topic, b"a", b"b", b"c")
    log.do(Trim(topic, 2))
    assert log.read(topic) == [(2, b"b"), (3, b"c")]
    log.do(Trim(topic, 99))
    state = log.log.topic(topic)
    assert (state.first, state.last, state.bytes) == (4, 3, 0)
    assert log.append(topic, b"d").first == 4


@of_every_kind
def test_acks_are_stored(log: Opened, kind: str) -> None:
    topic = log.make("t", "round_robin", kind)
    for i in range(10):
        log.append(topic, *[b"%d" % i] * 10)
    log.do(Acknowledge(topic, [(1, 5), (8, 9), (50, 60)], last_delivered=70, deliveries={6: 2, 9: 2, 55: 3, 80: 4}))
    acks = log.log.ack_set(topic)
    assert (acks.floor, acks.last_delivered) == (5, 70)
    assert acks.deliveries == {6: 2, 80: 4}
    assert list(acks.missing(1, 100)) == [(6, 7), (10, 49), (61, 100)]
    log.do(Acknowledge(topic, [(6, 7), (10, 30)]))
    assert log.log.ack_set(topic).floor == 30
    assert log.log.topic(topic).first == 31
    assert log.log.ack_set(topic).deliveries == {80: 4}


@of_every_kind
@pytest.mark.parametrize("settings", [{}, {"overflow": "drop-oldest"}, {"overflow": "block"}, {"max_bytes": 100}])
def test_round_robin_topics_do_not_drop_the_oldest(log: Opened, kind: str, settings: dict[str, Any]) -> None:
    topic = log.make("t", "round_robin", kind, max_messages=5, **settings)
    for i in range(20):
        log.append(topic, b"%d" % i)
    log.do(Acknowledge(topic, [(2, 3)], last_delivered=1))
    assert list(log.log.ack_set(topic).missing(1, 20)) == [(1, 1), (4, 20)]
    assert log.log.topic(topic).first == 1


@of_every_kind
@pytest.mark.parametrize(
    "settings", [{"overflow": "reject"}, {"overflow": "block"}, {"retain_for": "n"}, {"retention": "read"}]
)
def test_a_broadcast_topic_that_rejects_does_not_drop(log: Opened, kind: str, settings: dict[str, Any]) -> None:
    topic = log.make("t", persistence=kind, max_messages=5, **settings)
    for i in range(20):
        log.append(topic, b"%d" % i)
    assert log.log.topic(topic).first == 1


@of_every_kind
def test_an_append_that_only_repeats_stores_nothing(log: Opened, kind: str) -> None:
    topic = log.make("t", persistence=kind)
    record = blocks.encode([b"x"])
    with pytest.raises(TopicFull):
        log.do(Append(topic, record, 1, b"p", 1, repeats_only=True))
    first = log.do(Append(topic, record, 1, b"p", 1)).first
    again = log.do(Append(topic, record, 1, b"p", 1, repeats_only=True))
    assert (again.first, again.duplicate) == (first, True)
    assert log.do(Append(topic, record, 1, b"p", 2)).first == first + 1


@of_every_kind
def test_a_commit_checks_for_room(log: Opened, kind: str) -> None:
    topic = log.make("t", persistence=kind)
    asked: list[tuple[int, int, int]] = []

    def has_room(id: int, count: int, size: int) -> bool:
        asked.append((id, count, size))
        return len(asked) > 1

    records = blocks.encode([b"x"] * 2)
    for sequence in (1, 2):
        log.do(Stage(topic, records, 2, b"s", sequence))
    with pytest.raises(TopicFull) as full:
        log.do(CommitStages(b"c", [b"s"], has_room=has_room))
    assert log.log.topic(topic).last == 0
    assert log.do(CommitStages(b"c", [b"s"], has_room=has_room)).published == [(b"s", topic, 1, 4)]
    assert asked == [(topic, 4, 2 * len(records))] * 2
    assert (full.value.topic_id, full.value.count, full.value.size) == asked[0]
    assert log.log.topic(topic).bytes == 2 * len(records)


@of_every_kind
def test_a_dead_letter_is_moved(log: Opened, kind: str) -> None:
    topic, dead = log.make("t", "round_robin", kind), log.make("dead", persistence=kind)
    record = blocks.encode_record(b"b", b"key", {"h": b"v"})
    log.do(Append(topic, blocks.encode([b"a"]) + record + blocks.encode([b"c"]), 3))
    log.wait_grown(topic, 3)
    assert log.do(MoveToDeadLetter(topic, 2, dead)).first == 1
    log.wait_grown(dead, 1)
    assert 2 in log.log.ack_set(topic)
    with log.log.read(dead) as reader:
        assert [bytes(records) for _, records in reader.blocks(1)] == [record]
    with pytest.raises(Gone):
        log.do(MoveToDeadLetter(topic, 77, dead))
    with pytest.raises(UnknownTopic):
        log.do(MoveToDeadLetter(topic, 1, 99))


@of_every_kind
def test_a_dropped_message_cannot_become_a_dead_letter(log: Opened, kind: str) -> None:
    jobs, dead = log.make("jobs", "round_robin", kind), log.make("dead", persistence=kind)
    log.append(jobs, b"a", b"b")
    log.wait_grown(jobs, 2)
    log.do(Trim(jobs, 2))
    with pytest.raises(Gone):
        log.do(MoveToDeadLetter(jobs, 1, dead))
    assert log.log.topic(dead).last == 0


@of_every_kind
def test_stages_are_published_atomically_in_order(log: Opened, kind: str) -> None:
    topic, other = log.make("t", persistence=kind), log.make("u", persistence=kind)
    log.do(Stage(topic, blocks.encode([b"a", b"b"]), 2, b"one", 1))
    log.do(Stage(other, blocks.encode([b"x"]), 1, b"two", 1))
    log.do(Stage(topic, blocks.encode([b"c"]), 1, b"one", 2))
    log.do(Stage(topic, blocks.encode([b"again"]), 1, b"one", 1))
    log.do(Stage(topic, blocks.encode([b"z"] * 10), 10, b"three"))
    assert log.read(topic) == []
    log.append(topic, b"between")
    commit = log.do(CommitStages(b"c", [b"three", b"two", b"one"]))
    assert commit.published == [(b"three", topic, 2, 10), (b"two", other, 1, 1), (b"one", topic, 12, 3)]
    assert not commit.repeated
    log.wait_grown(topic, 14)
    log.wait_grown(other, 1)
    assert [body for _, body in log.read(topic)] == [b"between", *[b"z"] * 10, b"a", b"b", b"c"]
    assert log.read(other) == [(1, b"x")]
    again = log.do(CommitStages(b"c", [b"three", b"two", b"one"]))
    assert (again.published, again.repeated) == (commit.published, True)
    with pytest.raises(StageError):
        log.do(CommitStages(b"d", [b"one"]))
    assert log.append(topic, b"later").first == 15


@of_every_kind
def test_a_commit_is_atomic(log: Opened, kind: str) -> None:
    topic = log.make("t", persistence=kind)
    log.do(Stage(topic, blocks.encode([b"a"]), 1, b"one"))
    with pytest.raises(StageError):
        log.do(CommitStages(b"c", [b"one", b"missing"]))
    with pytest.raises(StageError):
        log.do(CommitStages(b"c", [b"one", b"one"]))
    other = log.make("u", persistence=kind)
    with pytest.raises(StageError):
        log.do(Stage(other, blocks.encode([b"a"]), 1, b"one"))
    assert log.read(topic) == []
    log.do(AbortStage(b"one"))
    log.do(AbortStage(b"one"))
    with pytest.raises(StageError):
        log.do(CommitStages(b"c", [b"one"]))


@everywhere
def test_stages_are_aborted_by_prefix(log: Opened) -> None:
    where = "memory" if isinstance(log.log, MemoryStore) else "disk"
    kinds = [kind for place, kind in KINDS if place == where]
    for number, kind in enumerate(kinds):
        topic = log.make(kind, persistence=kind)
        for name in (b"p/%d", b"p/other/%d", b"q/%d"):
            log.do(Stage(topic, blocks.encode([b"a"]), 1, name % number))
    log.do(AbortStage(b"p/", prefix=True))
    log.do(AbortStage(b"p/", prefix=True))
    for number in range(len(kinds)):
        for name in (b"p/%d", b"p/other/%d"):
            with pytest.raises(StageError):
                log.do(CommitStages(b"of " + name % number, [name % number]))
        log.do(CommitStages(b"of q/%d" % number, [b"q/%d" % number]))
        assert log.log.topic(number + 1).last == 1


@everywhere
def test_a_closed_store_takes_no_writes(log: Opened) -> None:
    topic = log.make("t", persistence="weak")
    log.log.close()
    with pytest.raises(StoreClosed):
        log.log.submit(Append(topic, blocks.encode([b""]), 1))


@of_every_kind
def test_statistics_count(log: Opened, kind: str) -> None:
    topic = log.make("t", persistence=kind)
    log.append(topic, b"abc", producer=b"p", sequence=1)
    log.append(topic, b"abc", producer=b"p", sequence=1)
    log.do(Trim(topic, 1))  # an async append is answered before it is counted
    stats = log.log.stats()
    assert (stats.appended, stats.appended_bytes, stats.duplicates) == (1, 12, 1)
    assert stats.commits >= 2


@everywhere
def test_unassigned_ids_cannot_be_acknowledged(log: Opened) -> None:
    topic = log.make("t", "round_robin", "weak")
    log.append(topic, b"a")
    with pytest.raises(StoreError):
        log.do(Acknowledge(topic, [(1, 2)]))


@of_every_kind
def test_a_stage_without_free_sequences_raises(log: Opened, kind: str) -> None:
    topic = log.make("t", persistence=kind)
    records = blocks.encode([b"x"])
    log.do(Stage(topic, records, 1, b"s", 2**64 - 1))
    for sequence in (0, 2**64):
        with pytest.raises(StageError, match=r"used all sequences|sequence=18446744073709551616 is above"):
            log.do(Stage(topic, records, 1, b"s", sequence))
    assert log.do(CommitStages(b"c", [b"s"])).published == [(b"s", topic, 1, 1)]
