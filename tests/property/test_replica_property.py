"""Replicas that apply the same entries have the same state, however they group them, stop and begin again."""

import errno
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import lmdb
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from omq._core import blocks
from omq.store.interface import (
    AbortStage,
    Acknowledge,
    AlterTopic,
    Append,
    CommitStages,
    DeleteCursor,
    DeleteGroup,
    DeleteTopic,
    MakeTopic,
    MoveToDeadLetter,
    Requeue,
    SetCursor,
    SetGroup,
    Stage,
    Trim,
    Write,
)
from omq.store.internal import ApplyRetention, ExpireState
from tests.support import replicas
from tests.support.hypothesis_profiles import examples
from tests.support.lmdb_faults import Failing
from tests.support.open_store import Opened
from tests.support.power import lose_power
from tests.support.replicas import dump, entry, payload, results

QUICK = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
DAY_US = 86_400_000_000
BEGIN_US = 1_700_000_000_000_000
NAMES = "ab"
KEYS = [b"a", b"b", b"c"]
TOPICS = [
    ("s", "broadcast", "strong", {"max_messages": 20}),
    ("t", "broadcast", "weak", {"max_bytes": 700}),
    ("u", "round_robin", "async", {"max_age": 7200}),
    ("v", "round_robin", "strong", {}),
    ("w", "broadcast", "strong", {"max_age": 3600, "max_bytes": 900}),
    ("x", "broadcast", "transient", {}),
]
LIMITS = [{}, {"max_messages": 5}, {"max_bytes": 300}, {"max_age": 60}]


