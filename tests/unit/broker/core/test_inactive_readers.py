"""`inactive_threshold`: durable subscriptions and groups that no client has had open for so long are deleted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from omq.broker.core import broadcast
from omq.broker.core.broadcast import BroadcastTopic
from omq.broker.core.broker import Broker
from omq.broker.errors import TopicError
from omq.store.errors import OutOfSpace
from omq.store.interface import DeleteCursor, DeleteGroup
from tests.support.broker_core import RecordingSink, append, core, run_pending, until

THRESHOLD_S = 100.0


class Uptime:
    """The clock of inactivity: `now` is its time in seconds. The broker checks readers every millisecond."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.checks = 0
        monkeypatch.setattr("omq.broker.core.activity.uptime", lambda: int(self.now * 1e6))
        monkeypatch.setattr(broadcast, "_MIN_CHECK_INTERVAL_S", 0.001)
        monkeypatch.setattr(broadcast, "_MAX_CHECK_INTERVAL_S", 0.001)
        check = BroadcastTopic._check_inactive

        def counted(topic: BroadcastTopic, checks: int) -> None:
            check(topic, checks)
            self.checks += 1

        monkeypatch.setattr(BroadcastTopic, "_check_inactive", counted)

    async def checked(self, broker: Broker) -> None:
        """Waits until all readers were checked at the present time, and what was due is deleted."""
        seen = self.checks
        await until(lambda: self.checks >= seen + 3)
        await run_pending(broker)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Uptime:
    return Uptime(monkeypatch)


async def make(broker: Broker, **more: Any) -> BroadcastTopic:
    settings = {"inactive_threshold": THRESHOLD_S, **more}
    topic = await broker.create("t", persistence="weak", settings=settings)
    assert isinstance(topic, BroadcastTopic)
    await append(broker, topic, [b"x"] * 10)
    await until(lambda: topic.readable == 10)
    return topic


def names(topic: BroadcastTopic) -> set[str]:
    """Returns the names of all readers."""
    return {one["name"] for one in topic.durables()} | {one["name"] for one in topic.group_stats()}


async def join(broker: Broker, topic: BroadcastTopic, group: str, credit: int = 100) -> tuple[Any, RecordingSink]:
    await topic.make_group(group, "earliest")
    sink = RecordingSink()
    return broker.consume(topic, sink, group=group, credit=credit), sink


@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "disk"])
async def test_readers_that_no_client_has_open_are_deleted(
    clock: Uptime, caplog: pytest.LogCaptureFixture, tmp_path: Path, on_disk: bool
) -> None:
    async with core(tmp_path if on_disk else None) as broker:
        topic = await make(broker)
        broker.subscribe(topic, "earliest", RecordingSink(), name="gone").end()
        broker.subscribe(topic, "earliest", RecordingSink(), name="open")
        consumer, _ = await join(broker, topic, "gone group")
        consumer.end()
        await join(broker, topic, "open group")
        clock.now += THRESHOLD_S - 1
        await clock.checked(broker)
        assert names(topic) == {"gone", "open", "gone group", "open group"}
        clock.now += 2
        await until(lambda: names(topic) == {"open", "open group"})
        await until(lambda: topic.stats()["readers_expired"] == 2)
        store = broker.store.store
        assert set(store.cursors(topic.id)) == {"open"}
        assert set(store.ack_floors(topic.id)) == {"open group"}
        clock.now += 100 * THRESHOLD_S
        await clock.checked(broker)
        assert names(topic) == {"open", "open group"}
        events = [record.__dict__ for record in caplog.records if getattr(record, "event", "") == "reader_expired"]
        assert len(events) == 2
        found = {event.get("subscription") or event.get("group"): event for event in events}
        assert (found["gone"]["topic"], found["gone"]["lag"]) == ("t", 10)
        assert (found["gone group"]["topic"], found["gone group"]["lag"]) == ("t", 10)
        assert all(THRESHOLD_S <= event["idle"] < THRESHOLD_S + 2 for event in events)


async def test_the_time_starts_with_the_last_use(clock: Uptime) -> None:
    async with core() as broker:
        topic = await make(broker)
        subscription = broker.subscribe(topic, "earliest", RecordingSink(), name="n")
        consumer, sink = await join(broker, topic, "g", credit=1)
        await until(lambda: sink.ids == [1])
        for _ in range(5):
            clock.now += THRESHOLD_S * 0.9
            await clock.checked(broker)
            assert names(topic) == {"n", "g"}
            subscription.end()
            consumer.end()
            clock.now += THRESHOLD_S * 0.9
            await clock.checked(broker)
            assert names(topic) == {"n", "g"}, "they were open until then"
            subscription = broker.subscribe(topic, "earliest", RecordingSink(), name="n")
            consumer = broker.consume(topic, sink, group="g", credit=1)
        subscription.end()
        consumer.end()
        clock.now += THRESHOLD_S
        await until(lambda: names(topic) == set())


async def test_a_group_that_is_created_or_moved_counts_as_used(clock: Uptime) -> None:
    async with core() as broker:
        topic = await make(broker)
        await topic.make_group("g", "earliest")
        clock.now += THRESHOLD_S * 0.9
        await topic.seek_group("g", 3)
        clock.now += THRESHOLD_S * 0.9
        await clock.checked(broker)
        assert names(topic) == {"g"}
        clock.now += THRESHOLD_S * 0.2
        await until(lambda: names(topic) == set())


