"""Round-robin topics: distribution, redelivery, ack deadlines and dead letters."""

import asyncio
import gc
from contextlib import contextmanager

import lmdb
import pytest

from omq._core import blocks
from omq.broker import errors
from omq.broker.core.broker import Broker
from omq.broker.core.round_robin import RoundRobinTopic
from omq.broker.core.topic import Publication
from omq.broker.errors import BrokerFailed, TopicError
from omq.broker.settings import retry_delay_of
from omq.store.errors import DamagedError, OutOfSpace
from omq.store.interface import MoveToDeadLetter, Stage
from omq.store.lmdb import reader
from omq.workqueue.dispatcher import TURN_BYTES
from omq.workqueue.queue import _DEAD_LETTER_BATCH, MIN_BLOCK_BYTES
from tests.support.broker_core import RecordingSink, append, core, run_pending, until


async def prepared(broker, count=10, **settings):
    topic = await broker.create("j", delivery="round-robin", persistence="weak", settings=settings)
    if count:
        await append(broker, topic, [b"%d" % number for number in range(1, count + 1)])
    return topic


def settled(broker, topic):
    return broker.store.store.ack_set(topic.id)


async def flushed(topic):
    results = []
    topic.flush(results.append)
    await until(lambda: results)
    assert results == [None]


async def test_each_message_goes_to_one_consumer_and_all_get_some():
    async with core() as broker:
        topic = await prepared(broker, count=0)
        sinks = [RecordingSink() for _ in range(4)]
        for sink in sinks:
            broker.consume(topic, sink, credit=1000)
        await append(broker, topic, [b"x"] * 400)
        await until(lambda: sum(len(sink.got) for sink in sinks) == 400)
        assert sorted(id for sink in sinks for id in sink.ids) == list(range(1, 401))
        assert [len(sink.got) for sink in sinks] == [100] * 4


async def test_single_messages_go_round_robin():
    async with core() as broker:
        topic = await prepared(broker, count=0)
        sinks = [RecordingSink() for _ in range(3)]
        for sink in sinks:
            broker.consume(topic, sink, credit=10)
        for number in range(9):
            await append(broker, topic, [b"x"])
            await until(lambda so_far=number: sum(len(sink.got) for sink in sinks) == so_far + 1)
        assert [len(sink.got) for sink in sinks] == [3, 3, 3]


async def test_credit_bounds_messages_in_flight_and_acks_restore_it():
    async with core() as broker:
        topic = await prepared(broker, count=100)
        sink = RecordingSink()
        consumer = broker.consume(topic, sink, credit=3)
        await run_pending(broker)
        assert sink.ids == [1, 2, 3]
        consumer.ack([(2, 2)])
        await until(lambda: len(sink.got) == 4)
        consumer.more(2)
        await until(lambda: len(sink.got) == 6)
        consumer.ack([(1, 100)])
        await until(lambda: len(sink.got) == 11)
        await flushed(topic)
        assert settled(broker, topic).floor == 6
        assert settled(broker, topic).last_delivered == 11


async def test_a_consumer_without_room_leaves_the_messages_to_others():
    async with core() as broker:
        topic = await prepared(broker)
        full, free = RecordingSink(room_left=0), RecordingSink()
        consumer = broker.consume(topic, full)
        broker.consume(topic, free)
        await until(lambda: len(free.got) == 10)
        assert full.got == []
        full.room_left = 1000
        consumer.more(0)
        await append(broker, topic, [b"x"] * 2)
        await until(lambda: len(full.got) == 1)


async def test_returned_messages_are_redelivered_with_their_delivery_count():
    async with core() as broker:
        topic = await prepared(broker, count=5, retry_delay=0)
        sink = RecordingSink()
        consumer = broker.consume(topic, sink, credit=100)
        await until(lambda: len(sink.got) == 5)
        consumer.nack([(2, 3)])
        await until(lambda: len(sink.got) == 7)
        assert sink.got[5:] == [(2, b"2"), (3, b"3")]
        assert sink.counts == [1] * 5 + [2, 2]
        consumer.nack([(3, 3)])
        await until(lambda: len(sink.got) == 8)
        assert sink.counts[-1] == 3
        await flushed(topic)
        assert settled(broker, topic).deliveries == {2: 1, 3: 2}  # attempts in vain
        assert topic.redelivered == 3
        consumer.ack([(1, 5)])
        await flushed(topic)
        assert settled(broker, topic).floor == 5
        assert settled(broker, topic).deliveries == {}


async def test_unacknowledged_messages_are_redelivered_after_the_timeout():
    async with core() as broker:
        topic = await prepared(broker, count=3)
        late, other = RecordingSink(), RecordingSink()
        consumer = broker.consume(topic, late, ack_timeout=0.5, credit=3)
        await until(lambda: len(late.got) == 3)
        consumer.ack([(2, 2)])
        broker.consume(topic, other, ack_timeout=30, credit=10)
        late.room_left = 0
        await until(lambda: len(other.got) == 2)
        assert sorted(other.ids) == [1, 3]
        assert other.counts == [2, 2]
        consumer.ack([(1, 3)])  # too late: another consumer has them
        await flushed(topic)
        assert settled(broker, topic).floor == 0


async def test_the_only_consumer_gets_its_unacknowledged_messages_again():
    async with core() as broker:
        topic = await prepared(broker, count=1)
        sink = RecordingSink()
        broker.consume(topic, sink, ack_timeout=0.02, credit=3)
        await until(lambda: len(sink.got) == 3)
        assert sink.counts == [1, 2, 3]


