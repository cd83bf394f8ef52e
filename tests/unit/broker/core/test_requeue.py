"""Dead letters go back to their topics, and topics are purged."""

import asyncio

import pytest

from omq._core import blocks
from omq.broker.core import broker as core_broker
from omq.broker.core import requeue
from omq.broker.core.broker import Broker
from omq.broker.errors import Damaged, PermissionDenied, StoreFull, TopicError
from omq.store.errors import DamagedError, OutOfSpace
from omq.store.interface import Append, Requeue
from tests.support.broker_core import RecordingSink, append, core, run_pending, until


def allow(name):
    """Permits everything."""


async def topics(broker, count=0, persistence="weak", **settings):
    """Creates a work queue and its dead-letter topic, with some dead letters."""
    jobs = await broker.create("jobs", delivery="round-robin", persistence="weak", settings=settings)
    dead = await broker.create("jobs.dead", persistence=persistence)
    await append_dead(broker, dead, *(b"%d" % number for number in range(1, count + 1)))
    return jobs, dead


async def append_dead(broker, dead, *bodies, topic=b"jobs"):
    """Appends dead letters."""
    records = b"".join(blocks.encode_record(body, None, {"omq-dead-topic": topic, "own": b"v"}) for body in bodies)
    if bodies:
        write = await broker.store.do(Append(dead.id, records, len(bodies)))
        await until(lambda: dead.readable >= write.first + len(bodies) - 1)


def bodies(broker, topic):
    """Returns the bodies of all kept messages."""
    with broker.store.store.read(topic.id) as reader:
        return [one.body for block in reader.blocks(reader.first) for one in blocks.decode(*block, "t")]


async def test_a_dead_letter_records_its_history_and_comes_back(caplog):
    async with core() as broker:
        jobs = await broker.create(
            "jobs", delivery="round-robin", persistence="weak", settings={"max_deliveries": 2, "retry_delay": 0}
        )
        await append(broker, jobs, [b"a", b"b", b"c"])
        sink = RecordingSink()
        consumer = broker.consume(jobs, sink)
        for number in (3, 6):
            await until(lambda number=number: len(sink.got) == number)
            consumer.nack([(1, 3)])
        await until(lambda: jobs.dead_lettered == 3)
        dead = broker.topic("jobs.dead")
        with broker.store.store.read(dead.id) as reader:
            (letter, *_) = [one for block in reader.blocks(1) for one in blocks.decode(*block, "t")]
        headers = letter.headers
        assert headers.pop("omq-dead-time").endswith(b"Z")
        assert headers == {
            "omq-dead-topic": b"jobs",
            "omq-dead-id": b"1",
            "omq-dead-deliveries": b"2",
            "omq-dead-reason": b"max-deliveries",
        }
        lines = [line for line in caplog.messages if "dead letter" in line]
        assert lines == [
            "topic 'jobs': message 1 has become a dead letter after 2 deliveries and is now in 'jobs.dead'"
        ]
        published = jobs.stats()["published"]
        assert await broker.requeue(dead, None, None, allow) == (3, 0)
        await until(lambda: len(sink.got) == 9)
        assert sink.got[6:] == [(4, b"a"), (5, b"b"), (6, b"c")]
        assert sink.counts[6:] == [1, 1, 1]
        assert jobs.stats()["published"] == published + 3
        assert dead.stats()["messages"] == 0


async def test_an_overflow_has_its_own_reason():
    async with core() as broker:
        jobs, dead = await topics(broker, max_messages=1, overflow="drop-oldest")
        await append(broker, jobs, [b"a", b"b"])
        await until(lambda: jobs.dead_lettered == 1)
        with broker.store.store.read(dead.id) as reader:
            (letter,) = [one for block in reader.blocks(1) for one in blocks.decode(*block, "t")]
        assert (letter.headers["omq-dead-reason"], letter.headers["omq-dead-deliveries"]) == (b"overflow", b"0")


