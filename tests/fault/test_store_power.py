"""Weak topics after a power loss: any of the pages written since the last sync may be on the disk."""

import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from omq._core import blocks
from omq.store.interface import Acknowledge, Append, DeleteTopic, SetCursor
from omq.store.lmdb.catalog import RESERVED_IDS
from omq.store.lmdb.store_directory import StoreDirectory
from tests.support.open_store import Opened

QUICK = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
SEEDS = int(os.environ.get("OMQ_FAULT_SEEDS", "200"))
PAGE = 4096


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=QUICK) as path:
        yield Path(path)


class Writing:
    """Random writes to weak topics, which reuse pages."""

    def __init__(self, log: Opened, chance: random.Random) -> None:
        self.log = log
        self._chance = chance
        self.topic = log.make("t", persistence="weak", max_bytes=150_000)
        self.jobs = log.make("jobs", "round_robin", "weak")
        self._made = 0

    def some(self) -> None:
        """Makes a few transactions."""
        log, chance = self.log, self._chance
        for _ in range(chance.randint(1, 12)):
            match chance.randrange(7):
                case 0 | 1:
                    log.append(self.topic, *[os.urandom(chance.choice([10, 500, 9000]))] * chance.randint(1, 12))
                case 2 | 3:
                    log.append(self.jobs, *[b"job"] * chance.randint(1, 200))
                case 4:
                    last = log.log.topic(self.jobs).last
                    if last:
                        first = chance.randint(1, last)
                        log.do(Acknowledge(self.jobs, [(first, chance.randint(first, last))], last))
                case 5:
                    log.do(SetCursor(self.topic, "n", chance.randrange(1000)))
                    self._made += 1
                    other = log.make(f"other {self._made}", persistence="weak")
                    log.append(other, bytes(20_000))
                    log.do(DeleteTopic(other))
                case 6:
                    for _ in range(chance.randint(1, 9)):
                        log.log.write_at_once([Append(self.topic, blocks.encode([b"noted"]), 1)], allow_wal=True)

    def state(self) -> tuple[object, ...]:
        """Returns the visible state of the store."""
        log = self.log.log
        acks = log.ack_set(self.jobs)
        return (
            self.log.read(self.topic),
            self.log.read(self.jobs),
            log.cursors(self.topic),
            (acks.floor, acks.last_delivered, acks.pages),
            [(state.first, state.last, state.bytes) for state in (log.topic(self.topic), log.topic(self.jobs))],
        )


def lose_power(directory: Path, seed: int) -> None:
    chance = random.Random(seed)
    store, lost = directory / "store", directory / "lost"
    with Opened.on_disk(store, flush_interval=3600.0) as log:
        writing = Writing(log, chance)
        for _ in range(chance.randint(1, 4)):
            writing.some()
            log.log._flusher.flush()
        data = store / "weak" / "data.mdb"
        synced = data.read_bytes()
        expected = writing.state()
        kept = (store / "weak" / "synced").read_bytes()
        versions = [synced]
        for _ in range(chance.randint(1, 8)):
            writing.some()
            versions.append(data.read_bytes())
        assert (store / "weak" / "synced").read_bytes() == kept
        shutil.copytree(store, lost)
    # Each page comes from a random version of the file, whose length is between those of the versions.
    size = chance.randint(len(synced) // PAGE, max(map(len, versions)) // PAGE) * PAGE
    likely = chance.random()
    pages = []
    for offset in range(0, size, PAGE):
        some = [version[offset : offset + PAGE] for version in versions if len(version) > offset] or [bytes(PAGE)]
        pages.append(chance.choice(some) if chance.random() < likely else some[0])
    (lost / "weak" / "data.mdb").write_bytes(b"".join(pages))
    with Opened.on_disk(lost) as log:
        assert "the power was lost" in log.log.findings[1]
        writing.log = log
        *seen, _ = writing.state()
        *wanted, ends = expected
        # Reserved ids count as acknowledged.
        (first, last, _), (_, last_job, _) = ends  # type: ignore[misc]
        assert seen[:3] == wanted[:3]
        assert log.log.topic(writing.topic).first == (first if last else RESERVED_IDS + 1)
        acks = log.log.ack_set(writing.jobs)
        assert acks.last_delivered == wanted[3][1]  # type: ignore[index]
        for id in range(1, last_job + 1):
            was = id <= wanted[3][0] or bool(wanted[3][2].get(id // PAGE, 0) >> id % PAGE & 1)  # type: ignore[index]
            assert (id in acks) == was
        assert log.append(writing.topic, b"new").first == RESERVED_IDS + 1 > last
        assert list(acks.missing(last_job + 1, RESERVED_IDS)) == []
        writing.some()
    with Opened.on_disk(lost) as log:
        assert log.log.findings == []


@pytest.fixture(autouse=True)
def _another_boot(monkeypatch: pytest.MonkeyPatch) -> None:
    boots = iter(range(1000))
    monkeypatch.setattr(StoreDirectory, "_boot", lambda self: f"boot {next(boots)}")


@pytest.mark.parametrize("seed", range(6))
def test_power_is_lost(directory: Path, seed: int) -> None:
    lose_power(directory, seed)


@pytest.mark.fault
@pytest.mark.parametrize("seed", range(6, 6 + SEEDS))
def test_power_is_lost_many_times(directory: Path, seed: int) -> None:
    lose_power(directory, seed)
