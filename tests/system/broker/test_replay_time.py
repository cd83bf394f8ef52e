"""Replay from a time, with both twins of the client and brokers on disk and in memory."""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from omq.broker import Server
from omq.broker.errors import Overrun, TopicError
from tests.support.waits import until
from tests.system.broker.client_twins import TWINS, twins
from tests.system.broker.server_process import broker

#: The times of the messages, in seconds since 1970.
TIMES = [1_500_000_000.0, 1_500_000_060.25, 1_500_000_120.5]


@pytest.fixture(params=list(TWINS))
def twin(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield from twins(request.param)


@pytest.fixture(scope="module", params=["disk", "memory"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("broker") if request.param == "disk" else None
    with Server(directory, memory=directory is None) as server:
        yield server


@pytest.fixture
def client(twin: Any, server: Server) -> Iterator[Any]:
    client = twin.Client(server.endpoints["zmtp"], timeout=20.0)
    yield client
    twin.wait(client.close())


@contextlib.contextmanager
def stored_at(seconds: float) -> Iterator[None]:
    """Sets the clock of the stores in this process."""
    with pytest.MonkeyPatch.context() as patch:
        for module in ("memory", "lmdb.applier"):
            patch.setattr(f"omq.store.{module}.wall", lambda: round(seconds * 1e6))
        yield


def filled(twin: Any, client: Any, name: str, times: list[float], count: int = 3, **settings: Any) -> str:
    """Creates a topic, and publishes *count* messages at each time."""
    twin.wait(client.create(name, persistence="weak", **settings))
    for seconds in times:
        with stored_at(seconds):
            twin.wait(client.publish_many(name, [b"%d" % number for number in range(count)]))
    return name


@pytest.fixture
def topic(twin: Any, client: Any, request: pytest.FixtureRequest) -> Iterator[str]:
    """A topic with the ids 1 to 3, 4 to 6, and 7 to 9 at the three `TIMES`."""
    name = filled(twin, client, request.node.name, TIMES)
    yield name
    twin.wait(client.delete(name))


@pytest.fixture
def short(twin: Any, client: Any, request: pytest.FixtureRequest) -> Iterator[str]:
    """A topic like `topic` of which retention keeps the ids 6 to 9."""
    name = filled(twin, client, f"short {request.node.name}", TIMES, max_messages=4)
    yield name
    twin.wait(client.delete(name))


def received(twin: Any, client: Any, topic: str, replay: object, count: int, name: str | None = None) -> list[int]:
    subscription = twin.wait(client.subscribe(topic, replay=replay, name=name))
    try:
        return [message.id for message in twin.take(subscription, count)]
    finally:
        twin.wait(subscription.close())


def in_zone(seconds: float, hours: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC).astimezone(timezone(timedelta(hours=hours)))


def test_a_subscription_from_a_time(twin: Any, client: Any, topic: str) -> None:
    assert received(twin, client, topic, TIMES[1], 6) == list(range(4, 10))
    assert received(twin, client, topic, in_zone(TIMES[1], 5.5), 6) == list(range(4, 10))
    assert received(twin, client, topic, TIMES[1] + 0.001, 3) == [7, 8, 9]
    assert received(twin, client, topic, 0.0, 9) == list(range(1, 10))


def test_an_int_is_an_id(twin: Any, client: Any, topic: str) -> None:
    assert received(twin, client, topic, 4, 5) == [5, 6, 7, 8, 9]
    with pytest.raises(TopicError, match="id 1500000000 is above the newest id"):
        received(twin, client, topic, 1_500_000_000, 1)


def test_the_time_of_a_message_is_where_its_block_starts(twin: Any, client: Any, topic: str) -> None:
    for message in twin.all(client.read(topic)):
        start = twin.wait(client.offset_at(topic, message.timestamp))
        assert start == message.id - (message.id - 1) % 3


def test_now_is_after_the_newest_message(twin: Any, client: Any, topic: str) -> None:
    for now in (time.time, lambda: datetime.now(UTC)):
        subscription = twin.wait(client.subscribe(topic, replay=now()))
        published = twin.wait(client.publish(topic, b"new"))
        assert [message.id for message in twin.take(subscription, 1)] == [published]
        twin.wait(subscription.close())


def test_a_time_in_the_future_is_refused(twin: Any, client: Any, topic: str) -> None:
    future = datetime(2999, 1, 1, tzinfo=UTC)
    with pytest.raises(TopicError, match=r"^replay=2999-01-01T00:00:00Z: must not be in the future"):
        twin.wait(client.subscribe(topic, replay=future, name="n"))
    assert twin.wait(client.durables(topic)) == []


def test_a_time_whose_messages_may_be_dropped_is_an_overrun(twin: Any, client: Any, short: str) -> None:
    for seconds in (0.0, TIMES[0], TIMES[1]):
        with pytest.raises(Overrun, match=r"the oldest is 6, stored at 2017-07-14T02:41:00\.250000Z$") as caught:
            twin.wait(client.subscribe(short, replay=seconds))
        assert caught.value.first == 6
    assert received(twin, client, short, TIMES[1] + 1, 3) == [7, 8, 9]


def test_a_durable_subscription_starts_at_its_time_once(twin: Any, client: Any, topic: str) -> None:
    subscription = twin.wait(client.subscribe(topic, replay=TIMES[1], name="n"))
    (message,) = twin.take(subscription, 1)
    assert message.id == 4
    twin.call(subscription.ack, message)
    twin.wait(client.flush())
    twin.wait(subscription.close())
    assert received(twin, client, topic, TIMES[2], 5, name="n") == [5, 6, 7, 8, 9]


def test_an_overtaken_durable_subscription_restarts_at_its_time(twin: Any, client: Any, request: Any) -> None:
    name = filled(twin, client, request.node.name, TIMES[:1], max_messages=4)
    twin.wait(twin.wait(client.subscribe(name, replay="earliest", name="n")).close())
    for seconds in TIMES[1:]:
        with stored_at(seconds):
            twin.wait(client.publish_many(name, [b"x"] * 3))
    with pytest.raises(Overrun):
        twin.wait(client.subscribe(name, name="n"))
    assert received(twin, client, name, TIMES[2], 3, name="n") == [7, 8, 9]
    twin.wait(client.delete(name))


def test_the_offset_of_a_time(twin: Any, client: Any, topic: str, short: str) -> None:
    found = [(0.0, 1), (TIMES[0], 1), (TIMES[1] - 1, 4), (TIMES[2], 7), (TIMES[2] + 1, 10), (99_999_999_999.0, 10)]
    for seconds, id in found:
        assert twin.wait(client.offset_at(topic, seconds)) == id
        assert twin.wait(client.offset_at(topic, in_zone(seconds, -3))) == id
    assert twin.wait(client.offset_at(topic, int(TIMES[1]))) == 4
    assert twin.wait(client.offset_at(short, 0)) == 6
    with pytest.raises(TopicError, match="no topic"):
        twin.wait(client.offset_at("nowhere", 0.0))


def test_a_round_robin_topic_is_searched(twin: Any, client: Any, request: Any) -> None:
    name = filled(twin, client, request.node.name, TIMES, delivery="round-robin")
    assert twin.wait(client.offset_at(name, TIMES[2])) == 7
    assert [message.id for message in twin.all(client.read(name, start=TIMES[2]))] == [7, 8, 9]
    twin.wait(client.delete(name))


def test_a_read_between_times(twin: Any, client: Any, topic: str, short: str) -> None:
    def ids(*bounds: Any, of: str = topic, **more: Any) -> list[int]:
        return [message.id for message in twin.all(client.read(of, *bounds, **more))]

    assert ids(TIMES[1]) == [4, 5, 6, 7, 8, 9]
    assert ids(TIMES[0], TIMES[1]) == ids(None, in_zone(TIMES[1], 2)) == [1, 2, 3]
    assert ids(2, TIMES[2]) == [2, 3, 4, 5, 6]
    assert ids(TIMES[1], 6) == [4, 5]
    assert ids(TIMES[1], limit=2) == [4, 5]
    assert ids(TIMES[2], TIMES[1]) == ids(time.time()) == ids(99_999_999_999.0) == []
    assert ids(stop=99_999_999_999.0) == list(range(1, 10))
    assert ids(0.0, of=short) == [6, 7, 8, 9]  # as with ids, a read skips what is no longer kept


def test_columns_between_times(twin: Any, client: Any, topic: str, short: str) -> None:
    def ids(*bounds: Any, of: str = topic) -> list[int]:
        found = twin.all(client.read_columns(of, *bounds))
        return [id for one in found for id in struct.unpack(f"={one.count}q", one.ids)]

    assert ids(TIMES[1], TIMES[2]) == [4, 5, 6]
    assert ids(0.0) == list(range(1, 10))
    assert ids(TIMES[2], of=short) == ids(TIMES[1] + 1, of=short) == [7, 8, 9]
    with pytest.raises(Overrun, match=r"the oldest is 6, stored at 2017-07-14T02:41:00\.250000Z$") as caught:
        ids(TIMES[1], of=short)
    assert caught.value.first == 6
    with pytest.raises(Overrun):
        ids(0.0, TIMES[0], of=short)
    assert ids(None, TIMES[2], of=short) == [6]


def test_times_outlive_a_killed_broker(twin: Any, tmp_path: Path) -> None:
    arguments = (tmp_path / "data", "--bind", "tcp://127.0.0.1:*", "--topic", "t:broadcast:strong")
    with broker(tmp_path, *arguments) as first:
        client = twin.Client(first.serving()["zmtp"], timeout=20.0)
        twin.wait(client.publish_many("t", [b"1", b"2"]))
        *_, before = twin.all(client.read("t"))
        until(lambda: time.time() > before.timestamp + 0.01)
        middle = time.time()
        until(lambda: time.time() > middle)
        twin.wait(client.publish("t", b"3"))
        twin.wait(client.close())
    with broker(tmp_path, *arguments) as second:
        client = twin.Client(second.serving()["zmtp"], timeout=20.0)
        assert twin.wait(client.offset_at("t", middle)) == 3
        subscription = twin.wait(client.subscribe("t", replay=middle))
        assert [message.body for message in twin.take(subscription, 1)] == [b"3"]
        twin.wait(client.close())
