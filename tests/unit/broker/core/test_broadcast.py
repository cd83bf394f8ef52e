"""Broadcast topics: replay, credit, retention and durable subscriptions."""

import asyncio

import pytest

from omq._core import blocks
from omq.broker.core import broadcast
from omq.broker.errors import BrokerError, BrokerFailed, Damaged, Overrun, TopicError
from omq.broker.errors import StoreFull as NoRoom
from omq.store.errors import DamagedError, OutOfSpace
from omq.store.interface import MAX_MEMORY_BYTES, Append, SetCursor, Trim
from omq.workqueue.dispatcher import TURN_BYTES
from tests.support.broker_core import FailingStore, RecordingSink, append, core, run_pending, until


async def prepared(broker, count=5, **options):
    topic = await broker.create("t", persistence="weak", **options)
    if count:
        await append(broker, topic, [b"%d" % number for number in range(1, count + 1)])
    return topic


async def test_small_blocks_to_many_positions_are_bounded_by_turn():
    async with core() as broker:
        topic = await prepared(broker, count=0)
        for number in range(200):
            await append(broker, topic, [b"%d" % number])
        sinks = [RecordingSink() for _ in range(100)]
        for place, sink in enumerate(sinks):
            broker.subscribe(topic, place, sink)
        before = 0
        while any(len(sink.got) < 200 - place for place, sink in enumerate(sinks)):
            await asyncio.sleep(0)
            now = sum(sink.blocks for sink in sinks)
            assert now - before <= TURN_BYTES >> 10
            before = now
        assert [sink.ids for sink in sinks] == [list(range(place + 1, 201)) for place in range(100)]


@pytest.mark.parametrize(
    ("replay", "ids"),
    [("earliest", [1, 2, 3, 4, 5, 6]), ("latest", [6]), (0, [1, 2, 3, 4, 5, 6]), (3, [4, 5, 6]), (5, [6])],
)
async def test_a_subscription_starts_at_its_replay(replay, ids):
    async with core() as broker:
        topic = await prepared(broker)
        sink = RecordingSink()
        subscription = broker.subscribe(topic, replay, sink)
        await append(broker, topic, [b"6"])
        await until(lambda: len(sink.got) == len(ids))
        assert sink.got == [(id, b"%d" % id) for id in ids]
        assert subscription.position == 6


@pytest.mark.parametrize("replay", [6, 2**62, -1, "yesterday", None, True, 1.5])
async def test_a_replay_that_is_not_valid_is_refused(replay):
    async with core() as broker:
        topic = await prepared(broker)
        with pytest.raises(TopicError):
            broker.subscribe(topic, replay, RecordingSink())
        assert topic.readers == 0


async def test_a_replay_of_dropped_ids_raises_overrun_with_the_oldest_id():
    async with core() as broker:
        topic = await prepared(broker, settings={"max_messages": 2})
        for number in range(6, 11):
            await append(broker, topic, [b"%d" % number])
        first = topic.state().first
        assert first > 1
        with pytest.raises(Overrun, match=str(first)) as raised:
            broker.subscribe(topic, first - 2, RecordingSink())
        assert raised.value.first == first
        sink = RecordingSink()
        broker.subscribe(topic, first - 1, sink)
        await until(lambda: sink.got)
        assert sink.ids[0] == first


async def test_a_slow_subscriber_overtaken_by_retention_gets_an_overrun():
    async with core() as broker:
        topic = await prepared(broker, settings={"max_messages": 2})
        slow, fresh = RecordingSink(room_left=1), RecordingSink(room_left=0)
        one = broker.subscribe(topic, topic.state().first - 1, slow)
        other = broker.subscribe(topic, "earliest", fresh)
        await until(lambda: slow.got)
        for number in range(20):
            await append(broker, topic, [b"%d" % number])
        slow.room_left = fresh.room_left = 1 << 20
        one.resume()
        other.resume()
        await until(lambda: slow.errors)
        assert isinstance(slow.errors[0], Overrun)
        # Who asked for the beginning and had nothing yet begins with the oldest one.
        await until(lambda: fresh.got)
        assert fresh.ids[0] == topic.state().first
        assert fresh.errors == []


