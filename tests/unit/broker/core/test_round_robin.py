"""Shares of a round-robin topic: who gets what, what comes back, and what ends among the dead letters."""

import asyncio
from contextlib import contextmanager

import lmdb
import pytest

from omq._core import blocks
from omq.broker.core.broker import Broker
from omq.broker.core.round_robin import BURIED, RoundRobinTopic
from omq.broker.core.topic import BLOCK, TURN
from omq.broker.errors import BrokerFailed, TopicError
from omq.store.errors import DamagedError, StoreFull
from omq.store.interface import MoveToDeadLetter
from omq.store.lmdb import reader
from tests.unit.broker.core.cores import Taker, append, core, quiet, until


async def prepared(broker, count=10, **settings):
    topic = await broker.create("j", delivery="round-robin", persistence="weak", settings=settings)
    if count:
        await append(broker, topic, [b"%d" % number for number in range(1, count + 1)])
    return topic


def settled(broker, topic):
    return broker.journal.store.settled(topic.id)


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
        full, free = Taker(left=0), Taker()
        share = broker.consume(topic, full)
        broker.consume(topic, free)
        await until(lambda: len(free.got) == 10)
        assert full.got == []
        full.left = 1000
        share.more(0)
        await append(broker, topic, [b"x"] * 2)
        await until(lambda: len(full.got) == 1)


async def test_what_is_given_back_is_delivered_again_at_once_with_its_count():
    async with core() as broker:
        topic = await prepared(broker, count=5)
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
        assert settled(broker, topic).deliveries == {2: 2, 3: 3}
        assert topic.redelivered == 3
        share.ack([(1, 5)])
        await flushed(topic)
        assert settled(broker, topic).watermark == 5
        assert settled(broker, topic).deliveries == {}


async def test_what_is_not_acknowledged_in_time_is_delivered_again():
    async with core() as broker:
        topic = await prepared(broker, count=3)
        late, other = Taker(), Taker()
        share = broker.consume(topic, late, ack_timeout=0.05, credit=3)
        await until(lambda: len(late.got) == 3)
        share.ack([(2, 2)])
        broker.consume(topic, other, ack_timeout=30, credit=10)
        late.left = 0
        await until(lambda: len(other.got) == 2)
        assert other.ids == [1, 3]
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
        taker.left = 0
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
        share.nack((id, id) for id in range(2, 2001, 2))
        before = len(taker.got)
        while before < 3000:
            await asyncio.sleep(0)
            assert len(taker.got) - before <= TURN // BLOCK
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
        assert other.counts == [2, 2, 2]
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
        broker.append(topic, record, 1, done=lambda first, error: None)
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
        with broker.journal.store.read(dead.id) as reader:
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
        store, turns, bad = broker.journal.store, [], list(range(refused))
        submit = store.submit_many

        def counted(writes):
            moves = [write for write in writes if isinstance(write, MoveToDeadLetter)]
            turns.append(len(moves))
            if moves and bad:
                bad.pop()
                for write in moves:
                    write.error = StoreFull("no space")
                broker.journal._notify(moves)
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
        assert max(turns) <= BURIED
        assert broker.topic("j.dead").last == 2000
        await until(lambda: topic._burying is None)
        await flushed(topic)
        assert settled(broker, topic).watermark == 2000


async def test_dead_letters_go_to_the_topic_that_is_named_and_there():
    async with core() as broker:
        graves = await broker.create("graves", persistence="async", settings={"max_messages": 100})
        topic = await prepared(broker, count=3, max_deliveries=1, dead_letter="graves")
        taker = Taker()
        mourner = Taker()
        broker.subscribe(graves, "beginning", mourner)
        broker.consume(topic, taker, ack_timeout=0.02)
        await until(lambda: len(mourner.got) == 3)
        assert [body for _, body in mourner.got] == [b"1", b"2", b"3"]
        assert taker.counts == [1, 1, 1]


