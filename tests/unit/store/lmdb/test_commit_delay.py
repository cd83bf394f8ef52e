"""The commit delay: strong commits wait for appends that are about to come."""

import itertools
import threading
import time

import pytest

from omq._core import blocks
from omq.store.interface import Append
from omq.store.lmdb.writer import MAX_COMMIT_DELAY_S, MAX_SKIPPED_COMMITS, CommitDelay
from tests.support.lmdb_faults import Failing
from tests.support.open_store import Opened


def test_a_commit_waits_for_as_many_as_the_last_one_had() -> None:
    delay = CommitDelay()
    assert delay.next_wait(3, 1.0) == (3, 0.0)  # no commit before
    delay.committed(16, 0.002, now=1.0)
    assert delay.next_wait(48, 1.0005) == pytest.approx((64, 0.0015))
    assert delay.next_wait(0, 1.0005) == pytest.approx((16, 0.0015))


def test_the_delay_is_at_most_the_duration_of_the_last_commit() -> None:
    delay = CommitDelay()
    delay.committed(16, 0.002, now=1.0)
    assert delay.next_wait(0, 1.002) == (0, 0.0)
    assert delay.next_wait(0, 60.0) == (0, 0.0)
    delay.committed(16, 3.0, now=1.0)  # a disk that was busy
    assert delay.next_wait(0, 1.0) == pytest.approx((16, MAX_COMMIT_DELAY_S))


def test_without_appends_there_is_no_delay() -> None:
    delay = CommitDelay()
    delay.committed(0, 0.002, now=1.0)
    assert delay.next_wait(5, 1.0) == (5, 0.0)


def test_useless_delays_become_rarer() -> None:
    delay = CommitDelay()
    waits = []
    for commit in range(1000):
        delay.committed(16, 0.002, now=1.0)
        wanted, _ = delay.next_wait(1, 1.0)
        if wanted > 1:
            waits.append(commit)
            delay.record_wait(paid=False)
    gaps = [after - before for before, after in itertools.pairwise(waits)]
    assert gaps == sorted(gaps)
    assert gaps[0] == 2
    assert gaps[-1] == MAX_SKIPPED_COMMITS + 1
    delay.record_wait(paid=True)
    delay.committed(16, 0.002, now=1.0)
    assert delay.next_wait(1, 1.0)[0] == 17


def test_a_producer_with_a_window_has_all_of_it_in_each_commit(store: Opened, monkeypatch) -> None:
    """Of 64 messages in flight, the first commit has 16. Without a delay, commits would have 48 and 16 in turn."""
    topic = store.make("t", persistence="strong")
    environment = store.log._writers["strong"].environment
    begin, slow = environment.begin, 0.02

    class Slow(Failing):
        def commit(self) -> None:
            time.sleep(slow)
            super().commit()

    monkeypatch.setattr(environment, "begin", lambda: Slow(begin(), []))
    monkeypatch.setattr("omq.store.lmdb.writer.MAX_COMMIT_DELAY_S", slow)
    before = store.log._writers["strong"].commits
    answered = threading.Semaphore(4)
    notify = store.log._notify

    def on_written(writes) -> None:
        notify(writes)
        for write in writes:
            answered.release(isinstance(write, Append))

    monkeypatch.setattr(store.log, "_notify", on_written)
    writes = [Append(topic, blocks.encode([b"%d" % i] * 16), 16) for i in range(80)]
    for write in writes:
        answered.acquire()
        store.log.submit(write)
    store.wait(writes)
    commits = store.log._writers["strong"].commits - before
    assert commits < 30, commits  # at least 20; 40 without a delay