async def test_a_late_ack_counts_until_another_consumer_has_the_message():
    async with core() as broker:
        topic = await prepared(broker, count=3)
        sink = RecordingSink()
        consumer = broker.consume(topic, sink, ack_timeout=0.02, credit=3)
        await until(lambda: len(sink.got) == 3)
        sink.room_left = 0
        await until(lambda: topic.backlog == 3)
        consumer.ack([(1, 3)])
        assert topic.backlog == 0
        await flushed(topic)
        assert settled(broker, topic).floor == 3


async def test_acks_of_ids_that_a_consumer_never_had_are_ignored():
    async with core() as broker:
        topic = await prepared(broker, count=10)
        one, other = RecordingSink(), RecordingSink()
        first = broker.consume(topic, one, credit=5)
        second = broker.consume(topic, other, credit=5)
        await until(lambda: len(one.got) + len(other.got) == 10)
        second.nack([(1, 2**64 - 1)])
        first.ack([(6, 10), (100, 2**64 - 1)])
        await flushed(topic)
        assert settled(broker, topic).floor == 0


async def test_redeliveries_of_single_messages_are_bounded_by_turn():
    async with core() as broker:
        topic = await prepared(broker, count=2000)
        sink = RecordingSink()
        consumer = broker.consume(topic, sink, credit=2000)
        await until(lambda: len(sink.got) == 2000)
        consumer.ack((id, id) for id in range(1, 2001, 2))
        consumer.nack(((id, id) for id in range(2, 2001, 2)), 0.0)
        before = len(sink.got)
        while before < 3000:
            await asyncio.sleep(0)
            assert len(sink.got) - before <= TURN_BYTES // MIN_BLOCK_BYTES
            before = len(sink.got)


async def test_messages_of_a_consumer_that_ends_are_requeued_at_once():
    async with core() as broker:
        topic = await prepared(broker, count=4)
        one, other = RecordingSink(), RecordingSink()
        consumer = broker.consume(topic, one, credit=4)
        await until(lambda: len(one.got) == 4)
        consumer.ack([(1, 1)])
        broker.consume(topic, other, credit=10)
        consumer.end()
        consumer.end()
        consumer.ack([(2, 4)])
        await until(lambda: len(other.got) == 3)
        assert other.ids == [2, 3, 4]
        assert other.counts == [2, 1, 1]  # it had begun with the first one only
        assert topic.readers == 1


async def test_messages_of_a_sink_that_raises_go_to_others():
    async with core() as broker:
        topic = await prepared(broker, count=10)
        bad, good = RecordingSink(), RecordingSink()
        bad.fault = RuntimeError("full of sand")
        broker.consume(topic, bad)
        broker.consume(topic, good)
        await until(lambda: len(good.got) == 10)
        assert isinstance(bad.errors[0], BrokerFailed)


async def test_deleting_ends_consumers_with_an_error():
    async with core() as broker:
        topic = await prepared(broker)
        sink = RecordingSink()
        consumer = broker.consume(topic, sink)
        await until(lambda: sink.got)
        await broker.delete("j")
        assert isinstance(sink.errors[0], TopicError)
        consumer.ack([(1, 1)])
        with pytest.raises(TopicError):
            topic.consume(RecordingSink(), 1.0, 1)


async def test_after_max_deliveries_a_message_goes_to_the_dead_letters():
    async with core() as broker:
        topic = await prepared(broker, count=0, max_deliveries=2)
        record = blocks.encode_record(b"body", b"key", {"h": b"v"})
        topic.append(record, 1, done=lambda first, error: None)
        await append(broker, topic, [b"other"])
        sink = RecordingSink()
        consumer = broker.consume(topic, sink)
        await until(lambda: len(sink.got) == 2)
        consumer.nack([(1, 1)])
        await until(lambda: len(sink.got) == 3)
        consumer.nack([(1, 1)])
        await until(lambda: topic.dead_lettered == 1)
        dead = broker.topic("j.dead")
        assert dead.delivery == "broadcast"
        assert dead.persistence == "weak"
        with broker.store.store.read(dead.id) as reader:
            (message,) = [one for header, records in reader.blocks(1) for one in blocks.decode(header, records, "d")]
        assert (message.body, message.key, message.headers["h"]) == (b"body", b"key", b"v")
        consumer.ack([(2, 2)])
        await flushed(topic)
        assert settled(broker, topic).floor == 2
        assert topic.backlog == 0


@pytest.mark.parametrize("target", ["strong", "weak", "transient"])
@pytest.mark.parametrize("source", ["strong", "weak", "transient"])
async def test_dead_letters_count_as_published(tmp_path, source, target):
    broker = Broker(tmp_path)
    await broker.start()
    dead = await broker.create("dead", persistence=target)
    jobs = await broker.create(
        "jobs", delivery="round-robin", persistence=source, settings={"max_deliveries": 1, "dead_letter": "dead"}
    )
    await append(broker, jobs, [b"one", b"other"])
    sink = RecordingSink()
    consumer = broker.consume(jobs, sink)
    await until(lambda: len(sink.got) == 2)
    consumer.nack([(1, 2)])
    await until(lambda: jobs.dead_lettered == 2)
    size = len(blocks.encode([b"one", b"other"]))
    assert (jobs.stats()["published"], jobs.stats()["published_bytes"]) == (2, size)
    await until(lambda: dead.readable == dead.last)
    assert dead.stats()["published"] == 2
    assert dead.stats()["published_bytes"] == dead.state().bytes > size  # with their headers
    await broker.close()


