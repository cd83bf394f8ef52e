"""Publications that wait for room in full topics: their bounds, their order, and none is lost."""

import asyncio
import logging

import pytest

from omq._core import blocks
from omq.broker.core.topic import HELD_OVERHEAD_BYTES
from omq.broker.errors import BrokerError, Busy, TopicError
from omq.store.errors import OutOfSpace
from omq.store.interface import Stage
from tests.support.broker_core import FailingStore, RecordingSink, append, core, run_pending, until
from tests.support.optional_packages import require

BODY = bytes(7 << 10)
#: Of one publication that waits, in these tests.
HELD_BYTES = len(blocks.encode([BODY])) + HELD_OVERHEAD_BYTES


async def full_topics(broker, count):
    """Creates work queues that are full."""
    topics = []
    for number in range(count):
        settings = {"max_messages": 1, "overflow": "block"}
        name = f"t{number}"
        topics.append(await broker.create(name, delivery="round-robin", persistence="weak", settings=settings))
        await append(broker, topics[-1], [b"first"])
    return topics


def published(broker, topic, count, **producer):
    """Publishes messages one by one, and returns the tasks that wait for the answers."""
    return [asyncio.ensure_future(append(broker, topic, [BODY], **producer)) for _ in range(count)]


async def refused(jobs):
    """Returns the tasks that were answered `busy`, and those that still wait."""
    busy = [job for job in jobs if job.done()]
    for job in busy:
        with pytest.raises(Busy):
            await job
    return busy, [job for job in jobs if not job.done()]


async def test_waiting_publications_of_all_topics_are_bounded_together(monkeypatch, caplog):
    monkeypatch.setattr("omq.broker.core.topic.MAX_TOTAL_HELD_BYTES", 10 * HELD_BYTES)
    async with core() as broker:
        topics = await full_topics(broker, 8)
        jobs = [job for topic in topics for job in published(broker, topic, 3)]
        await run_pending(broker)
        busy, waiting = await refused(jobs)
        assert (len(busy), len(waiting)) == (14, 10)
        assert broker.held.used == 10 * HELD_BYTES
        (line,) = [record for record in caplog.records if "all full topics" in record.message]
        assert line.levelno == logging.WARNING
        # Another topic has room, whatever waits for it elsewhere.
        free = await broker.create("free", delivery="round-robin", persistence="weak", settings={"max_messages": 9})
        assert await append(broker, free, [b"x"]) == 1
        for topic in topics:
            sink = RecordingSink()
            consumer = broker.consume(topic, sink, credit=100)
            while topic.stats()["blocked"] or topic.backlog or consumer.in_flight.count:
                consumer.ack([(1, 100)])
                await asyncio.sleep(0.001)
        assert [await job for job in waiting] == [2, 3, 4, 2, 3, 4, 2, 3, 4, 2]
        assert broker.held.used == 0
        assert broker.store.waiting == 0


async def test_small_publications_count_with_their_overhead(monkeypatch):
    monkeypatch.setattr("omq.broker.core.topic.MAX_TOTAL_HELD_BYTES", 10 * (HELD_OVERHEAD_BYTES + 100))
    async with core() as broker:
        topics = await full_topics(broker, 3)
        jobs = [asyncio.ensure_future(append(broker, topic, [b"x"])) for topic in topics for _ in range(100)]
        await run_pending(broker)
        busy, waiting = await refused(jobs)
        assert (len(busy), len(waiting)) == (290, 10)
        for topic in topics:
            await broker.delete(topic.name)
        assert broker.held.used == 0
        await asyncio.gather(*waiting, return_exceptions=True)


async def test_abandoned_publications_free_their_bytes(monkeypatch):
    monkeypatch.setattr("omq.broker.core.topic.MAX_TOTAL_HELD_BYTES", 2 * HELD_BYTES)
    async with core() as broker:
        (topic, other) = await full_topics(broker, 2)
        lives = True
        for _ in range(2):
            topic.append(blocks.encode([BODY]), 1, done=lambda *_: None, alive=lambda: lives)
        with pytest.raises(Busy, match="all full topics"):
            await append(broker, other, [BODY])
        lives = False
        await until(lambda: broker.held.used == 0)
        (job,) = published(broker, other, 1)
        await run_pending(broker)
        assert not job.done()
        assert broker.held.used == HELD_BYTES
        await broker.delete(other.name)
        await asyncio.gather(job, return_exceptions=True)


async def test_commits_that_wait_for_room_are_bounded_and_can_be_repeated(monkeypatch):
    monkeypatch.setattr("omq.broker.core.topic.MAX_TOTAL_HELD_BYTES", 2 * HELD_OVERHEAD_BYTES + 1000)
    async with core() as broker:
        (topic,) = await full_topics(broker, 1)
        answers = {}
        for name in (b"a", b"b", b"c"):
            await broker.store.do(Stage(topic.id, blocks.encode([name]), 1, name))
        for name in (b"a", b"b", b"c"):
            broker.commit(name, [name], lambda id: True, lambda write: answers.__setitem__(write.commit, write.error))
        await until(lambda: answers)
        assert [*answers] == [b"c"]
        assert isinstance(answers.pop(b"c"), Busy)
        sink = RecordingSink()
        consumer = broker.consume(topic, sink, credit=100)
        while len(answers) < 2:
            consumer.ack([(1, 100)])
            await asyncio.sleep(0.001)
        broker.commit(b"c", [b"c"], lambda id: True, lambda write: answers.__setitem__(write.commit, write.error))
        while len(sink.got) < 4:
            consumer.ack([(1, 100)])
            await asyncio.sleep(0.001)
        assert answers == {b"a": None, b"b": None, b"c": None}
        assert [body for _, body in sink.got] == [b"first", b"a", b"b", b"c"]
        assert broker.held.used == 0


