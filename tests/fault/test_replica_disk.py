"""A replica on a full disk."""

from pathlib import Path

from omq._core import blocks
from omq.store.errors import StoreClosed
from omq.store.interface import Append, MakeTopic, Write
from omq.store.internal import ApplyEntry
from tests.support.disks import enlarge
from tests.support.open_store import Opened
from tests.support.replicas import dump
from tests.support.waits import until

RECORD = blocks.encode([bytes(5000)])
ENTRIES = 300


def entries(after: int) -> list[ApplyEntry]:
    """Returns the entries of the journal after a position."""
    topics: list[Write] = [MakeTopic("t", "broadcast", "weak"), MakeTopic("transient", "broadcast", "transient")]
    found = [ApplyEntry(1, 1, 1, topics)]
    found += [ApplyEntry(number, 1, number, [Append(1, RECORD, 1)]) for number in range(2, ENTRIES + 1)]
    return found[after:]


def test_a_full_disk_holds_entries_and_loses_none(small_disk: Path, tmp_path: Path) -> None:
    filler = small_disk / "filler"
    with Opened.as_replica(small_disk / "store") as node:
        filler.write_bytes(bytes(100_000))
        node.log.submit_many(first := entries(0))
        until(lambda: node.log.shortage)
        held, _ = node.log.position
        assert 10 < held < ENTRIES
        assert "the disk is full" in node.log.shortage
        assert node.log.broken is None
        filler.unlink()  # space for some more
        until(lambda: node.log.position[0] > held)
    assert {type(one.error) for one in first} == {type(None), StoreClosed}
    with Opened.as_replica(small_disk / "store") as node:
        assert node.log.findings == []
        assert node.log.topic(2).persistence == "transient"  # opening it does not wait for space
        done, _ = node.log.position
        assert [one.position for one in first if one.error is None] == list(range(1, done + 1))
        assert [id for id, _ in node.read(1)] == list(range(1, done))
        node.log.submit_many(rest := entries(done))
        until(lambda: node.log.shortage)
        enlarge(small_disk)
        node.wait(rest)
        assert [one.error for one in rest] == [None] * len(rest)
        assert node.log.position == (ENTRIES, 1)
        with Opened.as_replica(tmp_path / "other") as other:
            other.try_(*entries(0))
            assert dump(node.log) == dump(other.log)


def test_on_a_full_disk_a_sync_frees_pages(small_disk: Path) -> None:
    """The pages of dropped messages are free only after a sync, and the next one would be due in an hour."""
    with Opened.as_replica(small_disk / "store", flush_interval=3600.0) as node:
        made = ApplyEntry(1, 1, 1, [MakeTopic("t", "broadcast", "weak", {"max_messages": 20})])
        some = [ApplyEntry(number, 1, number, [Append(1, RECORD, 1)]) for number in range(2, ENTRIES + 1)]
        node.try_(made, *some)
        assert [one.error for one in some] == [None] * len(some)
        assert node.log.topic(1).first == ENTRIES - 20
        assert node.log.stats().engines["strong"].full > 0