async def test_what_came_back_is_there_after_a_restart_with_its_counts():
    async with core() as broker:
        topic = await prepared(broker, count=10)
        taker = Taker()
        share = broker.consume(topic, taker, credit=6)
        await until(lambda: len(taker.got) == 6)
        share.ack([(1, 2), (5, 5)])
        await until(lambda: len(taker.got) == 9)
        share.nack([(4, 4)])
        await until(lambda: len(taker.got) == 10)
        await flushed(topic)
        again = RoundRobinTopic(topic.state(), broker.journal, broker, broker)
        broker.topics["j"] = broker._by_id[topic.id] = again
        other = Taker()
        again.consume(other, 30.0, 100)
        await until(lambda: len(other.got) == 7)
        assert dict(zip(other.ids, other.counts, strict=True)) == {3: 2, 4: 3, 6: 2, 7: 2, 8: 2, 9: 2, 10: 1}


async def test_what_retention_drops_is_no_backlog():
    async with core() as broker:
        topic = await prepared(broker, count=0, max_messages=5)
        for number in range(20):
            await append(broker, topic, [b"%d" % number])
        taker = Taker()
        share = broker.consume(topic, taker, credit=100)
        await until(lambda: taker.got and taker.ids[-1] == 20)
        assert taker.ids[0] == topic.state().first
        share.nack([(taker.ids[0], taker.ids[0])])
        taker.left = 0
        for number in range(20):
            await append(broker, topic, [b"%d" % number])
        taker.left = 1 << 20
        share.more(0)
        await until(lambda: taker.ids[-1] == 40)
        assert topic.backlog == 0


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
        broker.journal.store = Damaged(broker.journal.store, 4, 6)
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
        broker.journal.store = Damaged(broker.journal.store, 4, 0)
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
        assert broker.journal.store.stats().damaged == []
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
    broker.consume(topic, taker)
    await until(lambda: len(taker.got) == 3)
    await broker.close()
    broker = Broker(tmp_path)
    await broker.start()
    topic = broker.topic("j")
    await until(lambda: topic.dead_lettered == 3)
    assert topic.backlog == 0
    assert broker.topic("j.dead").last == 3
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
        share = broker.consume(topic, taker, ack_timeout=0.01, credit=4)
        await until(lambda: len(taker.got) == 4)
        await until(lambda: topic.backlog == 10)
        await quiet(broker)
        assert taker.ids == [1, 2, 3, 4]
        share.nack([(100, 100)])  # it lives
        await until(lambda: len(taker.got) == 8)


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
        assert settled(broker, topic).deliveries == {2: 0, 3: 0, 4: 0, 5: 1}
        other = Taker()
        broker.consume(topic, other, credit=100)
        await until(lambda: len(other.got) == 4)
        assert dict(zip(other.ids, other.counts, strict=True)) == {2: 1, 3: 1, 4: 1, 5: 2}
        await flushed(topic)
        assert settled(broker, topic).deliveries == {2: 1, 3: 1, 4: 1, 5: 2}
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
        slow.left = 0  # nothing comes back to it
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
            topic.settled_again(at, at)
        topic.settled_again(15_000, 19_990)
        left = 20_000 - 5_000 - 4_991
        assert topic.backlog == left
        await flushed(topic)
        for again in range(2):
            if again:
                topic = RoundRobinTopic(topic.state(), broker.journal, broker, broker)
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
        topic.settled_again(1, 3)
        assert topic.backlog == 7
        # A broker that was killed does not know of all that it has delivered.
        topic.settled_again(6, 7)
        topic.settled_again(1 << 40, 1 << 41)
        broker.consume(topic, other, credit=10)
        await until(lambda: len(other.got) == 6)
        assert other.ids == [1, 4, 5, 8, 9, 10]
        assert other.counts == [2, 2, 1, 1, 1, 1]
        await flushed(topic)
        assert list(settled(broker, topic).missing(1, 8)) == [(1, 1), (4, 5)]
