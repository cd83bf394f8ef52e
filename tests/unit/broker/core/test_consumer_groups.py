"""Consumer groups next to what else changes their topic: retention, purge, requeue, deletion and a full disk."""

import asyncio
import json
from contextlib import contextmanager

import pytest

from omq._core import blocks
from omq.broker.core.broker import Broker
from omq.broker.errors import StoreFull, TopicError
from omq.store.errors import DamagedError, OutOfSpace
from omq.store.interface import Append, DeleteGroup, SetGroup
from tests.support.broker_core import RecordingSink, append, core, run_pending, until


def allow(name):
    """Permits everything."""


def numbered(first, last):
    return [b"%d" % number for number in range(first, last + 1)]


def lags(topic):
    """Returns the lag of each group."""
    return {group["name"]: group["lag"] for group in topic.group_stats()}


async def prepared(broker, count=0, **settings):
    """Creates a topic with messages, and a group at its start."""
    topic = await broker.create("t", persistence="weak", settings=settings)
    await topic.make_group("g", "earliest")
    if count:
        await append(broker, topic, numbered(1, count))
        await until(lambda: topic.readable == count)
    return topic


# ---------------------------------------------------------------------- messages that the topic drops


async def test_lag_has_only_kept_messages_and_counts_the_lost_ones_without_a_consumer(caplog):
    async with core() as broker:
        topic = await prepared(broker, max_messages=4)
        for number in range(10):
            await append(broker, topic, [b"%d" % number])
        await until(lambda: topic.readable == 10)
        assert topic.state().first == 7
        assert (lags(topic), topic.stats()["expired"]) == ({"g": 4}, 6)
        (group,) = topic.stats()["groups"]
        assert (group["name"], group["lag"], group["in_flight"], group["consumers"]) == ("g", 4, 0, 0)
        record = next(one for one in caplog.records if getattr(one, "event", "") == "messages_dropped")
        assert (record.topic, record.group, record.reason) == ("t", "g", "retention")
        assert record.getMessage().startswith("topic 't', group 'g': ")
        await topic.delete_group("g")
        assert topic.stats()["expired"] == 6, "a counter never falls"


async def test_a_purge_takes_messages_from_groups_and_loses_none(caplog):
    async with core() as broker:
        topic = await prepared(broker, 10)
        sink = RecordingSink()
        consumer = broker.consume(topic, sink, group="g", credit=2)
        await until(lambda: sink.ids == [1, 2])
        assert await broker.purge(topic, 6) == 6
        (group,) = topic.group_stats()
        assert (group["name"], group["lag"], group["in_flight"], group["consumers"]) == ("g", 6, 2, 1)
        consumer.ack([(1, 2)])
        consumer.more(10)
        await until(lambda: sink.ids == [1, 2, 7, 8, 9, 10])
        consumer.end()
        assert await broker.purge(topic, None) == 4
        assert (lags(topic), topic.stats()["expired"]) == ({"g": 0}, 0)
        assert not [one for one in caplog.records if getattr(one, "event", "") == "messages_dropped"]


@pytest.mark.parametrize("dropped", ["retention", "purge"])
@pytest.mark.parametrize("back", ["end", "nack", "nack later", "give back", "time out"])
async def test_messages_in_flight_that_the_topic_drops_do_not_return(caplog, dropped, back):
    """Retention has lost them, which is counted and logged; a purge has not."""
    async with core() as broker:
        topic = await prepared(broker, 4, retry_delay=0)
        sink = RecordingSink()
        consumer = broker.consume(topic, sink, group="g", credit=3, ack_timeout=0.05 if back == "time out" else 30.0)
        await until(lambda: sink.ids == [1, 2, 3])
        if dropped == "purge":
            await broker.purge(topic, None)
        else:
            await broker.alter("t", {"max_messages": 1}, force=True)
            await append(broker, topic, [b"5"])
            await until(lambda: topic.state().first == 5)
        if back == "end":
            consumer.end()
        elif back == "give back":
            consumer.give_back([(1, 3)])
        elif back != "time out":
            consumer.nack([(1, 3)], 60.0 if back == "nack later" else None)
        kept, lost = (0, 0) if dropped == "purge" else (1, 4)
        await until(lambda: lags(topic) == {"g": kept})
        assert topic.stats()["expired"] == lost
        records = [one for one in caplog.records if getattr(one, "event", "") == "messages_dropped"]
        assert bool(records) is (dropped == "retention")