@pytest.mark.slow
@pytest.mark.parametrize("refused", [0, 3])
async def test_many_dead_letters_are_moved_some_at_a_time(monkeypatch, refused):
    async with core() as broker:
        topic = await prepared(broker, count=2000, max_deliveries=1)
        store, turns, bad = broker.store.store, [], list(range(refused))
        submit = store.submit_many

        def counted(writes):
            moves = [write for write in writes if isinstance(write, MoveToDeadLetter)]
            turns.append(len(moves))
            if moves and bad:
                bad.pop()
                for write in moves:
                    write.error = OutOfSpace("no space")
                broker.store._notify(moves)
                writes = [write for write in writes if write not in moves]
            if writes:
                submit(writes)

        monkeypatch.setattr(store, "submit_many", counted)
        monkeypatch.setattr(broker, "later", lambda seconds, call: broker.loop.call_soon(call))
        sink = RecordingSink()
        consumer = broker.consume(topic, sink, credit=2000)
        await until(lambda: len(sink.got) == 2000)
        consumer.nack([(1, 2000)])
        await until(lambda: topic.dead_lettered == 2000)
        assert max(turns) <= _DEAD_LETTER_BATCH
        assert broker.topic("j.dead").last == 2000
        await until(lambda: topic.work.queue._dead_letter_task is None)
        await flushed(topic)
        assert settled(broker, topic).floor == 2000


async def test_dead_letters_go_to_the_configured_topic():
    async with core() as broker:
        graves = await broker.create("graves", persistence="async", settings={"max_messages": 100})
        topic = await prepared(broker, count=3, max_deliveries=1, dead_letter="graves", retry_delay=0)
        sink = RecordingSink()
        mourner = RecordingSink()
        broker.subscribe(graves, "earliest", mourner)
        broker.consume(topic, sink, ack_timeout=0.02)
        await until(lambda: len(mourner.got) == 3)
        assert [body for _, body in mourner.got] == [b"1", b"2", b"3"]
        assert set(sink.counts) == {1}


async def test_redeliveries_and_their_counts_survive_a_restart():
    async with core() as broker:
        topic = await prepared(broker, count=10, retry_delay=0)
        sink = RecordingSink()
        consumer = broker.consume(topic, sink, credit=6)
        await until(lambda: len(sink.got) == 6)
        consumer.ack([(1, 2), (5, 5)])
        await until(lambda: len(sink.got) == 9)
        consumer.nack([(4, 4)])
        await until(lambda: len(sink.got) == 10)
        await flushed(topic)
        again = RoundRobinTopic(topic.state(), broker.store, broker, broker)
        broker.topics["j"] = broker._by_id[topic.id] = again
        other = RecordingSink()
        again.consume(other, 30.0, 100)
        await until(lambda: len(other.got) == 7)
        assert dict(zip(other.ids, other.counts, strict=True)) == {3: 1, 4: 2, 6: 1, 7: 1, 8: 1, 9: 1, 10: 1}


async def test_messages_dropped_by_retention_leave_the_backlog():
    async with core() as broker:
        topic = await prepared(broker, count=20, max_age=0.3)
        await asyncio.sleep(0.31)  # all are older than max_age
        sink = RecordingSink()
        broker.consume(topic, sink, credit=100)
        await append(broker, topic, [b"new"])
        await until(lambda: sink.got)
        assert sink.got == [(21, b"new")]
        assert topic.backlog == 0
        assert topic.unfinished == 1
        assert topic.stats()["expired"] == 20


async def test_expired_messages_are_counted_and_logged_without_a_consumer(caplog):
    async with core() as broker:
        topic = await prepared(broker, count=20, max_age=0.3, max_messages=20)
        await asyncio.sleep(0.31)  # all are older than max_age
        assert await append(broker, topic, [b"x"] * 5) == 21
        assert topic.stats()["expired"] == 20
        assert topic.unfinished == 5
        assert "20 unfinished messages are older than max_age=0.3" in caplog.text


class Damaged:
    """A store whose messages from `first` to `last` are damaged."""

    def __init__(self, store, first, last):
        self.store, self.first, self.last = store, first, last

    def __getattr__(self, name):
        return getattr(self.store, name)

    @contextmanager
    def read(self, id):
        with self.store.read(id) as reader:
            yield DamagedReader(reader, self.first, self.last)


class DamagedReader:
    def __init__(self, reader, first, last):
        self.reader, self.first, self.last = reader, first, last

    def blocks(self, start, stop):
        if start < self.first < stop:
            yield from self.reader.blocks(start, self.first)
        if start <= max(self.last, self.first) and self.first < stop:
            raise DamagedError("damaged", 1, self.first, self.last)
        yield from self.reader.blocks(start, stop)


async def test_damaged_messages_are_reported_and_others_are_delivered(caplog):
    async with core() as broker:
        topic = await prepared(broker, count=10)
        broker.store.store = Damaged(broker.store.store, 4, 6)
        sink = RecordingSink()
        consumer = broker.consume(topic, sink)
        await until(lambda: len(sink.got) == 7)
        assert sink.ids == [1, 2, 3, 7, 8, 9, 10]
        assert "damaged" in caplog.text
        consumer.ack([(1, 10)])
        await flushed(topic)
        assert settled(broker, topic).floor == 10


async def test_damage_without_a_known_end_ends_the_consumers(caplog):
    async with core() as broker:
        topic = await prepared(broker, count=10)
        broker.store.store = Damaged(broker.store.store, 4, 0)
        sink = RecordingSink()
        broker.consume(topic, sink)
        await until(lambda: sink.errors)
        assert sink.errors[0].code == "damaged"
        assert topic.readers == 0