class History:
    """Makes random writes that are mostly about what exists.

    Args:
        random: The source of all choices.

    Attributes:
        kinds: The number of writes of each type.
    """

    def __init__(self, random: Random) -> None:
        self._random = random
        self._sequences = Counter[tuple[int, bytes]]()
        self._counts = Counter[int]()  # approximate, by topic
        self.kinds = Counter[str]()

    def journal(self, entries: int) -> list[bytes]:
        """Returns entries; the first one makes topics."""
        time, random = BEGIN_US, self._random
        found = [payload(time, *(MakeTopic(*topic) for topic in TOPICS))]
        for _ in range(entries):
            time += random.choice([0, 1, 1_000_000, 1_000_000, 3_700_000_000, 2 * DAY_US, -DAY_US])
            writes = [self._write() for _ in range(random.choice([0, 1, 3, 8]))]
            self.kinds.update(type(write).__name__ for write in writes)
            found.append(payload(time, *writes))
        return found

    def _write(self) -> Write:
        random = self._random
        kinds = [self._append, self._acknowledge, self._move, self._stage, self._reader, self._upkeep, self._topic]
        return random.choices(kinds, [12, 6, 3, 5, 3, 3, 1])[0]()

    def _topic_id(self) -> int:
        return self._random.choice([1, 1, 2, 2, 3, 3, 3, 4, 4, 4, 5, 5, 6, 7, 8])

    def _records(self) -> tuple[bytes, int]:
        bodies = [bytes(self._random.randint(0, 90)) for _ in range(self._random.choice([1, 1, 3, 9]))]
        return blocks.encode(bodies), len(bodies)

    def _id(self, topic: int) -> int:
        return self._random.randint(1, self._counts[topic] + 2)

    def _append(self) -> Write:
        random, topic = self._random, self._topic_id()
        records, count = self._records()
        producer = random.choice([b"", b"p", b"q", b"r"])
        if not producer:
            self._counts[topic] += count
            return Append(topic, records, count)
        last = self._sequences[topic, producer]
        sequence = max(1, last + random.choice([1, 1, 1, 2, 4, 0, -1, -3, -6]))
        self._sequences[topic, producer] = max(last, sequence)
        self._counts[topic] += count if sequence > last else 0
        outstanding = max(0, sequence - random.choice([0, 0, 1, 2, 5]))
        return Append(topic, records, count, producer, sequence, outstanding, repeats_only=random.random() < 0.1)

    def _acknowledge(self) -> Write:
        random, topic = self._random, self._topic_id()
        first = self._id(topic)
        ranges = random.choice([[(1, first)], [(first, first)], [(first, first + 2), (first + 5, first + 5)]])
        group = "" if topic in (3, 4) else random.choice(NAMES)
        return Acknowledge(topic, ranges, 0, {self._id(topic): random.randint(1, 5)}, group=group)

    def _move(self) -> Write:
        random, topic = self._random, self._topic_id()
        id, target = self._id(topic), self._topic_id()
        if random.random() < 0.3:
            return Requeue(topic, [(id, target), (id + 1, self._topic_id())][: random.randint(1, 2)])
        group = "" if topic in (3, 4) else random.choice(NAMES)
        return MoveToDeadLetter(topic, id, target, group=group, reason=random.choice([None, "overflow"]))

    def _stage(self) -> Write:
        random = self._random
        stage = random.choice(KEYS)
        return random.choice(
            [
                Stage(self._topic_id(), *self._records(), stage, random.randint(0, 3)),
                Stage(KEYS.index(stage) + 1, *self._records(), stage),
                CommitStages(bytes([random.randint(0, 255)]), random.sample(KEYS, random.randint(1, 2))),
                CommitStages(random.choice(KEYS), [stage]),
                AbortStage(stage, prefix=random.random() < 0.5),
            ]
        )

    def _reader(self) -> Write:
        random, topic, name = self._random, self._topic_id(), self._random.choice(NAMES)
        return random.choice(
            [
                SetCursor(topic, name, self._id(topic)),
                DeleteCursor(topic, name),
                SetGroup(topic, name, random.randint(0, 3)),
                SetGroup(topic, name, self._id(topic)),
                DeleteGroup(topic, name),
            ]
        )

    def _upkeep(self) -> Write:
        topic = self._topic_id()
        start = self._random.choice([b"", b"p\0\0\0\2"])
        return self._random.choice(
            [ApplyRetention(), ApplyRetention(), ExpireState(start), Trim(topic, self._id(topic))]
        )

    def _topic(self) -> Write:
        random, topic = self._random, self._random.randint(1, 8)
        name, delivery, persistence, _ = random.choice(TOPICS)
        return random.choice(
            [
                MakeTopic(name + random.choice(["", "2"]), delivery, persistence, random.choice(LIMITS)),  # type: ignore[arg-type]
                AlterTopic(topic, random.choice(LIMITS)),
                DeleteTopic(random.choice([topic, 6, 7, 8])),
            ]
        )


@pytest.fixture(autouse=True, scope="module")
def _small_bounds() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        replicas.shrink(patch)
        yield


def applied(directory: Path, payloads: list[bytes]) -> tuple[list[Any], dict[Any, Any]]:
    """Returns the results of all entries and the state after them, of a node that gets them at once."""
    with Opened.as_replica(directory) as node:
        entries = [entry(number, one) for number, one in enumerate(payloads, 1)]
        node.try_(*entries)
        assert node.log.position == (len(payloads), 1)
        return results(entries), dump(node.log)


@examples(25, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32))
def test_grouping_and_restarts_change_nothing(seed: int) -> None:
    random = Random(seed)
    payloads = History(random).journal(30)
    with tempfile.TemporaryDirectory(dir=QUICK) as path:
        expected, state = applied(Path(path) / "together", payloads)
        found: list[Any] = []
        while len(found) < len(payloads):
            with Opened.as_replica(Path(path) / "single") as single:
                for one in payloads[len(found) : len(found) + random.randint(1, 10)]:
                    single.try_(write := entry(single.log.position[0] + 1, one))
                    found += results([write])
                last = dump(single.log)
        assert found == expected
        assert last == state


