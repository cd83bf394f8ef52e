"""Other settings of a topic while it has readers, a backlog and publishers that wait."""

import asyncio
import json

import pytest

from omq._core import blocks
from omq.broker.core.topic import TopicAdmission
from omq.broker.errors import BrokerError, Overrun, PermissionDenied, StoreFull, TopicError
from omq.store import clock
from omq.store.errors import OutOfSpace
from omq.store.interface import Stage
from tests.support.broker_core import FailingStore, RecordingSink, append, core, run_pending, until

PLACES = pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "disk"])


class FailingOnce(FailingStore):
    """A store that fails for one turn of the loop."""

    def submit_many(self, writes):
        error, self.error = self.error, None
        if error is not None:
            raise error
        self.store.submit_many(writes)


async def queue(broker, count=0, name="j", **settings):
    """Creates a work queue with messages of one byte."""
    topic = await broker.create(name, delivery="round-robin", persistence="weak", settings=settings)
    if count:
        await append(broker, topic, [b"x"] * count)
    return topic


async def log_of(broker, count=0, name="t", **settings):
    """Creates a broadcast topic with messages of one byte."""
    topic = await broker.create(name, persistence="weak", settings=settings)
    if count:
        await append(broker, topic, [b"x"] * count)
    return topic


def publish(broker, topic, **producer):
    """Publishes a message, and returns the task that waits for the answer."""
    return asyncio.ensure_future(append(broker, topic, [b"y"], **producer))


def stored(broker, topic):
    """Returns the settings in the store."""
    return broker.store.store.topic(topic.id).settings


async def refused(broker, name, changes, *parts, **options):
    """Expects that an alteration is refused with these texts, and changes nothing."""
    topic = broker.topics.get(name)
    before = topic and (dict(topic.settings), stored(broker, topic), topic.state())
    with pytest.raises(TopicError) as caught:
        await broker.alter(name, changes, **options)
    for part in parts:
        assert part in str(caught.value)
    await run_pending(broker)
    assert before == (topic and (topic.settings, stored(broker, topic), topic.state()))


# What is given, what is removed, what stays


async def test_settings_that_are_not_given_stay_and_none_removes_one(caplog):
    caplog.set_level("INFO")
    async with core() as broker:
        topic = await log_of(broker, max_messages=10, max_age=60)
        altered = await broker.alter("t", {"max_messages": None, "max_bytes": 1000, "max_age": 90})
        assert altered is topic
        assert topic.settings == stored(broker, topic) == {"max_age": 90.0, "max_bytes": 1000}
        assert json.loads(topic.info())["settings"] == topic.settings
        assert topic.stats()["settings"] == topic.settings
        changes = "max_messages from 10 to None, max_bytes from None to 1000, max_age from 60.0 to 90.0"
        assert f"topic 't': altered by the broker, {changes}" in caplog.messages
        caplog.clear()
        assert await broker.alter("t", {"max_age": 90, "overflow": None, "delivery": "broadcast"}) is topic
        assert caplog.messages == [], "nothing has changed"


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"colour": "red"}, ["colour='red'", "unknown"]),
        ({"max_message": 1}, ["did you mean max_messages?"]),
        ({"max_messages": 0}, ["max_messages=0", "whole number"]),
        ({"max_age": "old"}, ["max_age='old'"]),
        ({"overflow": "drop"}, ["overflow='drop'", "block, reject, drop-oldest"]),
        ({"max_messages": None}, ["overflow='reject'", "max_messages or max_bytes"]),
        ({"max_deliveries": 0}, ["max_deliveries=0", "whole number"]),
        ({"retain_for": "a/b"}, ["retain_for='a/b'"]),
        ({"delivery": "round-robin"}, ["delivery='round-robin'", "'broadcast'", "create another topic", "delete"]),
        ({"persistence": "async"}, ["persistence='async'", "'weak'", "create another topic"]),
        ({"max_messages": 7, "persistence": ["x"]}, ["persistence=['x']"]),
    ],
)
@pytest.mark.parametrize("force", [False, True])
async def test_changes_that_are_not_valid_are_refused(changes, parts, force):
    async with core() as broker:
        await log_of(broker, 5, max_messages=10, overflow="reject")
        await refused(broker, "t", changes, "topic 't'", *parts, force=force)