async def test_a_subscriber_gets_no_more_than_it_has_room_for():
    async with core() as broker:
        topic = await prepared(broker, count=0)
        for _ in range(50):
            await append(broker, topic, [b"x" * 1000] * 10)
        sink = RecordingSink(room_left=1)
        subscription = broker.subscribe(topic, "earliest", sink)
        await run_pending(broker)
        assert sink.blocks == 1
        while len(sink.got) < 500:
            sink.room_left = 1
            before = sink.blocks
            subscription.resume()
            await run_pending(broker)
            assert sink.blocks == before + 1
        assert sink.ids == list(range(1, 501))


async def test_subscribers_at_different_positions_get_everything_in_order():
    async with core() as broker:
        topic = await prepared(broker, count=100)
        sinks = [RecordingSink() for _ in range(20)]
        for number, sink in enumerate(sinks):
            broker.subscribe(topic, number * 3, sink)
        await append(broker, topic, [b"x"] * 100)
        await until(lambda: all(sink.got and sink.ids[-1] == 200 for sink in sinks))
        for number, sink in enumerate(sinks):
            assert sink.ids == list(range(number * 3 + 1, 201))


async def test_a_sink_that_raises_ends_only_its_subscription():
    async with core() as broker:
        topic = await prepared(broker)
        bad, good = RecordingSink(), RecordingSink()
        bad.fault = RuntimeError("full of sand")
        broker.subscribe(topic, "earliest", bad)
        broker.subscribe(topic, "earliest", good)
        await until(lambda: len(good.got) == 5)
        assert isinstance(bad.errors[0], BrokerFailed)
        assert topic.readers == 1


async def test_deleting_ends_subscriptions_with_an_error():
    async with core() as broker:
        topic = await prepared(broker)
        sink = RecordingSink()
        broker.subscribe(topic, "latest", sink)
        await broker.delete("t")
        assert isinstance(sink.errors[0], TopicError)
        with pytest.raises(TopicError):
            broker.subscribe(topic, "latest", RecordingSink())


async def test_a_subscription_that_ends_gets_nothing_more():
    async with core() as broker:
        topic = await prepared(broker)
        sink = RecordingSink()
        subscription = broker.subscribe(topic, "earliest", sink)
        subscription.end()
        subscription.end()
        subscription.resume()
        await append(broker, topic, [b"6"])
        await run_pending(broker)
        assert sink.got == []
        assert sink.errors == []


async def test_damage_ends_a_subscription_with_its_ids(monkeypatch):
    async with core() as broker:
        topic = await prepared(broker)

        def damaged(id):
            raise DamagedError("messages 2 to 3 are damaged", topic.id, 2, 3)

        monkeypatch.setattr(broker.store.store, "read", damaged)
        sink = RecordingSink()
        broker.subscribe(topic, "earliest", sink)
        await until(lambda: sink.errors)
        error = sink.errors[0]
        assert isinstance(error, Damaged)
        assert (error.first, error.last) == (2, 3)


async def test_a_durable_subscription_is_open_once_and_keeps_its_position():
    async with core() as broker:
        topic = await prepared(broker)
        first = broker.subscribe(topic, 1, RecordingSink(), name="n")
        with pytest.raises(TopicError, match="already"):
            broker.subscribe(topic, "latest", RecordingSink(), name="n")
        first.move(3)
        with pytest.raises(TopicError, match="above the newest id"):
            first.move(6)
        first.end()
        sink = RecordingSink()
        second = broker.subscribe(topic, "earliest", sink, name="n")
        await until(lambda: sink.got)
        assert sink.ids == [4, 5]
        second.move(5)
        flushed = []
        topic.flush(flushed.append)
        await until(lambda: flushed)
        assert flushed == [None]
        assert broker.store.store.cursors(topic.id) == {"n": 5}


async def test_the_first_position_of_a_durable_subscription_is_stored_at_once():
    async with core() as broker:
        topic = await prepared(broker)
        broker.subscribe(topic, "latest", RecordingSink(), name="n")
        await until(lambda: broker.store.store.cursors(topic.id) == {"n": 5})