@examples(25, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32))
def test_failed_commits_change_nothing(seed: int) -> None:
    random = Random(seed)
    payloads = History(random).journal(30)
    with tempfile.TemporaryDirectory(dir=QUICK) as path, pytest.MonkeyPatch.context() as patch:
        expected, state = applied(Path(path) / "together", payloads)
        patch.setattr("omq.store.lmdb.replica.SPACE_RETRY_DELAY_S", 0)
        full = lmdb.DiskError("no space")
        full.code = errno.ENOSPC  # type: ignore[attr-defined]
        with Opened.as_replica(Path(path) / "failing") as node:
            begin = node.log._strong.begin
            failed = 0

            def begin_failing() -> Any:
                nonlocal failed
                errors: list[Exception | None] = [full] if not failed or random.random() < 0.5 else []
                failed += len(errors)
                return Failing(begin(), errors)

            patch.setattr(node.log._strong, "begin", begin_failing)
            entries = [entry(number, one) for number, one in enumerate(payloads, 1)]
            while entries:
                group = entries[: random.randint(1, 10)]
                entries = entries[len(group) :]
                node.try_(*group)
                assert results(group) == expected[group[0].position - 1 : group[-1].position]
            assert failed
            assert dump(node.log) == state


@examples(4, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32))
def test_a_killed_node_continues_at_its_position(seed: int) -> None:
    random = Random(seed)
    payloads = History(random).journal(120)
    with tempfile.TemporaryDirectory(dir=QUICK) as path:
        file, directory = Path(path) / "journal", Path(path) / "killed"
        replicas.write_journal(file, payloads)
        for _ in range(3):
            with replicas.start(directory, file) as process:
                for _ in range(random.randint(1, 40)):
                    process.stdout.readline()
                process.kill()
        expected, state = applied(Path(path) / "alive", payloads)
        with Opened.as_replica(directory) as killed:
            done, _ = killed.log.position
            assert done
            rest = [entry(number, one) for number, one in enumerate(payloads, 1) if number > done]
            killed.try_(*rest)
            assert results(rest) == expected[done:]
            assert dump(killed.log) == state


@examples(15, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32))
def test_a_node_without_power_continues_at_its_last_sync(seed: int) -> None:
    random = Random(seed)
    payloads = History(random).journal(60)
    with tempfile.TemporaryDirectory(dir=QUICK) as path:
        expected, state = applied(Path(path) / "alive", payloads)
        directory = Path(path) / "0"
        for failures in range(4):
            with Opened.as_replica(directory, flush_interval=3600.0) as node:
                for _ in range(random.randint(0, 3)):
                    apply_some(node, payloads, expected, random)
                node.log._flusher.flush()
                synced = node.log.position, dump(node.log)
                for _ in range(random.randint(0, 5)):
                    apply_some(node, payloads, expected, random)
                directory = Path(path) / str(failures + 1)
                shutil.copytree(Path(path) / str(failures), directory)
            lose_power(directory, "strong", random)
            with Opened.as_replica(directory) as node:
                assert (node.log.position, dump(node.log)) == synced
        with Opened.as_replica(directory) as node:
            while node.log.position[0] < len(payloads):
                apply_some(node, payloads, expected, random)
            assert dump(node.log) == state


def apply_some(node: Opened, payloads: list[bytes], expected: list[Any], random: Random) -> None:
    """Applies the next entries to a node."""
    done, _ = node.log.position
    group = [entry(done + 1 + i, one) for i, one in enumerate(payloads[done : done + random.randint(1, 6)])]
    node.try_(*group)
    assert results(group) == expected[done : done + len(group)]


def test_histories_do_something() -> None:
    """Most writes of the histories succeed, of each type some."""
    kinds, succeeded = Counter[str](), Counter[str]()
    for seed in range(5):
        history = History(Random(seed))
        with tempfile.TemporaryDirectory(dir=QUICK) as path:
            found, _ = applied(Path(path) / "node", history.journal(60))
        succeeded.update(kind for one in found[1:] for kind, result in one if isinstance(result, dict))
        kinds += history.kinds
    assert {kind for kind in kinds if succeeded[kind] < 3} == set()
    assert succeeded.total() > kinds.total() / 2
