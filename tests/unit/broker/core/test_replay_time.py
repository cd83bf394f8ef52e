"""Subscriptions that start at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from omq.broker.core.broadcast import BroadcastTopic
from omq.broker.core.broker import Broker
from omq.broker.errors import BrokerFailed, Overrun, TopicError
from omq.broker.start_time import StartTime
from omq.store.errors import StoreError
from omq.store.interface import Trim
from tests.support.broker_core import RecordingSink, append, core, run_pending, until

SECOND = 1_000_000


class WallClock:
    """The system's clock of the broker and its store: `now` is its time."""

    def __init__(self) -> None:
        self.now = 1_000 * SECOND

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> WallClock:
    clock = WallClock()
    for module in ("store.memory", "store.lmdb.applier", "broker.core.topic", "broker.core.broadcast"):
        monkeypatch.setattr(f"omq.{module}.wall", clock)
    return clock


async def filled(broker: Broker, wall: WallClock, count: int, **settings: object) -> BroadcastTopic:
    """Creates a topic whose message *n* is stored at *n* seconds after 1,000."""
    topic = await broker.create("t", persistence="weak", settings=settings)
    assert isinstance(topic, BroadcastTopic)
    for number in range(1, count + 1):
        wall.now = (1_000 + number) * SECOND
        await append(broker, topic, [b"%d" % number])
    wall.now = 2_000 * SECOND
    return topic


def at(seconds: float) -> StartTime:
    return StartTime(round(seconds * SECOND))


@pytest.mark.parametrize("place", ["memory", "disk"])
@pytest.mark.parametrize(
    ("seconds", "ids"),
    [(0, [1, 2, 3, 4]), (1_001, [1, 2, 3, 4]), (1_001.000001, [2, 3, 4]), (1_003, [3, 4]), (1_003.5, [4])],
)
async def test_a_subscription_starts_at_the_first_message_since_its_time(
    wall: WallClock, tmp_path: Path, place: str, seconds: float, ids: list[int]
) -> None:
    async with core(tmp_path / "store" if place == "disk" else None) as broker:
        topic = await filled(broker, wall, 3)
        sink = RecordingSink()
        broker.subscribe(topic, at(seconds), sink)
        await append(broker, topic, [b"4"])
        await until(lambda: len(sink.got) == len(ids))
        assert sink.got == [(id, b"%d" % id) for id in ids]


async def test_a_time_after_the_newest_message_starts_with_the_next_one(wall: WallClock) -> None:
    async with core() as broker:
        topic = await filled(broker, wall, 3)
        for seconds in (1_500, 2_000, 2_010):  # the client's clock may be ahead
            assert broker.subscribe(topic, at(seconds), RecordingSink()).position == 3


async def test_a_time_in_the_future_is_refused(wall: WallClock) -> None:
    async with core() as broker:
        topic = await filled(broker, wall, 3)
        with pytest.raises(TopicError) as caught:
            broker.subscribe(topic, at(2_010.000001), RecordingSink(), name="n")
        assert str(caught.value) == (
            "replay=1970-01-01T00:33:30.000001Z: must not be in the future; the broker's time is 1970-01-01T00:33:20Z"
        )
        assert topic.readers == 0
        assert topic.durables() == []


async def test_a_time_of_messages_is_not_in_the_future_after_the_clock_was_set_back(wall: WallClock) -> None:
    async with core() as broker:
        topic = await filled(broker, wall, 3)
        wall.now = 500 * SECOND
        assert broker.subscribe(topic, at(1_002), RecordingSink()).position == 1
        with pytest.raises(TopicError, match="must not be in the future"):
            broker.subscribe(topic, at(1_004), RecordingSink())


async def test_an_empty_topic_accepts_any_time_that_is_not_in_the_future(wall: WallClock) -> None:
    async with core() as broker:
        topic = await filled(broker, wall, 0)
        assert broker.subscribe(topic, at(0), RecordingSink()).position == 0
        assert broker.subscribe(topic, at(2_000), RecordingSink()).position == 0


async def test_a_time_before_dropped_messages_raises_overrun(wall: WallClock) -> None:
    async with core() as broker:
        topic = await filled(broker, wall, 5, max_messages=2)
        for seconds in (0, 1_002, 1_004):
            with pytest.raises(Overrun, match="the oldest is 4, stored at 1970-01-01T00:16:44Z") as caught:
                broker.subscribe(topic, at(seconds), RecordingSink(), name="n")
            assert caught.value.first == 4
            assert topic.durables() == []
        assert broker.subscribe(topic, at(1_004.5), RecordingSink()).position == 4


async def test_a_topic_without_kept_messages_accepts_the_present_only(wall: WallClock) -> None:
    async with core() as broker:
        topic = await filled(broker, wall, 3)
        await broker.store.do(Trim(topic.id, 4))
        with pytest.raises(Overrun, match=r"the oldest is 4$"):
            broker.subscribe(topic, at(1_999), RecordingSink())
        assert broker.subscribe(topic, at(2_000), RecordingSink()).position == 3


async def test_a_durable_subscription_starts_at_its_time_only_once(wall: WallClock) -> None:
    async with core() as broker:
        topic = await filled(broker, wall, 4)
        first = broker.subscribe(topic, at(1_002), RecordingSink(), name="n")
        assert first.position == 1
        first.move(2)
        first.end()
        for seconds in (1_004, 9_999):
            again = broker.subscribe(topic, at(seconds), RecordingSink(), name="n", reset=True)
            assert again.position == 2
            again.end()


async def test_an_overtaken_durable_subscription_restarts_at_its_time(wall: WallClock) -> None:
    async with core() as broker:
        topic = await filled(broker, wall, 3)
        broker.subscribe(topic, at(0), RecordingSink(), name="n").end()
        await broker.store.do(Trim(topic.id, 2))
        with pytest.raises(Overrun, match="message 1 of topic"):
            broker.subscribe(topic, at(1_003), RecordingSink(), name="n")
        assert broker.subscribe(topic, at(1_003), RecordingSink(), name="n", reset=True).position == 2


async def test_an_overtaken_durable_subscription_restarts_at_the_oldest_message_after_its_time(
    wall: WallClock,
) -> None:
    async with core() as broker:
        topic = await filled(broker, wall, 3)
        broker.subscribe(topic, at(0), RecordingSink(), name="n").end()
        await broker.store.do(Trim(topic.id, 2))
        sink = RecordingSink()
        broker.subscribe(topic, at(0), sink, name="n", reset=True)
        await until(lambda: len(sink.got) == 2)
        assert sink.ids == [2, 3]


async def test_messages_that_retention_drops_before_the_delivery_are_an_overrun(wall: WallClock) -> None:
    async with core() as broker:
        topic = await filled(broker, wall, 3)
        sink = RecordingSink(room_left=0)
        subscription = broker.subscribe(topic, at(0), sink)
        await broker.store.do(Trim(topic.id, 3))
        sink.room_left = 1 << 20
        subscription.resume()
        await run_pending(broker)
        assert [type(error) for error in sink.errors] == [Overrun]


async def test_a_store_that_cannot_be_searched_refuses(wall: WallClock, monkeypatch: pytest.MonkeyPatch) -> None:
    async with core() as broker:
        topic = await filled(broker, wall, 3)

        def fails(id: int) -> None:
            raise StoreError("topic 1 cannot be searched")

        with monkeypatch.context() as patch:
            patch.setattr(broker.store.store, "read", fails)
            with pytest.raises(BrokerFailed, match="cannot be searched"):
                broker.subscribe(topic, at(0), RecordingSink())
        assert topic.readers == 0
