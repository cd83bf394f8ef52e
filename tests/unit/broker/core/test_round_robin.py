"""Shares of a round-robin topic: who gets what, what comes back, and what ends among the dead letters."""

import asyncio
import gc
from contextlib import contextmanager

import lmdb
import pytest

from omq._core import blocks
from omq.broker import errors
from omq.broker.core.broker import Broker
from omq.broker.core.round_robin import RoundRobinTopic
from omq.broker.core.topic import MIN_BLOCK_BYTES, TURN_BYTES, Publication
from omq.broker.errors import BrokerFailed, TopicError
from omq.broker.settings import retry_delay_of
from omq.store.errors import DamagedError, OutOfSpace
from omq.store.interface import MoveToDeadLetter, Stage
from omq.store.lmdb import reader
from omq.workqueue.queue import _DEAD_LETTER_BATCH
from tests.unit.broker.core.cores import Taker, append, core, quiet, until


async def prepared(broker, count=10, **settings):
    topic = await broker.create("j", delivery="round-robin", persistence="weak", settings=settings)
    if count:
        await append(broker, topic, [b"%d" % number for number in range(1, count + 1)])
    return topic


def settled(broker, topic):
    return broker.store.store.settled(topic.id)


async def flushed(topic):
    told = []
    topic.flush(told.append)
    await until(lambda: told)
    assert told == [None]


async def test_each_message_goes_to_one_consumer_and_all_get_their_part():
    async with core() as broker:
        topic = await prepared(broker, count=0)
        takers = [Taker() for _ in range(4)]
        for taker in takers:
            broker.consume(topic, taker, credit=1000)
        await append(broker, topic, [b"x"] * 400)
        await until(lambda: sum(len(taker.got) for taker in takers) == 400)
        assert sorted(id for taker in takers for id in taker.ids) == list(range(1, 401))
        assert [len(taker.got) for taker in takers] == [100] * 4


async def test_messages_that_come_one_by_one_go_round():
    async with core() as broker:
        topic = await prepared(broker, count=0)
        takers = [Taker() for _ in range(3)]
        for taker in takers:
            broker.consume(topic, taker, credit=10)
        for number in range(9):
            await append(broker, topic, [b"x"])
            await until(lambda so_far=number: sum(len(taker.got) for taker in takers) == so_far + 1)
        assert [len(taker.got) for taker in takers] == [3, 3, 3]


async def test_credit_bounds_what_a_consumer_has_and_comes_back_with_what_it_acknowledges():
    async with core() as broker:
        topic = await prepared(broker, count=100)
        taker = Taker()
        share = broker.consume(topic, taker, credit=3)
        await quiet(broker)
        assert taker.ids == [1, 2, 3]
        share.ack([(2, 2)])
        await until(lambda: len(taker.got) == 4)
        share.more(2)
        await until(lambda: len(taker.got) == 6)
        share.ack([(1, 100)])
        await until(lambda: len(taker.got) == 11)
        await flushed(topic)
        assert settled(broker, topic).watermark == 6
        assert settled(broker, topic).handed == 11


async def test_a_consumer_without_room_leaves_the_messages_to_others():
    async with core() as broker:
        topic = await prepared(broker)
        full, free = Taker(room_left=0), Taker()
        share = broker.consume(topic, full)
        broker.consume(topic, free)
        await until(lambda: len(free.got) == 10)
        assert full.got == []
        full.room_left = 1000
        share.more(0)
        await append(broker, topic, [b"x"] * 2)
        await until(lambda: len(full.got) == 1)


async def test_what_is_given_back_is_delivered_again_with_its_count():
    async with core() as broker:
        topic = await prepared(broker, count=5, retry_delay=0)
        taker = Taker()
        share = broker.consume(topic, taker, credit=100)
        await until(lambda: len(taker.got) == 5)
        share.nack([(2, 3)])
        await until(lambda: len(taker.got) == 7)
        assert taker.got[5:] == [(2, b"2"), (3, b"3")]
        assert taker.counts == [1] * 5 + [2, 2]
        share.nack([(3, 3)])
        await until(lambda: len(taker.got) == 8)
        assert taker.counts[-1] == 3
        await flushed(topic)
        assert settled(broker, topic).deliveries == {2: 1, 3: 2}  # attempts in vain
        assert topic.redelivered == 3
        share.ack([(1, 5)])
        await flushed(topic)
        assert settled(broker, topic).watermark == 5
        assert settled(broker, topic).deliveries == {}


