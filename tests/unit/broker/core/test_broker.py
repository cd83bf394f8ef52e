"""The broker's core: creating, finding and deleting topics, publishing, and statistics."""

import asyncio
import json

import aiohttp
import pytest

from omq._core import blocks
from omq.broker.core.broker import Broker
from omq.broker.core.topic import MAX_WAITING_BYTES
from omq.broker.errors import BrokerFailed, Busy, TopicError
from omq.broker.http.server import HttpServer
from omq.store.errors import OutOfSpace, StoreFailed
from omq.store.interface import DeleteTopic
from tests.support.broker_core import FailingStore, RecordingSink, append, core, run_pending, until


async def test_a_topic_is_created_and_found_with_the_same_settings():
    async with core() as broker:
        made = await broker.create("t", persistence="weak", settings={"max_messages": 10, "max_age": None})
        assert made.settings == {"max_messages": 10}
        assert await broker.create("t", persistence="weak", settings={"max_messages": 10}) is made
        assert broker.topic("t") is made
        assert broker.topic_of(made.id) is made


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"delivery": "round-robin"},
            "with delivery 'broadcast', not 'round-robin'; it cannot change: choose another name",
        ),
        ({"persistence": "async"}, "with persistence 'weak', not 'async'; it cannot change"),
        ({"settings": {"max_messages": 11}}, "with max_messages 10, not 11; alter changes it"),
        ({}, "with max_messages 10, not None; alter changes it"),
    ],
)
async def test_a_topic_with_other_settings_is_refused(options, text):
    async with core() as broker:
        await broker.create("t", persistence="weak", settings={"max_messages": 10})
        with pytest.raises(TopicError, match=text):
            await broker.create("t", **{"persistence": "weak", **options})


@pytest.mark.parametrize("name", ["", "a/b", "a\nb", "x" * 256, "ü" * 128, "\x7f", "\ud800"])
async def test_names_that_are_not_valid_are_refused(name):
    async with core() as broker:
        with pytest.raises(TopicError, match="name"):
            await broker.create(name, persistence="weak")


@pytest.mark.parametrize(
    ("delivery", "persistence", "settings"),
    [
        ("pair", "weak", {}),
        ("broadcast", "eternal", {}),
        ("broadcast", "strong", {}),  # not in memory
        ("broadcast", "weak", {"colour": "red"}),
        ("broadcast", "weak", {"max_messages": 0}),
        ("broadcast", "weak", {"max_messages": True}),
        ("broadcast", "weak", {"max_bytes": "1"}),
        ("broadcast", "weak", {"max_age": 0}),
        ("broadcast", "weak", {"max_age": float("nan")}),
        ("round-robin", "weak", {"max_deliveries": 0}),
        ("round-robin", "weak", {"dead_letter": "a/b"}),
        ("round-robin", "weak", {"dead_letter": 7}),
        ("round-robin", "weak", {"dead_letter": "t"}),
    ],
)
async def test_settings_that_are_not_valid_are_refused(delivery, persistence, settings):
    async with core() as broker:
        with pytest.raises(TopicError):
            await broker.create("t", delivery=delivery, persistence=persistence, settings=settings)
        assert broker.topics == {}


async def create_ring(broker, *names):
    """Creates work queues each of which has the next one as its dead-letter topic, and the last one the first."""
    for name, target in zip(names, names[1:] + names[:1], strict=True):
        settings = {"dead_letter": target, "overflow": "drop-oldest", "max_messages": 2}
        await broker.create(name, delivery="round-robin", persistence="weak", settings=settings)


@pytest.mark.parametrize("count", [2, 3, 20])
async def test_dead_letter_topics_in_a_ring_are_refused_with_the_last_of_them(count):
    async with core() as broker:
        names = [f"t{number}" for number in range(count)]
        with pytest.raises(
            TopicError, match=rf"'t{count - 1}' -> 't0' -> .*'t{count - 1}'; give one of these"
        ) as caught:
            await create_ring(broker, *names)
        assert len(str(caught.value)) < 300
        assert sorted(broker.topics) == sorted(names[:-1])
        await broker.create(names[-1], persistence="weak")  # a broadcast topic has no dead letters