@pytest.mark.parametrize("persistence", ["strong", "weak", "transient"])
async def test_batches_are_bounded_and_continue(tmp_path, monkeypatch, persistence):
    monkeypatch.setattr(requeue, "MAX_BATCH", 4)
    monkeypatch.setattr(requeue, "MAX_BATCH_BYTES", 4096)
    async with core(tmp_path / "store") as broker:
        jobs, dead = await topics(broker, 9, persistence)
        await append_dead(broker, dead, b"x" * 3000, b"y" * 3000, b"z" * 9000, b"last")
        steps, following = [], 1
        while following <= 12:
            moved, following = await broker.requeue(dead, 12, None, allow)
            steps.append((moved, following))
        assert steps == [(4, 5), (4, 9), (2, 11), (1, 12), (1, 13)]
        assert await broker.requeue(dead, 12, None, allow) == (0, 13)
        await until(lambda: jobs.readable == 12)
        assert [body[:1] for body in bodies(broker, jobs)] == [
            *(b"%d" % number for number in range(1, 10)),
            *(b"x", b"y", b"z"),
        ]
        assert await broker.requeue(dead, None, None, allow) == (1, 0)
        assert await broker.requeue(dead, None, None, allow) == (0, 0)
        assert jobs.stats()["published"] == 13


async def test_a_slow_move_ends_early(tmp_path, monkeypatch):
    monkeypatch.setattr(core_broker, "_MOVE_SLICE_S", 0.0)
    async with core(tmp_path / "store") as broker:
        jobs, dead = await topics(broker, 3, "strong")
        assert [await broker.requeue(dead, None, None, allow) for _ in range(3)] == [(1, 2), (1, 3), (1, 0)]
        await until(lambda: jobs.readable == 3)


async def test_requeues_at_once_move_each_dead_letter_once(tmp_path, monkeypatch):
    monkeypatch.setattr(core_broker, "_MOVE_SLICE_S", 1000.0)
    async with core(tmp_path / "store") as broker:
        jobs, dead = await topics(broker, 30, "strong")  # in another engine: one after the other
        await broker.create("other", persistence="weak")
        first, *rest = await asyncio.gather(*(broker.requeue(dead, None, to, allow) for to in (None, "other", None)))
        assert first == (30, 0)
        assert rest == [(0, 0), (0, 0)]
        await until(lambda: jobs.readable == 30)
        assert bodies(broker, jobs) == [b"%d" % number for number in range(1, 31)]
        assert broker.topic("other").last == 0


@pytest.mark.parametrize("overflow", ["reject", "block", "drop-oldest"])
async def test_a_requeue_stops_at_a_full_topic(overflow):
    async with core() as broker:
        jobs, dead = await topics(broker, 5, max_messages=3, overflow=overflow)
        await append(broker, jobs, [b"there"])
        assert await broker.requeue(dead, None, None, allow) == (2, 3)
        for _ in range(2):
            with pytest.raises(StoreFull, match="'jobs'"):
                await broker.requeue(dead, None, None, allow)
        assert jobs.dead_lettered == 0
        sink = RecordingSink()
        consumer = broker.consume(jobs, sink)
        await until(lambda: len(sink.got) == 3)
        consumer.ack([(1, 1)])
        assert await broker.requeue(dead, None, None, allow) == (1, 4)
        await until(lambda: len(sink.got) == 4)
        assert [body for _, body in sink.got] == [b"there", b"1", b"2", b"3"]
        consumer.ack([(2, 4)])
        assert await broker.requeue(dead, None, None, allow) == (2, 0)
        assert jobs.dead_lettered == 0


async def test_a_requeue_does_not_overtake_publishers_that_wait():
    async with core() as broker:
        jobs, dead = await topics(broker, 1, max_messages=1, overflow="block")
        await append(broker, jobs, [b"there"])
        waiting = asyncio.ensure_future(append(broker, jobs, [b"waits"]))
        await until(lambda: jobs.stats()["blocked"] == 1)
        with pytest.raises(StoreFull):
            await broker.requeue(dead, None, None, allow)
        assert await broker.purge(jobs, None) == 1
        assert await waiting == 2


@pytest.mark.parametrize("moves", [1, 5])
async def test_reserved_room_is_released(monkeypatch, moves):
    async with core() as broker:
        _jobs, dead = await topics(broker, moves, max_messages=moves, overflow="reject")
        do = broker.store.do

        async def refused(write):
            if isinstance(write, Requeue):
                raise StoreFull("the disk is full")
            return await do(write)

        monkeypatch.setattr(broker.store, "do", refused)
        for _ in range(3):
            with pytest.raises(StoreFull, match="the disk is full"):
                await broker.requeue(dead, None, None, allow)
        monkeypatch.undo()
        assert await broker.requeue(dead, None, None, allow) == (moves, 0)