async def test_what_is_not_acknowledged_in_time_is_delivered_again():
    async with core() as broker:
        topic = await prepared(broker, count=3)
        late, other = Taker(), Taker()
        share = broker.consume(topic, late, ack_timeout=0.5, credit=3)
        await until(lambda: len(late.got) == 3)
        share.ack([(2, 2)])
        broker.consume(topic, other, ack_timeout=30, credit=10)
        late.room_left = 0
        await until(lambda: len(other.got) == 2)
        assert sorted(other.ids) == [1, 3]
        assert other.counts == [2, 2]
        share.ack([(1, 3)])  # too late: somebody else has them
        await flushed(topic)
        assert settled(broker, topic).watermark == 0


async def test_the_only_consumer_gets_again_what_it_did_not_acknowledge():
    async with core() as broker:
        topic = await prepared(broker, count=1)
        taker = Taker()
        broker.consume(topic, taker, ack_timeout=0.02, credit=3)
        await until(lambda: len(taker.got) == 3)
        assert taker.counts == [1, 2, 3]


async def test_a_late_acknowledgement_counts_while_nobody_else_has_begun():
    async with core() as broker:
        topic = await prepared(broker, count=3)
        taker = Taker()
        share = broker.consume(topic, taker, ack_timeout=0.02, credit=3)
        await until(lambda: len(taker.got) == 3)
        taker.room_left = 0
        await until(lambda: topic.backlog == 3)
        share.ack([(1, 3)])
        assert topic.backlog == 0
        await flushed(topic)
        assert settled(broker, topic).watermark == 3


async def test_ids_that_a_consumer_never_had_are_passed_over():
    async with core() as broker:
        topic = await prepared(broker, count=10)
        one, other = Taker(), Taker()
        first = broker.consume(topic, one, credit=5)
        second = broker.consume(topic, other, credit=5)
        await until(lambda: len(one.got) + len(other.got) == 10)
        second.nack([(1, 2**64 - 1)])
        first.ack([(6, 10), (100, 2**64 - 1)])
        await flushed(topic)
        assert settled(broker, topic).watermark == 0


async def test_single_messages_that_come_back_are_handed_out_some_at_a_turn():
    async with core() as broker:
        topic = await prepared(broker, count=2000)
        taker = Taker()
        share = broker.consume(topic, taker, credit=2000)
        await until(lambda: len(taker.got) == 2000)
        share.ack((id, id) for id in range(1, 2001, 2))
        share.nack(((id, id) for id in range(2, 2001, 2)), 0.0)
        before = len(taker.got)
        while before < 3000:
            await asyncio.sleep(0)
            assert len(taker.got) - before <= TURN_BYTES // MIN_BLOCK_BYTES
            before = len(taker.got)


async def test_a_consumer_that_leaves_gives_back_at_once():
    async with core() as broker:
        topic = await prepared(broker, count=4)
        one, other = Taker(), Taker()
        share = broker.consume(topic, one, credit=4)
        await until(lambda: len(one.got) == 4)
        share.ack([(1, 1)])
        broker.consume(topic, other, credit=10)
        share.end()
        share.end()
        share.ack([(2, 4)])
        await until(lambda: len(other.got) == 3)
        assert other.ids == [2, 3, 4]
        assert other.counts == [2, 1, 1]  # it had begun with the first one only
        assert topic.readers == 1


async def test_a_sink_that_raises_gives_everything_to_the_others():
    async with core() as broker:
        topic = await prepared(broker, count=10)
        bad, good = Taker(), Taker()
        bad.fault = RuntimeError("full of sand")
        broker.consume(topic, bad)
        broker.consume(topic, good)
        await until(lambda: len(good.got) == 10)
        assert isinstance(bad.errors[0], BrokerFailed)


async def test_deleting_ends_consumers_with_an_error():
    async with core() as broker:
        topic = await prepared(broker)
        taker = Taker()
        share = broker.consume(topic, taker)
        await until(lambda: taker.got)
        await broker.delete("j")
        assert isinstance(taker.errors[0], TopicError)
        share.ack([(1, 1)])
        with pytest.raises(TopicError):
            topic.consume(Taker(), 1.0, 1)