async def test_a_ring_of_dead_letter_topics_that_are_made_at_once_is_refused():
    async with core() as broker:
        settings = {"t": {"dead_letter": "u"}, "u": {"dead_letter": "t"}}
        made = [
            broker.create(name, delivery="round-robin", persistence="weak", settings=settings[name]) for name in "tu"
        ]
        topic, refused = await asyncio.gather(*made, return_exceptions=True)
        assert topic is broker.topic("t")
        assert isinstance(refused, TopicError)
        assert list(broker.topics) == ["t"]


@pytest.mark.parametrize("first", ["t", "t.dead"])
async def test_a_ring_with_a_default_dead_letter_topic_is_refused(first):
    settings = {"t": {"max_deliveries": 1}, "t.dead": {"dead_letter": "t"}}
    async with core() as broker:
        (second,) = settings.keys() - {first}
        await broker.create(first, delivery="round-robin", persistence="weak", settings=settings[first])
        with pytest.raises(TopicError, match="would come back to it"):
            await broker.create(second, delivery="round-robin", persistence="weak", settings=settings[second])
        assert list(broker.topics) == [first]


async def test_a_topic_that_could_not_be_deleted_is_in_no_ring():
    async with core() as broker:
        await broker.create("t", delivery="round-robin", persistence="weak", settings={"dead_letter": "u"})
        store = broker.store.store
        broker.store.store = FailingStore(store, OutOfSpace("no space"))
        made = [
            broker.delete("t"),
            broker.create("u", delivery="round-robin", persistence="weak", settings={"dead_letter": "t"}),
        ]
        refused = await asyncio.gather(*made, return_exceptions=True)
        assert ["no space" in str(refused[0]), "come back" in str(refused[1])] == [True, True]
        broker.store.store = store
        assert list(broker.topics) == ["t"]


async def test_concurrent_creates_return_the_same_topic():
    async with core() as broker:
        made = await asyncio.gather(*(broker.create("t", persistence="weak") for _ in range(5)))
        assert all(one is made[0] for one in made)


async def test_publishing_answers_with_the_first_id_and_a_repetition_with_the_same():
    async with core() as broker:
        topic = await broker.create("t", persistence="weak")
        assert await append(broker, topic, [b"a", b"b"], producer=b"p", sequence=1) == 1
        assert await append(broker, topic, [b"c"], producer=b"p", sequence=2) == 3
        assert await append(broker, topic, [b"a", b"b"], producer=b"p", sequence=1) == 1
        assert topic.last == 3
        assert topic.published == 3


async def test_a_deleted_topic_takes_nothing_and_its_name_can_be_used_again_with_another_id():
    async with core() as broker:
        before = await broker.create("t", persistence="weak")
        await append(broker, before, [b"a"])
        await broker.delete("t")
        with pytest.raises(TopicError, match="deleted"):
            await append(broker, before, [b"b"])
        with pytest.raises(TopicError, match="no topic"):
            broker.topic("t")
        with pytest.raises(TopicError):
            await broker.delete("t")
        after = await broker.create("t", persistence="weak")
        assert after.id != before.id
        assert await append(broker, after, [b"b"]) == 1


async def test_bytes_that_wait_for_the_store_are_bounded():
    async with core() as broker:
        topic = await broker.create("t", persistence="weak")
        broker.store.waiting = MAX_WAITING_BYTES
        with pytest.raises(Busy):
            await append(broker, topic, [b"x"])
        broker.store.waiting = 0


async def test_a_broker_that_stops_answers_what_it_accepted_and_accepts_no_more():
    answers = []
    async with core() as broker:
        topic = await broker.create("t", persistence="weak")
        records = blocks.encode([b"x"])
        for _ in range(3):
            topic.append(records, 1, done=lambda first, error: answers.append((first, error)))
    assert answers == [(1, None), (2, None), (3, None)]
    with pytest.raises(BrokerFailed, match="the broker is stopping"):
        await append(broker, topic, [b"x"])
    await broker.close()


