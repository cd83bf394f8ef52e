"""The headers of dead letters, and their way back: on disk and in memory, within an engine and between two."""

from datetime import datetime
from itertools import product
from typing import Any

import pytest

from omq._core import blocks
from omq.store.dead_letters import HEADERS, dead_letter, requeued
from omq.store.errors import Gone, StoreError, UnknownTopic
from omq.store.interface import Append, DeleteTopic, MoveToDeadLetter, Requeue, SetGroup, Trim
from omq.store.lmdb.store import REQUEUED
from tests.support.open_store import Opened

KINDS = [
    *(("disk", kind) for kind in ("strong", "weak", "async", "transient")),
    *(("memory", kind) for kind in ("weak", "async", "transient")),
]
of_every_kind = pytest.mark.parametrize(("place", "kind"), KINDS, indirect=["place"])
NOW = 1_769_903_999_123_456  # us since 1970


def message(record: bytes) -> blocks.Message:
    """Decodes one record."""
    (one,) = blocks.decode(blocks.header(1, 1, 0, len(record)), record, "t")
    return one


def move(deliveries: int = 3, reason: Any = "max-deliveries") -> MoveToDeadLetter:
    return MoveToDeadLetter(1, 17, 2, deliveries=deliveries, reason=reason)


def messages(log: Opened, topic: int, last: int) -> list[blocks.Message]:
    """Returns all messages of a topic, once it can be read up to an id."""
    log.wait_grown(topic, last)
    with log.log.read(topic) as reader:
        return [one for block in reader.blocks(reader.first) for one in blocks.decode(*block, "t")]


def test_a_dead_letter_has_its_history_after_its_own_headers() -> None:
    record = blocks.encode_record(b"body", b"key", {"z": b"1", "a": b"", "ü": b"\xff"})
    letter = message(dead_letter(record, "jöbs", move(), NOW))
    assert (letter.body, letter.key) == (b"body", b"key")
    assert list(letter.headers.items()) == [
        ("z", b"1"),
        ("a", b""),
        ("ü", b"\xff"),
        ("omq-dead-topic", "jöbs".encode()),
        ("omq-dead-id", b"17"),
        ("omq-dead-deliveries", b"3"),
        ("omq-dead-reason", b"max-deliveries"),
        ("omq-dead-time", b"2026-01-31T23:59:59.123456Z"),
    ]
    assert requeued(dead_letter(record, "jöbs", move(), NOW)) == record


@pytest.mark.parametrize("key", [None, b"", b"k"])
@pytest.mark.parametrize("body", [b"", b"x" * 100_000])
def test_a_message_without_headers_comes_back_as_it_was(key: bytes | None, body: bytes) -> None:
    record = blocks.encode_record(body, key)
    assert requeued(dead_letter(record, "t", move(), NOW)) == record
    assert requeued(record) == record
    assert dead_letter(record, "t", move(reason=None), NOW) is record


def test_the_history_of_an_earlier_death_is_replaced() -> None:
    record = blocks.encode_record(
        b"b", None, {"omq-dead-id": b"1", "own": b"o", "omq-dead-topic": b"x", "omq-dead": b""}
    )
    letter = message(dead_letter(record, "t", move(1, "overflow"), NOW))
    assert list(letter.headers)[:2] == ["own", "omq-dead"]
    assert len(letter.headers) == 2 + len(HEADERS)
    assert letter.headers["omq-dead-id"] == b"17"
    assert letter.headers["omq-dead-reason"] == b"overflow"
    again = dead_letter(dead_letter(record, "t", move(), NOW), "t", move(1, "overflow"), NOW)
    assert message(again) == letter


@pytest.mark.parametrize(("own", "fits"), [(65_530, True), (65_531, False), (65_535, False)])
def test_a_message_with_too_many_headers_becomes_a_dead_letter_as_it_is(own: int, fits: bool) -> None:
    record = blocks.encode_record(b"b", None, {f"{number}": b"" for number in range(own)})
    letter = dead_letter(record, "t", move(), NOW)
    assert (letter != record) == fits
    assert len(message(letter).headers) == (65_535 if fits else own)
    assert requeued(letter) == record


@of_every_kind
def test_each_engine_adds_the_history(log: Opened, kind: str) -> None:
    jobs, dead = log.make("jobs", "round_robin", kind), log.make("dead", persistence=kind)
    log.append(jobs, b"a", b"b")
    write = log.do(MoveToDeadLetter(jobs, 2, dead, deliveries=5, reason="max-deliveries"))
    (letter,) = messages(log, dead, write.first)
    when = datetime.fromisoformat(letter.headers["omq-dead-time"].decode())
    assert abs(when.timestamp() - letter.timestamp) < 60
    assert (letter.body, letter.headers["omq-dead-topic"], letter.headers["omq-dead-id"]) == (b"b", b"jobs", b"2")
    assert write.size == log.log.topic(dead).bytes