async def test_after_max_deliveries_a_message_goes_to_the_dead_letters_as_it_is():
    async with core() as broker:
        topic = await prepared(broker, count=0, max_deliveries=2)
        record = blocks.encode_record(b"body", b"key", {"h": b"v"})
        topic.append(record, 1, done=lambda first, error: None)
        await append(broker, topic, [b"other"])
        taker = Taker()
        share = broker.consume(topic, taker)
        await until(lambda: len(taker.got) == 2)
        share.nack([(1, 1)])
        await until(lambda: len(taker.got) == 3)
        share.nack([(1, 1)])
        await until(lambda: topic.dead_lettered == 1)
        dead = broker.topic("j.dead")
        assert dead.delivery == "broadcast"
        assert dead.persistence == "weak"
        with broker.store.store.read(dead.id) as reader:
            (message,) = [one for header, records in reader.blocks(1) for one in blocks.decode(header, records, "d")]
        assert (message.body, message.key, message.headers) == (b"body", b"key", {"h": b"v"})
        share.ack([(2, 2)])
        await flushed(topic)
        assert settled(broker, topic).watermark == 2
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
    taker = Taker()
    share = broker.consume(jobs, taker)
    await until(lambda: len(taker.got) == 2)
    share.nack([(1, 2)])
    await until(lambda: jobs.dead_lettered == 2)
    told = jobs.stats(), dead.stats()
    assert [(one["published"], one["published_bytes"]) for one in told] == [
        (2, len(blocks.encode([b"one", b"other"])))
    ] * 2
    await broker.close()


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
        taker = Taker()
        share = broker.consume(topic, taker, credit=2000)
        await until(lambda: len(taker.got) == 2000)
        share.nack([(1, 2000)])
        await until(lambda: topic.dead_lettered == 2000)
        assert max(turns) <= _DEAD_LETTER_BATCH
        assert broker.topic("j.dead").last == 2000
        await until(lambda: topic.queue._moving is None)
        await flushed(topic)
        assert settled(broker, topic).watermark == 2000


async def test_dead_letters_go_to_the_topic_that_is_named_and_there():
    async with core() as broker:
        graves = await broker.create("graves", persistence="async", settings={"max_messages": 100})
        topic = await prepared(broker, count=3, max_deliveries=1, dead_letter="graves", retry_delay=0)
        taker = Taker()
        mourner = Taker()
        broker.subscribe(graves, "earliest", mourner)
        broker.consume(topic, taker, ack_timeout=0.02)
        await until(lambda: len(mourner.got) == 3)
        assert [body for _, body in mourner.got] == [b"1", b"2", b"3"]
        assert set(taker.counts) == {1}


async def test_what_came_back_is_there_after_a_restart_with_its_counts():
    async with core() as broker:
        topic = await prepared(broker, count=10, retry_delay=0)
        taker = Taker()
        share = broker.consume(topic, taker, credit=6)
        await until(lambda: len(taker.got) == 6)
        share.ack([(1, 2), (5, 5)])
        await until(lambda: len(taker.got) == 9)
        share.nack([(4, 4)])
        await until(lambda: len(taker.got) == 10)
        await flushed(topic)
        again = RoundRobinTopic(topic.state(), broker.store, broker, broker)
        broker.topics["j"] = broker._by_id[topic.id] = again
        other = Taker()
        again.consume(other, 30.0, 100)
        await until(lambda: len(other.got) == 7)
        assert dict(zip(other.ids, other.counts, strict=True)) == {3: 1, 4: 2, 6: 1, 7: 1, 8: 1, 9: 1, 10: 1}


async def test_what_retention_drops_is_no_backlog():
    async with core() as broker:
        topic = await prepared(broker, count=20, max_age=0.05)
        await asyncio.sleep(0.1)
        taker = Taker()
        broker.consume(topic, taker, credit=100)
        await append(broker, topic, [b"new"])
        await until(lambda: taker.got)
        assert taker.got == [(21, b"new")]
        assert topic.backlog == 0
        assert topic.unfinished == 1
        assert topic.stats()["expired"] == 20


async def test_work_that_expires_is_counted_and_logged_without_a_consumer(caplog):
    async with core() as broker:
        topic = await prepared(broker, count=20, max_age=0.05, max_messages=20)
        await asyncio.sleep(0.1)
        assert await append(broker, topic, [b"x"] * 5) == 21
        assert topic.stats()["expired"] == 20
        assert topic.unfinished == 5
        assert "20 unfinished messages are older than max_age=0.05" in caplog.text


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


async def test_damaged_messages_are_told_and_the_others_delivered(caplog):
    async with core() as broker:
        topic = await prepared(broker, count=10)
        broker.store.store = Damaged(broker.store.store, 4, 6)
        taker = Taker()
        share = broker.consume(topic, taker)
        await until(lambda: len(taker.got) == 7)
        assert taker.ids == [1, 2, 3, 7, 8, 9, 10]
        assert "damaged" in caplog.text
        share.ack([(1, 10)])
        await flushed(topic)
        assert settled(broker, topic).watermark == 10