@pytest.mark.parametrize("persistence", ["weak", "strong"])
async def test_an_lmdb_read_error_ends_the_consumers_and_acknowledges_nothing(tmp_path, monkeypatch, persistence):
    broker = Broker(tmp_path)
    await broker.start()
    try:
        topic = await broker.create("j", delivery="round-robin", persistence=persistence)
        for _ in range(3):
            await append(broker, topic, [bytes(300_000)])
        block_at = reader.block_at

        def fails(transaction, key, value):
            found = block_at(transaction, key, value)
            if found[0] == 2:
                raise lmdb.CorruptedError("a page is damaged")
            return found

        monkeypatch.setattr(reader, "block_at", fails)
        sink = RecordingSink()
        broker.consume(topic, sink)
        await until(lambda: sink.errors)
        assert sink.errors[0].code == "failed"
        assert sink.ids == [1]
        await flushed(topic)
        assert [id for id in range(1, 4) if id in settled(broker, topic)] == []
        assert broker.store.store.stats().damaged == []
        monkeypatch.undo()
        other = RecordingSink()
        broker.consume(topic, other)
        await until(lambda: len(other.got) == 3)
        assert other.ids == [1, 2, 3]
    finally:
        await broker.close()


async def test_pending_dead_letters_leave_no_task_when_the_broker_stops(tmp_path):
    broker = Broker(tmp_path)
    await broker.start()
    topic = await prepared(broker, count=3, max_deliveries=1)
    sink = RecordingSink()
    consumer = broker.consume(topic, sink)
    await until(lambda: len(sink.got) == 3)
    consumer.nack([(1, 3)])
    await broker.close()
    broker = Broker(tmp_path)
    await broker.start()
    topic = broker.topic("j")
    await until(lambda: "j.dead" in broker.topics and broker.topic("j.dead").last == 3)
    await until(lambda: topic.backlog == 0 and topic.work.queue._dead_letter_task is None)
    await broker.close()


async def test_a_start_that_is_cancelled_leaves_the_directory_free(tmp_path):
    for turns in range(3):
        starting = asyncio.create_task(Broker(tmp_path).start())
        for _ in range(turns):
            await asyncio.sleep(0)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
    broker = Broker(tmp_path)
    await broker.start()
    await broker.close()


async def test_overdue_messages_give_no_credit_to_a_consumer_that_hangs():
    async with core() as broker:
        topic = await prepared(broker, count=10)
        sink = RecordingSink()
        consumer = broker.consume(topic, sink, ack_timeout=0.5, credit=4)
        await until(lambda: len(sink.got) == 4)
        await until(lambda: topic.backlog == 10)
        await run_pending(broker)
        assert sink.ids == [1, 2, 3, 4]
        consumer.nack([(100, 100)])  # it lives
        await until(lambda: len(sink.got) == 8)


async def test_a_consumer_that_skips_messages_gets_its_credit_back_after_a_while():
    async with core() as broker:
        topic = await prepared(broker, count=3, max_deliveries=3, retry_delay=0)
        sink = RecordingSink()
        broker.consume(topic, sink, ack_timeout=0.01, credit=1)  # never acknowledges anything
        await until(lambda: topic.dead_lettered == 3)
        assert sink.ids == [1] * 3 + [2] * 3 + [3] * 3


async def test_returned_messages_that_were_not_reached_count_no_delivery():
    async with core() as broker:
        topic = await prepared(broker, count=5, max_deliveries=2)
        sink = RecordingSink()
        consumer = broker.consume(topic, sink, credit=100)
        await until(lambda: len(sink.got) == 5)
        consumer.nack([(5, 5)])
        await until(lambda: len(sink.got) == 6)
        consumer.give_back([(2, 2**64 - 1)])
        await run_pending(broker)
        assert len(sink.got) == 6  # nothing follows without credit
        assert topic.backlog == 4
        await flushed(topic)
        assert settled(broker, topic).deliveries == {5: 1}
        other = RecordingSink()
        broker.consume(topic, other, credit=100)
        await until(lambda: len(other.got) == 4)
        assert dict(zip(other.ids, other.counts, strict=True)) == {2: 1, 3: 1, 4: 1, 5: 2}
        await flushed(topic)
        assert settled(broker, topic).deliveries == {5: 1}
        assert topic.dead_lettered == 0


async def test_deliveries_are_stored_before_any_ack():
    async with core() as broker:
        topic = await prepared(broker)
        broker.consume(topic, RecordingSink())
        await until(lambda: settled(broker, topic).last_delivered == 10)


async def test_each_ack_of_a_slow_consumer_extends_the_deadline():
    async with core() as broker:
        topic = await prepared(broker, count=8)
        slow, other = RecordingSink(), RecordingSink()
        consumer = broker.consume(topic, slow, credit=8, ack_timeout=0.8)
        await until(lambda: len(slow.got) == 8)
        slow.room_left = 0  # nothing comes back to it
        loop = asyncio.get_running_loop()
        began = loop.time()
        broker.consume(topic, other, credit=100)
        for id in (1, 3, 4, 5, 6, 7):  # the second one hangs
            await asyncio.sleep(0.3)
            consumer.ack([(id, id)])
        assert loop.time() - began > 2 * 0.8
        assert other.ids == [2]
        await until(lambda: other.ids == [2, 8])
        assert loop.time() - began > 6 * 0.3 + 0.6
        assert slow.ids == list(range(1, 9))


