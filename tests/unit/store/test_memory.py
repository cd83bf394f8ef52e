"""The bounds of the store in memory."""

from typing import Any

import pytest

from omq._core import blocks
from omq.store import clock, interface
from omq.store.errors import StagesFull
from omq.store.interface import AbortStage, CommitStages, DeleteTopic, Stage
from tests.support.open_store import Opened


def test_a_write_in_memory_touches_only_its_topic() -> None:
    class Counted(dict[int, Any]):
        looked = 0

        def items(self) -> Any:
            Counted.looked += len(self)
            return super().items()

        def values(self) -> Any:
            Counted.looked += len(self)
            return super().values()

    with Opened.in_memory() as log:
        for i in range(100):
            log.make(f"t{i}", persistence="transient")
        log.log._engine.topics = Counted(log.log._engine.topics)
        assert log.append(1, b"x").first == 1
        assert Counted.looked == 0
        assert log.grown[1] == 1
        assert [log.make(name, persistence="transient") for name in ("new", "t50")] == [101, 51]
        assert Counted.looked == 0


@pytest.mark.parametrize("settings", [{"max_bytes": 10_000}, {}])
def test_stages_in_memory_are_bounded(settings: dict[str, int]) -> None:
    with Opened.in_memory(max_memory=10_000) as log:
        topic = log.make("t", persistence="transient", **settings)
        record = blocks.encode([bytes(4000)])
        for stage in (b"a", b"b"):
            log.do(Stage(topic, record, 1, stage, 1))
            log.do(Stage(topic, record, 1, stage, 1))
        for stage in (b"b", b"c"):
            with pytest.raises(StagesFull, match="commit or abort"):
                log.do(Stage(topic, record, 1, stage, 2))
        log.do(AbortStage(b"a"))
        log.do(Stage(topic, record, 1, b"c", 1))
        assert log.do(CommitStages(b"c", [b"b", b"c"])).published == [(b"b", topic, 1, 1), (b"c", topic, 2, 1)]
        for stage in (b"a", b"b"):
            log.do(Stage(topic, record, 1, stage, 1))
        log.do(DeleteTopic(topic))
        assert log.log._engine._stages == {}


def test_idle_producers_in_memory_expire(monkeypatch) -> None:
    with Opened.in_memory() as log:
        topic = log.make("t", persistence="transient")
        log.append(topic, b"x", producer=b"a", sequence=1)
        now = clock.uptime()
        monkeypatch.setattr("omq.store.memory.uptime", lambda: now + interface.PRODUCER_TIMEOUT_US * 2)
        log.append(topic, b"x", producer=b"b", sequence=1)
        known = log.log._engine.topics[topic].producers
        assert list(known) == [b"b"]
        monkeypatch.setattr("omq.store.memory.MAX_PRODUCERS", 2)
        for name in b"c", b"b", b"d":
            log.append(topic, b"x", producer=name, sequence=2)
        assert list(known) == [b"b", b"d"]