async def test_damage_of_which_nobody_knows_the_end_ends_the_consumers(caplog):
    async with core() as broker:
        topic = await prepared(broker, count=10)
        broker.store.store = Damaged(broker.store.store, 4, 0)
        taker = Taker()
        broker.consume(topic, taker)
        await until(lambda: taker.errors)
        assert taker.errors[0].code == "damaged"
        assert topic.readers == 0


@pytest.mark.parametrize("persistence", ["weak", "strong"])
async def test_what_lmdb_cannot_read_ends_the_consumers_and_settles_nothing(tmp_path, monkeypatch, persistence):
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
                raise lmdb.CorruptedError("a page is none")
            return found

        monkeypatch.setattr(reader, "block_at", fails)
        taker = Taker()
        broker.consume(topic, taker)
        await until(lambda: taker.errors)
        assert taker.errors[0].code == "failed"
        assert taker.ids == [1]
        await flushed(topic)
        assert [id for id in range(1, 4) if id in settled(broker, topic)] == []
        assert broker.store.store.stats().damaged == []
        monkeypatch.undo()
        other = Taker()
        broker.consume(topic, other)
        await until(lambda: len(other.got) == 3)
        assert other.ids == [1, 2, 3]
    finally:
        await broker.close()


async def test_what_is_to_be_buried_when_the_broker_ends_leaves_no_task(tmp_path):
    broker = Broker(tmp_path)
    await broker.start()
    topic = await prepared(broker, count=3, max_deliveries=1)
    taker = Taker()
    share = broker.consume(topic, taker)
    await until(lambda: len(taker.got) == 3)
    share.nack([(1, 3)])
    await broker.close()
    broker = Broker(tmp_path)
    await broker.start()
    topic = broker.topic("j")
    await until(lambda: "j.dead" in broker.topics and broker.topic("j.dead").last == 3)
    await until(lambda: topic.backlog == 0 and topic.queue._moving is None)
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


async def test_what_is_overdue_gives_no_credit_to_a_consumer_that_hangs():
    async with core() as broker:
        topic = await prepared(broker, count=10)
        taker = Taker()
        share = broker.consume(topic, taker, ack_timeout=0.5, credit=4)
        await until(lambda: len(taker.got) == 4)
        await until(lambda: topic.backlog == 10)
        await quiet(broker)
        assert taker.ids == [1, 2, 3, 4]
        share.nack([(100, 100)])  # it lives
        await until(lambda: len(taker.got) == 8)


async def test_a_consumer_that_skips_messages_gets_its_credit_back_after_a_while():
    async with core() as broker:
        topic = await prepared(broker, count=3, max_deliveries=3, retry_delay=0)
        taker = Taker()
        broker.consume(topic, taker, ack_timeout=0.01, credit=1)  # never acknowledges anything
        await until(lambda: topic.dead_lettered == 3)
        assert taker.ids == [1] * 3 + [2] * 3 + [3] * 3


async def test_what_nobody_looked_at_is_returned_without_being_counted():
    async with core() as broker:
        topic = await prepared(broker, count=5, max_deliveries=2)
        taker = Taker()
        share = broker.consume(topic, taker, credit=100)
        await until(lambda: len(taker.got) == 5)
        share.nack([(5, 5)])
        await until(lambda: len(taker.got) == 6)
        share.give_back([(2, 2**64 - 1)])
        await quiet(broker)
        assert len(taker.got) == 6  # nothing follows without credit
        assert topic.backlog == 4
        await flushed(topic)
        assert settled(broker, topic).deliveries == {5: 1}
        other = Taker()
        broker.consume(topic, other, credit=100)
        await until(lambda: len(other.got) == 4)
        assert dict(zip(other.ids, other.counts, strict=True)) == {2: 1, 3: 1, 4: 1, 5: 2}
        await flushed(topic)
        assert settled(broker, topic).deliveries == {5: 1}
        assert topic.dead_lettered == 0


async def test_that_something_was_delivered_is_stored_before_anybody_says_anything():
    async with core() as broker:
        topic = await prepared(broker)
        broker.consume(topic, Taker())
        await until(lambda: settled(broker, topic).handed == 10)


async def test_a_slow_consumer_has_time_for_each_job_and_one_that_hangs_goes_to_another():
    async with core() as broker:
        topic = await prepared(broker, count=8)
        slow, other = Taker(), Taker()
        share = broker.consume(topic, slow, credit=8, ack_timeout=0.4)
        await until(lambda: len(slow.got) == 8)
        slow.room_left = 0  # nothing comes back to it
        loop = asyncio.get_running_loop()
        began = loop.time()
        broker.consume(topic, other, credit=100)
        for id in (1, 3, 4, 5, 6, 7):  # the second one hangs
            await asyncio.sleep(0.15)
            share.ack([(id, id)])
        assert loop.time() - began > 2 * 0.4
        assert other.ids == [2]
        await until(lambda: other.ids == [2, 8])
        assert loop.time() - began > 6 * 0.15 + 0.3
        assert slow.ids == list(range(1, 9))