async def test_acks_of_a_killed_brokers_deliveries_are_stored():
    async with core() as broker:
        topic = await prepared(broker, count=20_000)
        for at in range(5_001, 15_000, 2):
            topic.work.ack_late(at, at)
        topic.work.ack_late(15_000, 19_990)
        left = 20_000 - 5_000 - 4_991
        assert topic.backlog == left
        await flushed(topic)
        for again in range(2):
            if again:
                topic = RoundRobinTopic(topic.state(), broker.store, broker, broker)
                broker.topics["j"] = broker._by_id[topic.id] = topic
            assert topic.backlog == left
            sink = RecordingSink()
            consumer = broker.consume(topic, sink, credit=20_000)
            await until(lambda sink=sink: len(sink.got) == left)
            wanted = [*range(1, 5_001), *range(5_002, 15_000, 2), *range(19_991, 20_001)]
            assert sink.ids == wanted
            assert set(sink.counts) == {1}
            consumer.give_back([(1, 20_000)])
            consumer.end()
            await flushed(topic)


async def test_scattered_late_acks_count():
    async with core() as broker:
        topic = await prepared(broker, count=6_000)
        sink = RecordingSink()
        consumer = broker.consume(topic, sink, credit=6_000, ack_timeout=0.6)
        await until(lambda: len(sink.got) == 6_000)
        consumer.ack([(id, id) for id in range(1, 6_001, 2)])
        await until(lambda: topic.backlog == 3_000)  # the others are overdue, and there is no consumer that takes them
        consumer.ack([(id, id) for id in range(2, 6_001, 2)])
        assert topic.backlog == 0
        await flushed(topic)
        assert settled(broker, topic).floor == 6_000


async def test_acks_of_an_earlier_session_count_until_another_consumer_has_the_message():
    async with core() as broker:
        topic = await prepared(broker, count=10)
        gone, other = RecordingSink(), RecordingSink()
        consumer = broker.consume(topic, gone, credit=4)
        await until(lambda: len(gone.got) == 4)
        consumer.end()
        broker.consume(topic, other, credit=1)
        await until(lambda: other.ids == [1])
        topic.work.ack_late(1, 3)
        assert topic.backlog == 7
        # A broker that was killed does not know of all that it has delivered.
        topic.work.ack_late(6, 7)
        topic.work.ack_late(1 << 40, 1 << 41)
        broker.consume(topic, other, credit=10)
        await until(lambda: len(other.got) == 6)
        assert other.ids == [1, 4, 5, 8, 9, 10]
        assert other.counts == [2, 1, 1, 1, 1, 1]
        await flushed(topic)
        assert list(settled(broker, topic).missing(1, 7)) == [(1, 1), (4, 5)]


async def test_the_retry_delay_of_a_message_grows_and_others_pass_it():
    async with core() as broker:
        topic = await prepared(broker, count=2, retry_delay=[0.02, 0.1])
        sink = RecordingSink()
        consumer = broker.consume(topic, sink, credit=1)
        clock = asyncio.get_running_loop().time
        came = []
        for number in range(4):
            await until(lambda number=number: len(sink.got) > number)
            came.append(clock())
            if sink.got[len(came) - 1][1] == b"2":
                consumer.ack([(2, 2)])
            else:
                consumer.nack([(1, 1)])
        assert sink.ids == [1, 2, 1, 1]
        assert sink.counts == [1, 1, 2, 3]
        # A loop's clock has milliseconds.
        assert came[2] - came[0] >= 0.018
        assert came[3] - came[2] >= 0.098
        assert topic.backlog == topic.unfinished == 1


def test_the_default_retry_delay_doubles_to_half_a_minute():
    assert [retry_delay_of({}, attempts) for attempts in (0, 1, 2, 3, 9, 10, 10_000)] == [
        0.1, 0.1, 0.2, 0.4, 25.6, 30.0, 30.0
    ]  # fmt: skip
    assert [retry_delay_of({"retry_delay": 7.0}, attempts) for attempts in (1, 100)] == [7.0, 7.0]
    assert [retry_delay_of({"retry_delay": [1.0, 5.0]}, attempts) for attempts in (1, 2, 3)] == [1.0, 5.0, 5.0]


async def test_nack_overrides_the_retry_delay():
    async with core() as broker:
        topic = await prepared(broker, count=2)
        sink = RecordingSink()
        consumer = broker.consume(topic, sink)
        await until(lambda: len(sink.got) == 2)
        consumer.nack([(1, 1)], 60.0)
        consumer.nack([(2, 2)], 0.0)
        await until(lambda: len(sink.got) == 3)
        assert sink.ids == [1, 2, 2]
        assert topic.backlog == 1


async def test_a_message_in_its_retry_delay_can_be_acknowledged_late():
    async with core() as broker:
        topic = await prepared(broker, count=1, retry_delay=60)
        sink = RecordingSink()
        consumer = broker.consume(topic, sink, ack_timeout=0.02)
        await until(lambda: sink.got and topic.backlog == 1)
        consumer.ack([(1, 1)])
        assert topic.unfinished == 0
        await flushed(topic)
        assert settled(broker, topic).floor == 1


