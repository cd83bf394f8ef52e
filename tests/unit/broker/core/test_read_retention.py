"""`retention="read"`: a topic keeps its messages until all durable subscriptions and groups have acknowledged them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from omq.broker.core import broadcast
from omq.broker.core import topic as topics
from omq.broker.core.broadcast import BroadcastTopic, TopicSubscription
from omq.broker.core.broker import Broker
from omq.broker.core.topic_consumer import TopicConsumer
from omq.broker.errors import Overrun, StoreFull, TopicError
from omq.store.errors import OutOfSpace
from omq.store.interface import Acknowledge, AlterTopic, DeleteCursor, DeleteGroup, SetCursor, SetGroup, Trim
from tests.support.broker_core import RecordingSink, append, core, run_pending, until
from tests.support.lmdb_faults import NoRoom

KINDS = [("memory", "weak"), *(("disk", kind) for kind in ("strong", "weak", "async", "transient"))]
of_every_kind = pytest.mark.parametrize(("place", "kind"), KINDS)


@asynccontextmanager
async def running(place: str, directory: Path) -> AsyncIterator[Broker]:
    async with core(directory if place == "disk" else None) as broker:
        yield broker


async def make(broker: Broker, kind: str = "weak", count: int = 0, **more: Any) -> BroadcastTopic:
    """Creates a topic that keeps messages until they are read."""
    topic = await broker.create("t", persistence=kind, settings={"retention": "read", **more})
    assert isinstance(topic, BroadcastTopic)
    await publish(broker, topic, count)
    return topic


async def publish(broker: Broker, topic: BroadcastTopic, count: int) -> None:
    if count:
        await append(broker, topic, [b"x"] * count)
        await until(lambda: topic.readable == topic.last)


def reader(broker: Broker, topic: BroadcastTopic, name: str, replay: str | int = "earliest") -> TopicSubscription:
    return broker.subscribe(topic, replay, RecordingSink(), name=name)


async def member(
    broker: Broker, topic: BroadcastTopic, group: str, replay: str | int = "earliest", credit: int = 1000
) -> tuple[TopicConsumer, RecordingSink]:
    """Joins a group."""
    await topic.make_group(group, replay)
    sink = RecordingSink()
    return broker.consume(topic, sink, group=group, credit=credit), sink


async def oldest(broker: Broker, topic: BroadcastTopic) -> int:
    """Waits until all acks and drops so far are stored; returns the oldest id."""
    await topic.flushed()
    await run_pending(broker)  # the trim is submitted
    await broker.store.do(Trim(topic.id, 0))  # and everything before this write is applied
    return topic.state().first


# The lowest cursor or ack floor


@of_every_kind
async def test_messages_stay_until_the_last_reader_has_acknowledged_them(tmp_path: Path, place: str, kind: str) -> None:
    async with running(place, tmp_path) as broker:
        topic = await make(broker, kind, 10)
        first, second = reader(broker, topic, "first"), reader(broker, topic, "second")
        consumer, sink = await member(broker, topic, "workers")
        await until(lambda: len(sink.ids) == 10)
        first.move(8)
        consumer.ack([(1, 9)])
        assert await oldest(broker, topic) == 1
        second.move(6)
        await until(lambda: topic.state().first == 7)
        second.move(10)
        await until(lambda: topic.state().first == 9)
        first.move(10)
        await until(lambda: topic.state().first == 10)
        consumer.ack([(10, 10)])
        await until(lambda: topic.state().first == 11)
        assert topic.state().bytes == 0
        await publish(broker, topic, 1)
        assert topic.state().first == 11


@of_every_kind
async def test_messages_of_a_group_that_are_in_flight_or_come_back_stay(tmp_path: Path, place: str, kind: str) -> None:
    async with running(place, tmp_path) as broker:
        topic = await make(broker, kind, 10, retry_delay=3600)
        consumer, sink = await member(broker, topic, "workers")
        await until(lambda: len(sink.ids) == 10)
        consumer.ack([(2, 10)])
        assert await oldest(broker, topic) == 1, "message 1 is in flight"
        consumer.nack([(1, 1)])
        assert await oldest(broker, topic) == 1, "it waits for its retry delay"
        consumer.end()
        await topic.seek_group("workers", 4)
        await until(lambda: topic.state().first == 5)


@of_every_kind
async def test_without_readers_nothing_is_dropped_but_by_the_bounds(tmp_path: Path, place: str, kind: str) -> None:
    async with running(place, tmp_path) as broker:
        topic = await make(broker, kind, 5, max_messages=5)
        other = broker.subscribe(topic, "earliest", sink := RecordingSink())
        await until(lambda: len(sink.ids) == 5)
        other.end()
        with pytest.raises(StoreFull, match="max_messages=5"):
            await append(broker, topic, [b"x"])
        assert await oldest(broker, topic) == 1
        first = reader(broker, topic, "n")
        first.move(2)
        await until(lambda: topic.state().first == 3)
        await publish(broker, topic, 2)
        first.end()
        await topic.delete_durable("n")
        assert await oldest(broker, topic) == 3
        with pytest.raises(StoreFull):
            await append(broker, topic, [b"x"])
        await broker.alter("t", {"overflow": "drop-oldest"})
        await publish(broker, topic, 2)
        assert topic.state().first == 5


async def test_a_new_reader_keeps_messages_from_its_start_on() -> None:
    async with core() as broker:
        topic = await make(broker, count=10)
        first = reader(broker, topic, "first")
        reader(broker, topic, "late", 4)
        await member(broker, topic, "workers", 6)
        first.move(10)
        await until(lambda: topic.state().first == 5)
        late = await member(broker, topic, "latest", "latest")
        assert late[1].ids == []
        with pytest.raises(Overrun, match="the oldest is 5"):
            reader(broker, topic, "too late", 3)
        assert reader(broker, topic, "all").position == 4


@of_every_kind
async def test_deleted_readers_free_their_messages(tmp_path: Path, place: str, kind: str) -> None:
    async with running(place, tmp_path) as broker:
        topic = await make(broker, kind, 10)
        lagging = reader(broker, topic, "lagging")
        consumer, _ = await member(broker, topic, "workers", 3)
        reader(broker, topic, "current").move(8)
        lagging.end()
        consumer.end()
        await topic.delete_durable("lagging")
        await until(lambda: topic.state().first == 4)
        await topic.delete_group("workers")
        await until(lambda: topic.state().first == 9)


async def test_a_deletion_that_fails_frees_nothing() -> None:
    async with core() as broker:
        topic = await make(broker, count=10)
        reader(broker, topic, "lagging").end()
        consumer, _ = await member(broker, topic, "workers")
        consumer.end()
        reader(broker, topic, "current").move(8)
        await topic.flushed()
        submit = broker.store.submit

        def fail(write: Any, done: Any) -> None:
            if isinstance(write, DeleteCursor | DeleteGroup):
                write.error = OutOfSpace("no space")
                broker.loop.call_soon(done, write)
            else:
                submit(write, done)

        broker.store.submit = fail  # type: ignore[method-assign]
        for deletion in (topic.delete_durable("lagging"), topic.delete_group("workers")):
            with pytest.raises(StoreFull):
                await deletion
            assert await oldest(broker, topic) == 1
        broker.store.submit = submit  # type: ignore[method-assign]
        assert {one["name"] for one in topic.durables()} == {"lagging", "current"}
        assert [one["name"] for one in topic.group_stats()] == ["workers"]


async def test_a_dead_letter_counts_as_acknowledged() -> None:
    async with core() as broker:
        topic = await make(broker, count=2, max_deliveries=1, retry_delay=0)
        consumer, sink = await member(broker, topic, "workers")
        await until(lambda: len(sink.ids) == 2)
        consumer.nack([(1, 1)])
        await until(lambda: topic.state().first == 2)
        assert broker.topic("t.dead").state().last == 1


# Cursors do not move back


async def test_a_cursor_does_not_move_back() -> None:
    async with core() as broker:
        topic = await make(broker, count=10)
        one = reader(broker, topic, "n")
        reader(broker, topic, "lagging").move(2)
        one.move(7)
        one.move(3)
        assert {each["name"]: each["position"] for each in topic.durables()} == {"n": 7, "lagging": 2}
        await until(lambda: topic.state().first == 3)


async def test_a_position_that_was_moved_back_before_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if the lower position is not stored yet when the messages begin to be kept."""
    async with core() as broker:
        topic = await broker.create("t", persistence="weak")
        assert isinstance(topic, BroadcastTopic)
        await publish(broker, topic, 10)
        one = reader(broker, topic, "n")
        one.move(9)
        await topic.flushed()
        held: list[Any] = []
        submit = broker.store.submit

        def hold(write: Any, done: Any) -> None:
            if isinstance(write, SetCursor):
                held.append((write, done))
            else:
                submit(write, done)

        monkeypatch.setattr(broker.store, "submit", hold)
        one.move(3)
        altering = asyncio.ensure_future(broker.alter("t", {"retention": "read"}, force=True))
        await until(lambda: "retention" in topic.settings)
        await until(lambda: topic.state().first == 4)
        await run_pending(broker)
        assert topic.state().first == 4
        assert broker.store.store.cursors(topic.id) == {"n": 9}
        monkeypatch.undo()
        for write, done in held:
            submit(write, done)
        await altering
        assert await oldest(broker, topic) == 4