async def test_a_durable_subscription_can_be_deleted_unless_it_is_open():
    async with core() as broker:
        topic = await prepared(broker)
        held = broker.subscribe(topic, 2, RecordingSink(), name="n")
        with pytest.raises(TopicError, match="is open"):
            await topic.delete_durable("n")
        held.end()
        assert [name["name"] for name in topic.stats()["names"]] == ["n"]
        await topic.delete_durable("n")
        assert topic.stats()["names"] == []
        assert broker.store.store.cursors(topic.id) == {}
        with pytest.raises(TopicError, match="no durable subscription"):
            await topic.delete_durable("n")


async def test_a_durable_subscription_survives_a_failed_deletion():
    async with core() as broker:
        topic = await prepared(broker)
        broker.subscribe(topic, 2, RecordingSink(), name="n").end()
        await run_pending(broker)
        store, broker.store.store = broker.store.store, FailingStore(broker.store.store, OutOfSpace("no space"))
        forgetting = asyncio.create_task(topic.delete_durable("n"))
        await asyncio.sleep(0)
        assert topic.stats()["names"] == []
        with pytest.raises(BrokerError, match="no space"):
            await forgetting
        broker.store.store = store
        assert [(name["name"], name["position"]) for name in topic.stats()["names"]] == [("n", 2)]


async def test_a_subscription_without_a_name_cannot_move_its_position():
    async with core() as broker:
        topic = await prepared(broker)
        with pytest.raises(TopicError, match="not durable"):
            broker.subscribe(topic, "latest", RecordingSink()).move(1)


async def test_a_round_robin_topic_is_not_subscribed_to_nor_a_broadcast_topic_consumed():
    async with core() as broker:
        jobs = await broker.create("j", delivery="round-robin", persistence="weak")
        topic = await prepared(broker)
        with pytest.raises(TopicError, match="round-robin"):
            broker.subscribe(jobs, "latest", RecordingSink())
        with pytest.raises(TopicError, match="broadcast"):
            broker.consume(topic, RecordingSink())


async def test_is_durable_once_the_first_position_is_stored(monkeypatch):
    async with core() as broker:
        topic = await broker.create("t", persistence="weak")
        store = broker.store.store
        submit, full = store.submit_many, [True]

        def fails(writes):
            for write in writes:
                if full and isinstance(write, SetCursor) and write.name == "a":
                    write.error = OutOfSpace("no space")
                    broker.store._notify([write])
                else:
                    submit([write])

        monkeypatch.setattr(store, "submit_many", fails)
        flushed = []
        for name in ("a", "b"):
            broker.subscribe(topic, "latest", RecordingSink(), name=name).end()
        topic.flush(flushed.append)
        await until(lambda: flushed)
        assert flushed[0].code == "full"
        assert not topic.is_durable("a")
        assert topic.is_durable("b")
        # The same again fails, too, as long as nothing is durable.
        broker.subscribe(topic, "latest", RecordingSink(), name="a").end()
        topic.flush(flushed.append)
        await until(lambda: len(flushed) == 2)
        assert flushed[1].code == "full"
        full.clear()
        topic.flush(flushed.append)
        await until(lambda: len(flushed) == 3)
        assert flushed[2] is None
        assert topic.is_durable("a")
        assert store.cursors(topic.id) == {"a": 0, "b": 0}


async def test_records_without_a_notification_are_not_delivered_yet(monkeypatch):
    async with core() as broker:
        topic = await prepared(broker)
        sink = RecordingSink(room_left=0)
        subscription = broker.subscribe(topic, "earliest", sink, name="n")
        # A commit whose news have not reached the loop.
        news = []
        monkeypatch.setattr(broker.store.store, "_notify", news.append)
        monkeypatch.setattr(broker.store.store, "_appended", news.append)
        write = Append(topic.id, blocks.encode([b"6"]), 1, context=lambda write: None)
        broker.store._outstanding += 1
        broker.store.store.submit(write)
        await until(lambda: len(news) == 2)
        assert topic.state().last == 6
        sink.room_left = 1 << 20
        subscription.resume()
        await until(lambda: len(sink.got) == 5)
        await run_pending(broker)
        assert sink.ids == [1, 2, 3, 4, 5]
        assert subscription.position == 5
        # Who has read it by range may begin behind it, and keep its id.
        other = RecordingSink()
        broker.subscribe(topic, 6, other)
        subscription.move(6)
        with pytest.raises(TopicError, match="above the newest id"):
            subscription.move(7)
        monkeypatch.undo()
        for one in news:
            (broker.store._notify if isinstance(one, list) else broker.store._appended)(one)
        await until(lambda: sink.ids == [1, 2, 3, 4, 5, 6])
        assert other.got == []


