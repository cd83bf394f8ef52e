"""The clients of a broker, both twins, against a real broker."""

from __future__ import annotations

import asyncio
import dis
import functools
import gc
import itertools
import os
import re
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import omq
import omq.asyncio.broker
import omq.broker
from omq.broker import Committed, Record, Server, TakenOver
from omq.broker.core.topic import HELD_OVERHEAD_BYTES
from omq.broker.errors import (
    BrokerError,
    BrokerTimeout,
    Busy,
    Overrun,
    PermissionDenied,
    StoreFull,
    TooLarge,
    TopicError,
)
from omq.broker.zmtp.session import ClientSession
from tests.support.fork_server import run
from tests.support.waits import until
from tests.system.broker.client_twins import TWINS, twins

# The tests set SIGALRM, with which timeouts are made otherwise.
pytestmark = pytest.mark.timeout(method="thread")


@pytest.fixture(params=list(TWINS))
def twin(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield from twins(request.param)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(memory=True, bind="tcp://127.0.0.1:*") as server:
        yield server


@pytest.fixture
def client(twin: Any, server: Server) -> Iterator[Any]:
    client = twin.Client(server.endpoints["zmtp"], timeout=20.0)
    yield client
    twin.wait(client.close())


@pytest.fixture
def topic(twin: Any, client: Any, request: pytest.FixtureRequest) -> Iterator[str]:
    """A broadcast topic."""
    name = request.node.name
    twin.wait(client.create(name, persistence="transient"))
    yield name
    if not client.closed:
        twin.wait(client.delete(name))


@pytest.fixture
def jobs(twin: Any, client: Any, request: pytest.FixtureRequest) -> Iterator[str]:
    """A round-robin topic."""
    name = f"jobs of {request.node.name}"
    twin.wait(client.create(name, delivery="round-robin", persistence="transient", max_deliveries=5))
    yield name
    if not client.closed:
        twin.wait(client.delete(name))


def test_a_topic_is_made_found_listed_and_deleted(twin, client):
    made = twin.wait(client.create("made", persistence="transient", max_messages=5))
    assert (made.name, made.delivery, made.persistence, made.last) == ("made", "broadcast", "transient", 0)
    assert made.settings["max_messages"] == 5
    assert twin.wait(client.create("made", persistence="transient", max_messages=5)).id == made.id
    with pytest.raises(TopicError):
        twin.wait(client.create("made", delivery="round-robin", persistence="transient"))
    assert "made" in [info.name for info in twin.wait(client.topics())]
    assert [info.name for info in twin.wait(client.topics("made"))] == ["made"]
    with pytest.raises(TopicError):
        twin.wait(client.topics("nowhere"))
    twin.wait(client.delete("made"))
    assert "made" not in [info.name for info in twin.wait(client.topics())]
    with pytest.raises(TopicError):
        twin.wait(client.delete("made"))


@pytest.mark.parametrize("name", ["", "a/b", "a\nb", "x" * 256, "\ud800"])
def test_a_name_that_no_topic_can_have_is_refused(twin, client, name):
    for call in (client.create, client.delete, lambda name: client.publish(name, b""), client.subscribe):
        with pytest.raises(TopicError):
            twin.wait(call(name))


def test_what_is_published_has_ids_keys_headers_and_times(twin, client, topic):
    before = time.time()
    assert twin.wait(client.publish(topic, b"one", key=b"k", headers={"source": b"demo"})) == 1
    assert twin.wait(client.publish(topic, memoryview(bytearray(b"two")))) == 2
    assert twin.wait(client.publish_many(topic, (b"%d" % n for n in range(3, 1000)))) == list(range(3, 1000))
    assert twin.wait(client.publish_many(topic, [])) == []
    first, second, *rest = twin.all(client.read(topic))
    assert (first.id, first.topic, first.body, first.key, first.headers) == (
        1,
        topic,
        b"one",
        b"k",
        {"source": b"demo"},
    )
    assert (second.body, second.key, second.headers) == (b"two", None, {})
    assert [(message.id, message.body) for message in rest] == [(n, b"%d" % n) for n in range(3, 1000)]
    assert before - 1 < first.timestamp < time.time() + 1


def test_a_body_is_bytes_and_no_larger_than_the_broker_takes(twin, client, topic):
    with pytest.raises(TypeError):
        twin.wait(client.publish(topic, "text"))
    with pytest.raises(TypeError):
        twin.wait(client.publish_many(topic, b"one body"))
    with pytest.raises(omq.MessageTooLarge) as caught:
        twin.wait(client.publish(topic, bytes((64 << 20) + 1)))
    assert isinstance(caught.value, TooLarge)
    assert twin.wait(client.publish(topic, b"")) == 1


def test_what_a_broker_refuses_comes_as_an_error(twin, client, topic, jobs):
    with pytest.raises(TopicError):
        twin.wait(client.publish("nowhere", b""))
    with pytest.raises(TopicError):
        twin.wait(client.publish_many("nowhere", [b""] * 1000))
    with pytest.raises(TopicError):
        twin.wait(client.subscribe("nowhere"))
    with pytest.raises(TopicError):
        twin.wait(client.subscribe(jobs))
    with pytest.raises(TopicError):
        twin.wait(client.consume(topic))
    with pytest.raises(TopicError):
        twin.wait(client.subscribe(topic, replay=99))
    with pytest.raises(TopicError):
        twin.all(client.read("nowhere"))
    for wrong in ({"replay": "never"}, {"replay": -1}, {"credit": 0}):
        with pytest.raises(ValueError):
            twin.wait(client.subscribe(topic, **wrong))
    for wrong in ({"ack_timeout": 0}, {"credit": 0}):
        with pytest.raises(ValueError):
            twin.wait(client.consume(jobs, **wrong))


def test_reading_is_bounded_by_ids_and_by_a_limit(twin, client, topic):
    twin.wait(client.publish_many(topic, [b"%d" % n for n in range(1, 501)]))

    def ids(*bounds: int | None, limit: int | None = None) -> list[int]:
        return [message.id for message in twin.all(client.read(topic, *bounds, limit=limit))]

    assert ids() == list(range(1, 501))
    assert ids(10, 13) == [10, 11, 12]
    assert ids(499) == [499, 500]
    assert ids(None, 3) == [1, 2]
    assert ids(300, limit=4) == [300, 301, 302, 303]
    assert ids(limit=400) == list(range(1, 401))
    for nothing in ((501,), (10, 10), (20, 10), (600, 700)):
        assert ids(*nothing) == []
    assert ids(limit=0) == []


def test_large_bodies_come_through_every_call(twin, client, topic):
    bodies = [bytes([n]) * size for n, size in enumerate([3 << 20, 1, 5 << 20, 100_000, 0, 9 << 20])]
    assert twin.wait(client.publish_many(topic, bodies)) == [1, 2, 3, 4, 5, 6]
    subscription = twin.wait(client.subscribe(topic, replay="earliest", credit=1 << 20))
    assert [message.body for message in twin.take(subscription, 6)] == bodies
    assert [message.body for message in twin.all(client.read(topic))] == bodies
    twin.wait(subscription.close())


def test_a_subscription_begins_at_its_replay(twin, client, topic):
    twin.wait(client.publish_many(topic, [b"a", b"b", b"c"]))
    current = twin.wait(client.subscribe(topic))
    beginning = twin.wait(client.subscribe(topic, replay="earliest"))
    second = twin.wait(client.subscribe(topic, replay=1))
    twin.wait(client.publish(topic, b"d"))
    assert [m.body for m in twin.take(current, 1)] == [b"d"]
    assert [m.body for m in twin.take(beginning, 4)] == [b"a", b"b", b"c", b"d"]
    assert [m.body for m in twin.take(second, 3)] == [b"b", b"c", b"d"]
    for one in (current, beginning, second):
        twin.wait(one.close())
        assert one.closed
        twin.wait(one.close())
        with pytest.raises(omq.ClosedError):
            twin.wait(one.recv())
        assert twin.all(one) == []


def test_recv_and_iteration_take_turns(twin, client, topic):
    twin.wait(client.publish_many(topic, [b"%d" % n for n in range(1, 11)]))
    with_next = twin.wait(client.subscribe(topic, replay="earliest"))
    got = [message.id for message in twin.take(with_next, 3)]
    got.append(twin.wait(with_next.recv()).id)
    got += [message.id for message in twin.take(with_next, 2)]
    got += [message.id for message in twin.wait(with_next.recv_many())]
    assert got == list(range(1, 11))
    with pytest.raises(omq.ReceiveTimeout):
        twin.wait(with_next.recv(timeout=0))
    with pytest.raises(omq.ReceiveTimeout):
        twin.wait(with_next.recv(timeout=0.05))
    with pytest.raises(ValueError):
        twin.wait(with_next.recv(timeout=-1))
    twin.wait(with_next.close())


def test_a_named_subscription_goes_on_at_its_position(twin, client, topic):
    twin.wait(client.publish_many(topic, [b"%d" % n for n in range(1, 11)]))
    first = twin.wait(client.subscribe(topic, replay="earliest", name="reader"))
    with pytest.raises(TopicError):
        twin.wait(client.subscribe(topic, name="reader"))
    messages = twin.take(first, 6)
    twin.call(first.ack, messages[3])
    twin.wait(first.close())
    second = twin.wait(client.subscribe(topic, replay="latest", name="reader"))
    assert second.name == "reader"
    assert [message.id for message in twin.take(second, 2)] == [5, 6]
    twin.call(second.ack, 9)
    twin.wait(second.close())
    third = twin.wait(client.subscribe(topic, name="reader"))
    assert [message.id for message in twin.take(third, 1)] == [10]
    twin.wait(third.close())
    unnamed = twin.wait(client.subscribe(topic))
    with pytest.raises(omq.StateError):
        twin.call(unnamed.ack, 1)
    twin.wait(unnamed.close())


def test_durable_subscriptions_are_listed_and_deleted(twin, client, topic):
    twin.wait(client.publish_many(topic, [b"x"] * 5))
    subscription = twin.wait(client.subscribe(topic, replay=2, name="reader"))
    (durable,) = twin.wait(client.durables(topic))
    assert (durable.name, durable.position, durable.lag, durable.held) == ("reader", 2, 3, True)
    with pytest.raises(TopicError):
        twin.wait(client.delete_durable(topic, "reader"))
    twin.wait(subscription.close())
    twin.wait(client.delete_durable(topic, "reader"))
    assert twin.wait(client.durables(topic)) == []


def test_a_name_is_free_once_its_holder_is_dropped(twin, client, topic):
    subscription = twin.wait(client.subscribe(topic, name="reader"))
    del subscription
    other = twin.wait(client.subscribe(topic, name="reader"))
    twin.wait(client.publish(topic, b"x"))
    assert [message.body for message in twin.take(other, 1)] == [b"x"]
    twin.wait(other.close())


def test_what_is_not_acknowledged_comes_again(twin, client, jobs):
    twin.wait(client.publish_many(jobs, [b"a", b"b", b"c"]))
    consumer = twin.wait(client.consume(jobs, credit=10))
    one, two, three = twin.take(consumer, 3)
    assert [(job.body, job.deliveries) for job in (one, two, three)] == [(b"a", 1), (b"b", 1), (b"c", 1)]
    twin.call(one.ack)
    twin.call(two.nack)
    (again,) = twin.take(consumer, 1)
    assert (again.id, again.body, again.deliveries) == (2, b"b", 2)
    twin.call(again.ack)
    twin.call(again.ack)  # does no harm
    twin.wait(consumer.close())
    with pytest.raises(omq.ClosedError):
        twin.call(three.ack)
    other = twin.wait(client.consume(jobs))
    (left,) = twin.take(other, 1)
    assert (left.body, left.deliveries) == (b"c", 2)
    twin.call(other.ack, [left])
    twin.wait(other.close())


def test_credit_bounds_what_is_delivered_ahead(twin, client, jobs):
    twin.wait(client.publish_many(jobs, [b"%d" % n for n in range(100)]))
    consumer = twin.wait(client.consume(jobs, credit=4))
    held = twin.take(consumer, 4)
    with pytest.raises(omq.ReceiveTimeout):
        twin.wait(consumer.recv(timeout=0.05))
    twin.call(held[0].ack)
    assert twin.wait(consumer.recv(timeout=10.0)).id == 5
    twin.wait(consumer.close())
    consumer = twin.wait(client.consume(jobs, credit=7))
    got = []
    while len(got) < 99:
        (job,) = twin.take(consumer, 1)
        twin.call(job.ack)
        got.append(job.id)
    assert sorted(got) == list(range(2, 101))
    twin.wait(consumer.close())


def test_acknowledgements_leave_though_no_call_follows(server, request):
    name = request.node.name
    with omq.broker.Client(server.endpoints["zmtp"], timeout=20.0) as client:
        client.create(name, delivery="round-robin", persistence="transient")
        client.publish_many(name, [b"x"] * 1000)
        other = omq.broker.Client(server.endpoints["zmtp"], timeout=20.0)
        consumer = other.consume(name, credit=1000)
        got = [consumer.recv(timeout=10.0) for _ in range(1000)]
        for job in got[:-1]:
            job.ack()  # one close upon the other
        until(lambda: not other._connection.core.unsent_consumers)
        other.topics()  # what left before has arrived
        other._connection._socket.stop()  # what is held is given back
        with client.consume(name) as rest:
            assert [rest.recv(timeout=10.0).id] == [1000]
        client.delete(name)


def test_what_a_program_acknowledged_is_known_though_it_ends_without_close(server, request):
    name = request.node.name
    program = (
        "import omq.broker, sys\n"
        "client = omq.broker.Client(sys.argv[1])\n"
        "jobs = client.consume(sys.argv[2])\n"
        "got = [jobs.recv(timeout=10) for _ in range(100)]\n"
        "for job in got: job.ack()\n"
    )
    with omq.broker.Client(server.endpoints["zmtp"], timeout=20.0) as client:
        client.create(name, delivery="round-robin", persistence="transient")
        for _ in range(3):
            client.publish_many(name, [b"x"] * 100)
            assert run("-c", program, server.endpoints["zmtp"], name).returncode == 0
        last = client.publish(name, b"last")
        with client.consume(name) as rest:
            assert [rest.recv(timeout=10.0).id] == [last]
        client.delete(name)


def test_all_that_share_a_stream_get_what_came_in_one_block(twin, client, jobs):
    consumer = twin.wait(client.consume(jobs))
    taking = twin.begin(consumer.recv, 4)
    twin.wait(client.publish_many(jobs, [b"a", b"b", b"c", b"d"]))
    assert sorted(job.body for job in taking()) == [b"a", b"b", b"c", b"d"]  # nothing is acknowledged in between
    twin.wait(consumer.close())


def test_a_delete_of_nothing_is_refused_as_a_first_call_too(twin, server):
    client = twin.Client(server.endpoints["zmtp"], timeout=20.0)
    with pytest.raises(TopicError):
        twin.wait(client.delete("nowhere"))
    twin.wait(client.close())


@pytest.mark.parametrize(
    ("record", "named"),
    [
        (Record("text"), "body='text': must be bytes or another contiguous buffer, not str"),  # type: ignore[arg-type]
        (Record(None), "body=None: "),  # type: ignore[arg-type]
        (Record(b"", key="k"), "key='k': must be bytes or None, not str"),  # type: ignore[arg-type]
        (Record(b"", headers={"n": "v"}), "headers['n']='v': must be bytes"),  # type: ignore[dict-item]
        (Record(b"", headers={1: b"v"}), "headers: a name must be a str, not int: 1"),  # type: ignore[dict-item]
    ],
    ids=["body", "none", "key", "value", "name"],
)
def test_a_part_of_a_message_with_a_wrong_type_is_named(twin, client, topic, record, named):
    with pytest.raises(TypeError, match=f"^{re.escape(named)}"):
        twin.wait(client.publish(topic, record.body, key=record.key, headers=record.headers))
    for call in (client.publish_many, functools.partial(client.stage, stage="s")):
        with pytest.raises(TypeError, match=f"^{re.escape(named)}"):
            twin.wait(call(topic, [b"", record]))
    with pytest.raises(TypeError, match=r"^body='text': "):
        twin.wait(client.publish_many(topic, [b"", "text"]))
    assert twin.wait(client.publish(topic, b"")) == 1


@pytest.mark.parametrize("call", ["ack", "nack"])
def test_a_consumer_takes_no_acks_for_another_one(twin, client, topic, jobs, call):
    """Its message with the same id would be acknowledged in place of the other's."""
    for name in (topic, jobs):
        twin.wait(client.publish_many(name, [b"1", b"2"]))
    consumer = twin.wait(client.consume(topic, group="g", replay="earliest"))
    other = twin.wait(client.consume(jobs))
    own, others = twin.take(consumer, 2), twin.take(other, 2)
    with pytest.raises(ValueError, match=f"^deliveries: message 2 of '{re.escape(jobs)}' was delivered to another"):
        twin.call(getattr(consumer, call), [own[0], others[1]])
    for wrong in (own[0], [1], list(twin.all(client.read(topic)))):
        with pytest.raises(TypeError, match=r"^deliveries: must be "):
            twin.call(getattr(consumer, call), wrong)
    twin.wait(client.flush())
    (group,) = twin.wait(client.groups(topic))
    assert (group.lag, group.in_flight) == (2, 2)
    twin.call(consumer.ack, own)
    twin.call(other.ack, others)
    twin.wait(client.flush())
    for one in (consumer, other):
        twin.wait(one.close())
    assert twin.wait(client.groups(topic))[0].lag == 0


def test_a_cursor_does_not_move_to_a_message_of_another_topic(twin, client, topic):
    other = f"{topic} 2"
    twin.wait(client.create(other, persistence="transient"))
    for name in (topic, other):
        twin.wait(client.publish_many(name, [b"1", b"2"]))
    subscription = twin.wait(client.subscribe(topic, name="n", replay="earliest"))
    with pytest.raises(ValueError, match=r"^message: is of topic "):
        twin.call(subscription.ack, twin.all(client.read(other))[-1])
    twin.wait(client.flush())
    assert twin.wait(client.durables(topic))[0].position == 0
    twin.call(subscription.ack, twin.all(client.read(topic))[-1])  # read by another call, but of this topic
    twin.wait(client.flush())
    assert twin.wait(client.durables(topic))[0].position == 2
    twin.wait(subscription.close())
    twin.wait(client.delete(other))


def test_arguments_that_do_not_fit_are_named(twin, client, topic, jobs):
    for wrong in (float("inf"), float("nan")):
        with pytest.raises(ValueError, match="ack_timeout"):
            twin.wait(client.consume(jobs, ack_timeout=wrong))
    with pytest.raises(TopicError, match="timeout=5: unknown setting 'timeout'; expected one of max_messages, "):
        twin.wait(client.create("t", timeout=5))


def test_what_is_given_back_is_not_handed_out(twin, server, client, jobs):
    twin.wait(client.publish_many(jobs, [b"%d" % n for n in range(6)]))
    consumer = twin.wait(client.consume(jobs))
    first = twin.wait(consumer.recv(timeout=20.0))
    client._connection._socket.stop()
    with omq.broker.Client(server.endpoints["zmtp"], timeout=20.0) as other, other.consume(jobs) as rest:
        done = [rest.recv(timeout=20.0) for _ in range(6)]
        rest.ack(done)
        other.publish(jobs, b"new")
        rest.close()
    twin.wait(client.publish(jobs, b"newer"))
    got = [twin.wait(consumer.recv(timeout=20.0)).body for _ in range(2)]
    assert (first.body, sorted(got)) == (b"0", [b"new", b"newer"])
    twin.wait(consumer.close())


def test_what_was_acknowledged_is_known_once_the_client_is_closed(twin, server, client, jobs):
    twin.wait(client.publish_many(jobs, [b"a", b"b"]))
    other = twin.Client(server.endpoints["zmtp"], timeout=20.0)
    consumer = twin.wait(other.consume(jobs))
    (job, _) = twin.take(consumer, 2)
    twin.call(job.ack)
    twin.wait(other.close())
    consumer = twin.wait(client.consume(jobs))
    assert [job.id for job in twin.take(consumer, 1)] == [2]
    twin.wait(consumer.close())


@pytest.mark.parametrize("call", ["publish", "publish_many"])
def test_a_flush_that_came_to_nothing_is_made_up_for(twin, server, client, jobs, topic, monkeypatch, call):
    twin.wait(client.publish(jobs, b"a job"))
    other = twin.Client(server.endpoints["zmtp"], timeout=20.0)
    consumer = twin.wait(other.consume(jobs))
    (job,) = twin.take(consumer, 1)
    twin.call(job.ack)
    asked = []
    monkeypatch.setitem(ClientSession._HANDLERS, b"FLUSH", (lambda _, tag, __: asked.append(tag), 0, 0))
    other._connection.timeout = 0.3
    with pytest.raises(BrokerTimeout):
        twin.wait(getattr(other, call)(topic, [b"x"] if call == "publish_many" else b"x"))
    monkeypatch.undo()
    assert asked
    assert other._connection.core.dirty
    other._connection.timeout = 20.0
    twin.wait(getattr(other, call)(topic, [b"x"] if call == "publish_many" else b"x"))
    assert not other._connection.core.dirty
    twin.wait(other.close())


def test_a_busy_broker_is_asked_again_and_the_order_holds(twin, client, topic, monkeypatch):
    asked = itertools.count()

    def take(session: ClientSession, size: int) -> None:
        if next(asked) in (0, 5, 6, 20, 22, 100):
            raise Busy("a busy moment")
        real(session, size)

    real = ClientSession._reserve
    monkeypatch.setattr(ClientSession, "_reserve", take)
    bodies = [b"%d " % n + bytes(n % 7 * 20_000) for n in range(300)]
    assert twin.wait(client.publish_many(topic, bodies)) == list(range(1, 301))
    assert twin.wait(client.publish(topic, b"one")) == 301
    assert next(asked) > 100
    assert [message.body for message in twin.all(client.read(topic))] == [*bodies, b"one"]


def test_a_broker_that_stays_busy_is_named_in_time(twin, server, client, topic, monkeypatch):
    def take(*_: object) -> None:
        raise Busy("always")

    monkeypatch.setattr(ClientSession, "_reserve", take)
    other = twin.Client(server.endpoints["zmtp"], timeout=0.3)
    with pytest.raises(BrokerTimeout, match="busy"):
        twin.wait(other.publish(topic, b"x"))
    with pytest.raises(BrokerTimeout, match="busy"):
        twin.wait(other.publish_many(topic, [b"x"] * 1000))
    monkeypatch.undo()
    assert twin.wait(other.publish(topic, b"y")) >= 1  # those whose time was up may be stored before it
    twin.wait(other.close())


def test_a_topic_that_is_deleted_ends_what_reads_it(twin, client, server):
    twin.wait(client.create("short-lived", persistence="transient"))
    twin.wait(client.publish("short-lived", b"a"))
    subscription = twin.wait(client.subscribe("short-lived", replay="earliest"))
    assert twin.wait(subscription.recv()).body == b"a"
    twin.wait(client.delete("short-lived"))
    with pytest.raises(TopicError):
        twin.wait(subscription.recv(timeout=20.0))
    assert subscription.closed


def test_what_retention_has_dropped_is_an_overrun(twin, client):
    twin.wait(client.create("bounded", persistence="transient", max_messages=10))
    for n in range(100):
        twin.wait(client.publish("bounded", b"%d" % n))
    with pytest.raises(Overrun):
        twin.wait(client.subscribe("bounded", replay=3))
    assert twin.all(client.read("bounded"))[-1].id == 100
    assert twin.all(client.read("bounded", 1))[0].id > 80
    twin.wait(client.delete("bounded"))


def test_a_broker_that_is_not_there_is_named_in_time(twin):
    client = twin.Client("tcp://127.0.0.1:9", timeout=0.2)
    start = time.monotonic()
    with pytest.raises(BrokerTimeout, match=r"tcp://127\.0\.0\.1:9.*refused"):
        twin.wait(client.publish("t", b""))
    with pytest.raises(omq.Timeout):
        twin.wait(client.subscribe("t"))
    assert time.monotonic() - start < 5
    twin.wait(client.close())
    twin.wait(client.close())
    with pytest.raises(omq.ClosedError):
        twin.wait(client.topics())
    with pytest.raises(omq.EndpointError):
        twin.Client("nowhere")
    with pytest.raises(omq.OptionError):
        twin.Client("tcp://127.0.0.1:9", no_such_option=1)
    with pytest.raises(ValueError):
        twin.Client("tcp://127.0.0.1:9", timeout=-1)


def test_the_wait_for_a_silent_broker_times_out(twin):
    with omq.ROUTER(bind="tcp://127.0.0.1:*") as mute:
        client = twin.Client(mute.endpoints[0], timeout=0.2)
        with pytest.raises(BrokerTimeout):
            twin.wait(client.topics())
        twin.wait(client.close())


def test_a_broker_that_talks_nonsense_is_given_up(twin):
    with omq.ROUTER(bind="tcp://127.0.0.1:*") as strange:

        def talk() -> None:
            for _ in range(3):
                name, *_ = strange.recv_multipart(timeout=20.0)
                strange.send_multipart([name, b"BLOCK"])

        talking = threading.Thread(target=talk)
        talking.start()
        client = twin.Client(strange.endpoints[0], timeout=1.0)
        with pytest.raises(BrokerTimeout):
            twin.wait(client.topics())
        talking.join()
        twin.wait(client.close())


def test_a_secured_broker_lets_in_who_has_a_key(twin):
    public, secret = omq.curve_keypair()
    mine, my_secret = omq.curve_keypair()
    security = omq.CurveServer(secret, authorize={mine})
    with Server(memory=True, bind="tcp://127.0.0.1:*", security=security) as server:
        right = omq.CurveClient(public, public_key=mine, secret_key=my_secret)
        client = twin.Client(server.endpoints["zmtp"], timeout=20.0, security=right)
        twin.wait(client.create("t", persistence="transient"))
        assert twin.wait(client.publish("t", b"a" * 100_000)) == 1
        twin.wait(client.close())
        for timeout in (20.0, None):
            stranger = twin.Client(server.endpoints["zmtp"], timeout=timeout, security=omq.CurveClient(public))
            start = time.monotonic()
            with pytest.raises(PermissionDenied, match="has rejected this client"):
                twin.wait(stranger.topics())
            with pytest.raises(PermissionDenied):
                twin.wait(stranger.subscribe("t"))
            assert time.monotonic() - start < 10.0
            twin.wait(stranger.close())
        other = twin.Client(server.endpoints["zmtp"], timeout=0.5)  # without security
        with pytest.raises(BrokerTimeout, match="no handshake has succeeded"):
            twin.wait(other.topics())
        twin.wait(other.close())


@pytest.mark.parametrize("kind", [omq.REP, omq.ROUTER, omq.DEALER])
def test_an_endpoint_of_another_program_is_named_as_such(twin, kind):
    with kind(bind="tcp://127.0.0.1:*") as other:
        client = twin.Client(other.endpoints[0], timeout=0.5)
        with pytest.raises(
            BrokerTimeout, match=f"^{other.endpoints[0]}: connected, but no broker has answered in time"
        ):
            twin.wait(client.topics())
        twin.wait(client.close())


def test_a_forked_child_gets_an_error(twin, client, topic):
    subscription = twin.wait(client.subscribe(topic))
    twin.wait(client.publish_many(topic, [b"1", b"2", b"3"]))
    assert twin.wait(subscription.recv()).body == b"1"
    child = os.fork()
    if child == 0:
        status = 1
        try:
            client.closed  # noqa: B018
            try:
                twin.step(subscription.recv)
            except omq.StateError:
                status = 0
            if twin.name == "blocking":
                client.close()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert [message.body for message in twin.take(subscription, 2)] == [b"2", b"3"]
    twin.wait(subscription.close())


# ------------------------------------------------------------------ the blocking one and its threads


@pytest.fixture
def blocking(server: Server) -> Iterator[omq.broker.Client]:
    with omq.broker.Client(server.endpoints["zmtp"], timeout=20.0) as client:
        yield client


def test_one_thread_publishes_while_others_iterate(blocking):
    blocking.create("threads", persistence="transient")
    got: list[list[int]] = [[] for _ in range(3)]

    def read(mine: list[int]) -> None:
        subscription = blocking.subscribe("threads", replay="earliest")
        for message in subscription:
            mine.append(message.id)
            if message.id == 300:
                return

    threads = [threading.Thread(target=read, args=(mine,)) for mine in got]
    for thread in threads:
        thread.start()
    for n in range(300):
        assert blocking.publish("threads", b"%d" % n) == n + 1
    for thread in threads:
        thread.join(20)
    assert got == [list(range(1, 301))] * 3
    blocking.delete("threads")


def test_threads_share_a_subscription_and_a_client(blocking):
    blocking.create("shared", persistence="transient")
    subscription = blocking.subscribe("shared", replay="earliest")
    got: list[int] = []

    def publish() -> None:
        for _ in range(20):
            blocking.publish_many("shared", [b"x"] * 10)

    def read() -> None:
        got.extend(message.id for message in subscription)

    threads = [threading.Thread(target=work) for work in (publish, publish, publish)]
    readers = [threading.Thread(target=read) for _ in range(2)]
    for thread in [*threads, *readers]:
        thread.start()
    for thread in threads:
        thread.join(20)
    until(lambda: len(got) >= 600)
    subscription.close()
    for thread in readers:
        thread.join(20)
        assert not thread.is_alive()
    assert sorted(got) == list(range(1, 601))
    blocking.delete("shared")


def test_closing_a_client_ends_the_calls_of_other_threads(server):
    client = omq.broker.Client(server.endpoints["zmtp"], timeout=20.0)
    client.create("quiet", persistence="transient")
    ended: list[object] = []

    def iterate() -> None:
        ended.append(list(client.subscribe("quiet")))

    def wait() -> None:
        try:
            client.subscribe("quiet").recv()
        except omq.ClosedError as error:
            ended.append(error)

    threads = [threading.Thread(target=work) for work in (iterate, wait)]
    for thread in threads:
        thread.start()
    until(lambda: len(client._connection.core._streams) == 2 and len(client._connection._waiters) == 1)
    client.close()
    for thread in threads:
        thread.join(20)
    assert len(ended) == 2
    assert [] in ended


def test_what_a_dropped_consumer_had_goes_to_others_while_another_call_waits(blocking, server):
    blocking.create("dropped", delivery="round-robin", persistence="transient")
    blocking.create("quiet", persistence="transient")
    quiet = blocking.subscribe("quiet")
    waiting = threading.Thread(target=list, args=(quiet,))
    waiting.start()
    consumer = blocking.consume("dropped")
    blocking.publish_many("dropped", [b"a", b"b"])
    assert consumer.recv(timeout=20.0).id == 1
    with omq.broker.Client(server.endpoints["zmtp"], timeout=20.0) as client:
        other = client.consume("dropped")
        del consumer  # and no call follows
        gc.collect()  # its jobs have it
        assert sorted(other.recv(timeout=20.0).id for _ in range(2)) == [1, 2]
        client.delete("dropped")
    quiet.close()
    waiting.join(20)
    blocking.delete("quiet")


def test_a_reading_that_is_dropped_leaves_nothing(blocking):
    blocking.create("half read", persistence="transient")
    blocking.publish_many("half read", [bytes(1 << 20)] * 8)
    reading = blocking.read("half read")
    assert next(reading).id == 1
    core = blocking._connection.core
    assert core._requests
    del reading
    blocking.topics()
    assert not core._requests
    blocking.delete("half read")


def test_stages_are_published_at_once_and_every_step_may_be_repeated(twin, client, topic):
    other = f"{topic} too"
    one, two, never, commit = (f"{twin.name}/{name}" for name in ("1/0/0", "1/1/0", "1/1/1", "1"))
    twin.wait(client.create(other, persistence="weak"))
    big = [b"%d " % n + b"x" * 30_000 for n in range(20)]
    for _ in range(2):
        following = twin.wait(client.stage(topic, big, one))
        assert following > 2
        assert twin.wait(client.stage(topic, [b"last"], one, sequence=following)) == following + 1
        records = [omq.broker.Record(b"a", b"k", {"h": b"1"}), b"b", omq.broker.Record(b"c")]
        assert twin.wait(client.stage(other, records, two)) == 2
        twin.wait(client.stage(other, [b"never"], never))
        twin.wait(client.abort(never))
        assert not twin.all(client.read(topic))
    for _ in range(2):
        done = twin.wait(client.commit(commit, [one, two]))
        assert done == [Committed(one, topic, 1, 21), Committed(two, other, 1, 3)]
        twin.wait(client.abort(two))
    assert [message.body for message in twin.all(client.read(topic))] == [*big, b"last"]
    assert [(message.body, message.key, message.headers) for message in twin.all(client.read(other))] == [
        (b"a", b"k", {"h": b"1"}),
        (b"b", None, {}),
        (b"c", None, {}),
    ]
    with pytest.raises(BrokerError, match="never made"):
        twin.wait(client.commit(f"{commit} more", ["never made"]))
    with pytest.raises(TopicError):
        twin.wait(client.stage("nowhere", [b"x"], one))
    twin.wait(client.delete(other))


@pytest.mark.parametrize(
    ("call", "arguments"), [("stage", ("t", [b"x"], "")), ("commit", ("", ["s"])), ("abort", ("",))]
)
def test_a_name_that_no_stage_has_is_refused(twin, client, call, arguments):
    with pytest.raises(ValueError, match="has 0 bytes; 1 to 255 are allowed"):
        twin.wait(getattr(client, call)(*arguments))


def test_what_is_one_where_several_are_expected_is_refused(twin, client):
    with pytest.raises(TypeError):
        twin.wait(client.commit("c", "s"))
    with pytest.raises(TypeError):
        twin.wait(client.stage("t", b"x", "s"))
    with pytest.raises(ValueError, match="sequence=0: must be a whole number, at least 1"):
        twin.wait(client.stage("t", [b"x"], "s", sequence=0))


@pytest.mark.parametrize("decoded", [False, True])
def test_what_was_acknowledged_after_its_time_is_not_handed_out_again(twin, client, jobs, decoded):
    twin.wait(client.publish_many(jobs, [b"a", b"b", b"c"]))
    consumer = twin.wait(client.consume(jobs, ack_timeout=0.05, credit=6))
    taken = twin.take(consumer, 3)
    until(lambda: twin.wait(client.topics()) and consumer._stream.queue)  # they came again
    if decoded:
        taken.append(twin.wait(consumer.recv(timeout=20.0)))
        assert taken[3].id in [one.id for one in taken[:3]]
    for job in taken:
        twin.call(job.ack)
    with pytest.raises(omq.ReceiveTimeout):
        twin.wait(consumer.recv(timeout=0.2))
    twin.wait(consumer.close())
    consumer = twin.wait(client.consume(jobs))
    with pytest.raises(omq.ReceiveTimeout):
        twin.wait(consumer.recv(timeout=0.1))
    twin.wait(consumer.close())


def test_a_publish_returns_once_earlier_acknowledgements_are_durable(blocking, server):
    blocking.create("work", delivery="round-robin", persistence="transient")
    blocking.create("results", persistence="transient")
    blocking.publish_many("work", [b"a", b"b"])
    consumer = blocking.consume("work")
    consumer.recv(timeout=20.0).ack()
    assert blocking._connection.core.dirty
    blocking.publish("results", b"of a")
    assert not blocking._connection.core.dirty
    blocking._connection._socket.stop()  # the connection is lost: what was not acknowledged comes again
    assert consumer.recv(timeout=20.0).body == b"b"
    consumer.close()
    blocking.delete("work")
    blocking.delete("results")


class _Raised(Exception):
    """The exception of a signal handler."""


@functools.cache
def _behind_calls(code: Any) -> frozenset[int]:
    """Returns the offsets where signal handlers run: after each call."""
    return frozenset(
        then.offset for call, then in itertools.pairwise(dis.get_instructions(code)) if call.opname == "CALL"
    )


def _raising_at(place: int) -> Any:
    """A trace function that raises behind the *place*-th call amid the taking of a block."""
    steps = itertools.count()

    def trace(frame: Any, event: str, argument: object) -> Any:
        if frame.f_code.co_name not in ("_load", "_release_block", "take_block"):
            return trace if event == "call" and "broker" in frame.f_code.co_filename else None
        frame.f_trace_opcodes = True
        if event == "opcode" and frame.f_lasti in _behind_calls(frame.f_code) and next(steps) == place:
            raise _Raised
        return trace

    return trace


def test_an_exception_amid_the_taking_of_a_block_costs_no_message(server, request):
    """A signal handler may raise anywhere; sockets promise the same (zmq_recv(3), EINTR)."""
    name = request.node.name
    with omq.broker.Client(server.endpoints["zmtp"], timeout=20.0) as client:
        client.create(name, persistence="transient")
        before = sys.gettrace()
        for place in itertools.count():
            with client.subscribe(name) as subscription:
                bodies = [b"%d %d" % (place, number) for number in range(3)]
                client.publish_many(name, bodies)
                raised = False
                found = []
                sys._getframe().f_trace_opcodes = True  # Python 3.12.1 asks for opcodes where a frame wants them by now
                sys.settrace(_raising_at(place))
                try:
                    found.append(subscription.recv(timeout=10).body)
                except _Raised:
                    raised = True
                finally:
                    sys.settrace(before)
                while len(found) < 3:
                    found.append(subscription.recv(timeout=10).body)
                assert found == bodies
                with pytest.raises(omq.ReceiveTimeout):
                    subscription.recv(timeout=0)
            if not raised:
                break
        assert place > 10
        client.delete(name)


@pytest.mark.parametrize("way", ["recv", "recv_many", "iterate"])
def test_an_exception_amid_the_handing_out_costs_no_message(server, monkeypatch, way):
    name = f"amid the handing out: {way}"
    real, steps = omq.broker.Consumer._is_current, itertools.count()

    def counts(self: Any, message: Any) -> bool:
        if next(steps) == 7:
            raise _Raised
        return real(self, message)

    def take(jobs: Any, found: list[bytes]) -> None:
        while len(found) < 20:
            if way == "recv":
                found.append(jobs.recv(timeout=5).body)
            elif way == "recv_many":
                found += [job.body for job in jobs.recv_many(timeout=5)]
            else:
                found.append(next(iter(jobs)).body)

    monkeypatch.setattr(omq.broker.Consumer, "_is_current", counts)
    with omq.broker.Client(server.endpoints["zmtp"], timeout=20.0) as client:
        client.create(name, delivery="round-robin", persistence="transient")
        client.publish_many(name, [b"%d" % number for number in range(20)])
        found: list[bytes] = []
        with client.consume(name) as jobs:
            with pytest.raises(_Raised):
                take(jobs, found)
            take(jobs, found)
        assert found == [b"%d" % number for number in range(20)]
        client.delete(name)


def _raising_in(files: tuple[str, ...], place: int) -> Any:
    """A trace function that raises behind the *place*-th call in these files."""
    steps = itertools.count()

    def trace(frame: Any, event: str, argument: object) -> Any:
        if not frame.f_code.co_filename.endswith(files):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and frame.f_lasti in _behind_calls(frame.f_code) and next(steps) == place:
            sys.settrace(None)
            raise _Raised
        return trace

    return trace


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")  # it raises before one begins, too
@pytest.mark.parametrize("kind", ["subscribe", "consume"])
def test_what_reads_is_given_up_whole_where_an_exception_leaves_its_beginning(server, kind):
    name = f"the beginning of {kind}"
    delivery = "round-robin" if kind == "consume" else "broadcast"
    with omq.broker.Client(server.endpoints["zmtp"], timeout=20.0) as client:
        client.create(name, delivery=delivery, persistence="transient")
        core = client._connection.core
        before = sys.gettrace()
        for place in itertools.count():
            raised = False
            sys.settrace(_raising_in(("client/streams.py", "client/calls.py"), place))
            try:
                reader = getattr(client, kind)(name)
            except _Raised:
                raised = True
            finally:
                sys.settrace(before)
            if not raised:
                break
            gc.collect()
            client.topics()
            assert not core._streams, place
            assert not core._requests, place
        assert place > 5
        reader.close()
        client.delete(name)


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")  # it raises before one begins, too
def test_a_publish_that_an_exception_leaves_is_not_made_later(server, request):
    name = request.node.name
    with omq.broker.Client(server.endpoints["zmtp"], timeout=20.0) as client:
        client.create(name, persistence="transient")
        core = client._connection.core
        before = sys.gettrace()
        for place in range(80):
            files = "client/connection.py", "client/calls.py", "client/client.py", "client/client_protocol.py"
            sys.settrace(_raising_in(files, place))
            try:
                client.publish(name, b"interrupted")
            except _Raised:
                pass
            finally:
                sys.settrace(before)
            assert not core._requests, place
            assert not core._appends, place
            assert (core.in_flight_bytes, core._in_flight_requests) == (0, 0), place
            client.publish(name, b"later")
        client.delete(name)


@pytest.mark.parametrize("how", ["consumer", "client"])
def test_a_signal_handler_closes_what_its_thread_waits_for(server, how):
    name = f"a handler closes the {how}"
    with omq.broker.Client(server.endpoints["zmtp"], timeout=20.0) as client:
        client.create(name, delivery="round-robin", persistence="transient")
        client.publish_many(name, [b"x"] * 3)
        other = omq.broker.Client(server.endpoints["zmtp"], timeout=None)
        jobs = other.consume(name)
        order: list[str] = []

        def handle(number: int, frame: object) -> None:
            with pytest.raises(omq.StateError, match="signal handler"):
                other.publish(name, b"going down")
            (jobs if how == "consumer" else other).close()
            order.append("closed")

        before = signal.signal(signal.SIGALRM, handle)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.5)
            start = time.monotonic()
            for job in jobs:
                job.ack()
            assert time.monotonic() - start < 10.0
        finally:
            signal.signal(signal.SIGALRM, before)
        assert order == ["closed"]
        assert other.closed is (how == "client")
        other.close()
        last = client.publish(name, b"last")
        with client.consume(name) as rest:
            assert [rest.recv(timeout=10.0).id] == [last]
        client.delete(name)