# Durable before dropped


@pytest.mark.parametrize("kind", ["strong", "weak"])
async def test_acks_are_durable_before_messages_are_dropped(tmp_path: Path, kind: str) -> None:
    """The writes reach the store in this order, and fail or succeed in it."""
    async with core(tmp_path) as broker:
        topic = await make(broker, kind, 5)
        one = reader(broker, topic, "n")
        consumer, sink = await member(broker, topic, "workers")
        await until(lambda: len(sink.ids) == 5)
        await topic.flushed()
        trims: list[tuple[int, dict[str, int], dict[str, int]]] = []
        submit = broker.store.submit

        def watch(write: Any, done: Any) -> None:
            if isinstance(write, Trim):
                store = broker.store.store
                trims.append((write.first, store.cursors(topic.id), store.ack_floors(topic.id)))
            submit(write, done)

        broker.store.submit = watch  # type: ignore[method-assign]
        for id in range(1, 6):
            one.move(id)
            consumer.ack([(id, id)])
        await until(lambda: topic.state().first == 6)
        assert trims
        for first, cursors, floors in trims:
            assert first <= min(*cursors.values(), *floors.values()) + 1


@pytest.mark.parametrize("kind", ["strong", "weak"])
async def test_a_broker_that_ends_between_ack_and_drop_drops_at_its_start(tmp_path: Path, kind: str) -> None:
    async with core(tmp_path) as broker:
        topic = await make(broker, kind, 10)
        await broker.store.do(SetCursor(topic.id, "n", 8))
        await broker.store.do(SetGroup(topic.id, "workers", 2))
        await broker.store.do(Acknowledge(topic.id, [(3, 5), (7, 9)], 10, group="workers"))
        assert topic.state().first == 1
    async with core(tmp_path) as broker:
        topic = broker.topic("t")  # type: ignore[assignment]
        await until(lambda: topic.state().first == 6)
        consumer, sink = await member(broker, topic, "workers")
        await until(lambda: sink.ids == [6, 10])
        consumer.ack([(6, 6)])
        await until(lambda: topic.state().first == 9)