async def test_a_durable_subscription_overtaken_by_retention_resets_to_its_replay():
    async with core() as broker:
        topic = await prepared(broker, settings={"max_messages": 2})
        broker.subscribe(topic, "earliest", RecordingSink(), name="n").end()
        before = topic.durables()[0]["position"]
        for _ in range(10):
            await append(broker, topic, [b"x"])
        first = topic.state().first
        with pytest.raises(Overrun) as raised:
            broker.subscribe(topic, "earliest", RecordingSink(), name="n")
        assert raised.value.first == first > before + 1
        again = broker.subscribe(topic, "earliest", RecordingSink(), name="n", reset=True)
        assert again.position == first - 1
        assert not topic.is_durable("n")
        again.end()
        # What is kept goes on where it was.
        kept = broker.subscribe(topic, "latest", RecordingSink(), name="n", reset=True)
        assert kept.position == first - 1


@pytest.mark.parametrize("persistence", ["transient", "async", "weak", "strong"])
async def test_messages_stay_until_the_subscription_of_retain_for_has_acknowledged_them(tmp_path, persistence):
    async with core(tmp_path) as broker:
        topic = await broker.create("t", persistence=persistence, settings={"retain_for": "archiver"})
        await append(broker, topic, [b"%d" % number for number in range(1, 6)])
        await until(lambda: topic.readable == 5)
        (archiver,) = topic.stats()["names"]
        assert (archiver["name"], archiver["position"], archiver["lag"], archiver["held"]) == ("archiver", 0, 5, False)
        other = broker.subscribe(topic, "earliest", RecordingSink(), name="other")
        other.move(5)
        sink = RecordingSink()
        reader = broker.subscribe(topic, "latest", sink, name="archiver")
        await until(lambda: sink.ids == [1, 2, 3, 4, 5])  # it exists since the topic does, whatever replay is
        await run_pending(broker)
        assert topic.state().first == 1
        reader.move(3)
        await until(lambda: topic.state().first == 4)
        reader.move(2)
        assert topic.durables()[0]["position"] == 3  # what is before is not there to be read again
        reader.end()
        reader = broker.subscribe(topic, "latest", again := RecordingSink(), name="archiver")
        await until(lambda: again.ids == [4, 5])
        reader.move(5)
        await until(lambda: topic.state().first == 6)
        assert topic.state().bytes == 0
        assert topic.readable == topic.last == 5


async def test_publishers_wait_until_the_reader_has_acknowledged():
    async with core() as broker:
        settings = {"retain_for": "archiver", "max_messages": 5, "overflow": "block"}
        topic = await broker.create("t", persistence="transient", settings=settings)
        sink = RecordingSink()
        reader = broker.subscribe(topic, "latest", sink, name="archiver")
        published = [asyncio.ensure_future(append(broker, topic, [b"%d" % number])) for number in range(12)]
        await until(lambda: len(sink.got) == 5)
        assert topic.stats()["blocked"] == 7
        for last in (5, 10):
            reader.move(last)
            await until(lambda last=last: len(sink.got) == min(last + 5, 12))
        assert [await one for one in published] == sink.ids == list(range(1, 13))
        assert broker.held.used == 0


async def test_retain_for_drops_nothing_unread_without_drop_oldest():
    async with core() as broker:
        topic = await broker.create("t", persistence="weak", settings={"retain_for": "n", "max_messages": 5})
        await append(broker, topic, [b"x"] * 5)
        with pytest.raises(NoRoom, match="max_messages=5"):
            await append(broker, topic, [b"x"])
        dropping = {"retain_for": "n", "max_messages": 5, "overflow": "drop-oldest"}
        other = await broker.create("other", persistence="weak", settings=dropping)
        await append(broker, other, [b"x"] * 8)
        assert other.state().first == 4
        with pytest.raises(Overrun, match="the oldest is 4"):
            broker.subscribe(other, "latest", RecordingSink(), name="n")
        sink = RecordingSink()
        broker.subscribe(other, "earliest", sink, name="n", reset=True)
        await until(lambda: sink.ids == [4, 5, 6, 7, 8])