async def test_closing_the_broker_closes_the_sinks():
    sink, worker = RecordingSink(), RecordingSink()
    async with core() as broker:
        broker.subscribe(await broker.create("t", persistence="weak"), "latest", sink)
        broker.consume(await broker.create("j", delivery="round-robin", persistence="weak"), worker)
    assert sink.errors == [None]
    assert worker.errors == [None]


async def test_a_broker_that_was_never_started_can_be_closed():
    broker = Broker(None)
    await broker.close()
    assert broker.topics == {}


@pytest.mark.parametrize(("error", "code"), [(OutOfSpace("no space"), "full"), (StoreFailed("EIO"), "failed")])
async def test_store_errors_have_codes_and_reading_goes_on(error, code, caplog):
    async with core() as broker:
        topic = await broker.create("t", persistence="weak")
        await append(broker, topic, [b"a"])
        store = broker.store.store
        broker.store.store = FailingStore(store, error)
        for _ in range(3):
            with pytest.raises(Exception) as failed:
                await append(broker, topic, [b"b"])
            assert failed.value.code == code
        assert [str(error) in record.getMessage() for record in caplog.records] == [True]
        assert broker.store.full == (code == "full")
        sink = RecordingSink()
        broker.subscribe(topic, "earliest", sink)
        await until(lambda: sink.got)
        broker.store.store = store
        assert await append(broker, topic, [b"c"]) == 2


async def test_a_full_store_is_reported_before_a_write_is_refused(tmp_path, monkeypatch):
    async with core() as broker:
        http = HttpServer(broker.stats)
        url = await http.start("127.0.0.1:0")
        try:
            async with aiohttp.ClientSession() as session:

                async def health() -> list[bool]:
                    paths = ("/healthz", "/topics.json", "/metrics")
                    healthz, topics, metrics = [await (await session.get(url + path)).text() for path in paths]
                    return ["full" in healthz, json.loads(topics)["store"]["full"], "store_full 1.0" in metrics]

                assert await health() == [False] * 3
                monkeypatch.setattr(type(broker.store.store), "full", True)
                assert await health() == [True] * 3
        finally:
            await http.close()


async def test_positions_and_acks_wait_for_room_on_the_disk(monkeypatch):
    async with core() as broker:
        monkeypatch.setattr(broker, "later", lambda seconds, call: broker.loop.call_later(0.001, call))
        topic = await broker.create("t", persistence="weak")
        await append(broker, topic, [b"a"] * 3)
        named = broker.subscribe(topic, "earliest", RecordingSink(), name="n")
        await run_pending(broker)
        store = broker.store.store
        broker.store.store = FailingStore(store, OutOfSpace("no space"))
        named.move(2)
        flushed = []
        await run_pending(broker)
        topic.flush(flushed.append)
        await until(lambda: flushed)
        assert flushed[0].code == "full"
        assert store.cursors(topic.id) == {"n": 0}
        broker.store.store = store
        await until(lambda: store.cursors(topic.id) == {"n": 2})
        flushed.clear()
        topic.flush(flushed.append)
        await until(lambda: flushed)
        assert flushed == [None]


async def test_statistics_are_complete():
    async with core() as broker:
        topic = await broker.create("t", persistence="weak")
        jobs = await broker.create("j", delivery="round-robin", persistence="weak", settings={"max_deliveries": 2})
        await append(broker, topic, [b"abc"] * 5)
        await append(broker, jobs, [b"abc"] * 5)
        reader, worker = RecordingSink(), RecordingSink()
        broker.subscribe(topic, 2, reader, name="n")
        consumer = broker.consume(jobs, worker, credit=3)
        await until(lambda: len(reader.got) == 3 and len(worker.got) == 3)
        consumer.ack([(1, 1)])
        await until(lambda: len(worker.got) == 4)
        stats = broker.stats()
        of_topic, of_jobs = stats["topics"]
        assert (of_topic["published"], of_topic["delivered"], of_topic["last"]) == (5, 3, 5)
        (durable,) = of_topic["names"]
        assert (durable["name"], durable["position"], durable["lag"], durable["held"]) == ("n", 2, 3, True)
        assert of_topic["subscriptions"][0]["position"] == 5
        assert of_topic["subscriptions"][0]["lag"] == 0
        assert (of_jobs["backlog"], of_jobs["subscriptions"][0]["in_flight"]) == (1, 3)
        assert of_jobs["settings"] == {"max_deliveries": 2}
        assert stats["store"]["directory"] is None
        assert stats["store"]["failed"] is None
        assert json.loads(topic.info())["subscribers"] == 1