async def test_retention_and_publishing_are_no_use_of_a_group(clock: Uptime) -> None:
    async with core() as broker:
        topic = await make(broker, max_messages=5)
        consumer, _ = await join(broker, topic, "gone")
        consumer.end()
        await join(broker, topic, "open")
        clock.now += THRESHOLD_S * 0.9
        await append(broker, topic, [b"x"] * 20)
        await run_pending(broker)
        clock.now += THRESHOLD_S * 0.2
        await until(lambda: names(topic) == {"open"})


async def test_the_subscription_of_retain_for_stays(clock: Uptime) -> None:
    async with core() as broker:
        topic = await make(broker, retain_for="archiver")
        broker.subscribe(topic, "earliest", RecordingSink(), name="other").end()
        clock.now += THRESHOLD_S * 10
        await until(lambda: names(topic) == {"archiver"})
        await clock.checked(broker)
        assert names(topic) == {"archiver"}
        await broker.alter("t", {"retain_for": None})
        clock.now += THRESHOLD_S
        await until(lambda: names(topic) == set())


async def test_an_expired_reader_frees_its_messages(clock: Uptime) -> None:
    async with core() as broker:
        topic = await make(broker, retention="read")
        broker.subscribe(topic, "earliest", RecordingSink(), name="gone").end()
        reader = broker.subscribe(topic, "earliest", RecordingSink(), name="open")
        consumer, _ = await join(broker, topic, "gone group")
        consumer.end()
        reader.move(10)
        await topic.flushed()
        assert topic.state().first == 1
        clock.now += THRESHOLD_S
        await until(lambda: topic.state().first == 11)


async def test_the_setting_is_altered(clock: Uptime) -> None:
    async with core() as broker:
        topic = await broker.create("t", persistence="weak")
        assert isinstance(topic, BroadcastTopic)
        broker.subscribe(topic, "latest", RecordingSink(), name="n").end()
        clock.now += 500
        await broker.alter("t", {"inactive_threshold": 1000})
        await clock.checked(broker)
        clock.now += 499
        await clock.checked(broker)
        assert names(topic) == {"n"}
        await broker.alter("t", {"inactive_threshold": None})
        clock.now += 1000
        await run_pending(broker)
        assert names(topic) == {"n"}
        await broker.alter("t", {"inactive_threshold": 2000})
        await clock.checked(broker)
        assert names(topic) == {"n"}, "1999 s"
        await broker.alter("t", {"inactive_threshold": 1999})
        await until(lambda: names(topic) == set())
        for value in (0, -1, "1", True):
            with pytest.raises(TopicError, match="inactive_threshold="):
                await broker.alter("t", {"inactive_threshold": value})
        assert topic.settings == {"inactive_threshold": 1999.0}


async def test_a_restart_begins_the_time_again(clock: Uptime, tmp_path: Path) -> None:
    async with core(tmp_path) as broker:
        topic = await make(broker)
        broker.subscribe(topic, "latest", RecordingSink(), name="n").end()
        await topic.make_group("g", "latest")
        await topic.flushed()
        clock.now += THRESHOLD_S * 0.9
    clock.now += THRESHOLD_S * 5  # while no broker runs
    async with core(tmp_path) as broker:
        topic = broker.topic("t")  # type: ignore[assignment]
        clock.now += THRESHOLD_S * 0.9
        await clock.checked(broker)
        assert names(topic) == {"n", "g"}
        clock.now += THRESHOLD_S * 0.2
        await until(lambda: names(topic) == set())
    async with core(tmp_path) as broker:
        assert names(broker.topic("t")) == set()  # type: ignore[arg-type]


async def test_a_deletion_without_space_is_tried_again(clock: Uptime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broadcast, "_EXPIRY_RETRY_DELAY_S", 0.001)
    async with core() as broker:
        topic = await make(broker)
        broker.subscribe(topic, "latest", RecordingSink(), name="n").end()
        await topic.make_group("g", "latest")
        await topic.flushed()
        submit, refused = broker.store.submit, []

        def full(write: Any, done: Any) -> None:
            if isinstance(write, DeleteCursor | DeleteGroup) and len(refused) < 6:
                refused.append(write)
                write.error = OutOfSpace("no space")
                broker.loop.call_soon(done, write)
            else:
                submit(write, done)

        monkeypatch.setattr(broker.store, "submit", full)
        clock.now += THRESHOLD_S
        await until(lambda: names(topic) == set())
        await until(lambda: topic.stats()["readers_expired"] == 2)
        assert len(refused) == 6


async def test_the_checks_of_a_deleted_topic_end(clock: Uptime) -> None:
    async with core() as broker:
        await make(broker)
        await broker.delete("t")
        await run_pending(broker)
        checks = clock.checks
        topic = await make(broker)
        broker.subscribe(topic, "latest", RecordingSink(), name="n").end()
        await clock.checked(broker)
        assert clock.checks > checks
        assert names(topic) == {"n"}
        clock.now += THRESHOLD_S
        await until(lambda: names(topic) == set())