async def test_what_a_killed_broker_delivered_is_settled_however_far_it_is_and_stays_so():
    async with core() as broker:
        topic = await prepared(broker, count=20_000)
        for at in range(5_001, 15_000, 2):
            topic.ack_late(at, at)
        topic.ack_late(15_000, 19_990)
        left = 20_000 - 5_000 - 4_991
        assert topic.backlog == left
        await flushed(topic)
        for again in range(2):
            if again:
                topic = RoundRobinTopic(topic.state(), broker.store, broker, broker)
                broker.topics["j"] = broker._by_id[topic.id] = topic
            assert topic.backlog == left
            taker = Taker()
            share = broker.consume(topic, taker, credit=20_000)
            await until(lambda taker=taker: len(taker.got) == left)
            wanted = [*range(1, 5_001), *range(5_002, 15_000, 2), *range(19_991, 20_001)]
            assert taker.ids == wanted
            assert set(taker.counts) == {1}
            share.give_back([(1, 20_000)])
            share.end()
            await flushed(topic)


async def test_acknowledgements_that_are_late_count_however_scattered_they_are():
    async with core() as broker:
        topic = await prepared(broker, count=6_000)
        taker = Taker()
        share = broker.consume(topic, taker, credit=6_000, ack_timeout=0.2)
        await until(lambda: len(taker.got) == 6_000)
        share.ack([(id, id) for id in range(1, 6_001, 2)])
        await until(lambda: topic.backlog == 3_000)  # the others are overdue, and nobody is there who takes them
        share.ack([(id, id) for id in range(2, 6_001, 2)])
        assert topic.backlog == 0
        await flushed(topic)
        assert settled(broker, topic).watermark == 6_000


async def test_what_was_acknowledged_in_another_session_counts_while_nobody_else_has_it():
    async with core() as broker:
        topic = await prepared(broker, count=10)
        gone, other = Taker(), Taker()
        share = broker.consume(topic, gone, credit=4)
        await until(lambda: len(gone.got) == 4)
        share.end()
        broker.consume(topic, other, credit=1)
        await until(lambda: other.ids == [1])
        topic.ack_late(1, 3)
        assert topic.backlog == 7
        # A broker that was killed does not know of all that it has delivered.
        topic.ack_late(6, 7)
        topic.ack_late(1 << 40, 1 << 41)
        broker.consume(topic, other, credit=10)
        await until(lambda: len(other.got) == 6)
        assert other.ids == [1, 4, 5, 8, 9, 10]
        assert other.counts == [2, 1, 1, 1, 1, 1]
        await flushed(topic)
        assert list(settled(broker, topic).missing(1, 7)) == [(1, 1), (4, 5)]


async def test_a_message_that_fails_waits_longer_each_time_and_others_pass_it():
    async with core() as broker:
        topic = await prepared(broker, count=2, retry_delay=[0.02, 0.1])
        taker = Taker()
        share = broker.consume(topic, taker, credit=1)
        clock = asyncio.get_running_loop().time
        came = []
        for number in range(4):
            await until(lambda number=number: len(taker.got) > number)
            came.append(clock())
            if taker.got[len(came) - 1][1] == b"2":
                share.ack([(2, 2)])
            else:
                share.nack([(1, 1)])
        assert taker.ids == [1, 2, 1, 1]
        assert taker.counts == [1, 1, 2, 3]
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


async def test_nack_names_another_delay():
    async with core() as broker:
        topic = await prepared(broker, count=2)
        taker = Taker()
        share = broker.consume(topic, taker)
        await until(lambda: len(taker.got) == 2)
        share.nack([(1, 1)], 60.0)
        share.nack([(2, 2)], 0.0)
        await until(lambda: len(taker.got) == 3)
        assert taker.ids == [1, 2, 2]
        assert topic.backlog == 1


async def test_what_waits_for_its_delay_can_be_acknowledged_late():
    async with core() as broker:
        topic = await prepared(broker, count=1, retry_delay=60)
        taker = Taker()
        share = broker.consume(topic, taker, ack_timeout=0.02)
        await until(lambda: taker.got and topic.backlog == 1)
        share.ack([(1, 1)])
        assert topic.unfinished == 0
        await flushed(topic)
        assert settled(broker, topic).watermark == 1