@pytest.mark.parametrize("changes", [{"dead_letter": "j"}, {"dead_letter": 7}, {"retain_for": "x"}])
async def test_changes_of_a_work_queue_that_are_not_valid_are_refused(changes):
    async with core() as broker:
        await queue(broker, 5)
        await refused(broker, "j", changes)


async def test_a_default_dead_letter_topic_needs_a_valid_name():
    async with core() as broker:
        name = "x" * 253
        await queue(broker, name=name)
        await refused(broker, name, {"max_deliveries": 3}, "dead-letter topic", "258 bytes")


# Bounds


@PLACES
async def test_a_lower_bound_that_drops_messages_needs_force(on_disk, tmp_path):
    async with core(tmp_path if on_disk else None) as broker:
        topic = await log_of(broker, 100, max_messages=100)
        lagging = RecordingSink(room_left=0)
        subscription = broker.subscribe(topic, "earliest", lagging)
        await refused(broker, "t", {"max_messages": 10}, "max_messages=10: 90 of the 100 messages", "force")
        await refused(broker, "t", {"max_bytes": 500}, "max_bytes=500: 500 of the 1000 bytes of 100 messages")
        await broker.alter("t", {"max_messages": 101, "max_bytes": 1000})
        assert topic.state().first == 1
        await broker.alter("t", {"max_messages": 10}, force=True)
        assert topic.state().first == 91
        subscription._from_earliest = False
        lagging.room_left = 1 << 20
        subscription.resume()
        await until(lambda: lagging.errors)
        assert isinstance(lagging.errors[0], Overrun)
        await append(broker, topic, [b"x"])
        assert topic.state().first == 92
        await broker.alter("t", {"max_messages": None, "max_bytes": None})
        await append(broker, topic, [b"x"] * 500)
        assert topic.state().first == 92


async def test_a_removed_bound_of_a_topic_in_memory_brings_the_default_back(monkeypatch):
    monkeypatch.setattr("omq.broker.core.topic.MAX_MEMORY_BYTES", 500)
    async with core() as broker:
        await log_of(broker, 100, max_bytes=5000)
        await refused(broker, "t", {"max_bytes": None}, "max_bytes=None: 500 of the 1000 bytes")
        topic = await log_of(broker, 100, name="u", max_bytes=5000, overflow="reject")
        with pytest.raises(TopicError, match="needs max_messages or max_bytes"):
            await broker.alter("u", {"max_bytes": None})
        await broker.alter("u", {"max_bytes": None, "overflow": None, "retain_for": "x"})
        with pytest.raises(StoreFull, match="max_bytes=500"):
            await append(broker, topic, [b"x"])


@pytest.mark.parametrize("overflow", ["reject", "block"])
async def test_a_lower_bound_drops_nothing_where_publishers_wait_or_are_refused(overflow):
    async with core() as broker:
        topic = await log_of(broker, 100, max_messages=100, overflow=overflow)
        await broker.alter("t", {"max_messages": 10})
        assert topic.state().messages(0) == 100
        job = publish(broker, topic)
        await run_pending(broker)
        assert job.done() == (overflow == "reject")
        await refused(broker, "t", {"overflow": "drop-oldest"}, "overflow='drop-oldest': 90 of the 100 messages")
        await refused(broker, "t", {"overflow": None}, "overflow=None: 90 of the 100 messages")
        await broker.alter("t", {"overflow": "drop-oldest"}, force=True)
        await asyncio.gather(job, return_exceptions=True)
        await append(broker, topic, [b"x"])
        assert topic.state().messages(0) == 10