async def test_a_full_dead_letter_topic_has_room_afterwards():
    async with core() as broker:
        await broker.create("jobs", delivery="round-robin", persistence="weak")
        dead = await broker.create("jobs.dead", persistence="weak", settings={"max_messages": 2, "overflow": "block"})
        for take in (lambda: broker.requeue(dead, None, "jobs", allow), lambda: broker.purge(dead, None)):
            await append(broker, dead, [b"a", b"b"])
            waiting = asyncio.ensure_future(append(broker, dead, [b"c"]))
            await until(lambda: dead.stats()["blocked"] == 1)
            await take()
            await waiting
            await broker.purge(dead, None)


async def test_what_cannot_be_requeued_is_named_and_stays():
    async with core() as broker:
        jobs, dead = await topics(broker, 2)
        await append_dead(broker, dead, b"lost", topic=b"gone")
        await append_dead(broker, dead, b"self", topic=b"jobs.dead")
        await append_dead(broker, dead, b"odd", topic=b"\xff")
        await append(broker, dead, [b"plain"])
        assert await broker.requeue(dead, None, None, allow) == (2, 3)
        for id, text in (
            (3, "'gone', which does not exist"),
            (4, "'jobs.dead', which has"),
            (5, "which does not"),
            (6, "omq-dead-topic"),
        ):
            with pytest.raises(TopicError, match=f"dead letter {id} .*{text}"):
                await broker.requeue(dead, None, None, allow)
            assert dead.state().first == id
            assert await broker.requeue(dead, id, "jobs", allow) == (1, id + 1 if id < 6 else 0)
        await until(lambda: jobs.readable == 6)
        assert bodies(broker, jobs) == [b"1", b"2", b"lost", b"self", b"odd", b"plain"]


async def test_wrong_topics_of_a_requeue_are_named():
    async with core() as broker:
        jobs, dead = await topics(broker, 1)
        kept = await broker.create("kept", persistence="weak", settings={"retain_for": "n"})
        denied = []

        def deny(name):
            denied.append(name)
            raise PermissionDenied(f"not {name}")

        for topic, up_to, to, check, error, text in (
            (jobs, None, None, allow, TopicError, "'jobs' is a round-robin topic"),
            (kept, None, "jobs", allow, TopicError, "retain_for='n'"),
            (dead, None, "jobs.dead", allow, TopicError, "to='jobs.dead': must be"),
            (dead, None, "nowhere", allow, TopicError, "'nowhere'"),
            (dead, 2, None, allow, TopicError, "up_to=2: must be at most 1"),
            (dead, None, None, deny, PermissionDenied, "not jobs"),
            (dead, None, "kept", deny, PermissionDenied, "not kept"),
        ):
            with pytest.raises(error, match=text):
                await broker.requeue(topic, up_to, to, check)
        assert denied == ["jobs", "kept"]
        assert bodies(broker, dead) == [b"1"]
        await broker.delete("jobs.dead")
        with pytest.raises(TopicError, match="was deleted"):
            await broker.requeue(dead, None, "jobs", allow)


async def test_a_topic_that_is_deleted_meanwhile_is_named(monkeypatch):
    async with core() as broker:
        _jobs, dead = await topics(broker, 3)
        monkeypatch.setattr(broker, "_origin", lambda *_: gone)
        gone = await broker.create("gone", persistence="weak")
        await broker.delete("gone")
        with pytest.raises(TopicError, match=r"'jobs\.dead', or one"):
            await broker.requeue(dead, None, None, allow)
        assert bodies(broker, dead) == [b"1", b"2", b"3"]


async def test_what_retention_drops_meanwhile_is_skipped(monkeypatch):
    async with core() as broker:
        jobs, dead = await topics(broker, 5)
        do = broker.store.do

        async def late(write):
            if isinstance(write, Requeue):
                monkeypatch.undo()
                assert await broker.purge(dead, 2) == 2
            return await do(write)

        monkeypatch.setattr(broker.store, "do", late)
        assert await broker.requeue(dead, None, None, allow) == (0, 3)
        assert await broker.requeue(dead, None, None, allow) == (3, 0)
        await until(lambda: jobs.readable == 3)
        assert bodies(broker, jobs) == [b"3", b"4", b"5"]