async def test_a_consumer_that_hangs_is_charged_one_message_a_timeout():
    """Neighbours that were sent ahead to a consumer that hangs keep their attempts."""
    async with core() as broker:
        topic = await prepared(broker, count=0, max_deliveries=2, retry_delay=0)
        hung = Taker()
        broker.consume(topic, hung, ack_timeout=0.1, credit=20)
        for number in range(20):  # deadlines of their own
            await append(broker, topic, [b"%d" % number])
        await until(lambda: len(hung.got) == 20)
        hung.room_left = 0
        await until(lambda: topic.backlog == 20)
        other = Taker()
        broker.consume(topic, other, credit=100)
        await until(lambda: len(other.got) == 20)
        assert sorted(other.counts) == [1] * 19 + [2]
        assert dict(zip(other.ids, other.counts, strict=True))[1] == 2


async def test_a_consumer_that_hangs_next_to_another_gets_ever_less():
    """Each timeout costs a message an attempt: a consumer with much credit is tried ever more rarely."""
    async with core() as broker:
        topic = await prepared(broker, count=0, retry_delay=0)
        hung, healthy = Taker(), Taker()
        share = broker.consume(topic, hung, ack_timeout=0.02, credit=100_000)
        other = broker.consume(topic, healthy, credit=100)
        done = 0
        for number in range(200):
            await append(broker, topic, [b"%d" % number])
            await asyncio.sleep(0.005)
            for id in healthy.ids[done:]:
                other.ack([(id, id)])
            done = len(healthy.ids)
        assert 2 <= sum(count > 1 for count in healthy.counts) <= 8  # a second has 50 timeouts

        share.ack([(hung.ids[0], hung.ids[0])])  # it lives
        before = len(hung.got)
        await append(broker, topic, [b"x", b"y"])
        await until(lambda: len(hung.got) > before)


async def test_a_consumer_that_hangs_gets_what_nobody_else_takes():
    async with core() as broker:
        topic = await prepared(broker, count=1, retry_delay=0)
        hung = Taker()
        share = broker.consume(topic, hung, ack_timeout=0.02, credit=100)
        await until(lambda: len(hung.got) == 3)
        share.ack([(1, 1)])

        other = broker.consume(topic, Taker(), credit=0)
        await append(broker, topic, [b"x"])
        await until(lambda: share.passed_over_until)
        before = len(hung.got)
        await quiet(broker)
        assert len(hung.got) == before  # the other one may have credit soon
        other.end()
        await until(lambda: len(hung.got) > before)


@pytest.mark.parametrize("reached", ["nothing", "acknowledged", "in progress"])
async def test_a_consumer_that_dies_is_charged_for_what_it_had_begun(reached):
    async with core() as broker:
        topic = await prepared(broker, count=20, max_deliveries=3)
        dying, other = Taker(), Taker()
        share = broker.consume(topic, dying, credit=20)
        await until(lambda: len(dying.got) == 20)
        begun = {1}
        if reached == "acknowledged":
            share.ack([(5, 5)])
            begun = {1, 2, 3, 4, 6}
        elif reached == "in progress":
            share.progress([(5, 5)])
            begun = {1, 2, 3, 4, 5, 6}
        share.end()
        broker.consume(topic, other, credit=100)
        await until(lambda: len(other.got) == 20 - (reached == "acknowledged"))
        assert {id for id, count in zip(other.ids, other.counts, strict=True) if count == 2} == begun


async def test_a_poison_message_takes_no_neighbour_with_it():
    async with core() as broker:
        topic = await prepared(broker, count=21, max_deliveries=3)
        for _ in range(3):
            dying = Taker()
            share = broker.consume(topic, dying, credit=100)
            await until(lambda dying=dying: len(dying.got) == 21)
            share.end()  # the first one kills it
        await until(lambda: topic.dead_lettered == 1)
        good = Taker()
        broker.consume(topic, good, credit=100)
        await until(lambda: len(good.got) == 20)
        assert good.ids == list(range(2, 22))
        assert good.counts == [1] * 20


async def test_progress_restarts_the_time():
    async with core() as broker:
        topic = await prepared(broker, count=2)
        taker = Taker()
        share = broker.consume(topic, taker, ack_timeout=1.0)
        await until(lambda: len(taker.got) == 2)
        for _ in range(4):
            await asyncio.sleep(0.4)
            share.progress([(1, 1)])
        assert topic.redelivered == 0
        assert topic.backlog == 0
        share.ack([(1, 2)])
        assert topic.unfinished == 0