@of_every_kind
def test_dead_letters_are_requeued_in_order(log: Opened, kind: str) -> None:
    dead = log.make("dead", persistence=kind)
    a, b = log.make("a", "round_robin", kind), log.make("b", persistence=kind)
    record = blocks.encode_record(b"x", b"k", {"omq-dead-topic": b"a", "own": b"v"})
    log.do(Append(dead, record, 1))
    log.append(dead, *(b"%d" % number for number in range(2, 8)))
    log.wait_grown(dead, 7)
    write = log.do(Requeue(dead, [(1, a), (2, b), (3, a), (4, a)]))
    assert write.moved == 4
    assert {id: count for id, (count, _) in write.grown.items()} == {a: 3, b: 1}
    assert sum(size for _, size in write.grown.values()) == sum(log.log.topic(id).bytes for id in (a, b))
    assert [(one.id, one.body) for one in messages(log, a, 3)] == [(1, b"x"), (2, b"3"), (3, b"4")]
    assert messages(log, a, 3)[0].headers == {"own": b"v"}
    assert [one.body for one in messages(log, b, 1)] == [b"2"]
    assert log.log.topic(dead).first == 5
    assert [id for id, _ in log.read(dead)] == [5, 6, 7]
    assert log.log.ack_set(a).floor == 0


@of_every_kind
def test_a_requeue_that_fails_changes_nothing(log: Opened, kind: str) -> None:
    dead, jobs = log.make("dead", persistence=kind), log.make("jobs", "round_robin", kind)
    other = log.make("other", persistence=kind)
    log.append(dead, b"a", b"b", b"c")
    log.wait_grown(dead, 3)
    log.do(Requeue(dead, [(1, jobs)]))
    log.do(DeleteTopic(other))
    with pytest.raises(Gone) as gone:
        log.do(Requeue(dead, [(1, jobs), (2, jobs)]))
    assert gone.value.first == 2
    with pytest.raises(UnknownTopic):
        log.do(Requeue(dead, [(2, jobs), (3, other)]))
    with pytest.raises(UnknownTopic):
        log.do(Requeue(10**6, [(2, jobs)]))
    with pytest.raises(Gone):
        log.do(Requeue(dead, [(2, jobs), (3, jobs), (4, jobs)]))
    assert [body for _, body in log.read(dead)] == [b"b", b"c"]
    assert [one.body for one in messages(log, jobs, 1)] == [b"a"]
    assert log.do(Requeue(dead, [(2, jobs), (3, jobs)])).moved == 2
    state = log.log.topic(dead)
    assert (state.first, state.last) == (4, 3)


PAIRS = [pair for pair in product(("strong", "weak", "transient"), repeat=2) if len(set(pair)) == 2]


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_between_engines_one_dead_letter_moves_at_a_time(store: Opened, source: str, target: str) -> None:
    dead, jobs = store.make("dead", persistence=source), store.make("jobs", "round_robin", target)
    store.append(dead, b"a", b"b", b"c")
    store.wait_grown(dead, 3)
    write = store.do(Requeue(dead, [(1, jobs), (2, jobs)]))
    assert (write.moved, write.grown) == (1, {jobs: (1, store.log.topic(jobs).bytes)})
    assert store.log.topic(dead).first == 2
    # A kill after the first of the two steps: the append is there, and the dead letter, too.
    store.do(Append(jobs, blocks.encode([b"b"]), 1, REQUEUED + dead.to_bytes(4, "big"), 2))
    write = store.do(Requeue(dead, [(2, jobs), (3, jobs)]))
    assert (write.moved, write.grown) == (1, {})
    with pytest.raises(Gone):
        store.do(Requeue(dead, [(2, jobs)]))
    assert store.do(Requeue(dead, [(3, jobs)])).moved == 1
    assert [one.body for one in messages(store, jobs, 3)] == [b"a", b"b", b"c"]
    assert store.log.topic(dead).first == 4


@pytest.mark.parametrize(("source", "target"), [*product(("strong", "weak", "transient"), repeat=2)])
def test_a_dead_letter_of_an_unknown_group_is_not_appended(store: Opened, source: str, target: str) -> None:
    topic, dead = store.make("t", persistence=source), store.make("dead", persistence=target)
    store.append(topic, b"a", b"b")
    store.wait_grown(topic, 2)
    store.do(SetGroup(topic, "g", 0))
    with pytest.raises(StoreError, match="topic 1 has no consumer group 'unknown'"):
        store.do(MoveToDeadLetter(topic, 1, dead, group="unknown", reason="max-deliveries"))
    assert store.log.topic(dead).last == 0
    store.do(MoveToDeadLetter(topic, 1, dead, group="g", reason="max-deliveries"))
    assert [one.body for one in messages(store, dead, 1)] == [b"a"]
    assert store.log.ack_set(topic, "g").floor == 1


def test_a_requeue_to_topics_of_several_engines(store: Opened) -> None:
    dead = store.make("dead")
    topics = [store.make(kind, "round_robin", kind) for kind in ("strong", "weak", "transient")]
    store.append(dead, *(b"%d" % number for number in range(6)))
    store.wait_grown(dead, 6)
    moves = [(id, topics[id % 3]) for id in range(1, 7)]
    while moves:
        moves = moves[store.do(Requeue(dead, moves)).moved :]
    assert [[one.body for one in messages(store, topic, 2)] for topic in topics] == [
        [b"2", b"5"],
        [b"0", b"3"],
        [b"1", b"4"],
    ]


@of_every_kind
def test_a_trim_counts_what_it_drops(log: Opened, kind: str) -> None:
    topic = log.make("t", persistence=kind)
    log.append(topic, *(b"%d" % number for number in range(10)))
    log.wait_grown(topic, 10)
    assert [log.do(Trim(topic, first)).dropped for first in (0, 1, 4, 4, 2, 9, 100)] == [0, 0, 3, 0, 0, 5, 2]
    assert log.log.topic(topic).first == 11