async def test_a_requeue_takes_dead_letters_from_groups_of_their_topic():
    async with core() as broker:
        jobs = await broker.create("jobs", delivery="round-robin", persistence="weak")
        dead = await prepared(broker)
        records = b"".join(blocks.encode_record(body, None, {"omq-dead-topic": b"jobs"}) for body in numbered(1, 5))
        await broker.store.do(Append(dead.id, records, 5))
        await until(lambda: dead.readable == 5)
        assert await broker.requeue(dead, 3, None, allow) == (3, 4)
        assert (lags(dead), dead.stats()["expired"]) == ({"g": 2}, 0)
        sink = RecordingSink()
        broker.consume(dead, sink, group="g")
        await until(lambda: sink.got)
        assert sink.ids == [4, 5]
        assert jobs.stats()["published"] == 3


async def test_requeued_messages_reach_the_groups_of_their_topic():
    async with core() as broker:
        topic = await prepared(broker, max_deliveries=1)
        sink = RecordingSink()
        consumer = broker.consume(topic, sink, group="g")
        await append(broker, topic, [b"a"])
        await until(lambda: sink.got)
        consumer.nack([(1, 1)])
        await until(lambda: topic.dead_lettered == 1)
        assert await broker.requeue(broker.topic("t.dead"), None, None, allow) == (1, 0)
        await until(lambda: len(sink.got) == 2)
        assert (sink.got[1], sink.counts[1]) == ((2, b"a"), 1)


async def test_ids_that_a_kill_has_skipped_are_no_lag(tmp_path):
    for _ in range(2):
        broker = Broker(tmp_path)
        await broker.start()
        topic = await broker.create("t", persistence="async")
        first = await append(broker, topic, [b"a", b"b"])
        if first == 1:
            await topic.make_group("g", 1)
            await broker.close()
            session = json.loads((tmp_path / "session").read_bytes())
            (tmp_path / "session").write_text(json.dumps(session | {"orderly": False, "left": None}))
    assert first > 1 << 20
    await until(lambda: topic.readable == first + 1)
    await topic.make_group("new", "earliest")
    assert lags(topic) == {"g": 3, "new": 4}
    sink = RecordingSink()
    broker.consume(topic, sink, group="g")
    await until(lambda: len(sink.got) == 3)
    assert sink.ids == [2, first, first + 1]
    await broker.close()


# ---------------------------------------------------------------------- statistics and the log


async def test_consumers_of_groups_are_readers_of_the_topic():
    async with core() as broker:
        topic = await prepared(broker, 3)
        consumer = broker.consume(topic, RecordingSink(), group="g", credit=2)
        broker.subscribe(topic, "earliest", RecordingSink())
        await until(lambda: consumer.in_flight.count == 2)
        readers = topic.stats()["subscriptions"]
        assert [(one["kind"], one["name"], one["in_flight"]) for one in readers] == [
            ("subscriber", None, 0),
            ("consumer", "g", 2),
        ]
        assert len(readers) == topic.readers


async def test_damaged_messages_are_logged_with_topic_and_group(monkeypatch, caplog):
    async with core() as broker:
        topic = await prepared(broker, 3)
        read = broker.store.store.read

        class DamagedReader:
            def __init__(self, reader):
                self.first, self.last, self._blocks = reader.first, reader.last, reader.blocks

            def blocks(self, start, stop=0):
                if start <= 2:
                    raise DamagedError("ids 1 to 2 are damaged", topic.id, 1, 2)
                return self._blocks(start, stop)

        @contextmanager
        def damaged(id):
            with read(id) as reader:
                yield DamagedReader(reader)

        monkeypatch.setattr(broker.store.store, "read", damaged)
        sink = RecordingSink()
        broker.consume(topic, sink, group="g")
        await until(lambda: sink.ids == [3])
        (record,) = [one for one in caplog.records if getattr(one, "event", "") == "messages_damaged"]
        assert record.getMessage().startswith("topic 't', group 'g': ")
        assert (record.topic, record.group, record.first, record.last) == ("t", "g", 1, 2)


# ---------------------------------------------------------------------- changes of groups


async def test_a_group_of_a_topic_that_is_deleted_meanwhile_is_refused():
    async with core() as broker:
        topic = await broker.create("t", persistence="weak")
        making = asyncio.create_task(topic.make_group("g", "earliest"))
        deleting = asyncio.create_task(broker.delete("t"))
        with pytest.raises(TopicError, match="topic 't' was deleted"):
            await making
        await deleting


@pytest.mark.parametrize("change", ["moved", "deleted"])
async def test_what_a_group_saves_during_its_change_is_dropped(change):
    async with core() as broker:
        topic = await prepared(broker, 10)
        group = topic.groups["g"]
        changing = asyncio.create_task(topic.seek_group("g", 7) if change == "moved" else topic.delete_group("g"))
        await asyncio.sleep(0)  # the store has not applied it
        group.expire(5, "retention", "were dropped by retention")
        await changing
        await topic.flushed()
        assert lags(topic) == ({"g": 3} if change == "moved" else {})


