"""LMDB's 256 reader slots."""

import lmdb

from omq.store.errors import Gone
from omq.store.interface import MoveToDeadLetter, Trim
from omq.store.lmdb import environment
from tests.support.open_store import Opened


def test_failed_moves_release_their_reader_slots(store: Opened) -> None:
    """Moves of dropped dead letters to the other environment, whose errors are kept."""
    jobs, dead = store.make("jobs", "round_robin", "weak"), store.make("dead", persistence="strong")
    count = 2 * environment.MAX_READERS
    store.append(jobs, *[b"x"] * count)
    store.do(Trim(jobs, count + 1))
    moves = [MoveToDeadLetter(jobs, id + 1, dead) for id in range(count)]
    store.try_(*moves)
    assert all(isinstance(move.error, Gone) for move in moves)
    store.log._flusher.flush()
    assert store.log.broken is None
    assert store.append(jobs, b"y").first == count + 1


def test_without_a_reader_slot_the_sync_is_retried(store: Opened, caplog) -> None:
    topic = store.make("t", persistence="weak")
    store.append(topic, b"x")
    weak = store.log._writers["weak"].environment
    readers = []
    while len(readers) < 2 * environment.MAX_READERS:
        try:
            readers.append(weak.begin_read())
        except lmdb.ReadersFullError:
            break
    store.append(topic, b"y")
    store.log._flusher.flush()
    assert "will be retried" in caplog.text
    assert store.log.broken is None
    while readers:
        weak.end_read(readers.pop())
    store.log._flusher.flush()
    assert store.append(topic, b"z").first == 3