async def test_a_full_work_queue_refuses_and_forgets_nothing(caplog):
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
        taker = Taker()
        share = broker.consume(topic, taker, credit=100)
        await until(lambda: len(taker.got) == 50)
        share.ack([(1, 30)])
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
    """The number of messages that a topic takes before it is full."""
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
        await quiet(broker)
        await until(lambda: sum(job.done() for job in jobs) == 5)
        assert topic.stats()["blocked"] == 7
        taker = Taker()
        share = broker.consume(topic, taker, credit=100)
        await until(lambda: len(taker.got) == 5)
        share.ack([(1, 2)])
        await until(lambda: sum(job.done() for job in jobs) == 7)
        share.ack([(1, 7)])
        await until(lambda: len(taker.got) == 12)
        assert [body for _, body in taker.got] == [b"%d" % number for number in range(12)]
        assert [await job for job in jobs] == list(range(1, 13))
        assert topic.stats()["blocked"] == 0
        assert broker.store.waiting == 0


async def test_more_than_a_whole_topic_waits_until_it_is_empty():
    async with core() as broker:
        topic = await prepared(broker, count=1, max_messages=5, overflow="block")
        large = asyncio.ensure_future(append(broker, topic, [b"x"] * 20))
        taker = Taker()
        share = broker.consume(topic, taker, credit=100)
        await until(lambda: taker.got)
        assert not large.done()
        share.ack([(1, 1)])
        assert await large == 2


async def test_who_waits_for_room_in_a_topic_that_is_deleted_is_told():
    async with core() as broker:
        topic = await prepared(broker, count=5, max_messages=5, overflow="block")
        job = asyncio.ensure_future(append(broker, topic, [b"x"]))
        await quiet(broker)
        await broker.delete("j")
        with pytest.raises(TopicError):
            await job


async def test_a_publisher_that_is_gone_keeps_no_place():
    async with core() as broker:
        topic = await prepared(broker, count=5, max_messages=5, overflow="block")
        lives = True
        topic.append(blocks.encode([b"gone"]), 1, done=lambda *_: None, alive=lambda: lives)
        lives = False
        job = asyncio.ensure_future(append(broker, topic, [b"there"]))
        taker = Taker()
        share = broker.consume(topic, taker, credit=100)
        await until(lambda: len(taker.got) == 5)
        share.ack([(1, 1)])
        assert await job == 6
        await until(lambda: len(taker.got) == 6)
        assert taker.got[-1] == (6, b"there")


@pytest.mark.parametrize("consumed", [0, 7])
async def test_the_oldest_work_goes_to_the_dead_letters_where_that_is_wanted(caplog, consumed):
    async with core() as broker:
        topic = await prepared(broker, count=0, max_messages=5, overflow="drop-oldest")
        taker = Taker()
        share = broker.consume(topic, taker, credit=consumed) if consumed else None
        for number in range(1, 21):
            await append(broker, topic, [b"%d" % number])
        await until(lambda: topic.dead_lettered == 15)
        assert topic.unfinished == 5
        assert topic.stats()["dropped"] == 15
        assert "go to the dead letters" in caplog.text
        dead = broker.topic("j.dead")
        held = set(taker.ids)  # nothing is taken from a consumer
        assert dead.last == 15
        if share is not None:
            share.ack([(1, 100)])
        other = Taker()
        broker.consume(topic, other, credit=100)
        await until(lambda: topic.backlog == 0)
        await quiet(broker)
        with broker.store.store.read(dead.id) as reader:
            buried = [
                int(one.body) for header, records in reader.blocks(1) for one in blocks.decode(header, records, "d")
            ]
        assert sorted([*buried, *held, *other.ids]) == list(range(1, 21))


@pytest.mark.parametrize("overflow", ["reject", "block"])
async def test_a_commit_finds_no_more_room_than_a_publisher(overflow):
    async with core() as broker:
        topic = await prepared(broker, count=3, max_messages=5, overflow=overflow)
        stage = Stage(topic.id, blocks.encode([b"x"] * 3), 3, b"s")
        await broker.store.do(stage)
        answers = []
        broker.commit(b"c", [b"s"], lambda id: True, answers.append)
        taker = Taker()
        share = broker.consume(topic, taker, credit=100)
        await until(lambda: len(taker.got) == 3)
        await quiet(broker)
        if overflow == "reject":
            assert isinstance(answers.pop().error, errors.StoreFull)
            assert topic.stats()["rejected"] == 3
            share.ack([(1, 1)])
            broker.commit(b"c", [b"s"], lambda id: True, answers.append)
        else:
            assert not answers
            share.ack([(1, 1)])
        await until(lambda: answers)
        assert answers[0].error is None
        await until(lambda: len(taker.got) == 6)