def test_nothing_is_staged_and_committed_without_a_word(twin, client, topic):
    assert twin.wait(client.stage(topic, [], "nothing")) == 1
    assert twin.wait(client.stage(topic, [], "nothing", sequence=7)) == 7
    assert twin.wait(client.commit("of nothing", [])) == []


@pytest.mark.parametrize("name", [b"bytes", None, 3])
def test_a_name_that_is_no_string_is_named(twin, client, topic, name):
    calls = [
        lambda: client.create(name),
        lambda: client.alter(name),
        lambda: client.delete(name),
        lambda: client.durables(name),
        lambda: client.delete_durable(topic, name),
        lambda: client.publish(name, b"x"),
        lambda: client.publish_many(name, [b"x"]),
        lambda: client.subscribe(name),
        lambda: client.consume(name),
        lambda: client.stage(topic, [b"x"], name),
        lambda: client.stage(name, [b"x"], "stage"),
        lambda: client.commit(name, ["stage"]),
        lambda: client.commit("commit", [name]),
        lambda: client.abort(name),
    ]
    for call in calls:
        with pytest.raises(TypeError, match=f"name must be a string, not {name!r}"):
            twin.wait(call())


def test_a_signal_handler_amid_anything_else_closes_and_is_refused_the_rest(server):
    """A handler may strike while its own thread has the client's lock: nothing may wait for that thread then."""
    name = "a handler amid a call"
    with omq.broker.Client(server.endpoints["zmtp"], timeout=20.0) as client:
        client.create(name, delivery="round-robin", persistence="transient")
        client.publish_many(name, [b"x"] * 3)
        other = omq.broker.Client(server.endpoints["zmtp"], timeout=20.0)
        jobs = other.consume(name)
        job = jobs.recv(timeout=10.0)
        order: list[str] = []

        def handle(number: int, frame: object) -> None:
            for what in (lambda: other.publish(name, b"going down"), job.ack, other.topics):
                with pytest.raises(omq.StateError, match="signal handler"):
                    what()
            jobs.close()
            other.close()
            order.append("closed")

        before = signal.signal(signal.SIGALRM, handle)
        try:
            with other._connection.lock:
                signal.raise_signal(signal.SIGALRM)
                assert order == ["closed"]
                assert not other.closed
        finally:
            signal.signal(signal.SIGALRM, before)
        for thread in threading.enumerate():
            if thread.name == "omq-broker-close":
                thread.join(20.0)
        assert other.closed
        with client.consume(name) as rest:
            assert sorted(rest.recv(timeout=10.0).id for _ in range(3)) == [1, 2, 3]