async def test_damaged_dead_letters_stop_a_requeue(monkeypatch):
    async with core() as broker:
        _jobs, dead = await topics(broker, 5)
        store = broker.store.store
        real = store.read

        class Reader:
            first = 1

            def __enter__(self):
                return self

            def __exit__(self, *exc):
                pass

            def blocks(self, start):
                with real(dead.id) as reader:
                    if reader.first < 3:
                        yield from reader.blocks(reader.first, 3)
                    raise DamagedError("ids 3 to 4 are damaged", dead.id, 3, 4)

        monkeypatch.setattr(store, "read", lambda id: Reader())
        assert await broker.requeue(dead, None, None, allow) == (2, 3)
        with pytest.raises(Damaged) as damaged:
            await broker.requeue(dead, None, None, allow)
        assert (damaged.value.first, damaged.value.last) == (3, 4)
        assert await broker.requeue(dead, 2, None, allow) == (0, 3)
        monkeypatch.undo()
        assert await broker.purge(dead, 4) == 2
        assert await broker.requeue(dead, None, None, allow) == (1, 0)


async def test_a_full_disk_refuses_a_requeue(monkeypatch):
    async with core() as broker:
        _jobs, dead = await topics(broker, 2)
        submit = broker.store.store.submit_many

        def full(writes):
            moves = [write for write in writes if isinstance(write, Requeue)]
            for write in moves:
                write.error = OutOfSpace("no space")
            if moves:
                broker.store._notify(moves)
            if rest := [write for write in writes if write not in moves]:
                submit(rest)

        monkeypatch.setattr(broker.store.store, "submit_many", full)
        with pytest.raises(StoreFull, match="no space"):
            await broker.requeue(dead, None, None, allow)
        monkeypatch.undo()
        assert await broker.requeue(dead, None, None, allow) == (2, 0)


async def test_a_requeue_drops_messages_before_slow_subscriptions():
    async with core() as broker:
        _, dead = await topics(broker, 4)
        slow, quick = RecordingSink(room_left=0), RecordingSink()
        behind = broker.subscribe(dead, 2, slow)
        broker.subscribe(dead, "earliest", quick, name="n")
        await until(lambda: len(quick.got) == 4)
        assert await broker.requeue(dead, 3, None, allow) == (3, 4)
        slow.room_left = 1000
        behind.resume()
        await until(lambda: slow.errors)
        assert (slow.got, slow.errors[0].code, slow.errors[0].first) == ([], "overrun", 4)
        await append_dead(broker, dead, b"5")
        await until(lambda: quick.ids == [1, 2, 3, 4, 5])
        assert not quick.errors


# Purging


@pytest.mark.parametrize("persistence", ["strong", "weak", "async", "transient"])
async def test_a_broadcast_topic_is_purged(tmp_path, persistence, caplog):
    caplog.set_level("INFO")
    async with core(tmp_path / "store") as broker:
        topic = await broker.create("t", persistence=persistence)
        assert await broker.purge(topic, None) == 0
        await append(broker, topic, [b"a", b"b", b"c"])
        assert await broker.purge(topic, 0) == 0
        assert await broker.purge(topic, 2) == 2
        await until(lambda: topic.readable == 3)
        assert bodies(broker, topic) == [b"c"]
        with pytest.raises(TopicError, match="up_to=4: must be at most 3, the newest id of topic 't'"):
            await broker.purge(topic, 4)
        assert await broker.purge(topic, None) == 1
        assert await append(broker, topic, [b"d"]) == 4
        assert "topic 't': purged by the broker up to id 2: 2 messages" in caplog.messages


async def test_a_topic_with_retain_for_is_not_purged():
    async with core() as broker:
        topic = await broker.create("t", persistence="weak", settings={"retain_for": "n"})
        await append(broker, topic, [b"a"])
        with pytest.raises(TopicError, match="retain_for='n'"):
            await broker.purge(topic, None)
        assert topic.stats()["messages"] == 1