@pytest.mark.parametrize("kind", [SetGroup, DeleteGroup])
async def test_a_group_that_cannot_change_continues(monkeypatch, kind):
    async with core() as broker:
        topic = await prepared(broker, 5, max_deliveries=3)
        submit = broker.store.store.submit_many
        group = topic.groups["g"]

        def full(writes):
            for write in writes:
                if isinstance(write, kind):
                    topic.settings["max_deliveries"] = 1  # as if it were altered meanwhile
                    write.error = OutOfSpace("no space")
            if failed := [write for write in writes if write.error is not None]:
                broker.store._notify(failed)
            if rest := [write for write in writes if write not in failed]:
                submit(rest)

        monkeypatch.setattr(broker.store.store, "submit_many", full)
        with pytest.raises(StoreFull, match="no space"):
            await (topic.seek_group("g", 3) if kind is SetGroup else topic.delete_group("g"))
        if kind is SetGroup:
            with pytest.raises(StoreFull, match="no space"):
                await topic.make_group("other", "latest")
        assert (lags(topic), topic.groups["g"] is group) == ({"g": 5}, True)
        monkeypatch.undo()
        sink = RecordingSink()
        consumer = broker.consume(topic, sink, group="g")
        await until(lambda: sink.ids == [1, 2, 3, 4, 5])
        consumer.nack([(1, 1)])
        await until(lambda: topic.dead_lettered == 1)
        await run_pending(broker)
        assert lags(topic) == {"g": 4}


@pytest.mark.parametrize("dead_kind", ["transient", "weak", "strong"])
@pytest.mark.parametrize("change", ["moved", "created again"])
async def test_a_message_that_fails_again_becomes_a_dead_letter_again(tmp_path, change, dead_kind):
    """Also if the dead letters are in another engine of the store, which recognizes repeated moves."""
    async with core(tmp_path) as broker:
        dead = await broker.create("dead", persistence=dead_kind)
        topic = await prepared(broker, 2, max_deliveries=1, dead_letter="dead")
        for number in (1, 2, 3):
            sink = RecordingSink()
            consumer = broker.consume(topic, sink, group="g")
            await until(lambda: sink.ids == [1, 2])  # noqa: B023
            consumer.ack([(2, 2)])
            consumer.nack([(1, 1)])
            await until(lambda: lags(topic) == {"g": 0} and topic.dead_lettered == number)  # noqa: B023
            assert dead.state().last == number
            consumer.end()
            if change == "moved":
                await topic.seek_group("g", "earliest")
            else:
                await topic.delete_group("g")
                await topic.make_group("g", "earliest")


async def test_a_dead_letter_on_its_way_is_delivered_again_after_a_move(tmp_path, monkeypatch):
    """Its ack follows its append to a topic of another engine, after the move of the group."""
    async with core(tmp_path) as broker:
        dead = await broker.create("dead", persistence="strong")
        topic = await prepared(broker, 2, max_deliveries=1, dead_letter="dead")
        sink = RecordingSink()
        consumer = broker.consume(topic, sink, group="g")
        await until(lambda: sink.ids == [1, 2])
        store, held = broker.store.store, []
        submit_half = store._submit_half

        def hold(topic_id, write):
            if topic_id == topic.id:
                held.append(write)
            else:
                submit_half(topic_id, write)

        monkeypatch.setattr(store, "_submit_half", hold)
        consumer.nack([(1, 1)])
        await until(lambda: held)
        consumer.ack([(2, 2)])
        consumer.end()
        await topic.seek_group("g", "earliest")
        monkeypatch.undo()
        store._submit_half(topic.id, held[0])
        await until(lambda: held[0].done)
        assert dead.state().last == 1
        assert lags(topic) == {"g": 2}
        assert store.ack_floors(topic.id) == {"g": 0}


async def test_groups_take_an_altered_number_of_deliveries():
    async with core() as broker:
        topic = await prepared(broker, 1, max_deliveries=5, retry_delay=1000.0)
        sink = RecordingSink()
        consumer = broker.consume(topic, sink, group="g")
        await until(lambda: sink.got)
        consumer.nack([(1, 1)])
        consumer.end()
        await append(broker, topic, [b"2"])
        await topic.make_group("new", "earliest")
        await broker.alter("t", {"max_deliveries": 1, "dead_letter": "d"})
        await until(lambda: topic.dead_lettered == 1)
        assert broker.topic("d").stats()["published"] == 1
        assert [group.queue.max_tries for group in topic.groups.values()] == [1, 1]
        assert lags(topic) == {"g": 1, "new": 2}
