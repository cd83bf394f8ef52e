"""What a queue keeps in memory."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

from omq.pzq.queue import Queue
from omq.store.interface import TopicState
from omq.store.settled import Settled


def test_what_is_done_with_elsewhere_and_never_read_is_not_kept_in_mind() -> None:
    journal: Any = SimpleNamespace(store=SimpleNamespace(id="0" * 32, settled=lambda id: Settled()))
    queue = Queue(journal, TopicState(1, "replicas", "round_robin", "weak", {}, 1, 0, 0), lambda seconds, call: None)
    chance = random.Random(1)
    for turn in range(100):
        ids = [*range(turn * 100 + 1, turn * 100 + 101)]
        queue.grown(ids[-1])
        chance.shuffle(ids)
        for id in ids:
            queue.discard(id)
        assert not queue._discarded
    assert queue.is_empty
    queue.grown(10_002)
    queue.discard(10_002)
    assert queue._unread[0] == (10_001, 10_002)
    queue.discard(10_001)
    assert queue.is_empty