async def test_a_lower_bound_of_a_work_queue_moves_its_oldest_messages_to_the_dead_letters():
    async with core() as broker:
        topic = await queue(broker, 100, max_messages=100, overflow="drop-oldest")
        sink = RecordingSink()
        consumer = broker.consume(topic, sink, credit=5)
        await until(lambda: len(sink.got) == 5)
        await refused(broker, "j", {"max_messages": 20}, "80 of the 100 unacknowledged messages would become dead")
        await refused(broker, "j", {"max_messages": 1}, "95 of the 100 unacknowledged")
        await refused(broker, "j", {"max_bytes": 10}, "max_bytes=10: 990 of the 1000 bytes of 100 unacknowledged")
        await broker.alter("j", {"max_messages": 200})
        await broker.alter("j", {"max_messages": 20}, force=True)
        await until(lambda: topic.dead_lettered == 80)
        assert broker.topic("j.dead").state().messages(0) == 80
        assert (topic.dropped, topic.unfinished) == (80, 20)
        consumer.more(100)
        await until(lambda: len(sink.got) == 20)
        assert sink.ids == [*range(1, 6), *range(86, 101)]
        await broker.alter("j", {"max_messages": 50})
        await append(broker, topic, [b"x"] * 100)
        await until(lambda: topic.dropped > 80)


async def test_messages_in_flight_do_not_keep_a_bound_from_rising():
    async with core() as broker:
        topic = await queue(broker, 10, max_messages=10, overflow="reject")
        sink = RecordingSink()
        broker.consume(topic, sink)
        await until(lambda: len(sink.got) == 10)
        await broker.alter("j", {"max_messages": 2, "overflow": "drop-oldest"})
        await broker.alter("j", {"max_messages": 3})
        assert topic.settings["max_messages"] == 3


# Age


@PLACES
@pytest.mark.parametrize("delivery", ["broadcast", "round-robin"])
async def test_a_lower_age_that_drops_messages_needs_force(on_disk, delivery, tmp_path, monkeypatch):
    real, slept = clock.uptime, [0]
    for place in ("omq.store.clock.uptime", "omq.store.memory.uptime"):
        monkeypatch.setattr(place, lambda: real() + slept[0])
    async with core(tmp_path if on_disk else None) as broker:
        topic = await broker.create("t", delivery=delivery, persistence="weak", settings={"max_age": 3600})
        await append(broker, topic, [b"old"] * 3)
        slept[0] += 1_000_000_000
        await append(broker, topic, [b"new"] * 2)
        await refused(broker, "t", {"max_age": 500}, "max_age=500.0: the oldest of the 5 messages", "1000.", "force")
        await broker.alter("t", {"max_age": 2000})
        await broker.alter("t", {"max_age": None})
        await refused(broker, "t", {"max_age": 500}, "max_age=500.0")
        if delivery == "round-robin":
            sink = RecordingSink()
            consumer = broker.consume(topic, sink, credit=3)
            await until(lambda: len(sink.got) == 3)
            consumer.ack([(1, 3)])
            saved = []
            topic.flush(saved.append)
            await until(lambda: saved)
            await broker.alter("t", {"max_age": 500})  # only acknowledged ones are older
            assert topic.stats()["expired"] == 0
            assert topic.unfinished == 2
        else:
            await broker.alter("t", {"max_age": 500}, force=True)
            assert topic.state().messages(0) == 2
        await broker.alter("t", {"max_age": None})
        slept[0] += 10_000_000_000
        await append(broker, topic, [b"new"])
        assert topic.used()[0] == 3


async def test_messages_that_an_age_has_dropped_leave_the_queue_with_it(monkeypatch):
    real, slept = clock.uptime, [0]
    monkeypatch.setattr("omq.store.memory.uptime", lambda: real() + slept[0])
    async with core() as broker:
        topic = await queue(broker, 3, max_age=3600)
        slept[0] += 5_000_000_000
        assert topic.state().first == 4
        await broker.alter("j", {"max_age": None})
        assert (topic.backlog, topic.stats()["expired"]) == (0, 3)


# Publishers that wait


async def waiting(broker, topic, count=3):
    """Publishes messages one by one to a full topic, and returns the tasks, which wait."""
    jobs = [publish(broker, topic) for _ in range(count)]
    await until(lambda: topic.stats()["blocked"] == count)
    return jobs