@pytest.fixture
def jobs_with(twin: Any, client: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    """Makes a round-robin topic with settings."""
    made: list[str] = []

    def make(**settings: Any) -> str:
        made.append(f"bounded {request.node.name}")
        twin.wait(client.create(made[0], delivery="round-robin", persistence="transient", **settings))
        return made[0]

    yield make
    for name in made:
        twin.wait(client.delete(name))


def test_a_full_work_queue_refuses_what_is_published(twin, client, jobs_with):
    jobs = jobs_with(max_messages=3)
    assert twin.wait(client.publish_many(jobs, [b"a", b"b", b"c"])) == [1, 2, 3]
    with pytest.raises(StoreFull, match="max_messages=3"):
        twin.wait(client.publish(jobs, b"d"))
    with pytest.raises(StoreFull, match="no room for 5 more"):
        twin.wait(client.publish_many(jobs, [b"x"] * 5))
    consumer = twin.wait(client.consume(jobs))
    for job in twin.take(consumer, 3):
        twin.call(job.ack)
    twin.wait(client.flush())
    assert twin.wait(client.publish(jobs, b"d")) == 4
    twin.wait(consumer.close())


def test_publishers_of_a_full_topic_wait_within_their_timeout(twin, client, server, jobs_with):
    jobs = jobs_with(max_messages=2, overflow="block")
    twin.wait(client.publish_many(jobs, [b"a", b"b"]))
    hasty = twin.Client(server.endpoints["zmtp"], timeout=0.3)
    with pytest.raises(BrokerTimeout):
        twin.wait(hasty.publish(jobs, b"given up"))
    bodies = []
    with omq.broker.Client(server.endpoints["zmtp"], timeout=20.0) as worker, worker.consume(jobs) as consumer:

        def work() -> None:
            for _ in range(20):
                job = consumer.recv(timeout=20.0)
                bodies.append(job.body)
                job.ack()
                time.sleep(0.005)

        working = threading.Thread(target=work)
        working.start()
        ids = twin.wait(client.publish_many(jobs, [b"%d" % number for number in range(10)], in_flight=1))
        ids += [twin.wait(client.publish(jobs, b"x")) for _ in range(8)]
        working.join(20)
        assert not working.is_alive()
    assert ids == sorted(set(ids))
    assert b"given up" not in bodies
    twin.wait(hasty.close())


def test_publishers_try_again_where_too_much_waits_in_full_topics(twin, client, server, jobs_with, monkeypatch):
    monkeypatch.setattr("omq.broker.core.topic.MAX_TOTAL_HELD_BYTES", 2 * HELD_OVERHEAD_BYTES)
    jobs = jobs_with(max_messages=1, overflow="block")
    broker = server._server.broker
    before = broker.refused.get("busy", 0)
    published: list[list[int]] = [[] for _ in range(4)]

    def publish(ids: list[int]) -> None:
        with omq.broker.Client(server.endpoints["zmtp"], timeout=20.0) as other:
            ids += [other.publish(jobs, b"x") for _ in range(5)]

    publishers = [threading.Thread(target=publish, args=(ids,)) for ids in published]
    for publisher in publishers:
        publisher.start()
    until(lambda: broker.refused.get("busy", 0) >= before + 2)  # one is stored, one waits for room
    consumer = twin.wait(client.consume(jobs))
    for _ in range(20):
        twin.call(twin.wait(consumer.recv(timeout=20.0)).ack)
    for publisher in publishers:
        publisher.join(20)
    assert sorted(id for ids in published for id in ids) == list(range(1, 21))
    assert all(ids == sorted(ids) for ids in published)
    assert broker.held.used == 0
    twin.wait(consumer.close())


@pytest.mark.parametrize("in_flight", [None, 1, 2])
def test_all_that_was_given_up_together_is_not_stored(twin, client, server, jobs_with, in_flight):
    """Also where the client makes no other call."""
    jobs = jobs_with(max_messages=2, overflow="block")
    twin.wait(client.publish_many(jobs, [b"a", b"b"]))
    hasty = twin.Client(server.endpoints["zmtp"], timeout=0.3)
    with pytest.raises(BrokerTimeout):
        twin.wait(hasty.publish_many(jobs, [bytes(1 << 20)] * 5, in_flight=in_flight))

    def waiting() -> int:
        one = next(one for one in server._server.broker.stats()["topics"] if one["name"] == jobs)
        return int(one["blocked"])

    until(lambda: waiting() == 0, lambda: f"{waiting()} wait")
    with omq.broker.Client(server.endpoints["zmtp"], timeout=20.0) as worker, worker.consume(jobs) as consumer:
        for body in (b"a", b"b"):
            job = consumer.recv(timeout=20.0)
            assert job.body == body
            job.ack()
        worker.flush()
        assert worker.publish(jobs, b"c") == 3
        assert consumer.recv(timeout=20.0).body == b"c"
    twin.wait(hasty.close())


def test_a_job_that_fails_lets_others_pass(twin, client, jobs_with):
    jobs = jobs_with(retry_delay=0.2)
    twin.wait(client.publish_many(jobs, [b"bad", b"good"]))
    consumer = twin.wait(client.consume(jobs, credit=1))
    got = []
    for _ in range(3):
        job = twin.wait(consumer.recv(timeout=20.0))
        got.append((job.body, job.deliveries))
        twin.call(job.nack if job.body == b"bad" else job.ack)
    assert got == [(b"bad", 1), (b"good", 1), (b"bad", 2)]
    twin.wait(consumer.close())


def test_a_delay_of_its_own(twin, client, jobs):
    twin.wait(client.publish_many(jobs, [b"a", b"b"]))
    consumer = twin.wait(client.consume(jobs))
    first, second = twin.take(consumer, 2)
    for wrong, error in ((-1, ValueError), ("1", TypeError), (float("nan"), ValueError), (True, TypeError)):
        with pytest.raises(error, match="delay="):
            twin.call(functools.partial(first.nack, delay=wrong))
    twin.call(functools.partial(first.nack, delay=60))
    twin.call(functools.partial(consumer.nack, [second], delay=0))
    again = twin.wait(consumer.recv(timeout=20.0))
    assert (again.id, again.deliveries) == (second.id, 2)
    with pytest.raises(omq.ReceiveTimeout):
        twin.wait(consumer.recv(timeout=0.1))
    twin.call(again.ack)
    twin.call(first.ack)  # late, and no other consumer has it
    twin.wait(client.flush())
    twin.wait(consumer.close())
    consumer = twin.wait(client.consume(jobs))
    with pytest.raises(omq.ReceiveTimeout):
        twin.wait(consumer.recv(timeout=0.1))
    twin.wait(consumer.close())


def test_a_job_in_progress_keeps_its_time(twin, client, jobs):
    twin.wait(client.publish_many(jobs, [b"a", b"b"]))
    consumer = twin.wait(client.consume(jobs, ack_timeout=1.0))
    first, second = twin.take(consumer, 2)
    for _ in range(4):
        time.sleep(0.3)
        twin.call(first.in_progress)
    with pytest.raises(omq.ReceiveTimeout):
        twin.wait(consumer.recv(timeout=0))
    for job in (first, second):
        twin.call(job.ack)
    twin.wait(consumer.close())


def test_a_flush_returns_when_everything_is_recorded(twin, client, server, jobs, topic):
    twin.wait(client.publish_many(jobs, [b"%d" % number for number in range(1000)]))
    twin.wait(client.publish(topic, b"x"))
    consumer = twin.wait(client.consume(jobs, credit=1000))
    subscription = twin.wait(client.subscribe(topic, name="n", replay="earliest"))
    twin.call(subscription.ack, twin.wait(subscription.recv(timeout=20.0)))
    for job in twin.take(consumer, 1000):
        twin.call(job.ack)
    twin.wait(client.flush(timeout=20.0))
    assert not client._connection.core.dirty
    assert [one.position for one in twin.wait(client.durables(topic))] == [1]
    twin.wait(consumer.close())
    twin.wait(subscription.close())
    with pytest.raises(ValueError, match="timeout=-1"):
        twin.wait(client.flush(timeout=-1))


def test_a_signal_handler_that_raises_leaves_no_coroutine_that_was_never_awaited(server):
    def interrupt(*_: object) -> None:
        if armed:
            raise _Raised

    armed = False
    raised = 0
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with (
            warnings.catch_warnings(record=True) as caught,
            omq.broker.Client(server.endpoints["zmtp"], timeout=20.0) as client,
        ):
            warnings.simplefilter("always")
            client.create("storm", persistence="transient")
            while raised < 1000:
                try:
                    armed = True
                    signal.setitimer(signal.ITIMER_REAL, 1e-6 * (1 + raised % 100))
                    client.topics("storm")
                    client.flush()
                    client.publish("storm", b"x")
                except _Raised:
                    raised += 1
                finally:
                    armed = False
                    signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert not [str(one.message) for one in caught if "never awaited" in str(one.message)]


@pytest.mark.parametrize("how", ["time is up", "cancelled", "a signal handler raises"])
def test_a_flush_that_is_given_up_keeps_no_other_call_waiting(server, monkeypatch, how):
    """One call has asked for it, another one waits for it, too."""
    handler, *rest = ClientSession._HANDLERS[b"FLUSH"]
    asked = itertools.count()

    def once_deaf(session: ClientSession, tag: bytes, parts: Any) -> None:
        if next(asked):
            handler(session, tag, parts)

    monkeypatch.setitem(ClientSession._HANDLERS, b"FLUSH", (once_deaf, *rest))
    if how == "cancelled":
        asyncio.run(_cancel_a_flush(server))
        return
    with omq.broker.Client(server.endpoints["zmtp"], timeout=20.0) as client:
        client.create("given up", delivery="round-robin", persistence="transient")
        client.publish("given up", b"x")
        with client.consume("given up") as consumer:
            consumer.recv(timeout=20.0).ack()

            def second() -> None:
                until(lambda: client._connection.core.flushing is not None)
                client.flush()

            with ThreadPoolExecutor(1) as pool:
                other = pool.submit(second)
                if how == "time is up":
                    with pytest.raises(BrokerTimeout):
                        client.flush(timeout=0.5)
                else:

                    def interrupt(*_: object) -> None:
                        raise _Raised

                    before = signal.signal(signal.SIGALRM, interrupt)
                    try:
                        signal.setitimer(signal.ITIMER_REAL, 0.5)
                        with pytest.raises(_Raised):
                            client.flush()
                    finally:
                        signal.signal(signal.SIGALRM, before)
                other.result(timeout=10.0)
            assert not client._connection.core.dirty
        client.delete("given up")


async def _cancel_a_flush(server: Server) -> None:
    async with omq.asyncio.broker.Client(server.endpoints["zmtp"], timeout=20.0) as client:
        await client.create("given up", delivery="round-robin", persistence="transient")
        await client.publish("given up", b"x")
        async with await client.consume("given up") as consumer:
            (await consumer.recv(timeout=20.0)).ack()
            first, second = (asyncio.ensure_future(client.flush()) for _ in range(2))
            await asyncio.sleep(0.1)
            first.cancel()
            await asyncio.wait_for(second, 10.0)
            assert not client._connection.core.dirty
        await client.delete("given up")


def test_a_flush_without_a_broker_times_out(twin):
    with Server(memory=True, topics=["j:round-robin:transient"]) as server:
        client = twin.Client(server.endpoints["zmtp"], timeout=20.0)
        twin.wait(client.publish("j", b"x"))
        consumer = twin.wait(client.consume("j"))
        (job,) = twin.take(consumer, 1)
    twin.call(job.ack)
    with pytest.raises(BrokerTimeout):
        twin.wait(client.flush(timeout=0.2))
    client._connection.timeout = 0.1
    with pytest.raises(BrokerTimeout):
        twin.wait(client.close())


def test_an_acknowledgement_can_be_awaited(server):
    asyncio.run(_await_acknowledgements(server))


async def _await_acknowledgements(server):
    async with omq.asyncio.broker.Client(server.endpoints["zmtp"], timeout=20.0) as client:
        await client.create("awaited", delivery="round-robin", persistence="transient")
        await client.publish_many("awaited", [b"x"] * 100)
        async with await client.consume("awaited") as consumer:
            jobs = [await consumer.recv() for _ in range(100)]
            flushes: list[bytes] = []
            asked = client._connection.core._flush
            client._connection.core._flush = lambda: (flushes.append(b""), asked())[1]  # type: ignore[method-assign]
            await asyncio.gather(*(asyncio.ensure_future(_awaited(job)) for job in jobs))
            assert 1 <= len(flushes) < 20, "they share flushes"
            assert not client._connection.core.dirty
            await jobs[0].ack()
            await consumer.nack([])
        await client.delete("awaited")


async def _awaited(job: Any) -> None:
    await job.ack()


@pytest.mark.parametrize(
    ("kind", "end"), [("subscription", "taken over"), ("subscription", "deleted"), ("consumer", "deleted")]
)
def test_an_awaited_acknowledgement_that_the_broker_ignores_is_an_error(server, kind, end):
    asyncio.run(_await_ignored_acknowledgement(server, kind, end))


async def _await_ignored_acknowledgement(server, kind, end):
    endpoint = server.endpoints["zmtp"]
    with omq.broker.Client(endpoint, timeout=20.0) as other:  # it blocks the loop, which reads its connection later
        async with omq.asyncio.broker.Client(endpoint, timeout=20.0) as client:
            await client.create("ignored", persistence="transient")
            await client.publish("ignored", b"x")
            stream: Any
            if kind == "consumer":
                stream = await client.consume("ignored", group="g", replay="earliest")
            else:
                stream = await client.subscribe("ignored", name="n", replay="earliest")
            message = await stream.recv(timeout=20.0)
            if end == "deleted":
                other.delete("ignored")
            else:
                other.subscribe("ignored", name="n", take_over=True)
            assert not stream.closed, "the client does not know it yet"
            recorded = stream.ack([message] if kind == "consumer" else message)
            for _ in range(2):
                with pytest.raises(TopicError if end == "deleted" else TakenOver):
                    await recorded
            if end == "taken over":
                assert other.durables("ignored")[0].position == 0
                await client.delete("ignored")


LEAVES = """
import asyncio, os, signal, sys, time
import omq.asyncio.broker as broker

async def main():
    async with broker.Client(sys.argv[1]) as client:
        jobs = await client.consume("leaving", ack_timeout=60)
        for _ in range(int(sys.argv[2])):
            job = await jobs.recv(timeout=20)
            time.sleep(0.002)
            job.ack()
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


@pytest.mark.parametrize("count", [1, 5])
def test_an_acknowledgement_leaves_at_once(blocking, server, count):
    """Work that was acknowledged is not done twice, though the worker dies in the same turn of its loop."""
    blocking.create("leaving", delivery="round-robin", persistence="transient")
    blocking.publish_many("leaving", [b"%d" % number for number in range(10)])
    assert run("-c", LEAVES, server.endpoints["zmtp"], str(count)).returncode == -signal.SIGKILL
    with blocking.consume("leaving") as consumer:
        got = {consumer.recv(timeout=20.0).id for _ in range(10 - count)}
        assert got == set(range(count + 1, 11))
        with pytest.raises(omq.ReceiveTimeout):
            consumer.recv(timeout=0.1)
    blocking.delete("leaving")


def test_a_batch_has_a_bound(twin, client, jobs, topic):
    twin.wait(client.publish_many(jobs, [b"%d" % number for number in range(10)]))
    twin.wait(client.publish_many(topic, [b"%d" % number for number in range(10)]))
    consumer = twin.wait(client.consume(jobs))
    subscription = twin.wait(client.subscribe(topic, replay="earliest"))
    for stream in (consumer, subscription):
        sizes = []
        bodies = []
        while len(bodies) < 10:
            batch = twin.wait(stream.recv_many(4, timeout=20.0))
            sizes.append(len(batch))
            bodies += [one.body for one in batch]
        assert bodies == [b"%d" % number for number in range(10)]
        assert max(sizes) == 4
        for wrong in (0, -1):
            with pytest.raises(ValueError, match="limit="):
                twin.wait(stream.recv_many(wrong, timeout=0))
    twin.call(consumer.ack, [])
    twin.wait(consumer.close())
    twin.wait(subscription.close())