async def test_a_consumer_that_hangs_is_charged_one_message_a_timeout():
    """Only the message that a consumer hangs on counts a delivery, not the prefetched ones after it."""
    async with core() as broker:
        topic = await prepared(broker, count=0, max_deliveries=2, retry_delay=0)
        hung = RecordingSink()
        broker.consume(topic, hung, ack_timeout=0.5, credit=20)
        for number in range(20):  # deadlines of their own
            await append(broker, topic, [b"%d" % number])
        await until(lambda: len(hung.got) == 20)
        hung.room_left = 0
        await until(lambda: topic.backlog == 20)
        other = RecordingSink()
        broker.consume(topic, other, credit=100)
        await until(lambda: len(other.got) == 20)
        assert sorted(other.counts) == [1] * 19 + [2]
        assert dict(zip(other.ids, other.counts, strict=True))[1] == 2


async def test_a_consumer_that_hangs_next_to_another_gets_ever_less():
    """A consumer that hangs gets fewer messages after each timeout, whatever its credit."""
    async with core() as broker:
        topic = await prepared(broker, count=0, retry_delay=0)
        hung, healthy = RecordingSink(), RecordingSink()
        consumer = broker.consume(topic, hung, ack_timeout=0.02, credit=100_000)
        other = broker.consume(topic, healthy, credit=100)
        done = 0
        for number in range(200):
            await append(broker, topic, [b"%d" % number])
            await asyncio.sleep(0.005)
            for id in healthy.ids[done:]:
                other.ack([(id, id)])
            done = len(healthy.ids)
        assert 2 <= sum(count > 1 for count in healthy.counts) <= 8  # a second has 50 timeouts

        consumer.ack([(hung.ids[0], hung.ids[0])])  # it lives
        before = len(hung.got)
        await append(broker, topic, [b"x", b"y"])
        await until(lambda: len(hung.got) > before)


async def test_a_consumer_that_hangs_gets_messages_without_other_consumers():
    async with core() as broker:
        topic = await prepared(broker, count=1, retry_delay=0)
        hung = RecordingSink()
        consumer = broker.consume(topic, hung, ack_timeout=0.02, credit=100)
        await until(lambda: len(hung.got) == 3)
        consumer.ack([(1, 1)])

        other = broker.consume(topic, RecordingSink(), credit=0)
        await append(broker, topic, [b"x"])
        await until(lambda: consumer.backoff_until)
        before = len(hung.got)
        await run_pending(broker)
        assert len(hung.got) == before  # the other one may have credit soon
        other.end()
        await until(lambda: len(hung.got) > before)


@pytest.mark.parametrize("reached", ["nothing", "acknowledged", "in progress"])
async def test_a_delivery_counts_if_a_consumer_that_dies_had_reached_it(reached):
    async with core() as broker:
        topic = await prepared(broker, count=20, max_deliveries=3)
        dying, other = RecordingSink(), RecordingSink()
        consumer = broker.consume(topic, dying, credit=20)
        await until(lambda: len(dying.got) == 20)
        begun = {1}
        if reached == "acknowledged":
            consumer.ack([(5, 5)])
            begun = {1, 2, 3, 4, 6}
        elif reached == "in progress":
            consumer.progress([(5, 5)])
            begun = {1, 2, 3, 4, 5, 6}
        consumer.end()
        broker.consume(topic, other, credit=100)
        await until(lambda: len(other.got) == 20 - (reached == "acknowledged"))
        assert {id for id, count in zip(other.ids, other.counts, strict=True) if count == 2} == begun


async def test_a_poison_message_does_not_dead_letter_its_neighbours():
    async with core() as broker:
        topic = await prepared(broker, count=21, max_deliveries=3)
        for _ in range(3):
            dying = RecordingSink()
            consumer = broker.consume(topic, dying, credit=100)
            await until(lambda dying=dying: len(dying.got) == 21)
            consumer.end()  # the first one kills it
        await until(lambda: topic.dead_lettered == 1)
        good = RecordingSink()
        broker.consume(topic, good, credit=100)
        await until(lambda: len(good.got) == 20)
        assert good.ids == list(range(2, 22))
        assert good.counts == [1] * 20


async def test_progress_restarts_the_ack_deadline():
    async with core() as broker:
        topic = await prepared(broker, count=2)
        sink = RecordingSink()
        consumer = broker.consume(topic, sink, ack_timeout=1.0)
        await until(lambda: len(sink.got) == 2)
        for _ in range(4):
            await asyncio.sleep(0.4)
            consumer.progress([(1, 1)])
        assert topic.redelivered == 0
        assert topic.backlog == 0
        consumer.ack([(1, 2)])
        assert topic.unfinished == 0


async def test_a_full_work_queue_rejects_and_drops_nothing(caplog):
    async with core() as broker:
        topic = await prepared(broker, count=0, max_messages=50)
        answers = await asyncio.gather(
            *(append(broker, topic, [b"%d" % number]) for number in range(200)), return_exceptions=True
        )
        assert answers[:50] == list(range(1, 51))
        assert all(isinstance(one, errors.StoreFull) for one in answers[50:])
        assert "'j' is full" in str(answers[50])
        assert "max_messages=50" in str(answers[50])
        assert topic.stats()["rejected"] == 150
        assert caplog.text.count("topic 'j' is full") == 1
        sink = RecordingSink()
        consumer = broker.consume(topic, sink, credit=100)
        await until(lambda: len(sink.got) == 50)
        consumer.ack([(1, 30)])
        await append(broker, topic, [b"x"] * 30)
        with pytest.raises(errors.StoreFull):
            await append(broker, topic, [b"x"])


async def test_a_repetition_needs_no_room():
    async with core() as broker:
        topic = await prepared(broker, count=0, max_messages=2)
        first = await append(broker, topic, [b"1", b"2"], producer=b"p", sequence=1)
        assert await append(broker, topic, [b"1", b"2"], producer=b"p", sequence=1) == first
        with pytest.raises(errors.StoreFull):
            await append(broker, topic, [b"3"], producer=b"p", sequence=2)
        assert topic.stats()["rejected"] == 1
        assert broker.store.waiting == 0