@pytest.mark.parametrize("persistence", ["strong", "weak", "async", "transient"])
async def test_a_work_queue_is_purged_of_what_waits(tmp_path, persistence):
    async with core(tmp_path / "store") as broker:
        topic = await broker.create("j", delivery="round-robin", persistence=persistence)
        await append(broker, topic, [b"%d" % number for number in range(1, 11)])
        await until(lambda: topic.readable == 10)
        sink = RecordingSink()
        consumer = broker.consume(topic, sink, credit=4)
        await until(lambda: len(sink.got) == 4)
        consumer.ack([(1, 1)])
        await until(lambda: len(sink.got) == 5)
        consumer.nack([(2, 2)], 1000.0)  # waits for its delay, and message 6 is delivered in its place
        await until(lambda: len(sink.got) == 6)
        assert topic.backlog == 5  # 2, and 7 to 10
        assert await broker.purge(topic, 8) == 3
        assert topic.backlog == 2
        assert await broker.purge(topic, 8) == 0
        acks = broker.store.store.ack_set(topic.id)
        assert [id in acks for id in range(1, 11)] == [id in (1, 2, 7, 8) for id in range(1, 11)]
        consumer.nack([(3, 3)], 0)
        await until(lambda: len(sink.got) == 7)
        assert sink.got[-1] == (3, b"3"), "what was in flight is delivered again"
        consumer.end()
        assert await broker.purge(topic, None) == 6
        assert topic.backlog == 0
        assert broker.store.store.ack_set(topic.id).floor == 10
        other = RecordingSink()
        broker.consume(topic, other)
        await append(broker, topic, [b"new"])
        await until(lambda: other.got == [(11, b"new")])


async def test_a_purge_takes_what_was_answered_before(tmp_path):
    async with core(tmp_path / "store") as broker:
        topic = await broker.create("j", delivery="round-robin", persistence="async")
        sink = RecordingSink()
        for number in range(1, 50):
            await append(broker, topic, [b"x"] * 3)  # answered before it can be read
            assert await broker.purge(topic, None) == 3
            assert broker.store.store.ack_set(topic.id).floor == 3 * number
        broker.consume(topic, sink)
        await run_pending(broker)
        assert not sink.got


async def test_a_purge_is_durable(tmp_path):
    broker = Broker(tmp_path)
    await broker.start()
    topic = await broker.create("j", delivery="round-robin", persistence="strong")
    await append(broker, topic, [b"x"] * 10)
    assert await broker.purge(topic, 7) == 7
    await broker.close()
    broker = Broker(tmp_path)
    await broker.start()
    try:
        assert broker.topic("j").backlog == 3
        assert await broker.purge(broker.topic("j"), None) == 3
    finally:
        await broker.close()


async def test_a_purge_leaves_messages_that_become_dead_letters():
    async with core() as broker:
        jobs, dead = await topics(broker, max_deliveries=1, retry_delay=0)
        await append(broker, jobs, [b"a", b"b"])
        sink = RecordingSink()
        consumer = broker.consume(jobs, sink, credit=1)
        await until(lambda: sink.got)
        consumer.nack([(1, 1)])
        assert await broker.purge(jobs, 1) == 0
        await until(lambda: dead.last == 1)
        assert bodies(broker, dead) == [b"a"]


async def test_a_purge_of_a_deleted_topic_is_refused():
    async with core() as broker:
        jobs, dead = await topics(broker, 1)
        for topic in (jobs, dead):
            await broker.delete(topic.name)
            with pytest.raises(TopicError, match=f"{topic.name!r} was deleted"):
                await broker.purge(topic, None)


async def test_the_log_has_the_client_that_purges_or_requeues(caplog):
    class Alice:
        user, peer = "alice", "tcp://10.0.0.7:1"

    caplog.set_level("INFO", "omq.broker")
    async with core() as broker:
        _, dead = await topics(broker, 3)
        await broker.requeue(dead, 2, None, allow, Alice())
        await broker.purge(dead, None, Alice())
    requeued, purged = caplog.records[-2:]
    assert requeued.getMessage() == "topic 'jobs.dead': 2 dead letters requeued by alice at tcp://10.0.0.7:1"
    assert purged.getMessage() == "topic 'jobs.dead': purged by alice at tcp://10.0.0.7:1 up to id 3: 1 messages"
    assert (requeued.event, requeued.topic, requeued.to, requeued.count) == (
        "dead_letters_requeued",
        "jobs.dead",
        None,
        2,
    )
    assert (purged.event, purged.topic, purged.up_to, purged.count) == ("topic_purged", "jobs.dead", 3, 1)
    assert {(record.user, record.peer) for record in (requeued, purged)} == {("alice", "tcp://10.0.0.7:1")}
