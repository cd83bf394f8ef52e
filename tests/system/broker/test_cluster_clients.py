"""The clients of a cluster of brokers: they find the leader, and go on at the next one as after a lost connection."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import omq
import omq.asyncio.broker
import omq.broker
from omq.broker import BrokerTimeout, NotLeader, Server, protocol
from omq.broker.client import endpoint_pool
from omq.errors import ClosedError
from tests.support.chaos_proxy import Proxy
from tests.support.cluster_members import Changes, Members
from tests.support.waits import until
from tests.system.broker.client_twins import TWINS, twins

TIMEOUT_S = 20.0
pytestmark = pytest.mark.timeout(120)


@pytest.fixture(params=list(TWINS))
def twin(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield from twins(request.param)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(memory=True, bind="tcp://127.0.0.1:*") as server:
        yield server


@pytest.fixture
def url(server: Server) -> str:
    return server.endpoints["zmtp"]


@pytest.fixture
def cluster(url: str) -> Iterator[Members]:
    with Members(url) as cluster:
        yield cluster


@pytest.fixture
def topic(url: str, request: pytest.FixtureRequest) -> str:
    name = request.node.name
    with omq.broker.Client(url, timeout=TIMEOUT_S) as client:
        client.create(name, persistence="transient")
    return name


@pytest.fixture
def queue(url: str, request: pytest.FixtureRequest) -> str:
    name = f"queue {request.node.name}"
    with omq.broker.Client(url, timeout=TIMEOUT_S) as client:
        client.create(name, delivery="round-robin", persistence="transient", retry_delay=0.01)
    return name


@pytest.fixture(autouse=True)
def short_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_pool, "_MIN_ATTEMPT_TIMEOUT_S", 0.3)
    monkeypatch.setattr(endpoint_pool, "_MIN_LIFETIME_S", 0.05)


@contextlib.contextmanager
def client_of(twin: Any, endpoint: Any, **options: Any) -> Iterator[Any]:
    """Opens a client of a twin."""
    client = twin.Client(endpoint, **{"timeout": TIMEOUT_S, **options})
    try:
        yield client
    finally:
        twin.wait(client.close())


@contextlib.contextmanager
def meanwhile(action: Callable[[], None]) -> Iterator[threading.Thread]:
    """Runs an action in a thread; raises its error at the end."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            action()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield thread
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()
    assert not errors, errors


def bodies(url: str, topic: str) -> list[bytes]:
    """All that is in a topic."""
    with omq.broker.Client(url, timeout=TIMEOUT_S) as client:
        return [message.body for message in client.read(topic)]


# ---------------------------------------------------------------------- finding the leader


def test_a_dead_endpoint_is_skipped(twin, cluster, topic):
    with socket.socket() as unbound:
        unbound.bind(("127.0.0.1", 0))
        dead = f"tcp://127.0.0.1:{unbound.getsockname()[1]}"
        with client_of(twin, [dead, cluster.members[0].endpoint]) as client:
            assert client.endpoint == dead
            assert twin.wait(client.publish(topic, b"x")) == 1
            assert client.endpoint == cluster.members[0].endpoint


def test_an_endpoint_that_does_not_accept_is_left(twin, cluster, topic):
    with socket.create_server(("127.0.0.1", 0), backlog=8) as hung:  # as a process after SIGSTOP
        endpoint = f"tcp://127.0.0.1:{hung.getsockname()[1]}"
        with client_of(twin, [endpoint, cluster.members[0].endpoint]) as client:
            assert twin.wait(client.publish(topic, b"x")) == 1


def test_a_member_that_does_not_answer_is_left(twin, cluster, topic):
    cluster.members[1].mute = True
    with client_of(twin, [cluster.members[1].endpoint, cluster.members[0].endpoint]) as client:
        assert twin.wait(client.publish(topic, b"x")) == 1
        assert cluster.members[1].hellos == 0
        assert protocol.HELLO in cluster.members[1].commands


def test_a_follower_names_the_leader(twin, cluster, topic):
    leader, follower, _ = cluster.members
    with client_of(twin, follower.endpoint) as client:
        assert twin.wait(client.publish(topic, b"x")) == 1
        assert client.endpoint == leader.endpoint
    assert (follower.hellos, leader.hellos) == (1, 1)
    assert set(follower.commands) == {protocol.HELLO}


