"""Consumer groups of broadcast topics: the members share the messages, which the topic keeps for others."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import omq
import omq.broker
from omq.broker import Overrun, Server, TopicError
from tests.support.chaos_proxy import Proxy
from tests.support.waits import until
from tests.system.broker.client_twins import TWINS, twins
from tests.system.broker.server_process import broker


@pytest.fixture(params=sorted(TWINS))
def twin(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield from twins(request.param)


@pytest.fixture(params=["transient", "weak", "strong"])
def persistence(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path / "data", bind="tcp://127.0.0.1:*") as server:
        yield server


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with Proxy() as proxy:
        yield proxy


@pytest.fixture
def client(twin: Any, server: Server) -> Iterator[Any]:
    client = twin.Client(server.endpoints["zmtp"], timeout=20.0)
    yield client
    twin.wait(client.close())


def bodies(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(1, count + 1)]


def test_members_share_and_others_get_all(twin: Any, server: Server, client: Any, persistence: str) -> None:
    twin.wait(client.create("feed", persistence=persistence))
    other = twin.Client(server.endpoints["zmtp"], timeout=20.0)
    members = [twin.wait(one.consume("feed", group="workers", credit=10)) for one in (client, other)]
    alone = twin.wait(client.consume("feed", group="audit"))
    subscription = twin.wait(client.subscribe("feed"))
    twin.wait(client.publish_many("feed", bodies(100)))
    ids: list[int] = []
    shares = [0, 0]
    while len(ids) < 100:
        for number, member in enumerate(members):
            with contextlib.suppress(omq.ReceiveTimeout):
                for message in twin.wait(member.recv_many(timeout=0.1)):
                    ids.append(message.id)
                    shares[number] += 1
                    twin.call(message.ack)
    assert sorted(ids) == list(range(1, 101))
    assert min(shares) >= 10
    assert [message.id for message in twin.take(alone, 100)] == list(range(1, 101))
    assert [message.id for message in twin.take(subscription, 100)] == list(range(1, 101))
    assert [message.id for message in twin.all(client.read("feed"))] == list(range(1, 101))
    twin.wait(other.close())


def test_acks_outlive_the_client_and_the_broker(tmp_path: Path, persistence: str) -> None:
    if persistence == "transient":
        pytest.skip("a broker that ends drops transient messages")
    arguments = tmp_path / "data", "--bind", "tcp://127.0.0.1:*", "--topic", f"feed:broadcast:{persistence}"
    with (
        broker(tmp_path, *arguments) as command,
        omq.broker.Client(command.serving()["zmtp"], timeout=20) as client,
    ):
        consumer = client.consume("feed", group="workers", credit=50)
        client.publish_many("feed", bodies(50))
        messages = [consumer.recv(timeout=20) for _ in range(50)]
        for message in messages[:10] + messages[20:30]:
            message.ack()
        client.flush()
        (group,) = client.groups("feed")
        assert (group.name, group.lag, group.in_flight, group.consumers) == ("workers", 30, 30, 1)
        command.process.kill()
        command.process.wait()
    with (
        broker(tmp_path, *arguments) as command,
        omq.broker.Client(command.serving()["zmtp"], timeout=20) as client,
    ):
        (group,) = client.groups("feed")
        assert (group.lag, group.in_flight, group.consumers) == (30, 0, 0)
        consumer = client.consume("feed", group="workers", replay="latest")
        again = [consumer.recv(timeout=20) for _ in range(30)]
        assert [message.id for message in again] == [*range(11, 21), *range(31, 51)]
        with pytest.raises(omq.ReceiveTimeout):
            consumer.recv(timeout=0.1)
        for message in again:
            message.ack()
        client.flush()
        assert client.groups("feed")[0].lag == 0


def test_a_nack_and_a_lost_member_redeliver(twin: Any, server: Server, client: Any, persistence: str) -> None:
    twin.wait(client.create("feed", persistence=persistence, retry_delay=0))
    first = twin.wait(client.consume("feed", group="workers", credit=1))
    twin.wait(client.publish("feed", b"1"))
    (message,) = twin.take(first, 1)
    twin.call(message.nack)
    (message,) = twin.take(first, 1)
    assert message.deliveries == 2
    other = twin.Client(server.endpoints["zmtp"], timeout=20.0)
    second = twin.wait(other.consume("feed", group="workers"))
    twin.wait(first.close())
    (message,) = twin.take(second, 1)
    assert (message.id, message.deliveries) == (1, 3)
    twin.call(message.ack)
    twin.wait(other.flush())
    assert twin.wait(client.groups("feed"))[0].lag == 0
    twin.wait(other.close())


@pytest.mark.parametrize("kind", ["weak", "transient"])
def test_each_group_has_its_own_dead_letters(twin: Any, client: Any, persistence: str, kind: str) -> None:
    twin.wait(client.create("dead", persistence=kind))
    twin.wait(client.create("feed", persistence=persistence, max_deliveries=2, retry_delay=0, dead_letter="dead"))
    for name in ("one", "two"):
        twin.wait(client.consume("feed", group=name))  # the group exists from now on
    consumers = [twin.wait(client.consume("feed", group=name)) for name in ("one", "two")]
    twin.wait(client.publish("feed", b"poison", key=b"k"))
    dead = twin.wait(client.subscribe("dead", replay="earliest"))
    for number, consumer in enumerate(consumers, 1):
        for _ in range(2):
            (message,) = twin.take(consumer, 1)
            twin.call(message.nack)
        letters = twin.take(dead, 1)
        assert [(letter.id, letter.body, letter.key) for letter in letters] == [(number, b"poison", b"k")]
    assert [message.body for message in twin.all(client.read("feed"))] == [b"poison"]
    until(lambda: [group.lag for group in twin.wait(client.groups("feed"))] == [0, 0], "both have finished it")


@pytest.mark.parametrize(
    ("replay", "ids"), [("earliest", [1, 2, 3, 4, 5, 6]), (None, [6]), ("latest", [6]), (3, [4, 5, 6])]
)
def test_a_new_group_starts_where_it_is_told(twin: Any, client: Any, replay: Any, ids: list[int]) -> None:
    twin.wait(client.create("feed", persistence="weak"))
    twin.wait(client.publish_many("feed", bodies(5)))
    consumer = twin.wait(client.consume("feed", group="workers", replay=replay))
    twin.wait(client.publish("feed", b"6"))
    assert [message.id for message in twin.take(consumer, len(ids))] == ids


def test_a_group_is_moved_and_deleted_without_consumers(twin: Any, client: Any, persistence: str) -> None:
    twin.wait(client.create("feed", persistence=persistence))
    twin.wait(client.publish_many("feed", bodies(10)))
    consumer = twin.wait(client.consume("feed", group="workers", replay="earliest"))
    for message in twin.take(consumer, 10)[::2]:
        twin.call(message.ack)
    for call in (lambda: client.seek_group("feed", "workers", 0), lambda: client.delete_group("feed", "workers")):
        with pytest.raises(TopicError, match=r"it is in use \(consumers: 1\)"):
            twin.wait(call())
    twin.wait(consumer.close())
    for replay, ids in ((7, [8, 9, 10]), ("earliest", list(range(1, 11))), (2, list(range(3, 11)))):
        twin.wait(client.seek_group("feed", "workers", replay))
        assert twin.wait(client.groups("feed"))[0].lag == len(ids)
        consumer = twin.wait(client.consume("feed", group="workers"))
        messages = twin.take(consumer, len(ids))
        assert [(message.id, message.deliveries) for message in messages] == [(id, 1) for id in ids]
        for message in messages:
            twin.call(message.ack)
        twin.wait(consumer.close())
    twin.wait(client.delete_group("feed", "workers"))
    assert twin.wait(client.groups("feed")) == []
    consumer = twin.wait(client.consume("feed", group="workers", replay="earliest"))
    assert len(twin.take(consumer, 10)) == 10


def test_what_retention_drops_is_finished(twin: Any, client: Any, persistence: str) -> None:
    twin.wait(client.create("feed", persistence=persistence, max_messages=10))
    consumer = twin.wait(client.consume("feed", group="workers", replay="earliest", credit=1))
    twin.wait(client.publish_many("feed", bodies(1)))
    (first,) = twin.take(consumer, 1)
    for part in range(5):
        twin.wait(client.publish_many("feed", bodies(10)))
        assert part >= 0
    twin.call(first.ack)
    messages = []
    for _ in range(10):
        (message,) = twin.take(consumer, 1)
        messages.append(message.id)
        twin.call(message.ack)
    assert messages == list(range(42, 52))
    twin.wait(client.flush())
    assert twin.wait(client.groups("feed"))[0].lag == 0


def test_what_does_not_fit_is_refused(twin: Any, client: Any) -> None:
    twin.wait(client.create("feed", persistence="weak", max_messages=2))
    twin.wait(client.create("jobs", delivery="round-robin", persistence="weak"))
    twin.wait(client.publish_many("feed", bodies(5)))
    refusals: list[tuple[type[Exception], str, Any]] = [
        (TopicError, "consume it with a group", lambda: client.consume("feed")),
        (TopicError, "round-robin topic, which has no groups", lambda: client.consume("jobs", group="workers")),
        (TopicError, "has no consumer group 'absent'", lambda: client.seek_group("feed", "absent", 1)),
        (TopicError, "has no consumer group 'absent'", lambda: client.delete_group("feed", "absent")),
        (TopicError, "has no consumer groups", lambda: client.delete_group("jobs", "workers")),
        (TopicError, "above the newest id", lambda: client.consume("feed", group="workers", replay=99)),
        (Overrun, "no longer kept", lambda: client.consume("feed", group="workers", replay=1)),
        (TopicError, "a group's name", lambda: client.consume("feed", group="a/b")),
        (ValueError, "replay=.*needs a group", lambda: client.consume("jobs", replay="latest")),
        (ValueError, "replay=-1: must be", lambda: client.consume("feed", group="workers", replay=-1)),
    ]
    for kind, text, call in refusals:
        with pytest.raises(kind, match=text):
            twin.wait(call())
    assert twin.wait(client.groups("feed")) == []
    assert twin.wait(client.groups("jobs")) == []


def test_a_deleted_topic_ends_its_groups(twin: Any, client: Any) -> None:
    twin.wait(client.create("feed", persistence="strong"))
    consumer = twin.wait(client.consume("feed", group="workers"))
    twin.wait(client.delete("feed"))
    with pytest.raises(TopicError, match="was deleted"):
        twin.wait(consumer.recv(timeout=20.0))
    twin.wait(client.create("feed", persistence="strong"))
    assert twin.wait(client.groups("feed")) == []


def gone(twin: Any, admin: Any) -> bool:
    """Returns whether no consumer of the only group of `feed` is connected."""
    (group,) = twin.wait(admin.groups("feed"))
    return group.consumers == 0


def test_a_member_that_was_cut_off_does_not_undo_a_move(twin: Any, server: Server, client: Any, proxy: Proxy) -> None:
    """Its acks may have been lost, so it repeats them after the move."""
    twin.wait(client.create("feed", persistence="weak"))
    link = proxy.link(server.endpoints["zmtp"])
    member = twin.Client(link.endpoint, timeout=20.0)
    consumer = twin.wait(member.consume("feed", group="workers"))
    twin.wait(client.publish_many("feed", bodies(6)))
    messages = twin.take(consumer, 6)
    for message in messages[:4]:
        twin.call(message.ack)
    until(lambda: twin.wait(client.groups("feed"))[0].lag == 2, "the acks have arrived")
    link.refuse()
    link.reset()
    until(lambda: gone(twin, client), "the member is gone")
    twin.wait(client.seek_group("feed", "workers", "earliest"))
    link.admit()
    again = [twin.wait(consumer.recv(timeout=20.0)) for _ in range(6)]
    assert [(message.id, message.deliveries) for message in again] == [(id, 1) for id in range(1, 7)]
    for message in messages:
        twin.call(message.ack)  # a delivery of before the move
    twin.wait(member.flush())
    assert twin.wait(client.groups("feed"))[0].lag == 6
    for message in again[:5]:
        twin.call(message.ack)
    twin.wait(member.flush())
    assert twin.wait(client.groups("feed"))[0].lag == 1
    twin.wait(member.close())


def test_acks_after_a_reconnect_count(tmp_path: Path) -> None:
    with broker(tmp_path, tmp_path / "data", "--bind", "tcp://127.0.0.1:*") as command:
        endpoint = command.serving()["zmtp"]
        client = omq.broker.Client(endpoint, timeout=30)
        client.create("feed", persistence="strong")
        consumer = client.consume("feed", group="workers")
        client.publish_many("feed", bodies(5))
        messages = [consumer.recv(timeout=20) for _ in range(5)]
        command.process.kill()
        command.process.wait()
        for message in messages:
            message.ack()
    with client, broker(tmp_path, tmp_path / "data", "--bind", endpoint) as command:
        command.serving()
        client.flush()
        assert [(group.lag, group.consumers) for group in client.groups("feed")] == [(0, 1)]