@pytest.mark.parametrize("delivery", ["broadcast", "round-robin"])
async def test_statistics_follow_a_store_that_commits_in_a_thread(delivery, tmp_path):
    """Statistics read in the loop see a commit before the loop is notified of it."""
    async with core(tmp_path) as broker:
        topic = await broker.create("t", delivery=delivery, persistence="async", settings={"max_messages": 300})
        sink = RecordingSink()
        if delivery == "broadcast":
            broker.subscribe(topic, "earliest", sink, name="n")
        else:
            consumer = broker.consume(topic, sink, credit=1000)
        for number in range(1, 301):
            assert await append(broker, topic, [b"x"]) == number
            if delivery == "round-robin":
                consumer.ack([(number - 5, number - 5)])
        await until(lambda: len(sink.got) == 300)
        stats = topic.stats()
        assert (stats["published"], stats["delivered"], stats["last"]) == (300, 300, 300)


async def test_a_topic_that_the_store_has_deleted_is_reported_as_empty():
    async with core() as broker:
        topic = await broker.create("t", persistence="weak")
        await append(broker, topic, [b"a"])
        await broker.store.do(DeleteTopic(topic.id))
        info = json.loads(topic.info())
        assert (info["first"], info["last"], info["bytes"]) == (2, 1, 0)
        assert broker.stats()["topics"][0]["first"] == 2


async def test_lag_counts_no_ids_skipped_after_a_kill(tmp_path):
    for _ in range(2):
        broker = Broker(tmp_path)
        await broker.start()
        topic = await broker.create("t", persistence="async")
        first = await append(broker, topic, [b"a", b"b"])
        if first == 1:
            broker.subscribe(topic, 1, RecordingSink(), name="n").end()
            await broker.close()
            session = json.loads((tmp_path / "session").read_bytes())
            (tmp_path / "session").write_text(json.dumps(session | {"orderly": False, "left": None}))
    assert first > 1 << 20
    await until(lambda: topic.state().last == first + 1)
    stats = topic.stats()
    assert (stats["messages"], stats["names"][0]["lag"]) == (4, 3)
    subscription = broker.subscribe(topic, 2, RecordingSink(0))
    assert [one["lag"] for one in topic.subscriptions()] == [2]
    subscription.end()
    await broker.close()


# ------------------------------------------------------------------ the log


class Alice:
    user = "alice"
    peer = "tcp://10.0.0.7:1"


class Unknown:
    user = None
    peer = "tcp://10.0.0.8:2"


@pytest.mark.parametrize(
    ("client", "text", "fields"),
    [
        (Alice, "alice at tcp://10.0.0.7:1", {"user": "alice", "peer": "tcp://10.0.0.7:1"}),
        (Unknown, "tcp://10.0.0.8:2", {"user": None, "peer": "tcp://10.0.0.8:2"}),
        (None, "the broker", {}),
    ],
)
async def test_the_log_has_the_client_that_creates_or_deletes_a_topic(caplog, client, text, fields):
    caplog.set_level("INFO", "omq.broker")
    async with core() as broker:
        await broker.create("t", persistence="weak", settings={"max_age": 5}, client=client and client())
        await broker.create("t", persistence="weak", settings={"max_age": 5}, client=Alice())  # it exists
        await broker.delete("t", client and client())
    created, deleted = caplog.records
    assert created.getMessage() == f"topic 't': created by {text}, broadcast and weak, with {{'max_age': 5.0}}"
    assert deleted.getMessage() == f"topic 't': deleted by {text}"
    assert (created.event, created.topic, created.settings) == ("topic_created", "t", {"max_age": 5.0})
    assert (deleted.event, deleted.topic) == ("topic_deleted", "t")
    for record in (created, deleted):
        assert {name: vars(record)[name] for name in ("user", "peer") if name in vars(record)} == fields