async def accepted_until_full(broker, topic, body):
    """Returns how many messages a topic accepts before it is full."""
    for accepted in range(100):
        try:
            await append(broker, topic, [body])
        except errors.StoreFull:
            return accepted
    raise AssertionError("it is never full")


async def test_bytes_bound_a_work_queue():
    async with core() as broker:
        topic = await prepared(broker, count=0, max_bytes=10_000)
        accepted = await accepted_until_full(broker, topic, bytes(1000))
        assert 8 <= accepted <= 10


async def test_publishers_wait_for_room_in_their_order():
    async with core() as broker:
        topic = await prepared(broker, count=0, max_messages=5, overflow="block")
        jobs = [asyncio.ensure_future(append(broker, topic, [b"%d" % number])) for number in range(12)]
        await run_pending(broker)
        await until(lambda: sum(job.done() for job in jobs) == 5)
        assert topic.stats()["blocked"] == 7
        sink = RecordingSink()
        consumer = broker.consume(topic, sink, credit=100)
        await until(lambda: len(sink.got) == 5)
        consumer.ack([(1, 2)])
        await until(lambda: sum(job.done() for job in jobs) == 7)
        consumer.ack([(1, 7)])
        await until(lambda: len(sink.got) == 12)
        assert [body for _, body in sink.got] == [b"%d" % number for number in range(12)]
        assert [await job for job in jobs] == list(range(1, 13))
        assert topic.stats()["blocked"] == 0
        assert broker.store.waiting == 0


async def test_a_publication_larger_than_the_topic_waits_until_it_is_empty():
    async with core() as broker:
        topic = await prepared(broker, count=1, max_messages=5, overflow="block")
        large = asyncio.ensure_future(append(broker, topic, [b"x"] * 20))
        sink = RecordingSink()
        consumer = broker.consume(topic, sink, credit=100)
        await until(lambda: sink.got)
        assert not large.done()
        consumer.ack([(1, 1)])
        assert await large == 2


async def test_deleting_a_topic_answers_publications_that_wait_for_room():
    async with core() as broker:
        topic = await prepared(broker, count=5, max_messages=5, overflow="block")
        job = asyncio.ensure_future(append(broker, topic, [b"x"]))
        await run_pending(broker)
        await broker.delete("j")
        with pytest.raises(TopicError):
            await job


async def test_publications_of_a_lost_publisher_hold_no_room():
    async with core() as broker:
        topic = await prepared(broker, count=5, max_messages=5, overflow="block")
        lives = True
        topic.append(blocks.encode([b"gone"]), 1, done=lambda *_: None, alive=lambda: lives)
        lives = False
        job = asyncio.ensure_future(append(broker, topic, [b"there"]))
        sink = RecordingSink()
        consumer = broker.consume(topic, sink, credit=100)
        await until(lambda: len(sink.got) == 5)
        consumer.ack([(1, 1)])
        assert await job == 6
        await until(lambda: len(sink.got) == 6)
        assert sink.got[-1] == (6, b"there")


@pytest.mark.parametrize("consumed", [0, 7])
async def test_drop_oldest_moves_the_oldest_messages_to_the_dead_letters(caplog, consumed):
    async with core() as broker:
        topic = await prepared(broker, count=0, max_messages=5, overflow="drop-oldest")
        sink = RecordingSink()
        consumer = broker.consume(topic, sink, credit=consumed) if consumed else None
        for number in range(1, 21):
            await append(broker, topic, [b"%d" % number])
        await until(lambda: topic.dead_lettered == 15)
        assert topic.unfinished == 5
        assert topic.stats()["dropped"] == 15
        assert "go to the dead letters" in caplog.text
        dead = broker.topic("j.dead")
        held = set(sink.ids)  # nothing is taken from a consumer
        assert dead.last == 15
        if consumer is not None:
            consumer.ack([(1, 100)])
        other = RecordingSink()
        broker.consume(topic, other, credit=100)
        await until(lambda: topic.backlog == 0)
        await run_pending(broker)
        with broker.store.store.read(dead.id) as reader:
            dead_letters = [
                int(one.body) for header, records in reader.blocks(1) for one in blocks.decode(header, records, "d")
            ]
        assert sorted([*dead_letters, *held, *other.ids]) == list(range(1, 21))


@pytest.mark.parametrize("overflow", ["reject", "block"])
async def test_a_commit_to_a_full_topic_waits_or_is_rejected(overflow):
    async with core() as broker:
        topic = await prepared(broker, count=3, max_messages=5, overflow=overflow)
        stage = Stage(topic.id, blocks.encode([b"x"] * 3), 3, b"s")
        await broker.store.do(stage)
        answers = []
        broker.commit(b"c", [b"s"], lambda id: True, answers.append)
        sink = RecordingSink()
        consumer = broker.consume(topic, sink, credit=100)
        await until(lambda: len(sink.got) == 3)
        await run_pending(broker)
        if overflow == "reject":
            assert isinstance(answers.pop().error, errors.StoreFull)
            assert topic.stats()["rejected"] == 3
            consumer.ack([(1, 1)])
            broker.commit(b"c", [b"s"], lambda id: True, answers.append)
        else:
            assert not answers
            consumer.ack([(1, 1)])
        await until(lambda: answers)
        assert answers[0].error is None
        await until(lambda: len(sink.got) == 6)