@pytest.mark.parametrize(
    "changes",
    [
        {"max_messages": 5},
        {"max_messages": None, "overflow": None, "retain_for": None},
        {"max_messages": 4, "overflow": "drop-oldest"},
        {"max_messages": None, "max_bytes": 1000},
    ],
)
async def test_publishers_go_on_when_there_is_room(changes, monkeypatch):
    monkeypatch.setattr(TopicAdmission, "_schedule_poll", lambda self: None)  # nothing else wakes them
    async with core() as broker:
        topic = await log_of(broker, 2, max_messages=2, overflow="block", retain_for="x")
        jobs = await waiting(broker, topic)
        await broker.alter("t", changes, force="drop-oldest" in changes.values())
        assert await asyncio.gather(*jobs) == [3, 4, 5]
        assert topic.stats()["blocked"] == 0
        assert broker.held.used == broker.store.waiting == 0


async def test_as_many_publishers_go_on_as_there_is_room_for():
    async with core() as broker:
        topic = await queue(broker, 2, max_messages=2, overflow="block")
        jobs = await waiting(broker, topic)
        await broker.alter("j", {"max_messages": 3})
        await until(lambda: jobs[0].done())
        await run_pending(broker)
        assert [job.done() for job in jobs] == [True, False, False]
        await broker.alter("j", {"max_messages": 2})
        await broker.alter("j", {"overflow": "reject"})
        for job in jobs[1:]:
            with pytest.raises(StoreFull, match="max_messages=2"):
                await job
        assert topic.stats()["rejected"] == 2
        assert broker.held.used == 0
        await broker.alter("j", {"max_messages": None, "overflow": None})
        await broker.alter("j", {"max_messages": 2})
        assert topic.stats()["rejected"] == 2, "a counter does not go back"


async def test_publishers_that_were_refused_wait_once_the_overflow_is_block():
    async with core() as broker:
        topic = await queue(broker, 2, max_messages=2)
        with pytest.raises(StoreFull):
            await append(broker, topic, [b"x"])
        await broker.alter("j", {"overflow": "block"})
        (job,) = await waiting(broker, topic, 1)
        sink = RecordingSink()
        consumer = broker.consume(topic, sink)
        await until(lambda: len(sink.got) == 2)
        consumer.ack([(1, 2)])
        assert await job == 3


async def test_a_topic_without_bounds_gets_one_while_messages_are_on_their_way():
    async with core() as broker:
        topic = await queue(broker)
        jobs = [publish(broker, topic) for _ in range(5)]
        await broker.alter("j", {"max_messages": 5})
        assert sorted(await asyncio.gather(*jobs)) == [1, 2, 3, 4, 5]
        with pytest.raises(StoreFull):
            await append(broker, topic, [b"x"])
        jobs = [publish(broker, topic)]
        await broker.alter("j", {"max_messages": 6})
        await asyncio.gather(*jobs, return_exceptions=True)
        while topic.unfinished < 6:
            await append(broker, topic, [b"x"])
        with pytest.raises(StoreFull):
            await append(broker, topic, [b"x"])
        assert topic.admission._submitted == 0


@pytest.mark.parametrize("repeats", [False, True])
@pytest.mark.parametrize("steps", [["reject"], ["block"], ["reject", "block"], ["block", "reject"], [None]])
@pytest.mark.parametrize("before", ["reject", "block"])
async def test_a_change_while_the_store_looks_for_a_repetition(before, steps, repeats):
    """A full topic asks the store first. The bounds change before it has answered."""
    async with core() as broker:
        topic = await queue(broker, max_messages=1, overflow=before)
        assert await append(broker, topic, [b"y"], producer=b"p", sequence=1) == 1
        answers = []

        def done(first, error):
            answers.append(first or type(error))

        topic.append(blocks.encode([b"y"]), 1, done, b"p", 1 if repeats else 2)
        for step in steps:
            changes = {"max_messages": 1, "overflow": step} if step else {}
            await topic.alter(changes)
        await run_pending(broker)
        if repeats:
            assert answers == [1]
        elif steps == [None]:
            assert answers == [2]
        elif steps[-1] == "reject":
            assert answers == [StoreFull]
        else:
            assert answers == []
            assert topic.stats()["blocked"] == 1
            await topic.alter({})
            await until(lambda: answers == [2])
        assert broker.held.used == broker.store.waiting == 0
        await run_pending(broker)
        assert len(answers) == 1