@pytest.mark.parametrize("settings", [{"retain_for": "n"}, {"max_messages": 1 << 40, "overflow": "block"}])
async def test_memory_is_bounded_where_nothing_is_dropped(settings):
    async with core() as broker:
        topic = await broker.create("t", persistence="transient", settings=settings)
        assert topic.admission is not None
        await append(broker, topic, [b"x"])
        assert not topic.admission.has_room(1, MAX_MEMORY_BYTES)


async def test_the_durable_subscription_of_retain_for_cannot_be_deleted():
    async with core() as broker:
        topic = await broker.create("t", persistence="weak", settings={"retain_for": "n"})
        with pytest.raises(TopicError, match="retain_for"):
            await topic.delete_durable("n")
        await broker.delete("t")


@pytest.mark.parametrize("persistence", ["weak", "strong"])
async def test_messages_acknowledged_before_a_kill_are_trimmed_at_the_start(tmp_path, persistence):
    settings = {"retain_for": "n", "max_messages": 5, "overflow": "block"}
    async with core(tmp_path) as broker:
        topic = await broker.create("t", persistence=persistence, settings=settings)
        await append(broker, topic, [b"x"] * 5)
        await broker.store.do(SetCursor(topic.id, "n", 5))  # and the broker ends before it has dropped them
        assert topic.state().first == 1
    async with core(tmp_path) as broker:
        topic = broker.topic("t")
        await asyncio.wait_for(append(broker, topic, [b"y"]), 10)
        assert topic.state().first == 6


async def test_a_trim_is_retried_after_the_disk_was_full(monkeypatch):
    monkeypatch.setattr(broadcast, "_TRIM_RETRY_DELAY_S", 0.01)
    async with core() as broker:
        topic = await broker.create("t", persistence="weak", settings={"retain_for": "n"})
        await append(broker, topic, [b"x"] * 5)
        submit, refused = broker.store.submit, []

        def full(write, done):
            if isinstance(write, Trim) and not refused:
                refused.append(write)
                write.error = OutOfSpace("no space")
                done(write)
            else:
                submit(write, done)

        monkeypatch.setattr(broker.store, "submit", full)
        broker.subscribe(topic, "latest", RecordingSink(), name="n").move(5)
        await until(lambda: topic.state().first == 6)
        assert refused


# ------------------------------------------------------------------ activity


async def test_opening_acknowledging_and_closing_are_the_activity_of_a_durable_subscription(monkeypatch):
    now = 1000.0
    monkeypatch.setattr("omq.broker.core.activity.time.time", lambda: now)
    async with core() as broker:
        topic = await broker.create("t", persistence="weak")
        await append(broker, topic, [b"a", b"b"])

        def activity():
            return {one["name"]: one["active"] for one in topic.stats()["names"]}

        subscription = broker.subscribe(topic, "earliest", RecordingSink(), name="n")
        assert activity() == {"n": 1000.0}
        now = 1001.0
        broker.subscribe(topic, "latest", RecordingSink()).end()
        assert activity() == {"n": 1000.0}
        subscription.move(1)
        assert activity() == {"n": 1001.0}
        now = 1002.0
        subscription.end()
        assert activity() == {"n": 1002.0}
        await topic.delete_durable("n")
        assert activity() == {}


async def test_a_restart_counts_as_activity(tmp_path, monkeypatch):
    async with core(tmp_path / "data") as broker:
        topic = await broker.create("t", persistence="strong", settings={"retain_for": "r"})
        broker.subscribe(topic, "earliest", RecordingSink(), name="n")
    monkeypatch.setattr("omq.broker.core.activity.time.time", lambda: 7.0)
    async with core(tmp_path / "data") as broker:
        names = broker.topic("t").durables()
        assert sorted((one["name"], one["active"], one["held"]) for one in names) == [
            ("n", 7.0, False),
            ("r", 7.0, False),
        ]


async def test_durable_subscriptions_come_in_the_order_of_their_creation():
    async with core() as broker:
        topic = await broker.create("t", persistence="weak")
        for name in ("z", "b", "y", "a"):
            broker.subscribe(topic, "latest", RecordingSink(), name=name).end()
        assert [one["name"] for one in topic.stats()["names"]] == ["z", "b", "y", "a"]