@pytest.mark.parametrize("overflow", ["reject", "block"])
async def test_max_bytes_bounds_commits(tmp_path, overflow):
    broker = Broker(tmp_path)  # memory keeps no stages that are larger than the topic
    await broker.start()
    try:
        topic = await prepared(broker, count=0, max_bytes=10_000, overflow=overflow)
        await append(broker, topic, [bytes(8000)])
        await broker.store.do(Stage(topic.id, blocks.encode([bytes(3000)]), 1, b"s"))
        answers = []
        broker.commit(b"c", [b"s"], lambda id: True, answers.append)
        sink = RecordingSink()
        consumer = broker.consume(topic, sink, credit=100)
        if overflow == "reject":
            await until(lambda: answers)
            assert isinstance(answers.pop().error, errors.StoreFull)
        else:
            await until(lambda: topic.stats()["blocked"] == 1)
            await run_pending(broker)
            assert not answers
        assert topic.last == 1
        consumer.ack([(1, 1)])
        if overflow == "reject":
            await flushed(topic)
            broker.commit(b"c", [b"s"], lambda id: True, answers.append)
        await until(lambda: answers)
        assert answers[0].error is None
        await until(lambda: len(sink.got) == 2)
        # More than the whole topic waits until that is empty.
        await broker.store.do(Stage(topic.id, blocks.encode([bytes(9999)] * 2), 2, b"s2"))
        broker.commit(b"c2", [b"s2"], lambda id: True, answers.append)
        if overflow == "reject":
            await until(lambda: len(answers) == 2)
            assert isinstance(answers[1].error, errors.StoreFull)
        else:
            await until(lambda: topic.stats()["blocked"] == 2)
            consumer.ack([(2, 2)])
            await until(lambda: len(sink.got) == 4)
    finally:
        await broker.close()


async def test_transient_work_queues_are_bounded_and_drop_nothing():
    async with core() as broker:
        topic = await prepared(broker, count=0)
        accepted = await accepted_until_full(broker, topic, bytes(1 << 20))
        assert accepted == 63  # of 64 MiB
        sink = RecordingSink()
        broker.consume(topic, sink, credit=100)
        await until(lambda: len(sink.got) == accepted)
        assert sink.ids == list(range(1, accepted + 1))


async def test_a_killed_broker_counts_no_deliveries():
    """Messages that were in flight when the broker was killed count no delivery."""
    async with core() as broker:
        topic = await prepared(broker, count=20, max_deliveries=1)
        broker.consume(topic, RecordingSink(), credit=20)
        await until(lambda: settled(broker, topic).last_delivered == 20)
        again = RoundRobinTopic(topic.state(), broker.store, broker, broker)
        broker.topics["j"] = broker._by_id[topic.id] = again
        other = RecordingSink()
        again.consume(other, 30.0, 100)
        await until(lambda: len(other.got) == 20)
        assert other.counts == [1] * 20
        assert again.dead_lettered == 0


@pytest.mark.parametrize("overflow", ["reject", "block"])
async def test_a_bounded_topic_keeps_no_reference_to_published_records(overflow):
    """Reference counting frees the records: a broker rarely runs the garbage collector."""
    gc.collect()
    gc.disable()
    others = [one for one in gc.get_objects() if isinstance(one, Publication)]  # of other tests
    try:
        async with core() as broker:
            topic = await prepared(broker, count=0, max_messages=5, overflow=overflow)
            jobs = [
                asyncio.ensure_future(append(broker, topic, [b"x"], producer=b"p", sequence=n)) for n in range(1, 21)
            ]
            await run_pending(broker)
            if overflow == "block":
                sink = RecordingSink()
                consumer = broker.consume(topic, sink, credit=100)
                while not all(job.done() for job in jobs):
                    consumer.ack([(1, 100)])
                    await asyncio.sleep(0.001)
            answers = await asyncio.gather(*jobs, return_exceptions=True)
            assert len(answers) == 20
            del jobs, answers
            await run_pending(broker)
            assert [one for one in gc.get_objects() if isinstance(one, Publication) and one not in others] == []
    finally:
        gc.enable()


async def test_a_lost_publisher_after_a_waiting_one_is_released():
    async with core() as broker:
        topic = await prepared(broker, count=5, max_messages=5, overflow="block")
        first = asyncio.ensure_future(append(broker, topic, [b"first"]))
        topic.append(blocks.encode([b"gone"]), 1, done=lambda *_: None, alive=lambda: False)
        await until(lambda: topic.stats()["blocked"] == 1)
        assert not first.done()
        await broker.delete("j")
        with pytest.raises(TopicError):
            await first


async def test_statistics_have_the_messages_in_flight_and_those_that_wait():
    async with core() as broker:
        topic = await prepared(broker, count=10)
        assert (topic.stats()["backlog"], topic.stats()["in_flight"]) == (10, 0)
        sinks = [RecordingSink() for _ in range(2)]
        consumers = [broker.consume(topic, sink, credit=3) for sink in sinks]
        await until(lambda: sum(len(sink.got) for sink in sinks) == 6)
        assert (topic.stats()["backlog"], topic.stats()["in_flight"]) == (4, 6)
        consumers[0].end()
        await run_pending(broker)
        assert (topic.stats()["backlog"], topic.stats()["in_flight"]) == (7, 3)
        consumers[1].ack([(id, id) for id in sinks[1].ids])
        await until(lambda: topic.stats()["in_flight"] == 3 and topic.stats()["backlog"] == 4)