@pytest.mark.parametrize("overflow", ["reject", "block"])
async def test_bytes_bound_a_commit_as_they_do_a_publisher(tmp_path, overflow):
    broker = Broker(tmp_path)  # memory keeps no stages that are larger than the topic
    await broker.start()
    try:
        topic = await prepared(broker, count=0, max_bytes=10_000, overflow=overflow)
        await append(broker, topic, [bytes(8000)])
        await broker.store.do(Stage(topic.id, blocks.encode([bytes(3000)]), 1, b"s"))
        answers = []
        broker.commit(b"c", [b"s"], lambda id: True, answers.append)
        taker = Taker()
        share = broker.consume(topic, taker, credit=100)
        if overflow == "reject":
            await until(lambda: answers)
            assert isinstance(answers.pop().error, errors.StoreFull)
        else:
            await until(lambda: topic.stats()["blocked"] == 1)
            await quiet(broker)
            assert not answers
        assert topic.last == 1
        share.ack([(1, 1)])
        if overflow == "reject":
            await flushed(topic)
            broker.commit(b"c", [b"s"], lambda id: True, answers.append)
        await until(lambda: answers)
        assert answers[0].error is None
        await until(lambda: len(taker.got) == 2)
        # More than the whole topic waits until that is empty.
        await broker.store.do(Stage(topic.id, blocks.encode([bytes(9999)] * 2), 2, b"s2"))
        broker.commit(b"c2", [b"s2"], lambda id: True, answers.append)
        if overflow == "reject":
            await until(lambda: len(answers) == 2)
            assert isinstance(answers[1].error, errors.StoreFull)
        else:
            await until(lambda: topic.stats()["blocked"] == 2)
            share.ack([(2, 2)])
            await until(lambda: len(taker.got) == 4)
    finally:
        await broker.close()


async def test_work_in_memory_is_bounded_and_never_dropped():
    async with core() as broker:
        topic = await prepared(broker, count=0)
        accepted = await accepted_until_full(broker, topic, bytes(1 << 20))
        assert accepted == 63  # of 64 MiB
        taker = Taker()
        broker.consume(topic, taker, credit=100)
        await until(lambda: len(taker.got) == accepted)
        assert taker.ids == list(range(1, accepted + 1))


async def test_a_broker_that_is_killed_charges_nothing():
    """Messages that were prefetched when the broker died count no attempt."""
    async with core() as broker:
        topic = await prepared(broker, count=20, max_deliveries=1)
        broker.consume(topic, Taker(), credit=20)
        await until(lambda: settled(broker, topic).handed == 20)
        again = RoundRobinTopic(topic.state(), broker.store, broker, broker)
        broker.topics["j"] = broker._by_id[topic.id] = again
        other = Taker()
        again.consume(other, 30.0, 100)
        await until(lambda: len(other.got) == 20)
        assert other.counts == [1] * 20
        assert again.dead_lettered == 0


@pytest.mark.parametrize("overflow", ["reject", "block"])
async def test_what_was_published_to_a_bounded_topic_is_let_go_at_once(overflow):
    """Without the garbage collector, which a broker hardly ever runs."""
    gc.collect()
    gc.disable()
    others = [one for one in gc.get_objects() if isinstance(one, Publication)]  # of other tests
    try:
        async with core() as broker:
            topic = await prepared(broker, count=0, max_messages=5, overflow=overflow)
            jobs = [
                asyncio.ensure_future(append(broker, topic, [b"x"], producer=b"p", sequence=n)) for n in range(1, 21)
            ]
            await quiet(broker)
            if overflow == "block":
                taker = Taker()
                share = broker.consume(topic, taker, credit=100)
                while not all(job.done() for job in jobs):
                    share.ack([(1, 100)])
                    await asyncio.sleep(0.001)
            answers = await asyncio.gather(*jobs, return_exceptions=True)
            assert len(answers) == 20
            del jobs, answers
            await quiet(broker)
            assert [one for one in gc.get_objects() if isinstance(one, Publication) and one not in others] == []
    finally:
        gc.enable()


async def test_a_publisher_that_is_gone_behind_one_that_waits_is_let_go():
    async with core() as broker:
        topic = await prepared(broker, count=5, max_messages=5, overflow="block")
        first = asyncio.ensure_future(append(broker, topic, [b"first"]))
        topic.append(blocks.encode([b"gone"]), 1, done=lambda *_: None, alive=lambda: False)
        await until(lambda: topic.stats()["blocked"] == 1)
        assert not first.done()
        await broker.delete("j")
        with pytest.raises(TopicError):
            await first