def test_a_follower_that_learns_of_the_leader_later(twin, cluster, topic):
    cluster.members[0].step_down()

    def elect() -> None:
        until(lambda: all(member.hellos > 1 for member in cluster.members))
        cluster.members[2].lead()

    with meanwhile(elect), client_of(twin, cluster.members[1].endpoint) as client:
        assert twin.wait(client.publish(topic, b"x")) == 1
        assert client.endpoint == cluster.members[2].endpoint


def test_a_dead_leader_that_followers_still_name(twin, cluster, topic):
    leader, follower, other = cluster.members
    with client_of(twin, follower.endpoint) as client:
        assert twin.wait(client.publish(topic, b"1")) == 1
        leader.kill()

        def elect() -> None:
            until(lambda: follower.hellos > 3)
            other.lead()

        with meanwhile(elect):
            assert twin.wait(client.publish(topic, b"2")) == 2
        assert client.endpoint == other.endpoint
        assert follower.hellos < 20, "it is not asked without a pause"


def test_two_followers_that_name_each_other_are_not_asked_without_a_pause(twin, cluster, topic):
    one, two, _ = cluster.members
    cluster.named = []
    one.step_down()
    one.leader, two.leader = [two.endpoint], [one.endpoint]
    with client_of(twin, one.endpoint, timeout=1.5) as client, pytest.raises(BrokerTimeout) as caught:
        twin.wait(client.publish(topic, b"x"))
    named = "a follower of the cluster 'orders', whose leader is {}"
    for member, other in ((one, two), (two, one)):
        assert f"{member.endpoint}: {named.format(other.endpoint)}" in str(caught.value)
    assert str(caught.value).startswith("not connected to a broker in time: ")
    assert 3 <= one.hellos <= 9
    assert abs(one.hellos - two.hellos) <= 1


def test_a_leader_that_refuses_everything_is_not_asked_without_a_pause(twin, cluster, topic):
    leader = cluster.members[0]
    cluster.named = [leader.endpoint]
    leader.refuses = True
    with client_of(twin, leader.endpoint, timeout=1.5) as client:
        with pytest.raises(BrokerTimeout, match=r"this broker is a follower.*the message may be stored"):
            twin.wait(client.publish(topic, b"x"))
        assert 3 <= leader.hellos <= 40  # a connection of a second, on a slow machine, resets the delay
        leader.refuses = False
        assert twin.wait(client.publish(topic, b"y")) == 1


def test_the_error_names_every_endpoint_and_why_it_was_left(twin, cluster, topic):
    one, two, three = cluster.members
    one.step_down()
    two.kill()
    three.mute = True
    with client_of(twin, one.endpoint, timeout=1.5) as client, pytest.raises(BrokerTimeout) as caught:
        twin.wait(client.publish(topic, b"x"))
    text = str(caught.value)
    assert f"{one.endpoint}: a follower of the cluster 'orders', which has no leader now" in text
    assert f"{two.endpoint}: " in text
    assert f"{three.endpoint}: no answer" in text
    assert "may be stored" not in text, "it was sent to no leader"


def test_a_client_stays_in_its_cluster(twin, cluster, url, topic):
    with Members(url, 1, name="billing") as other, client_of(twin, cluster.members[0].endpoint, timeout=3.0) as client:
        (stranger,) = other.members
        cluster.named = [*cluster.endpoints, stranger.endpoint]  # it was a member, or clients got a wrong list
        assert twin.wait(client.publish(topic, b"1")) == 1
        cluster.members[0].step_down()
        with pytest.raises(BrokerTimeout, match="a broker of the cluster 'billing', and others are of 'orders'"):
            twin.wait(client.publish(topic, b"2"))
        assert stranger.hellos > 0
        assert protocol.APPEND not in stranger.commands
        cluster.members[1].lead()
        assert twin.wait(client.publish(topic, b"3")) > 1


def test_a_cluster_that_starts_again(twin, cluster, topic):
    with client_of(twin, cluster.endpoints) as client:
        assert twin.wait(client.publish(topic, b"1")) == 1
        for member in cluster.members:
            member.kill()

        def start() -> None:
            time.sleep(0.3)  # some attempts fail
            for member in reversed(cluster.members):
                member.start()

        with meanwhile(start):
            assert twin.wait(client.publish(topic, b"2")) == 2