@pytest.mark.parametrize("changes", [{"max_messages": 2}, {"max_messages": None, "overflow": None}])
async def test_a_commit_that_waits_goes_on(changes):
    async with core() as broker:
        topic = await queue(broker, 1, max_messages=1, overflow="block")
        await broker.store.do(Stage(topic.id, blocks.encode([b"s"]), 1, b"s"))
        answers = []
        broker.commit(b"c", [b"s"], lambda id: True, answers.append)
        await until(lambda: broker.held.used)
        await broker.alter("j", changes)
        await until(lambda: answers)
        assert answers[0].error is None
        assert topic.last == 2
        assert broker.held.used == 0


async def test_a_commit_that_was_refused_by_bounds_that_are_gone_is_made():
    async with core() as broker:
        topic = await queue(broker, 1, max_messages=1)
        await broker.store.do(Stage(topic.id, blocks.encode([b"s"]), 1, b"s"))
        answers = []
        broker.commit(b"c", [b"s"], lambda id: True, answers.append)
        broker.store.flush()  # the store finds no room
        await topic.alter({"max_messages": 1, "overflow": "drop-oldest"})
        await until(lambda: answers)
        assert answers[0].error is None


# retain_for


@PLACES
async def test_messages_are_kept_for_a_subscription_from_now_on(on_disk, tmp_path):
    async with core(tmp_path if on_disk else None) as broker:
        topic = await log_of(broker, 20, max_messages=10)
        assert topic.state().first == 11
        await broker.alter("t", {"retain_for": "archiver"})
        assert [(one["name"], one["position"], one["lag"]) for one in topic.durables()] == [("archiver", 10, 10)]
        assert broker.store.store.cursors(topic.id) == {"archiver": 10}
        with pytest.raises(StoreFull):
            await append(broker, topic, [b"x"])
        sink = RecordingSink()
        subscription = broker.subscribe(topic, "latest", sink, name="archiver")
        await until(lambda: sink.ids == [*range(11, 21)])
        subscription.move(15)
        await until(lambda: topic.state().first == 16)
        await append(broker, topic, [b"x"])
        with pytest.raises(TopicError, match="cannot be deleted"):
            await topic.delete_durable("archiver")
    if on_disk:
        async with core(tmp_path) as broker:
            topic = broker.topic("t")
            assert [(one["name"], one["position"]) for one in topic.durables()] == [("archiver", 15)]
            sink = RecordingSink()
            broker.subscribe(topic, "latest", sink, name="archiver")
            await until(lambda: sink.ids == [*range(16, 22)])


async def test_a_subscription_that_is_ahead_needs_force():
    async with core() as broker:
        topic = await log_of(broker, 20)
        sink = RecordingSink()
        reader = broker.subscribe(topic, "earliest", sink, name="archiver")
        await until(lambda: len(sink.got) == 20)
        reader.move(15)
        await run_pending(broker)
        await refused(broker, "t", {"retain_for": "archiver"}, "retain_for='archiver': 15 of the 20", "cursor 15")
        await broker.alter("t", {"retain_for": "archiver"}, force=True)
        await until(lambda: topic.state().first == 16)
        reader.move(18)
        await until(lambda: topic.state().first == 19)


