"""Dead letters, `requeue` and `purge` of both twins, against real brokers on disk and in memory."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import omq.broker
from omq.broker import Server
from omq.broker.core import requeue
from omq.broker.core.broker import Broker
from omq.broker.errors import Overrun, PermissionDenied, StoreFull, TopicError
from tests.support.waits import until
from tests.system.broker.client_twins import TWINS, twins
from tests.system.broker.server_process import broker


@pytest.fixture(params=list(TWINS))
def twin(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield from twins(request.param)


@pytest.fixture(params=["disk", "memory"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    disk = request.param == "disk"
    with Server(tmp_path / "store" if disk else None, memory=not disk, bind="tcp://127.0.0.1:*") as server:
        yield server


@pytest.fixture
def client(twin: Any, server: Server) -> Iterator[Any]:
    client = twin.Client(server.endpoints["zmtp"], timeout=20.0)
    yield client
    twin.wait(client.close())


@pytest.fixture
def jobs(twin: Any, client: Any) -> str:
    """A work queue whose messages become dead letters after one delivery."""
    twin.wait(client.create("jobs", delivery="round-robin", persistence="weak", max_deliveries=1, retry_delay=0))
    return "jobs"


def fail_all(twin: Any, client: Any, jobs: str, bodies: list[bytes], **what: Any) -> None:
    """Publishes messages and lets them become dead letters."""
    dead = f"{jobs}.dead"
    before = sum(info.last for info in twin.wait(client.topics()) if info.name == dead)
    for body in bodies:
        twin.wait(client.publish(jobs, body, **what))
    consumer = twin.wait(client.consume(jobs))
    for delivery in twin.take(consumer, len(bodies)):
        twin.call(delivery.nack)
    twin.wait(consumer.close())
    until(lambda: any(info.last == before + len(bodies) for info in twin.wait(client.topics()) if info.name == dead))


def test_dead_letters_record_where_they_came_from_and_return(twin, client, jobs):
    fail_all(twin, client, jobs, [b"a", b"b", b"c"], key=b"k", headers={"own": b"v"})
    letters = twin.all(client.read("jobs.dead"))
    assert [(one.body, one.key, one.headers["omq-dead-id"]) for one in letters] == [
        (b"a", b"k", b"1"),
        (b"b", b"k", b"2"),
        (b"c", b"k", b"3"),
    ]
    for one in letters:
        when = datetime.fromisoformat(one.headers.pop("omq-dead-time").decode())
        assert abs(when.timestamp() - time.time()) < 60
        assert list(one.headers) == [
            "own",
            "omq-dead-topic",
            "omq-dead-id",
            "omq-dead-deliveries",
            "omq-dead-reason",
            "omq-dead-time",
        ]
        assert one.headers["omq-dead-topic"] == b"jobs"
        assert (one.headers["omq-dead-deliveries"], one.headers["omq-dead-reason"]) == (b"1", b"max-deliveries")
    assert twin.wait(client.requeue("jobs.dead", limit=0)) == 0
    assert twin.wait(client.requeue("jobs.dead", limit=1)) == 1
    assert twin.wait(client.requeue("jobs.dead")) == 2
    assert twin.wait(client.requeue("jobs.dead")) == 0
    consumer = twin.wait(client.consume(jobs))
    got = twin.take(consumer, 3)
    assert [(one.id, one.body, one.key, one.headers, one.deliveries) for one in got] == [
        (4, b"a", b"k", {"own": b"v"}, 1),
        (5, b"b", b"k", {"own": b"v"}, 1),
        (6, b"c", b"k", {"own": b"v"}, 1),
    ]


def test_what_was_flushed_becomes_dead_letters_after_a_kill(tmp_path: Path) -> None:
    count = 5000  # many times what is moved at once
    with broker(tmp_path, tmp_path / "data") as first, omq.broker.Client(first.serving()["zmtp"]) as client:
        client.create("jobs", delivery="round-robin", persistence="weak", max_deliveries=1)
        client.publish_many("jobs", [b"%d" % number for number in range(count)])
        consumer, nacked = client.consume("jobs", credit=1000), 0
        while nacked < count:
            deliveries = consumer.recv_many(1000, timeout=20)
            consumer.nack(deliveries)
            nacked += len(deliveries)
        client.flush()
        first.process.kill()
        first.ended()
    with broker(tmp_path, tmp_path / "data") as second, omq.broker.Client(second.serving()["zmtp"]) as client:
        until(lambda: {topic.name: topic.last for topic in client.topics()}.get("jobs.dead") == count)
        assert {message.body for message in client.read("jobs.dead")} == {b"%d" % number for number in range(count)}


def test_a_requeued_message_that_fails_again_has_the_new_history(twin, client, jobs):
    fail_all(twin, client, jobs, [b"a"])
    (first,) = twin.all(client.read("jobs.dead"))
    assert twin.wait(client.requeue("jobs.dead")) == 1
    consumer = twin.wait(client.consume(jobs))
    for delivery in twin.take(consumer, 1):
        twin.call(delivery.nack)
    twin.wait(consumer.close())
    until(lambda: twin.wait(client.topics("jobs.dead"))[0].last == 2)
    (again,) = twin.all(client.read("jobs.dead"))
    assert (first.headers["omq-dead-id"], again.headers["omq-dead-id"]) == (b"1", b"2")
    assert len(again.headers) == 5


def test_many_dead_letters_move_in_several_requests(twin, client, monkeypatch):
    monkeypatch.setattr(requeue, "MAX_BATCH", 7)
    twin.wait(client.create("plain", persistence="weak"))
    twin.wait(client.create("other", delivery="round-robin", persistence="weak"))
    twin.wait(client.publish_many("plain", [b"%d" % number for number in range(1, 101)]))
    assert twin.wait(client.purge("plain", up_to=10)) == 10
    with pytest.raises(TopicError, match=r"dead letter 11 .*omq-dead-topic.*; before that, 0 dead letters were moved"):
        twin.wait(client.requeue("plain"))
    assert twin.wait(client.requeue("plain", to="other", limit=20)) == 20
    assert twin.wait(client.topics("plain"))[0].first == 31
    assert twin.wait(client.requeue("plain", to="other")) == 70
    consumer = twin.wait(client.consume("other", credit=100))
    assert [one.body for one in twin.take(consumer, 90)] == [b"%d" % number for number in range(11, 101)]


def test_a_full_topic_ends_a_requeue_with_the_number(twin, client, monkeypatch):
    monkeypatch.setattr(requeue, "MAX_BATCH", 2)
    twin.wait(client.create("plain", persistence="weak"))
    twin.wait(client.create("small", delivery="round-robin", persistence="weak", max_messages=5, overflow="block"))
    twin.wait(client.publish_many("plain", [b"x"] * 9))
    with pytest.raises(StoreFull, match=r"'small' is full.*; before that, 5 dead letters were moved"):
        twin.wait(client.requeue("plain", to="small"))
    assert twin.wait(client.topics("plain"))[0].first == 6


def test_wrong_arguments_are_named_and_change_nothing(twin, client, jobs):
    twin.wait(client.create("dead", persistence="weak"))
    twin.wait(client.create("kept", persistence="weak", retain_for="n"))
    twin.wait(client.publish("dead", b"x"))
    twin.wait(client.publish("kept", b"x"))
    for call, error, text in (
        (lambda: client.requeue("nowhere"), TopicError, "'nowhere'"),
        (lambda: client.requeue("a/b"), TopicError, "slash"),
        (lambda: client.requeue(7), TypeError, "a topic's name must be a string, not 7"),
        (lambda: client.requeue("dead", to=7), TypeError, "to: a topic's name must be a string, not 7"),
        (lambda: client.requeue("dead", to="a/b"), TopicError, "to: a topic's name must not contain a slash"),
        (lambda: client.requeue("dead", to="nowhere"), TopicError, "'nowhere'"),
        (lambda: client.requeue("dead", to="dead"), TopicError, "to='dead': must be another topic"),
        (lambda: client.requeue("kept", to="jobs"), TopicError, "retain_for='n'"),
        (lambda: client.requeue(jobs), TopicError, "'jobs' is a round-robin topic"),
        (lambda: client.purge("nowhere"), TopicError, "'nowhere'"),
        (lambda: client.purge("kept"), TopicError, "retain_for='n'"),
        (
            lambda: client.purge("dead", up_to=2),
            TopicError,
            "up_to=2: must be at most 1, the newest id of topic 'dead'",
        ),
        (lambda: client.purge(None), TypeError, "a topic's name must be a string, not None"),
    ):
        with pytest.raises(error, match=text):
            twin.wait(call())
    assert [one.body for name in ("dead", "kept") for one in twin.all(client.read(name))] == [b"x", b"x"]


def test_a_topic_is_purged(twin, client, jobs):
    twin.wait(client.create("log", persistence="weak"))
    assert twin.wait(client.purge("log")) == 0
    for number in range(1, 6):  # each is a block
        twin.wait(client.publish("log", b"%d" % number))
    behind = twin.wait(client.subscribe("log", name="behind", replay="earliest", credit=1))
    assert [one.id for one in twin.take(behind, 1)] == [1]
    assert twin.wait(client.purge("log", up_to=3)) == 3
    assert [one.body for one in twin.all(client.read("log"))] == [b"4", b"5"]
    assert twin.wait(client.purge("log")) == 2
    assert twin.wait(client.publish("log", b"6")) == 6
    with pytest.raises(Overrun):
        twin.take(behind, 99)
    twin.wait(client.publish_many(jobs, [b"%d" % number for number in range(1, 6)]))
    consumer = twin.wait(client.consume(jobs, credit=1))
    (held,) = twin.take(consumer, 1)
    assert twin.wait(client.purge(jobs)) == 4
    twin.call(held.ack)
    twin.wait(client.publish(jobs, b"new"))
    assert [(one.id, one.body) for one in twin.take(consumer, 1)] == [(6, b"new")]


@pytest.mark.parametrize("call", ["purge", "requeue"])
def test_a_lost_connection_moves_and_drops_nothing_that_came_later(twin, client, monkeypatch, call):
    """The first answer does not arrive, and the client repeats the request after messages have arrived."""
    twin.wait(client.create("dead", persistence="weak"))
    twin.wait(client.create("other", persistence="weak"))
    twin.wait(client.publish_many("dead", [b"a", b"b"]))
    real = getattr(Broker, call)
    calls: list[Any] = []

    def publish() -> None:
        with omq.broker.Client(client.endpoint, timeout=20.0) as other:
            other.publish("dead", b"later")

    async def twice(broker: Broker, topic: Any, up_to: int | None, *rest: Any) -> Any:
        await real(broker, topic, up_to, *rest)
        await broker.loop.run_in_executor(None, publish)
        calls.append(up_to)
        return await real(broker, topic, up_to, *rest)

    monkeypatch.setattr(Broker, call, twice)
    twin.wait(client.requeue("dead", to="other") if call == "requeue" else client.purge("dead"))
    assert calls == [2]
    assert [one.body for one in twin.all(client.read("dead"))] == [b"later"]


def test_an_operator_needs_the_permission(twin, tmp_path):
    permissions = [
        {"who": "op", "topics": "dead", "may": ["admin", "subscribe"]},
        {"who": "user", "topics": "*", "may": ["create", "publish", "subscribe"]},
    ]
    users = omq.PlainServer({"op": "1", "user": "2"})
    with Server(memory=True, bind="tcp://127.0.0.1:*", security=users, permissions=permissions) as server:
        clients = {
            name: twin.Client(server.endpoints["zmtp"], timeout=20.0, security=omq.PlainClient(name, password))
            for name, password in (("op", "1"), ("user", "2"))
        }
        op, user = clients.values()
        for name in ("dead", "open"):
            twin.wait(user.create(name, persistence="weak"))
        twin.wait(user.publish("dead", b"x"))
        for refused in (
            lambda: user.purge("dead"),
            lambda: user.requeue("dead", to="open"),
            lambda: op.requeue("dead", to="open"),
            lambda: op.purge("open"),
        ):
            with pytest.raises(PermissionDenied):
                twin.wait(refused())
        assert twin.wait(op.purge("dead")) == 1
        for one in clients.values():
            twin.wait(one.close())