def test_the_security_is_for_every_member(twin, url, topic):
    public, secret = omq.curve_keypair()
    security = omq.CurveClient(public)
    with (
        Members(url, security=omq.CurveServer(secret)) as cluster,
        client_of(twin, cluster.members[1].endpoint, security=security) as client,
    ):
        assert twin.wait(client.publish(topic, b"1")) == 1
        cluster.members[2].lead()
        assert twin.wait(client.publish(topic, b"2")) == 2


# ---------------------------------------------------------------------- a leader steps down


@pytest.mark.parametrize("stored", [True, False])
def test_a_publish_that_waits_for_its_answer_is_stored_once(twin, cluster, url, topic, stored):
    leader, other, _ = cluster.members
    if stored:
        leader.held = {protocol.APPEND}
    else:
        leader.refuses = True

    def change() -> None:
        until(lambda: protocol.APPEND in leader.commands)
        if stored:
            until(lambda: bodies(url, topic) == [b"x"])
        other.lead()

    with meanwhile(change), client_of(twin, leader.endpoint) as client:
        assert twin.wait(client.publish(topic, b"x")) == 1
        assert client.endpoint == other.endpoint
        assert twin.wait(client.publish(topic, b"y")) == 2
    assert bodies(url, topic) == [b"x", b"y"]


def test_many_are_published_once_and_in_order_while_leaders_change(twin, cluster, url, topic):
    sent: list[bytes] = []
    numbers: list[int] = []
    with client_of(twin, cluster.endpoints) as client, Changes(cluster) as changes:
        while not changes.enough:
            some = [b"%d " % n + b"x" * (n % 70) for n in range(len(sent), len(sent) + 2000)]
            numbers += twin.wait(client.publish_many(topic, some))
            numbers.append(twin.wait(client.publish(topic, b"one %d" % len(sent))))
            sent += [*some, b"one %d" % len(sent)]
    assert numbers == list(range(1, len(sent) + 1))
    assert bodies(url, topic) == sent


def test_stages_and_commits_are_made_once_while_leaders_change(twin, cluster, url, topic):
    sent = [b"%d " % n + b"x" * (n % 700) for n in range(500)]
    number = -1
    with client_of(twin, cluster.endpoints) as client, Changes(cluster) as changes:
        while not changes.enough:
            number += 1
            next_sequence = twin.wait(client.stage(topic, sent[::2], f"{topic} {number}"))
            twin.wait(client.stage(topic, sent[1::2], f"{topic} {number}", sequence=next_sequence))
            (done,) = twin.wait(client.commit(f"{topic} {number}", [f"{topic} {number}"]))
            assert (done.first, done.count) == (number * len(sent) + 1, len(sent))
    assert bodies(url, topic) == [*sent[::2], *sent[1::2]] * (number + 1)


def test_topics_are_made_and_deleted_while_leaders_change(twin, cluster, topic):
    with client_of(twin, cluster.endpoints) as client, Changes(cluster) as changes:
        while not changes.enough:
            name = f"other {topic}"
            assert twin.wait(client.create(name, persistence="transient")).name == name
            twin.wait(client.alter(name, max_messages=5))
            twin.wait(client.delete(name))


@pytest.mark.parametrize("name", [None, "n"])
def test_a_subscription_misses_and_repeats_nothing_while_leaders_change(twin, cluster, url, topic, name):
    got: list[int] = []
    count = 10_000
    with client_of(twin, cluster.endpoints) as client, omq.broker.Client(url, timeout=TIMEOUT_S) as other:
        other.publish_many(topic, [b"%d" % n + bytes(500) for n in range(count)])
        subscription = twin.wait(client.subscribe(topic, replay="earliest", name=name, credit=100_000))
        with Changes(cluster) as changes:
            while not changes.enough:
                got += [message.id for message in twin.take(subscription, 100)]
                if name is not None:
                    twin.call(subscription.ack, got[-1])
                other.publish_many(topic, [b"%d" % n + bytes(500) for n in range(100)])
                count += 100
        got += [message.id for message in twin.take(subscription, count - len(got))]
        if name is not None:
            twin.call(subscription.ack, got[-1])
            twin.wait(client.flush())
            assert [durable.position for durable in other.durables(topic)] == [count]
    assert got == list(range(1, count + 1))