@PLACES
async def test_messages_are_kept_for_a_subscription_no_longer(on_disk, tmp_path):
    async with core(tmp_path if on_disk else None) as broker:
        topic = await log_of(broker, 20, retain_for="archiver", max_messages=20)
        await broker.alter("t", {"retain_for": None})
        assert [one["name"] for one in topic.durables()] == ["archiver"]
        assert broker.store.store.cursors(topic.id) == {"archiver": 0}, "it remains, also after a restart"
        await append(broker, topic, [b"x"])
        assert topic.state().first == 2
        reader = broker.subscribe(topic, "earliest", RecordingSink(), name="archiver", reset=True)
        reader.move(10)
        await run_pending(broker)
        assert topic.state().first == 2
        reader.end()
        await topic.delete_durable("archiver")
        assert topic.durables() == []


async def test_bounds_that_drop_without_retain_for_need_force():
    async with core() as broker:
        topic = await log_of(broker, 20, retain_for="archiver")
        await broker.alter("t", {"max_messages": 5})
        await refused(broker, "t", {"retain_for": None}, "retain_for=None: 15 of the 20 messages")
        await broker.alter("t", {"retain_for": None}, force=True)
        assert topic.state().first == 16


async def test_messages_are_kept_for_another_subscription():
    async with core() as broker:
        topic = await log_of(broker, 20, retain_for="a")
        await broker.alter("t", {"retain_for": "b"})
        names = {one["name"]: one["position"] for one in topic.durables()}
        assert names == {"a": 0, "b": 0}
        sink = RecordingSink()
        reader = broker.subscribe(topic, "latest", sink, name="b")
        await until(lambda: len(sink.got) == 20)
        reader.move(20)
        await until(lambda: topic.state().first == 21)
        await topic.delete_durable("a")
        with pytest.raises(TopicError, match="cannot be deleted"):
            await topic.delete_durable("b")


async def test_a_cursor_that_cannot_be_stored_now_is_stored_later(monkeypatch):
    async with core() as broker:
        monkeypatch.setattr(broker, "later", lambda seconds, call: broker.loop.call_later(0.001, call))
        topic = await log_of(broker, 5)
        store = broker.store.store
        broker.store.store = FailingStore(store, OutOfSpace("no space"))
        await topic.alter({"retain_for": "x"})
        assert not topic.is_durable("x")
        broker.store.store = store
        await until(lambda: topic.is_durable("x"))
        assert store.cursors(topic.id) == {"x": 0}


# Work queues


@PLACES
async def test_max_deliveries_applies_to_messages_that_wait_and_to_those_in_flight(on_disk, tmp_path):
    async with core(tmp_path if on_disk else None) as broker:
        topic = await queue(broker, 4, retry_delay=0)
        sink = RecordingSink()
        consumer = broker.consume(topic, sink, credit=10)
        await until(lambda: len(sink.got) == 4)
        consumer.nack([(1, 1)])
        await until(lambda: len(sink.got) == 5)
        consumer.nack([(1, 1)], 3600)  # it has failed twice, and waits
        consumer.nack([(2, 2)], 3600)  # once
        await broker.alter("j", {"max_deliveries": 2})
        await until(lambda: topic.dead_lettered == 1)
        consumer.nack([(3, 3)], 0)
        await until(lambda: len(sink.got) == 6)
        consumer.nack([(3, 3)], 0)
        await until(lambda: topic.dead_lettered == 2)
        await broker.alter("j", {"max_deliveries": 1})
        await until(lambda: topic.dead_lettered == 3)
        await broker.alter("j", {"max_deliveries": None})
        for _ in range(5):
            before = len(sink.got)
            consumer.nack([(4, 4)], 0)
            await until(lambda before=before: len(sink.got) > before)
        assert topic.dead_lettered == 3
        assert topic.unfinished == 1
        assert broker.topic("j.dead").state().last == 3


async def test_the_retry_delay_applies_from_the_next_failure_on():
    async with core() as broker:
        topic = await queue(broker, 2, retry_delay=3600)
        sink = RecordingSink()
        consumer = broker.consume(topic, sink)
        await until(lambda: len(sink.got) == 2)
        consumer.nack([(1, 1)])
        assert (topic.backlog, topic.work.queue.ready) == (1, 0)
        await broker.alter("j", {"retry_delay": [0, 3600]})
        consumer.nack([(2, 2)])
        await until(lambda: sink.ids == [1, 2, 2])
        consumer.nack([(2, 2)])
        assert (topic.backlog, topic.work.queue.ready) == (2, 0)
        await broker.alter("j", {"retry_delay": None})
        assert topic.work.retry_delay(1) == 0.1


