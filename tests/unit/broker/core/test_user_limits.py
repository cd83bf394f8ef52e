"""The limits of users: connections, topics, bytes and the publish rate."""

import asyncio
import logging

import pytest

from omq._core import blocks
from omq.broker.core import user_limits
from omq.broker.core.user_limits import LIMITS, UserLimit, UserLimits, UserUsage, user_limit_of
from omq.broker.errors import Busy, StoreFull
from omq.errors import HandshakeError, UsageError
from omq.store.interface import CommitStages, Stage
from tests.support.broker_core import append, core, until
from tests.support.optional_packages import require

BODY = bytes(1000)
SIZE = len(blocks.encode([BODY]))


class Client:
    """A client that creates topics."""

    peer = "tcp://peer"

    def __init__(self, user=None):
        self.user = user


@pytest.fixture(autouse=True)
def measured_each_time(monkeypatch):
    """A broker waits between two measurements, so that room may appear later than a test looks."""
    monkeypatch.setattr(user_limits, "_MEASURING_DIVISOR", 0)


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test sets."""

    class Clock:
        now = 1000.0

        def monotonic(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(user_limits, "time", clock)
    return clock


def test_a_measurement_that_was_interrupted_does_not_delay_the_next_one(clock, monkeypatch):
    """Other threads had the processor for a minute of it."""
    monkeypatch.setattr(user_limits, "_MEASURING_DIVISOR", 20)
    clock.thread_time = lambda: 0.001

    class Topic:
        stored = 10

        def stored_bytes(self):
            clock.now += 60.0
            return self.stored

    user = UserLimits([UserLimit("alice", bytes=10)]).of("alice")
    topic = Topic()
    user.topics[topic] = None
    assert not user.has_room(1)
    topic.stored = 5
    assert user.has_room(1)


@pytest.mark.parametrize("key", LIMITS)
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "3", 2**62, [1]])
def test_a_limit_must_be_a_whole_number(key, value):
    with pytest.raises(UsageError, match=rf"{key}=.*: must be a whole number"):
        UserLimit("alice", **{key: value})


@pytest.mark.parametrize("who", ["", None, 3])
def test_a_limit_is_for_a_user(who):
    with pytest.raises(UsageError, match="who="):
        UserLimit(who)


@pytest.mark.parametrize("row", [{}, {"topics": 1}, {"who": "a", "topic": 1}, "alice", ["who"]])
def test_a_row_with_other_keys_is_refused(row):
    with pytest.raises(UsageError, match="a user limit must have the key who"):
        user_limit_of(row)
    assert user_limit_of({"who": "a", "topics": 1}) == UserLimit("a", topics=1)


def test_a_user_has_its_own_row_or_that_of_all():
    limits = UserLimits([UserLimit("*", topics=1, bytes=5), UserLimit("alice", topics=2)])
    assert limits.of("alice").limit == UserLimit("alice", topics=2)
    assert limits.of("bob").limit == limits.of(None).limit == limits.of("*").limit == UserLimit("*", topics=1, bytes=5)
    assert limits.of("bob") is not limits.of(None)
    assert limits.of("*") is limits.of(None)
    limits.replace([UserLimit("bob", topics=3)])
    assert limits.of("alice").limit.topics is limits.of(None).limit.topics is None
    assert limits.of("bob").limit.topics == 3


def test_two_rows_of_one_user_are_refused_and_change_nothing():
    rows = [UserLimit("alice", topics=1), UserLimit("alice", topics=2)]
    with pytest.raises(UsageError, match="who='alice': has two rows"):
        UserLimits(rows)
    limits = UserLimits([UserLimit("alice", topics=7)])
    with pytest.raises(UsageError, match="who='alice'"):
        limits.replace(rows)
    assert limits.of("alice").limit.topics == 7


def test_users_that_use_nothing_are_forgotten(monkeypatch, clock):
    monkeypatch.setattr(user_limits, "_MIN_KNOWN_USERS", 4)
    limits = UserLimits([UserLimit("*", publish_byte_rate=100)])
    limits._prune_above = 4
    kept = limits.of("connected")
    kept.connected()
    limits.of("publisher").publish(10)
    for number in range(20):
        limits.of(f"passer {number}")
    assert len(limits._usages) <= 5
    assert limits.of("connected") is kept
    assert limits.of("publisher")._credit == 190
    clock.now += 10
    for number in range(20):
        limits.of(f"passer {number}")
    assert "publisher" not in limits._usages


# ---------------------------------------------------------------------- connections


def test_connections_beyond_the_limit_are_refused(caplog):
    usage = UserUsage("alice", UserLimit("alice", connections=2))
    usage.admit()
    usage.connected()
    usage.admit()  # its handshake is not finished
    for _ in range(3):
        with pytest.raises(HandshakeError, match="connections=2: user 'alice' has 1 connections"):
            usage.admit()
    usage.connected()
    with pytest.raises(HandshakeError, match="has 2 connections"):
        usage.admit()
    usage.disconnected()
    usage.admit()
    (line,) = [record for record in caplog.records if record.levelno == logging.WARNING]  # one a minute
    assert (line.event, line.user, line.limit, line.value) == ("user_limit", "alice", "connections", 2)


def test_a_handshake_that_fails_after_its_admission_counts_only_for_a_while(clock):
    usage = UserUsage("alice", UserLimit("alice", connections=1))
    usage.admit()
    with pytest.raises(HandshakeError):
        usage.admit()
    clock.now += user_limits.HANDSHAKE_TIMEOUT_S - 1
    with pytest.raises(HandshakeError):
        usage.admit()  # the first client may still finish
    clock.now += 2
    usage.admit()


def test_without_a_limit_every_connection_is_admitted():
    usage = UserUsage("alice", UserLimit("alice", topics=1))
    for _ in range(100):
        usage.admit()
        usage.connected()
    assert usage.connections == 100


# ---------------------------------------------------------------------- topics


async def test_topics_that_exist_count(tmp_path):
    require("lmdb")
    limits = [UserLimit("alice", topics=2)]
    async with core(tmp_path, user_limits=limits) as broker:
        alice = Client("alice")
        await broker.create("a", client=alice)
        await broker.create("b", client=alice, persistence="transient")
        with pytest.raises(StoreFull, match="topics=2: user 'alice' has 2 topics"):
            await broker.create("c", client=alice)
        assert "c" not in broker.topics
        assert (await broker.create("a", client=alice)).name == "a"  # it exists
        await broker.create("c", client=Client("bob"))
        await broker.create("d", client=Client())
        await broker.create("e")
        assert [broker.topic(name).stats()["owner"] for name in "abcde"] == ["alice", "alice", "bob", "*", None]
    async with core(tmp_path, user_limits=limits) as broker:  # also after a restart
        with pytest.raises(StoreFull, match="topics=2"):
            await broker.create("f", client=alice)
        await broker.delete("b", alice)
        await broker.create("f", client=alice)
        await broker.alter("f", {"max_messages": 5}, client=Client("bob"))
        assert broker.topic("f").owner == "alice"
        broker.set_user_limits([UserLimit("alice", topics=3)])
        await broker.create("g", client=alice)
        with pytest.raises(StoreFull, match="topics=3"):
            await broker.create("h", client=alice)
    async with core(tmp_path) as broker:
        assert {name: broker.topic(name).owner for name in "acdefg"} == {
            **dict.fromkeys("afg", "alice"),
            "c": "bob",
            "d": "*",
            "e": "",
        }


async def test_topics_that_are_being_created_count():
    async with core(user_limits=[UserLimit("alice", topics=3)]) as broker:
        alice = Client("alice")
        made = [broker.create(f"t{number}", persistence="weak", client=alice) for number in range(10)]
        results = await asyncio.gather(*made, return_exceptions=True)
        assert sum(isinstance(one, StoreFull) for one in results) == 7
        assert len(broker.topics) == 3
        assert broker.user_limits.of("alice").creating == 0


async def test_a_dead_letter_topic_belongs_to_the_owner_of_its_topic():
    async with core(user_limits=[UserLimit("alice", topics=1)]) as broker:
        alice = Client("alice")
        settings = {"max_deliveries": 2}
        jobs = await broker.create("jobs", delivery="round-robin", persistence="weak", settings=settings, client=alice)
        await broker.dead_letter(jobs)  # without it, messages would be lost: the limit does not apply
        assert broker.topic("jobs.dead").owner == "alice"
        with pytest.raises(StoreFull, match="has 2 topics"):
            await broker.create("more", persistence="weak", client=alice)


# ---------------------------------------------------------------------- bytes


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("delivery", ["broadcast", "round-robin"])
async def test_the_topics_of_a_user_share_a_limit_of_bytes(tmp_path, on_disk, delivery):
    if on_disk:
        require("lmdb")
    async with core(tmp_path if on_disk else None, user_limits=[UserLimit("alice", bytes=10 * SIZE)]) as broker:
        alice = Client("alice")
        first, second = [
            await broker.create(name, delivery=delivery, persistence="weak", client=alice)
            for name in ("first", "second")
        ]
        free = await broker.create("free", persistence="weak")
        await append(broker, first, [BODY] * 6)
        await append(broker, second, [BODY] * 4)
        with pytest.raises(
            StoreFull, match=rf"bytes={10 * SIZE}: user 'alice' has topics of about \d+ bytes, .*'first'"
        ):
            await append(broker, first, [BODY])
        with pytest.raises(StoreFull, match="'second'"):
            await append(broker, second, [b"x"])
        await append(broker, free, [BODY] * 20)  # it is not alice's, and others may publish there
        await broker.delete("second", alice)
        await append(broker, first, [BODY])
        broker.set_user_limits([])
        await append(broker, first, [BODY] * 20)
        assert first.admission is None or first.admission.has_room(1, SIZE)
        broker.set_user_limits([UserLimit("*", bytes=SIZE)])
        with pytest.raises(StoreFull, match=f"bytes={SIZE}: user 'alice'"):
            await append(broker, first, [BODY])


async def test_a_repetition_of_a_stored_message_needs_no_room():
    async with core(user_limits=[UserLimit("alice", bytes=SIZE)]) as broker:
        topic = await broker.create("t", persistence="weak", client=Client("alice"))
        producer = {"producer": b"p", "sequence": 1}
        assert await append(broker, topic, [BODY], **producer) == 1
        assert await append(broker, topic, [BODY], **producer) == 1
        with pytest.raises(StoreFull, match="bytes="):
            await append(broker, topic, [BODY], producer=b"p", sequence=2)


async def test_a_topic_that_drops_its_oldest_messages_continues_below_the_limit():
    body = bytes(100_000)
    async with core(user_limits=[UserLimit("alice", bytes=4_000_000)]) as broker:
        topic = await broker.create(
            "t", persistence="weak", settings={"max_messages": 10, "overflow": "drop-oldest"}, client=Client("alice")
        )
        for _ in range(100):
            await append(broker, topic, [body])
        assert topic.last == 100


async def test_publishers_of_a_topic_that_blocks_wait_for_room():
    async with core(user_limits=[UserLimit("alice", bytes=2 * SIZE)]) as broker:
        alice = Client("alice")
        settings = {"max_messages": 100, "overflow": "block"}
        topic = await broker.create("t", persistence="weak", settings=settings, client=alice)
        other = await broker.create("other", persistence="weak", client=alice)
        await append(broker, other, [BODY])
        await append(broker, topic, [BODY])
        waiting = asyncio.ensure_future(append(broker, topic, [BODY]))
        await until(lambda: topic.stats()["blocked"] == 1)
        assert not waiting.done()
        await broker.delete("other", alice)
        assert await waiting == 2


async def test_a_commit_is_refused_as_a_publication():
    async with core(user_limits=[UserLimit("alice", bytes=3 * SIZE)]) as broker:
        topic = await broker.create("t", persistence="weak", client=Client("alice"))
        await append(broker, topic, [BODY] * 2)
        await broker.store.do(Stage(topic.id, blocks.encode([BODY] * 2), 2, b"s", 1))
        done = asyncio.get_running_loop().create_future()
        broker.commit(b"c", [b"s"], lambda topic_id: True, done.set_result)
        write: CommitStages = await done
        assert isinstance(write.error, StoreFull)
        assert f"bytes={3 * SIZE}: user 'alice'" in str(write.error)
        assert topic.last == 2


@pytest.mark.parametrize("on_disk", [False, True])
async def test_commits_at_once_share_the_limit(tmp_path, on_disk):
    if on_disk:
        require("lmdb")
    async with core(tmp_path if on_disk else None, user_limits=[UserLimit("alice", bytes=4 * SIZE)]) as broker:
        topics = [await broker.create(name, persistence="weak", client=Client("alice")) for name in ("a", "b")]
        for number in range(8):
            await broker.store.do(Stage(topics[number % 2].id, blocks.encode([BODY]), 1, b"%d" % number, 1))
        answers = []
        for number in range(8):
            broker.commit(b"%d" % number, [b"%d" % number], lambda topic_id: True, answers.append)
        await until(lambda: len(answers) == 8)
        stored = sum(topic.state().bytes for topic in topics)
        assert 2 * SIZE <= stored <= 4 * SIZE
        assert sum(write.error is None for write in answers) * SIZE == stored
        await broker.purge(topics[0], None)
        await append(broker, topics[1], [BODY])


@pytest.mark.parametrize("overflow", ["reject", "block", "drop-oldest"])
async def test_a_requeue_stays_within_the_limit(overflow):
    limit = UserLimit("alice", bytes=8 * SIZE)
    async with core(user_limits=[limit]) as broker:
        settings = {"max_messages": 100, "overflow": overflow}
        jobs = await broker.create(
            "own", delivery="round-robin", persistence="weak", settings=settings, client=Client("alice")
        )
        dead = await broker.create("dead", persistence="weak")
        await append(broker, jobs, [BODY] * 3)
        await append(broker, dead, [BODY] * 20)
        moved, following = await broker.requeue(dead, None, "own", lambda name: None)
        assert (moved, following) == (5, 6)
        with pytest.raises(StoreFull, match="'own' is full"):
            await broker.requeue(dead, None, "own", lambda name: None)
        assert await broker.purge(jobs, 3) == 3
        assert await broker.requeue(dead, None, "own", lambda name: None) == (3, 9)


async def test_existing_messages_count_after_a_restart(tmp_path):
    require("lmdb")
    async with core(tmp_path) as broker:
        topic = await broker.create("t", client=Client("alice"))
        await append(broker, topic, [BODY] * 5)
    async with core(tmp_path, user_limits=[UserLimit("alice", bytes=5 * SIZE)]) as broker:
        with pytest.raises(StoreFull, match="bytes="):
            await append(broker, broker.topic("t"), [BODY])


# ---------------------------------------------------------------------- the publish rate


def test_a_user_publishes_at_its_rate(clock):
    usage = UserUsage("alice", UserLimit("alice", publish_byte_rate=1000))
    usage.publish(500)
    usage.publish(5000)  # a large one needs only some credit
    with pytest.raises(Busy, match="publish_byte_rate=1000: user 'alice' publishes more"):
        usage.publish(1)
    assert usage.throttled
    clock.now += 3.5
    with pytest.raises(Busy):
        usage.publish(1)
    clock.now += 0.1
    assert not usage.throttled
    usage.publish(1)
    published, began = 0, clock.now
    while clock.now < began + 100:
        clock.now += 0.01
        while not usage.throttled:
            usage.publish(100)
            published += 100
    assert 0.95 * 100_000 < published < 1.05 * 100_000


def test_a_delay_follows_what_was_published(clock):
    usage = UserUsage("*", UserLimit("*", publish_byte_rate=1000))
    assert usage.publish_delay(1000) == 0
    assert usage.publish_delay(4000) == 3.0
    clock.now += 3.5
    assert usage.publish_delay(100) == 0
    usage.set_limit(UserLimit("*"))
    assert usage.publish_delay(1 << 40) == 0
    assert not usage.throttled
    usage.publish(1 << 40)