def test_a_subscription_that_waits_goes_on_at_the_next_leader(twin, cluster, url, topic):
    with client_of(twin, cluster.endpoints) as client:
        subscription = twin.wait(client.subscribe(topic))

        def change() -> None:
            cluster.members[1].lead()
            with omq.broker.Client(url, timeout=TIMEOUT_S) as other:
                other.publish(topic, b"x")

        with meanwhile(change):
            assert twin.wait(subscription.recv(timeout=TIMEOUT_S)).body == b"x"


def test_work_is_done_while_leaders_change(twin, cluster, url, queue):
    count = 0
    done: set[int] = set()
    with client_of(twin, cluster.endpoints) as client, omq.broker.Client(url, timeout=TIMEOUT_S) as other:
        consumer = twin.wait(client.consume(queue))
        with Changes(cluster) as changes:
            while not changes.enough or len(done) < count:
                if not changes.enough:
                    other.publish_many(queue, [b"%d" % n for n in range(100)])
                    count += 100
                jobs = twin.wait(consumer.recv_many(50, timeout=TIMEOUT_S))
                assert done.isdisjoint(job.id for job in jobs), "one was acked before"
                done.update(job.id for job in jobs)
                twin.call(consumer.ack, jobs)
            twin.wait(client.flush())
        twin.wait(consumer.close())
        assert list(other.read(queue)) == []
    assert done == set(range(1, count + 1))


@pytest.mark.parametrize("waits", ["flush", "ack"])
def test_a_flush_that_waits_for_its_answer_goes_on_at_the_next_leader(twin, cluster, url, queue, waits):
    leader, other, _ = cluster.members
    leader.held = {protocol.FLUSH}

    def change() -> None:
        until(lambda: protocol.FLUSH in leader.commands)
        other.lead()

    with client_of(twin, leader.endpoint) as client:
        twin.wait(client.publish(queue, b"x"))
        consumer = twin.wait(client.consume(queue))
        job = twin.wait(consumer.recv(timeout=TIMEOUT_S))
        acked = twin.call(job.ack)
        with meanwhile(change):
            twin.wait(client.flush() if waits == "flush" or acked is None else acked)
        assert protocol.REACK in other.commands
        assert bodies(url, queue) == []


def test_a_read_goes_on_at_the_next_leader(twin, cluster, url, topic):
    with omq.broker.Client(url, timeout=TIMEOUT_S) as other:
        other.publish_many(topic, [bytes(5000)] * 4000)
    with client_of(twin, cluster.endpoints) as client, Changes(cluster) as changes:
        while not changes.enough:
            assert [message.id for message in twin.all(client.read(topic))] == list(range(1, 4001))


def test_a_leader_that_hangs_is_left_at_the_next_heartbeat(twin, cluster, topic):
    leader, other, _ = cluster.members
    with Proxy() as proxy:
        link = proxy.link(leader.endpoint)
        options = {"heartbeat_interval": 0.1, "heartbeat_timeout": 0.3}
        with client_of(twin, [link.endpoint, other.endpoint], **options) as client:
            assert twin.wait(client.publish(topic, b"1")) == 1
            link.stall()
            other.lead()
            assert twin.wait(client.publish(topic, b"2")) == 2
            assert client.endpoint == other.endpoint


# ---------------------------------------------------------------------- any member


def test_a_client_of_any_member_reads_at_a_follower(twin, cluster, url, topic):
    follower = cluster.members[1]
    with omq.broker.Client(url, timeout=TIMEOUT_S) as other, client_of(twin, follower.endpoint, role="any") as client:
        other.publish(topic, b"1")
        assert [message.body for message in twin.all(client.read(topic))] == [b"1"]
        subscription = twin.wait(client.subscribe(topic, replay="earliest"))
        assert [message.body for message in twin.take(subscription, 1)] == [b"1"]
        for call in (
            lambda: client.publish(topic, b"x"),
            lambda: client.publish_many(topic, [b"x"]),
            lambda: client.create("another"),
            lambda: client.subscribe(topic, name="n"),
            lambda: client.consume(topic, group="g"),
        ):
            with pytest.raises(NotLeader, match="this broker is a follower"):
                twin.wait(call())
        assert client.endpoint == follower.endpoint
        other.publish(topic, b"2")
        assert [message.body for message in twin.take(subscription, 1)] == [b"2"]
    assert bodies(url, topic) == [b"1", b"2"]


