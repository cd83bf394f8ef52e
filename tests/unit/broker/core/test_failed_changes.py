"""A change of a topic or group that the store refuses leaves all messages to its readers."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager

import pytest

from omq._core import blocks
from omq.broker.errors import BrokerError
from omq.store.errors import OutOfSpace
from omq.store.interface import Acknowledge
from tests.support.broker_core import FailingStore, RecordingSink, append, core, run_pending, until


@contextmanager
def full_disk(broker):
    """Refuses all writes of the block."""
    store = broker.store.store
    broker.store.store = FailingStore(store, OutOfSpace("no space"))
    try:
        yield
    finally:
        broker.store.store = store


@pytest.fixture
def soon(monkeypatch):
    """Shortens all delays of a broker."""

    def soon(broker):
        monkeypatch.setattr(broker, "later", lambda seconds, call: broker.loop.call_later(min(seconds, 0.001), call))

    return soon


async def consumed(broker, topic, count, **options):
    """Publishes messages, and returns a consumer that has them, with its sink."""
    await append(broker, topic, [b"%d" % number for number in range(1, count + 1)])
    sink = RecordingSink()
    consumer = broker.consume(topic, sink, **options)
    await until(lambda: len(sink.got) == count)
    return consumer, sink


def bodies(broker, topic):
    with broker.store.store.read(topic.id) as reader:
        return [one.body for block in reader.blocks(reader.first) for one in blocks.decode(*block, "t")]


@pytest.mark.parametrize("change", ["seek", "delete"])
async def test_dead_letters_that_fail_with_a_change_of_their_group_are_moved_later(soon, change):
    async with core() as broker:
        soon(broker)
        topic = await broker.create("t", persistence="weak", settings={"max_deliveries": 1})
        dead = await broker.create("t.dead", persistence="weak")
        await topic.make_group("g", "earliest")
        consumer, _ = await consumed(broker, topic, 3, group="g")
        await topic.flushed()
        with full_disk(broker):
            consumer.nack([(1, 2)])
            consumer.ack([(3, 3)])
            consumer.end()
            call = topic.seek_group("g", "earliest") if change == "seek" else topic.delete_group("g")
            # The moves are submitted first, and fail while the group is being changed.
            with pytest.raises(BrokerError, match="no space"):
                await asyncio.ensure_future(call)
        await until(lambda: topic.dead_lettered == 2)
        assert sorted(bodies(broker, dead)) == [b"1", b"2"]
        await until(lambda: broker.store.store.ack_set(topic.id, "g").floor == 3)
        assert topic.group_stats()[0]["lag"] == 0


@pytest.mark.parametrize("delivery", ["round-robin", "broadcast"])
@pytest.mark.parametrize("end", ["dead letter", "redelivery", "retry"])
async def test_messages_in_flight_are_redelivered_after_a_failed_deletion_of_the_topic(soon, delivery, end):
    async with core() as broker:
        soon(broker)
        settings = {"max_deliveries": 1, "retry_delay": 0} if end == "dead letter" else {"retry_delay": 0.05}
        topic = await broker.create("t", delivery=delivery, persistence="weak", settings=settings)
        dead = await broker.create("t.dead", persistence="weak")
        group = None
        if delivery == "broadcast":
            group = "g"
            await topic.make_group(group, "earliest")
        consumer, sink = await consumed(broker, topic, 3, group=group)
        await topic.flushed()
        with full_disk(broker):
            if end != "redelivery":
                consumer.nack([(1, 3)])
            with pytest.raises(BrokerError, match="no space"):
                await broker.delete("t")
        assert "was deleted" in str(sink.errors[0])
        assert broker.topic("t") is topic
        if end == "dead letter":
            await until(lambda: topic.dead_lettered == 3)
            assert sorted(bodies(broker, dead)) == [b"1", b"2", b"3"]
            return
        again = RecordingSink()
        consumer = broker.consume(topic, again, group=group)
        await until(lambda: len(again.got) == 3)
        assert again.ids == [1, 2, 3]
        consumer.ack([(1, 3)])
        await topic.flushed()
        assert broker.store.store.ack_set(topic.id, group or "").floor == 3


async def test_the_cursor_of_a_durable_subscription_is_stored_after_its_failed_deletion(soon):
    async with core() as broker:
        soon(broker)
        topic = await broker.create("t", persistence="weak")
        await append(broker, topic, [b"a"] * 3)
        subscription = broker.subscribe(topic, "earliest", RecordingSink(), name="n")
        await topic.flushed()
        with full_disk(broker):
            subscription.move(2)
            await run_pending(broker)  # it is not stored
            subscription.end()
            with pytest.raises(BrokerError, match="no space"):
                await topic.delete_durable("n")
        await topic.flushed()
        assert broker.store.store.cursors(topic.id) == {"n": 2}


@pytest.mark.parametrize("change", ["purge", "requeue"])
async def test_messages_that_a_failed_purge_has_left_count_as_lost_if_retention_drops_them(change):
    async with core() as broker:
        topic = await broker.create("t", persistence="weak", settings={"max_messages": 5})
        await broker.create("other", persistence="weak")
        await topic.make_group("g", "earliest")
        await append(broker, topic, [b"%d" % number for number in range(1, 6)])
        with full_disk(broker), pytest.raises(BrokerError, match="no space"):
            await (broker.purge(topic, None) if change == "purge" else broker.requeue(topic, None, "other", str))
        await append(broker, topic, [b"x"] * 3)
        assert topic.stats()["expired"] == 3
        await broker.purge(topic, 6)
        await append(broker, topic, [b"x"] * 5)  # 4 to 6 were purged, and retention drops 7 and 8
        assert topic.stats()["expired"] == 3 + 2


class LateStore(FailingStore):
    """A store that is given the cursors of one durable subscription only at the end."""

    def __init__(self, store, late):
        super().__init__(store, None)
        self.late = late
        self.waiting = []

    def submit_many(self, writes):
        late = [write for write in writes if getattr(write, "name", None) == self.late]
        self.waiting += late
        self.store.submit_many([write for write in writes if write not in late])


@pytest.mark.parametrize("late", ["a", "b"])
async def test_a_flush_waits_for_all_writes_in_whatever_order_they_are_answered(late):
    async with core() as broker:
        topic = await broker.create("t", persistence="weak")
        await append(broker, topic, [b"a"] * 3)
        subscriptions = [broker.subscribe(topic, "earliest", RecordingSink(), name=name) for name in ("a", "b")]
        await topic.flushed()
        store = broker.store.store = LateStore(broker.store.store, late)
        answers = []
        for position in (1, 2):
            for subscription in subscriptions:
                subscription.move(position)
            topic.flush(answers.append)
        await run_pending(broker)
        assert answers == []
        broker.store.store = store.store
        store.store.submit_many(store.waiting)
        await until(lambda: len(answers) == 2)
        assert answers == [None, None]
        assert broker.store.store.cursors(topic.id) == {"a": 2, "b": 2}


async def test_a_flush_reports_a_failed_write_next_to_one_that_is_answered_later(soon):
    async with core() as broker:
        soon(broker)
        topic = await broker.create("t", persistence="weak")
        await append(broker, topic, [b"a"] * 3)
        subscriptions = [broker.subscribe(topic, "earliest", RecordingSink(), name=name) for name in ("a", "b")]
        await topic.flushed()
        store = broker.store.store = LateStore(broker.store.store, "a")
        subscriptions[0].move(1)
        await run_pending(broker)
        with full_disk(broker):
            subscriptions[1].move(1)
            answers = []
            topic.flush(answers.append)
            await run_pending(broker)
            assert answers == []
            store.store.submit_many(store.waiting)
            await until(lambda: answers)
        assert "no space" in str(answers[0])
        broker.store.store = store.store
        await until(lambda: broker.store.store.cursors(topic.id) == {"a": 1, "b": 1})


class HoldingStore(FailingStore):
    """A store that is given the acks of groups only at the end."""

    def __init__(self, store):
        super().__init__(store, None)
        self.waiting = []

    def submit_many(self, writes):
        held = [write for write in writes if isinstance(write, Acknowledge)]
        self.waiting += held
        self.store.submit_many([write for write in writes if write not in held])

    def write_at_once(self, writes, *, allow_wal=False):
        return False


async def test_an_ack_that_fails_while_its_group_is_moved_is_stored_if_that_fails_too(soon):
    async with core() as broker:
        soon(broker)
        topic = await broker.create("t", persistence="weak")
        await topic.make_group("g", "earliest")
        consumer, _ = await consumed(broker, topic, 3, group="g")
        await topic.flushed()
        store = broker.store.store = HoldingStore(broker.store.store)
        consumer.ack([(1, 1)])
        consumer.end()
        moved = asyncio.ensure_future(topic.seek_group("g", "earliest"))
        await until(lambda: store.waiting)
        topic.groups["g"].ack_late(2, 3)
        with full_disk(broker):
            store.store.submit_many(store.waiting)
            with pytest.raises(BrokerError, match="no space"):
                await moved
        broker.store.store = store.store
        await until(lambda: broker.store.store.ack_set(topic.id, "g").floor == 3)
