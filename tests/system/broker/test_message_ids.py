"""Idempotency keys: a second publish with a `message_id` stores nothing and returns the first id."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import omq.broker
from omq.broker import BrokerTimeout, Server, StoreFull, TopicError
from tests.support.waits import until
from tests.system.broker.client_twins import TWINS, twins
from tests.system.broker.server_process import broker


@pytest.fixture(params=sorted(TWINS))
def twin(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield from twins(request.param)


@pytest.fixture(params=["transient", "async", "weak", "strong"])
def persistence(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path / "data", bind="tcp://127.0.0.1:*") as server:
        yield server


@pytest.fixture
def client(twin: Any, server: Server) -> Iterator[Any]:
    client = twin.Client(server.endpoints["zmtp"], timeout=20.0)
    yield client
    twin.wait(client.close())


def read_all(twin: Any, client: Any, count: int) -> list[Any]:
    """Reads the topic until it has this number of messages: those of an async topic are readable after their commit."""
    found: list[Any] = []
    until(lambda: found.extend(twin.all(client.read("orders", len(found) + 1))) or len(found) >= count)
    return found


def test_a_second_publish_returns_the_first_id(twin: Any, server: Server, client: Any, persistence: str) -> None:
    twin.wait(client.create("orders", persistence=persistence))
    first = twin.wait(client.publish("orders", b"17", key=b"k", message_id="order 17"))
    other = twin.Client(server.endpoints["zmtp"], timeout=20.0)
    for publisher in (client, other):
        again = twin.wait(publisher.publish("orders", b"17", key=b"k", message_id=b"order 17"))
        assert again == first
    assert twin.wait(client.publish("orders", b"17", key=b"k", message_id="order 18")) == first + 1
    assert twin.wait(client.publish("orders", b"17", key=b"k")) == first + 2
    assert [message.id for message in read_all(twin, client, 3)] == [first, first + 1, first + 2]
    twin.wait(other.close())


def test_a_key_belongs_to_one_topic(twin: Any, client: Any) -> None:
    for topic in ("one", "two"):
        twin.wait(client.create(topic, persistence="weak"))
        assert twin.wait(client.publish(topic, topic.encode(), message_id="same")) == 1


def test_another_message_with_the_same_key_is_refused(twin: Any, client: Any, persistence: str) -> None:
    twin.wait(client.create("orders", persistence=persistence))
    twin.wait(client.publish("orders", b"17", message_id="a"))
    for other in ({"body": b"18"}, {"body": b"17", "key": b"k"}, {"body": b"17", "headers": {"h": b"1"}}):
        with pytest.raises(TopicError, match="message 1 of 'orders' has this message id, and other content"):
            twin.wait(client.publish("orders", other.pop("body"), **other, message_id="a"))  # type: ignore[arg-type]
    assert [message.body for message in read_all(twin, client, 1)] == [b"17"]


def test_the_order_of_headers_is_not_content(twin: Any, client: Any, persistence: str) -> None:
    twin.wait(client.create("orders", persistence=persistence))
    headers = {"one": b"1", "two": b"2", "three": b""}
    first = twin.wait(client.publish("orders", b"17", key=b"k", headers=headers, message_id="a"))
    again = dict(reversed(headers.items()))
    assert twin.wait(client.publish("orders", b"17", key=b"k", headers=again, message_id="a")) == first
    for other in (again | {"two": b"3"}, {"one": b"1", "two": b"2"}, again | {"four": b""}):
        with pytest.raises(TopicError, match="other content"):
            twin.wait(client.publish("orders", b"17", key=b"k", headers=other, message_id="a"))


def test_a_key_outlives_its_message(twin: Any, client: Any) -> None:
    twin.wait(client.create("orders", persistence="weak", max_messages=1))
    twin.wait(client.publish("orders", b"17", message_id="a"))
    twin.wait(client.publish("orders", b"18"))
    assert twin.wait(client.publish("orders", b"17", message_id="a")) == 1
    assert [message.body for message in twin.all(client.read("orders"))] == [b"18"]


@pytest.mark.parametrize("value", ["", b"", "x" * 256, b"x" * 256, "é" * 128])
def test_a_key_that_is_too_short_or_too_long_is_refused(twin: Any, client: Any, value: Any) -> None:
    twin.wait(client.create("orders", persistence="weak"))
    with pytest.raises(ValueError, match=r"^message_id=.*: must have 1 to 255 bytes, not"):
        twin.wait(client.publish("orders", b"17", message_id=value))
    with pytest.raises(TypeError, match=r"^message_id=17: must be bytes, str or None, not int$"):
        twin.wait(client.publish("orders", b"17", message_id=17))
    assert twin.all(client.read("orders")) == []


def test_a_repetition_needs_no_room(twin: Any, client: Any) -> None:
    twin.wait(client.create("jobs", delivery="round-robin", persistence="weak", max_messages=1))
    assert twin.wait(client.publish("jobs", b"1", message_id="a")) == 1
    assert twin.wait(client.publish("jobs", b"1", message_id="a")) == 1
    with pytest.raises(StoreFull):
        twin.wait(client.publish("jobs", b"2", message_id="b"))


def test_a_publish_that_timed_out_is_repeated_after_a_kill(tmp_path: Path) -> None:
    with broker(tmp_path, tmp_path / "data", "--bind", "tcp://127.0.0.1:*", "--topic", "t:broadcast:strong") as command:
        endpoint = command.serving()["zmtp"]
        with omq.broker.Client(endpoint, timeout=20) as client:
            assert client.publish("t", b"before", message_id="a") == 1
        with omq.broker.Client(endpoint, timeout=0.5) as client:
            client.publish("t", b"connected")
            command.process.send_signal(signal.SIGSTOP)
            with pytest.raises(BrokerTimeout, match=r"a second publish with the same message_id stores it once$"):
                client.publish("t", b"x", message_id="b")
            with pytest.raises(BrokerTimeout, match=r"a second publish without a message_id may store it twice$"):
                client.publish("t", b"y")
        command.process.kill()
        command.process.wait()
    with (
        broker(tmp_path, tmp_path / "data", "--bind", "tcp://127.0.0.1:*") as command,
        omq.broker.Client(command.serving()["zmtp"], timeout=20) as client,
    ):
        assert client.publish("t", b"before", message_id="a") == 1
        first = client.publish("t", b"x", message_id="b")
        assert client.publish("t", b"x", message_id="b") == first
        assert [message.body for message in client.read("t")].count(b"x") == 1