def test_a_client_of_any_member_moves_when_its_connection_is_lost(twin, cluster, url, topic):
    one, two, _ = cluster.members
    with omq.broker.Client(url, timeout=TIMEOUT_S) as other, client_of(twin, two.endpoint, role="any") as client:
        subscription = twin.wait(client.subscribe(topic))
        one.step_down()
        one.lead()
        other.publish(topic, b"1")
        assert [message.body for message in twin.take(subscription, 1)] == [b"1"]
        assert client.endpoint == two.endpoint
        two.kill()
        other.publish(topic, b"2")
        assert [message.body for message in twin.take(subscription, 1)] == [b"2"]
        assert client.endpoint in (one.endpoint, cluster.members[2].endpoint)


def test_a_broker_in_no_cluster_serves_both_roles(twin, url, topic):
    for number, role in enumerate(("leader", "any"), 1):
        with client_of(twin, url, role=role) as client:
            assert twin.wait(client.publish(topic, b"x")) == number


# ---------------------------------------------------------------------- arguments, threads and the end


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        ({"endpoint": []}, ValueError, r"endpoint=\[\]: must be at least one endpoint"),
        ({"endpoint": ["tcp://127.0.0.1:1", "nonsense"]}, omq.EndpointError, "nonsense"),
        ({"endpoint": "tcp://127.0.0.1:1", "role": "follower"}, ValueError, "role='follower': must be "),
    ],
)
def test_wrong_arguments(twin, arguments, kind, text):
    with pytest.raises(kind, match=text):
        twin.Client(**arguments)


def test_a_client_is_closed_while_it_looks_for_the_leader(cluster, topic):
    cluster.members[0].step_down()
    client = omq.broker.Client(cluster.endpoints, timeout=None)
    errors: list[BaseException] = []

    def publish() -> None:
        try:
            client.publish(topic, b"x")
        except ClosedError as error:
            errors.append(error)

    with meanwhile(publish) as thread:
        until(lambda: cluster.members[2].hellos > 1)
        client.close()
        thread.join(2.0)
        assert not thread.is_alive()
    assert len(errors) == 1


def test_an_asyncio_client_is_closed_while_it_looks_for_the_leader(cluster, topic):
    async def run() -> None:
        client = omq.asyncio.broker.Client(cluster.endpoints, timeout=None)
        publishing = asyncio.create_task(client.publish(topic, b"x"))
        await asyncio.to_thread(until, lambda: cluster.members[2].hellos > 1)
        await asyncio.wait_for(client.close(), 2.0)
        with pytest.raises(ClosedError):
            await asyncio.wait_for(publishing, 2.0)

    cluster.members[0].step_down()
    asyncio.run(run())


def test_threads_share_a_client_while_leaders_change(cluster, url, topic):
    counts = dict.fromkeys(range(6), 0)
    got: list[bytes] = []
    with omq.broker.Client(cluster.endpoints, timeout=TIMEOUT_S) as client, Changes(cluster) as changes:
        subscription = client.subscribe(topic, replay="earliest")

        def publish(thread: int) -> None:
            while not changes.enough:
                client.publish(topic, b"%d %d" % (thread, counts[thread]))
                counts[thread] += 1

        def read() -> None:
            got.extend(message.body for message in subscription)

        with meanwhile(read):
            with contextlib.ExitStack() as stack:
                for thread in counts:
                    stack.enter_context(meanwhile(lambda thread=thread: publish(thread)))
            until(lambda: len(got) == sum(counts.values()))
            subscription.close()
    assert got == bodies(url, topic)
    for thread, count in counts.items():
        of_thread = [body for body in got if body.startswith(b"%d " % thread)]
        assert of_thread == [b"%d %d" % (thread, number) for number in range(count)]