async def test_a_failed_deletion_has_refused_the_waiting_publications():
    async with core() as broker:
        (topic,) = await full_topics(broker, 1)
        (job,) = published(broker, topic, 1)
        await until(lambda: topic.stats()["blocked"])
        store = broker.store.store
        broker.store.store = FailingStore(store, OutOfSpace("no space"))
        with pytest.raises(BrokerError, match="no space"):
            await broker.delete(topic.name)
        with pytest.raises(TopicError, match="deleted"):
            await job
        broker.store.store = store
        assert broker.topic(topic.name).stats()["blocked"] == 0


@pytest.mark.parametrize("waits", [1, 3])
async def test_repetitions_wait_no_longer_once_the_first_one_is_stored(waits):
    async with core() as broker:
        (topic,) = await full_topics(broker, 1)
        jobs = [
            asyncio.ensure_future(append(broker, topic, [body], producer=b"i", sequence=1, same_records=True))
            for body in (BODY, *[BODY] * waits, b"other content")
        ]
        after = asyncio.ensure_future(append(broker, topic, [b"x"], producer=b"i", sequence=2))
        await until(lambda: topic.stats()["blocked"] == waits + 3)
        sink = RecordingSink()
        consumer = broker.consume(topic, sink, credit=100)
        await until(lambda: sink.got)
        consumer.ack([(1, 1)])  # room for one
        *same, other = await asyncio.wait_for(asyncio.gather(*jobs, return_exceptions=True), 10)
        assert same == [2] * (1 + waits)
        assert isinstance(other, TopicError)
        assert topic.stats()["blocked"] == 1
        assert not after.done()
        await until(lambda: len(sink.got) == 2)
        consumer.ack([(2, 2)])
        assert await after == 3
        await until(lambda: len(sink.got) == 3)
        assert broker.held.used == broker.store.waiting == 0


async def test_a_repeated_commit_waits_no_longer_once_the_first_one_has_published():
    async with core() as broker:
        settings = {"max_messages": 2, "overflow": "block"}
        topic = await broker.create("t", delivery="round-robin", persistence="weak", settings=settings)
        await append(broker, topic, [b"1", b"2"])
        await broker.store.do(Stage(topic.id, blocks.encode([b"a"]), 1, b"a"))
        answers = []

        def commit():
            broker.commit(b"c", [b"a"], lambda id: True, answers.append)

        commit()
        await run_pending(broker)
        large = asyncio.ensure_future(append(broker, topic, [b"x"] * 2))
        await run_pending(broker)
        commit()
        await until(lambda: topic.stats()["blocked"] == 4)
        sink = RecordingSink()
        consumer = broker.consume(topic, sink, credit=100)
        await until(lambda: sink.got)
        consumer.ack([(1, 1)])
        await until(lambda: len(answers) == 2)
        assert [write.error for write in answers] == [None, None]
        assert answers[0].published == answers[1].published
        assert not large.done()
        await until(lambda: len(sink.got) == 3)
        consumer.ack([(2, 3)])
        assert await large == 4
        assert broker.held.used == 0


STORES = [(False, "weak"), (True, "strong"), (True, "weak"), (True, "transient")]


@pytest.mark.parametrize(("on_disk", "persistence"), STORES)
@pytest.mark.parametrize("overflow", ["reject", "block"])
async def test_commits_at_once_stay_within_the_bounds(tmp_path, on_disk, persistence, overflow):
    if on_disk:
        require("lmdb")
    async with core(tmp_path if on_disk else None) as broker:
        settings = {"max_messages": 3, "overflow": overflow}
        topic = await broker.create("t", delivery="round-robin", persistence=persistence, settings=settings)
        answers = []
        for number in range(8):
            stage = b"%d" % number
            await broker.store.do(Stage(topic.id, blocks.encode([stage]), 1, stage))
        for number in range(8):
            broker.commit(b"%d" % number, [b"%d" % number], lambda id: True, answers.append)
        sink = RecordingSink()
        if overflow == "reject":
            await until(lambda: len(answers) == 8)
            assert [write.error is None for write in answers] == [True] * 3 + [False] * 5
            assert topic.stats()["rejected"] == 5
            expected = 3
        else:
            await until(lambda: topic.stats()["blocked"] == 5)
            expected = 8
        assert topic.state().last == 3
        consumer = broker.consume(topic, sink, credit=1)
        for number in range(expected):
            await until(lambda number=number: len(sink.got) > number)
            assert topic.unfinished <= 3
            consumer.ack([(number + 1, number + 1)])
        assert [body for _, body in sink.got] == [b"%d" % number for number in range(expected)]
        await until(lambda: len(answers) == 8)
        await run_pending(broker)
        assert topic.admission._submitted == topic.admission._submitted_bytes == broker.held.used == 0


async def test_later_publications_do_not_take_the_room_of_a_waiting_commit():
    async with core() as broker:
        (topic,) = await full_topics(broker, 1)
        await broker.store.do(Stage(topic.id, blocks.encode([b"commit"]), 1, b"s"))
        answers = []
        broker.commit(b"c", [b"s"], lambda id: True, answers.append)
        await run_pending(broker)
        jobs = published(broker, topic, 5)
        await until(lambda: topic.stats()["blocked"] == 6)
        sink = RecordingSink()
        consumer = broker.consume(topic, sink, credit=1)
        await until(lambda: sink.got)
        consumer.ack([(1, 1)])
        await until(lambda: len(sink.got) == 2)
        assert sink.got[1] == (2, b"commit")
        for number in range(2, 7):
            consumer.ack([(number, number)])
            await until(lambda number=number: len(sink.got) > number)
        assert [await job for job in jobs] == [3, 4, 5, 6, 7]
        assert answers[0].error is None