@pytest.mark.parametrize("dead_kind", ["weak", "transient"])
async def test_ack_floors_are_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dead_kind: str) -> None:
    """No drop reads them from the store, in the event loop."""
    async with core(tmp_path) as broker:
        await broker.create("dead", persistence=dead_kind)
        topic = await make(broker, count=6)
        await broker.alter("t", {"max_deliveries": 1, "dead_letter": "dead"})
        consumers = [await member(broker, topic, name) for name in ("a", "b", "deleted")]
        await until(lambda: all(len(sink.ids) == 6 for _, sink in consumers))
        reads: list[str] = []
        for name in ("ack_floors", "all_ack_floors", "ack_set"):
            monkeypatch.setattr(broker.store.store, name, lambda *about, name=name: reads.append(name))
        (a, _), (b, _), (deleted, _) = consumers
        a.ack([(1, 3), (5, 6)])
        b.ack([(2, 6)])
        deleted.end()
        await run_pending(broker)
        await topic.flushed()
        assert topic.state().first == 1
        b.nack([(1, 1)])  # the dead letter advances the floor
        await topic.delete_group("deleted")
        await until(lambda: topic.state().first == 4)
        a.ack([(4, 4)])
        await until(lambda: topic.state().first == 7)
        assert not reads
        monkeypatch.undo()
        assert broker.store.store.ack_floors(topic.id) == topic._ack_floors == {"a": 6, "b": 6}