async def test_dead_letters_go_to_the_other_topic():
    async with core() as broker:
        topic = await queue(broker, 2, max_deliveries=1)
        sink = RecordingSink()
        consumer = broker.consume(topic, sink)
        await until(lambda: len(sink.got) == 2)
        consumer.nack([(1, 1)])
        await until(lambda: topic.dead_lettered == 1)
        await broker.alter("j", {"dead_letter": "other"})
        consumer.nack([(2, 2)])
        await until(lambda: topic.dead_lettered == 2)
        assert [broker.topic(name).state().last for name in ("j.dead", "other")] == [1, 1]
        await broker.alter("j", {"dead_letter": None})
        assert topic.dead_letter == "j.dead"
        await broker.alter("j", {"max_deliveries": None})
        assert topic.dead_letter is None


async def test_a_change_that_closes_a_cycle_of_dead_letter_topics_is_refused():
    async with core() as broker:
        await queue(broker, name="a", dead_letter="b")
        await queue(broker, name="b", dead_letter="c")
        await queue(broker, name="c")
        await refused(broker, "c", {"dead_letter": "a"}, "'c' -> 'a' -> 'b' -> 'c'", "another dead_letter")
        await queue(broker, name="d.dead", dead_letter="d")
        await queue(broker, name="d")
        await refused(broker, "d", {"max_deliveries": 3}, "'d' -> 'd.dead' -> 'd'")
        await broker.alter("b", {"dead_letter": None})
        await broker.alter("c", {"dead_letter": "a"})
        await refused(broker, "b", {"dead_letter": "c"}, "would come back to it")


async def test_two_changes_at_once_close_no_cycle():
    async with core() as broker:
        for name in "ab":
            await queue(broker, name=name)
        made = [broker.alter("a", {"dead_letter": "b"}), broker.alter("b", {"dead_letter": "a"})]
        topic, error = await asyncio.gather(*made, return_exceptions=True)
        assert topic is broker.topic("a")
        assert "would come back to it" in str(error)
        assert broker.topic("b").dead_letter is None


@pytest.mark.parametrize("fails", [False, True])
async def test_a_topic_that_is_created_meanwhile_closes_no_cycle(fails):
    """Until the change is stored, either dead-letter topic may be the one in force."""
    async with core() as broker:
        await queue(broker, name="a", dead_letter="b")
        altering = asyncio.ensure_future(broker.alter("a", {"dead_letter": "c"}))
        if fails:
            broker.store.store = FailingOnce(broker.store.store, OutOfSpace("no space"))
        await asyncio.sleep(0)
        made = [asyncio.ensure_future(queue(broker, name=name, dead_letter="a")) for name in "bc"]
        await asyncio.gather(altering, return_exceptions=True)
        results = await asyncio.gather(*made, return_exceptions=True)
        wrong, right = results if fails else results[::-1]
        assert "would come back to it" in str(wrong)
        assert right.dead_letter == "a"


async def test_another_dead_letter_topic_is_checked():
    async with core() as broker:
        await queue(broker, dead_letter="a")
        asked = []

        def check(target):
            asked.append(target)
            if target == "c":
                raise PermissionDenied("no")

        await broker.alter("j", {"retry_delay": 1}, check_target=check)
        assert asked == []
        await broker.alter("j", {"dead_letter": "b"}, check_target=check)
        with pytest.raises(PermissionDenied):
            await broker.alter("j", {"dead_letter": "c"}, check_target=check)
        assert asked == ["b", "c"]
        assert broker.topic("j").settings == {"dead_letter": "b", "retry_delay": 1.0}


# Other changes at the same time