async def test_acks_that_could_not_be_stored_drop_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store has applied them, and its commit has failed."""
    async with core(tmp_path) as broker:
        topic = await make(broker, count=6)
        consumer, sink = await member(broker, topic, "workers")
        await until(lambda: len(sink.ids) == 6)
        await topic.flushed()
        monkeypatch.setattr(topics, "_SAVE_RETRY_DELAY_S", 60.0)
        environment = broker.store.store._engines[topic.id].environment  # type: ignore[attr-defined]
        full = NoRoom(environment, monkeypatch, every=True).full
        full.set()
        consumer.ack([(1, 6)])
        with pytest.raises(StoreFull):
            await topic.flushed()
        topic._trim()
        full.clear()
        await broker.store.do(AlterTopic(topic.id, topic.settings))  # after a drop, if there is one
        assert topic.state().first == 1
        topic._retry()
        await until(lambda: topic.state().first == 7)


async def test_a_drop_is_retried_after_the_disk_was_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broadcast, "_TRIM_RETRY_DELAY_S", 0.01)
    async with core() as broker:
        topic = await make(broker, count=5)
        submit, refused = broker.store.submit, []

        def full(write: Any, done: Any) -> None:
            if isinstance(write, Trim) and not refused:
                refused.append(write)
                write.error = OutOfSpace("no space")
                done(write)
            else:
                submit(write, done)

        monkeypatch.setattr(broker.store, "submit", full)
        reader(broker, topic, "n").move(5)
        await until(lambda: topic.state().first == 6)
        assert refused


async def test_a_reader_that_comes_while_a_drop_is_stored_starts_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with core() as broker:
        topic = await make(broker, count=10)
        held: list[Any] = []
        submit = broker.store.submit

        def hold(write: Any, done: Any) -> None:
            if isinstance(write, Trim):
                held.append((write, done))
            else:
                submit(write, done)

        monkeypatch.setattr(broker.store, "submit", hold)
        reader(broker, topic, "n").move(6)
        await until(lambda: held)
        assert topic.state().first == 1
        assert reader(broker, topic, "new").position == 6
        with pytest.raises(Overrun, match="the oldest is 7"):
            reader(broker, topic, "other", 3)
        await topic.make_group("workers", "earliest")
        assert broker.store.store.ack_floors(topic.id) == {"workers": 6}
        monkeypatch.undo()
        for write, done in held:
            submit(write, done)
        await until(lambda: topic.state().first == 7)


async def test_a_group_that_is_being_moved_back_keeps_its_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    async with core() as broker:
        topic = await make(broker, count=10)
        current, lagging = reader(broker, topic, "current"), reader(broker, topic, "lagging")
        await topic.make_group("workers", 8)
        current.move(10)
        held: list[Any] = []
        submit = broker.store.submit

        def hold(write: Any, done: Any) -> None:
            if isinstance(write, SetGroup):
                held.append((write, done))
            else:
                submit(write, done)

        monkeypatch.setattr(broker.store, "submit", hold)
        changes = [topic.seek_group("workers", 3), topic.make_group("new", 5)]
        tasks = [asyncio.ensure_future(change) for change in changes]
        await until(lambda: len(held) == 2)
        lagging.move(10)
        await until(lambda: topic.state().first == 4)
        await run_pending(broker)
        assert topic.state().first == 4
        monkeypatch.undo()
        for write, done in held:
            submit(write, done)
        await asyncio.gather(*tasks)
        assert await oldest(broker, topic) == 4
        assert broker.store.store.ack_floors(topic.id) == {"workers": 3, "new": 5}
        await topic.delete_group("workers")
        await until(lambda: topic.state().first == 6)


# Publishers, bounds, age


async def test_publishers_wait_for_all_readers() -> None:
    async with core() as broker:
        topic = await make(broker, "transient", 0, max_messages=5, overflow="block")
        one = reader(broker, topic, "n")
        consumer, sink = await member(broker, topic, "workers")
        published = [asyncio.ensure_future(append(broker, topic, [b"%d" % number])) for number in range(12)]
        await until(lambda: len(sink.got) == 5)
        assert topic.stats()["blocked"] == 7
        for last in (5, 10):
            one.move(last)
            await run_pending(broker)
            assert topic.stats()["blocked"] == 12 - last, "the group has not acknowledged them"
            consumer.ack([(1, last)])
            await until(lambda last=last: len(sink.got) == min(last + 5, 12))
        assert [await each for each in published] == sink.ids == list(range(1, 13))


async def test_age_and_drop_oldest_do_not_wait_for_readers() -> None:
    async with core() as broker:
        topic = await make(broker, count=8, max_messages=5, overflow="drop-oldest")
        assert topic.state().first == 4
        one = reader(broker, topic, "n")
        consumer, sink = await member(broker, topic, "workers")
        await until(lambda: sink.ids == [4, 5, 6, 7, 8])
        await publish(broker, topic, 3)
        assert topic.state().first == 7
        await until(lambda: len(sink.ids) == 8)
        consumer.ack([(4, 11)])
        one.move(9)
        await until(lambda: topic.state().first == 10)


# Purging


async def test_messages_that_readers_wait_for_are_not_purged() -> None:
    async with core() as broker:
        topic = await make(broker, count=3)
        for call in (broker.purge(topic, None), broker.requeue(topic, None, "other", lambda name: None)):
            with pytest.raises(TopicError, match="retention='read'"):
                await call
        assert topic.state().first == 1
        await broker.alter("t", {"retention": None})
        assert await broker.purge(topic, 2) == 2


# Altering


@of_every_kind
async def test_it_is_altered_on_and_off(tmp_path: Path, place: str, kind: str) -> None:
    async with running(place, tmp_path) as broker:
        topic = await broker.create("t", persistence=kind, settings={"max_messages": 10})
        assert isinstance(topic, BroadcastTopic)
        await publish(broker, topic, 20)
        one = reader(broker, topic, "n")
        consumer, sink = await member(broker, topic, "workers", 13)
        await until(lambda: len(sink.ids) == 7)
        one.move(15)
        await topic.flushed()
        before = topic.state()
        with pytest.raises(TopicError, match=r"retention='read': 3 of the 10 messages .* ack floor 13"):
            await broker.alter("t", {"retention": "read"})
        assert (topic.state(), topic.settings) == (before, {"max_messages": 10})
        await broker.alter("t", {"retention": "read"}, force=True)
        await until(lambda: topic.state().first == 14)
        await publish(broker, topic, 3)
        with pytest.raises(StoreFull):
            await append(broker, topic, [b"x"])
        consumer.ack([(14, 23)])
        await until(lambda: topic.state().first == 16)
        await publish(broker, topic, 2)
        await broker.alter("t", {"retention": None})
        one.move(25)
        assert await oldest(broker, topic) == 16
        one.move(20)  # without retention a cursor may move back
        assert topic.durables()[0]["position"] == 20
        await publish(broker, topic, 5)
        assert topic.state().first == 21
    if place == "disk" and kind != "transient":
        async with core(tmp_path) as broker:
            assert broker.topic("t").settings == {"max_messages": 10}


async def test_bounds_that_drop_without_it_need_force() -> None:
    async with core() as broker:
        topic = await make(broker, count=20)
        await broker.alter("t", {"max_messages": 5})
        with pytest.raises(TopicError, match="retention=None: 15 of the 20 messages"):
            await broker.alter("t", {"retention": None})
        await broker.alter("t", {"retention": None}, force=True)
        assert topic.state().first == 16


async def test_it_needs_no_force_where_a_reader_has_acknowledged_nothing() -> None:
    async with core() as broker:
        topic = await broker.create("t", persistence="weak")
        assert isinstance(topic, BroadcastTopic)
        await publish(broker, topic, 10)
        reader(broker, topic, "current").move(10)
        reader(broker, topic, "lagging")
        await broker.alter("t", {"retention": "read"})
        assert await oldest(broker, topic) == 1


async def test_with_retain_for_the_topic_waits_for_all() -> None:
    async with core() as broker:
        topic = await make(broker, count=10, retain_for="archiver")
        other = reader(broker, topic, "other")
        other.move(10)
        assert await oldest(broker, topic) == 1
        archiver = reader(broker, topic, "archiver", "latest")
        archiver.move(4)
        await until(lambda: topic.state().first == 5)
        consumer, _ = await member(broker, topic, "workers", 7)
        archiver.move(10)
        await until(lambda: topic.state().first == 8)
        await broker.alter("t", {"retention": None}, force=True)
        await until(lambda: topic.state().first == 11)
        consumer.end()


@pytest.mark.parametrize("value", ["limits", "", 1, ["read"]])
async def test_an_invalid_value_is_refused(value: Any) -> None:
    async with core() as broker:
        with pytest.raises(TopicError, match=r"retention=.*must be 'read'"):
            await broker.create("t", persistence="weak", settings={"retention": value})
        with pytest.raises(TopicError, match="is a setting of broadcast topics"):
            await broker.create("j", delivery="round-robin", persistence="weak", settings={"retention": "read"})
        assert broker.topics == {}
        topic = await make(broker, count=1)
        with pytest.raises(TopicError, match="retention="):
            await broker.alter("t", {"retention": value})
        assert topic.settings == {"retention": "read"}


# Damage


async def test_a_damaged_reader_keeps_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    async with core() as broker:
        topic = await make(broker, count=10)
        one = reader(broker, topic, "n")
        await topic.make_group("workers", 10)
        with monkeypatch.context() as damage:
            damage.setitem(topic._ack_floors, "workers", -1)
            one.move(10)
            assert await oldest(broker, topic) == 1
        await topic.seek_group("workers", 6)
        await until(lambda: topic.state().first == 7)