async def test_a_topic_that_does_not_exist_is_refused():
    async with core() as broker:
        await refused(broker, "nowhere", {"max_age": 1}, "no topic 'nowhere'")
        await log_of(broker)
        await broker.delete("t")
        await refused(broker, "t", {"max_age": 1}, "no topic 't'")


async def test_a_topic_is_altered_once_it_is_created():
    async with core() as broker:
        making = asyncio.ensure_future(log_of(broker, max_messages=5))
        await asyncio.sleep(0)
        assert "t" not in broker.topics
        altered = await broker.alter("t", {"max_age": 60})
        assert altered is await making
        assert altered.settings == {"max_messages": 5, "max_age": 60.0}


async def test_a_deletion_waits_for_an_alteration_and_the_next_one_finds_no_topic():
    async with core() as broker:
        topic = await log_of(broker)
        results = await asyncio.gather(
            broker.alter("t", {"max_age": 60}),
            broker.delete("t"),
            broker.alter("t", {"max_age": 70}),
            broker.delete("t"),
            return_exceptions=True,
        )
        assert results[:2] == [topic, None]
        assert [type(result) for result in results[2:]] == [TopicError, TopicError]
        assert broker.topics == {}
        assert broker._changing == {}


async def test_an_alteration_waits_for_a_deletion_that_fails():
    async with core() as broker:
        topic = await log_of(broker)
        broker.store.store = FailingOnce(broker.store.store, OutOfSpace("no space"))
        deleting = asyncio.ensure_future(broker.delete("t"))
        await asyncio.sleep(0)
        altering = asyncio.ensure_future(broker.alter("t", {"max_age": 60}))
        with pytest.raises(BrokerError, match="no space"):
            await deleting
        assert await altering is topic
        assert topic.settings == {"max_age": 60.0}


async def test_many_alterations_at_once_are_all_made(tmp_path):
    keys = {"max_messages": 100, "max_bytes": 1000, "max_age": 60.0, "overflow": "reject"}
    async with core(tmp_path) as broker:
        topic = await log_of(broker, max_messages=1)
        await asyncio.gather(*(broker.alter("t", {key: value}) for key, value in keys.items()))
        assert topic.settings == stored(broker, topic) == keys
        numbers = [asyncio.ensure_future(broker.alter("t", {"max_messages": number})) for number in range(101, 121)]
        await asyncio.gather(*numbers)
        assert topic.settings["max_messages"] == stored(broker, topic)["max_messages"] == 120
    async with core(tmp_path) as broker:
        assert broker.topic("t").settings == {**keys, "max_messages": 120}


async def test_an_alteration_that_is_not_stored_changes_nothing():
    async with core() as broker:
        topic = await queue(broker, 2, max_messages=2, overflow="block")
        jobs = await waiting(broker, topic, 1)
        store = broker.store.store
        broker.store.store = FailingStore(store, OutOfSpace("no space"))
        with pytest.raises(BrokerError, match="no space"):
            await broker.alter("j", {"max_messages": 10, "dead_letter": "d", "max_deliveries": 1})
        broker.store.store = store
        assert topic.settings == stored(broker, topic) == {"max_messages": 2, "overflow": "block"}
        assert (topic.dead_letter, topic.work.queue.max_tries, topic.stats()["blocked"]) == (None, None, 1)
        await broker.alter("j", {"max_messages": 10})
        assert await asyncio.gather(*jobs) == [3]


@pytest.mark.parametrize("persistence", ["strong", "weak", "async", "transient"])
async def test_a_restart_has_the_altered_settings(persistence, tmp_path):
    settings = {"max_messages": 7, "overflow": "block", "max_deliveries": 4, "retry_delay": [0.5, 1.0]}
    async with core(tmp_path) as broker:
        await broker.create("j", delivery="round-robin", persistence=persistence, settings={"max_age": 5})
        await broker.alter("j", {**settings, "max_age": None})
    async with core(tmp_path) as broker:
        topic = broker.topic("j")
        assert topic.settings == settings
        assert topic.work.queue.max_tries == 4
        assert topic.admission is not None
