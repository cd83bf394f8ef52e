"""The clients of a broker on connections that are cut, and over restarts of the broker."""

from __future__ import annotations

import asyncio
import itertools
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

import omq
import omq.asyncio.broker
import omq.broker
from omq.broker import Server
from omq.broker.errors import BrokerTimeout, TopicError
from tests.support.chaos_proxy import DIRECTIONS, DOWN, UP, Fault, Proxy
from tests.support.waits import until
from tests.system.broker.client_twins import TWINS, twins
from tests.system.broker.server_process import broker

# The tests set SIGALRM, with which timeouts are made otherwise.
pytestmark = pytest.mark.timeout(method="thread")

TIMEOUT_S = 20.0


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
def proxy() -> Iterator[Proxy]:
    with Proxy() as proxy:
        yield proxy


def bodies(url: str, topic: str) -> list[bytes]:
    """All that is in a topic."""
    with omq.broker.Client(url, timeout=TIMEOUT_S) as client:
        messages = list(client.read(topic))
    assert [message.id for message in messages] == list(range(1, len(messages) + 1))
    return [message.body for message in messages]


def cut_publish(twin: Any, proxy: Proxy, url: str, topic: str, fault: Fault) -> bool:
    """Publishes over a connection that is cut; gives whether it came to that."""
    link = proxy.link(url, scripts=lambda number: () if number else (fault,))
    client = twin.Client(link.endpoint, timeout=TIMEOUT_S)
    assert twin.wait(client.publish(topic, f"{fault.direction} {fault.after}".encode())) > 0
    happened = bool(link.happened)
    twin.wait(client.close())
    link.close()
    return happened


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("step", [17, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.timeout(300)
def test_a_publish_that_is_cut_anywhere_is_one_message(twin, proxy, url, direction, step):
    topic = f"cut {twin.name} {direction} {step}"
    with omq.broker.Client(url, timeout=TIMEOUT_S) as client:
        client.create(topic, persistence="transient")
    number = 0
    for number in itertools.count(1):
        fault = Fault((number - 1) * step, direction, ("reset", "drop")[number % 2])
        if not cut_publish(twin, proxy, url, topic, fault):
            break
    assert number * step > 150  # the greetings alone have 64 bytes each way
    assert bodies(url, topic) == [f"{direction} {n * step}".encode() for n in range(number)]


def cuts(seed: int, way: str, within: int) -> Any:
    """A script for each connection: it is cut after some bytes of one direction, later ones later."""
    chance = random.Random(seed)

    def script(number: int) -> tuple[Fault, ...]:
        after = chance.randrange(200, within) * (1 + number // 8)
        return (Fault(after, way, chance.choice(["reset", "drop", "half_close"])),)

    return script


def test_many_that_are_published_over_cut_connections_are_there_once_and_in_order(twin, proxy, url):
    topic = f"many {twin.name}"
    link = proxy.link(url, scripts=cuts(1, UP, 75_000))
    client = twin.Client(link.endpoint, timeout=TIMEOUT_S)
    twin.wait(client.create(topic, persistence="transient"))
    sent = [b"%d " % n + b"x" * (n % 700) for n in range(3000)]
    numbers = twin.wait(client.publish_many(topic, sent))
    for one in range(100):
        numbers.append(twin.wait(client.publish(topic, b"one %d" % one)))
    twin.wait(client.close())
    assert link.accepted > 3
    got = bodies(url, topic)
    assert sorted(got) == sorted(sent + [b"one %d" % one for one in range(100)])
    assert [got[number - 1] for number in numbers] == sent + [b"one %d" % one for one in range(100)]


def test_what_is_staged_over_cut_connections_is_published_once_and_in_order(twin, proxy, url):
    topic, count = f"staged {twin.name}", 2000
    link = proxy.link(url, scripts=cuts(4, UP, 75_000))
    client = twin.Client(link.endpoint, timeout=TIMEOUT_S)
    twin.wait(client.create(topic, persistence="transient"))
    sent = [b"%d " % n + b"x" * (n % 700) for n in range(count)]
    twin.wait(client.stage(topic, sent, f"{topic} 0"))
    for number in range(15):
        link.reset()
        (done,) = twin.wait(client.commit(f"{topic} {number}", [f"{topic} {number}"]))
        assert (done.first, done.count) == ((count + number, 1) if number else (1, count))
        twin.wait(client.stage(topic, [b"one"], f"{topic} {number + 1}"))
    twin.wait(client.close())
    assert link.accepted > 3
    assert bodies(url, topic) == sent + [b"one"] * 14


def test_a_subscription_over_cut_connections_misses_and_repeats_nothing(twin, proxy, url):
    topic = f"read {twin.name}"
    with omq.broker.Client(url, timeout=TIMEOUT_S) as other:
        other.create(topic, persistence="transient")
        other.publish_many(topic, [b"%d" % n + bytes(500) for n in range(2000)])
    link = proxy.link(url, scripts=cuts(2, DOWN, 150_000))
    client = twin.Client(link.endpoint, timeout=TIMEOUT_S)
    subscription = twin.wait(client.subscribe(topic, replay="earliest", credit=100_000))
    named = twin.wait(client.subscribe(topic, replay="earliest", name="n", credit=100_000))
    got = [message.id for message in twin.take(subscription, 2000)]
    assert got == list(range(1, 2001))
    messages = []
    while len(messages) < 2000:
        messages += twin.take(named, 500)
        twin.call(named.ack, messages[-1])
    assert [message.id for message in messages] == list(range(1, 2001))
    assert len(twin.all(client.read(topic))) == 2000
    assert link.accepted > 3
    twin.wait(client.close())


def test_a_consumer_over_cut_connections_gets_everything_and_what_it_has_done_once(twin, proxy, url):
    topic = f"jobs {twin.name}"
    with omq.broker.Client(url, timeout=TIMEOUT_S) as other:
        other.create(topic, delivery="round-robin", persistence="transient", max_deliveries=1000)
        other.publish_many(topic, [b"%d" % n + bytes(300) for n in range(600)])
    link = proxy.link(url, scripts=cuts(3, DOWN, 20_000))
    client = twin.Client(link.endpoint, timeout=TIMEOUT_S)
    consumer = twin.wait(client.consume(topic, credit=20))
    done: list[int] = []
    while len(set(done)) < 600:
        (job,) = twin.take(consumer, 1)
        twin.call(job.ack)
        done.append(job.id)
    twin.wait(consumer.close())
    assert link.accepted > 3
    twin.wait(client.close())
    # One may be acknowledged after its connection was lost, and given to another one before: here there is none.
    assert sorted(done) == list(range(1, 601))


@pytest.mark.parametrize("ending", ["publish", "close the consumer", "close the client"])
def test_an_acknowledgement_that_is_lost_with_its_connection_is_made_again(twin, proxy, url, ending):
    jobs, done = f"lost {twin.name} {ending}", f"results {twin.name} {ending}"
    with omq.broker.Client(url, timeout=TIMEOUT_S) as other:
        other.create(jobs, delivery="round-robin", persistence="transient")
        other.create(done, persistence="transient")
        other.publish_many(jobs, [b"1", b"2", b"3"])
        link = proxy.link(url)
        client = twin.Client(link.endpoint, timeout=TIMEOUT_S)
        consumer = twin.wait(client.consume(jobs))
        first, second, _ = twin.take(consumer, 3)
        link.stall(UP)
        twin.call(first.ack)
        link.reset()
        link.release()
        twin.call(second.ack)  # perhaps before the client has noticed
        if ending == "publish":
            twin.wait(client.publish(done, b"x"))
        elif ending == "close the consumer":
            twin.wait(consumer.close())
        else:
            twin.wait(client.close())
        if ending != "close the client":
            link.reset()
            link.refuse()
        rest = other.consume(jobs)
        assert rest.recv(timeout=TIMEOUT_S).id == 3
        with pytest.raises(omq.ReceiveTimeout):
            rest.recv(timeout=0.2)
        link.admit()
        twin.wait(client.close())


def test_a_publish_without_an_answer_in_time_leaves_the_client_well(twin, proxy, url):
    topic = f"stalled {twin.name}"
    with omq.broker.Client(url, timeout=TIMEOUT_S) as other:
        other.create(topic, persistence="transient")
    link = proxy.link(url)
    client = twin.Client(link.endpoint, timeout=0.3)
    assert twin.wait(client.publish(topic, b"1")) == 1
    link.stall(DOWN)
    with pytest.raises(BrokerTimeout):
        twin.wait(client.publish(topic, b"2"))
    with pytest.raises(BrokerTimeout):
        twin.wait(client.publish_many(topic, [b"3"]))
    link.release()
    assert twin.wait(client.publish(topic, b"4")) == 4
    link.stall(UP)
    with pytest.raises(BrokerTimeout):
        twin.wait(client.publish(topic, b"5"))
    link.reset()  # it did not get there, and no call waits for it any more
    link.release()
    assert twin.wait(client.publish(topic, b"6")) == 5
    twin.wait(client.close())
    assert bodies(url, topic) == [b"1", b"2", b"3", b"4", b"6"]


def test_a_peer_that_is_silent_is_given_up(twin, proxy, url):
    link = proxy.link(url)
    client = twin.Client(link.endpoint, timeout=TIMEOUT_S, heartbeat_interval=0.1, heartbeat_timeout=0.2)
    twin.wait(client.topics())
    link.target, dead = url, set(link.relays)
    for relay in dead:
        relay._stalled.update(DIRECTIONS)
    twin.wait(client.topics())
    assert link.accepted == 2
    twin.wait(client.close())


# ------------------------------------------------------------------ restarts


def test_a_subscription_over_restarts_of_the_broker_misses_and_repeats_nothing(twin, tmp_path):
    with Server(tmp_path, bind="tcp://127.0.0.1:*") as server:
        url = server.endpoints["zmtp"]
        reader = twin.Client(url, timeout=TIMEOUT_S)
        writer = omq.broker.Client(url, timeout=TIMEOUT_S)
        writer.create("kept", persistence="weak")
        subscription = twin.wait(reader.subscribe("kept", replay="earliest"))
        named = twin.wait(reader.subscribe("kept", replay="earliest", name="n"))
        numbers = writer.publish_many("kept", [b"%d" % n for n in range(100)])
        assert [message.id for message in twin.take(subscription, 60)] == numbers[:60]
        twin.call(named.ack, twin.take(named, 30)[-1])
    ended = threading.Event()

    def publish() -> None:
        while not ended.is_set():
            numbers.append(writer.publish("kept", b"%d" % len(numbers)))

    writing = threading.Thread(target=publish)
    writing.start()
    got = 60
    for _ in range(3):
        with Server(tmp_path, bind=url):
            want = len(numbers) + 20
            got += len(twin.take(subscription, want - got))
    ended.set()
    with Server(tmp_path, bind=url):
        writing.join(TIMEOUT_S)
        assert numbers == list(range(1, len(numbers) + 1))
        rest = twin.take(subscription, len(numbers) - got)
        assert [message.id for message in rest] == list(range(got + 1, len(numbers) + 1))
        assert [message.body for message in rest] == [
            b"%d" % (number - 1) for number in range(got + 1, len(numbers) + 1)
        ]
        assert [message.id for message in twin.take(named, len(numbers) - 30)] == numbers[30:]
        twin.wait(named.close())
        again = twin.wait(reader.subscribe("kept", name="n"))
        assert twin.wait(again.recv()).id == 31
        writer.close()
        twin.wait(reader.close())


def test_a_broker_with_another_store_is_read_from_its_beginning(twin):
    with Server(memory=True, bind="tcp://127.0.0.1:*") as server:
        url = server.endpoints["zmtp"]
        client = twin.Client(url, timeout=TIMEOUT_S)
        twin.wait(client.create("t", persistence="transient"))
        subscription = twin.wait(client.subscribe("t"))
        twin.wait(client.publish_many("t", [b"old"] * 5))
        assert len(twin.take(subscription, 5)) == 5
    with Server(memory=True, bind=url, topics=["t:broadcast:transient"]):
        with omq.broker.Client(url, timeout=TIMEOUT_S) as other:
            other.publish("t", b"new")
        message = twin.wait(subscription.recv(timeout=TIMEOUT_S))
        assert (message.id, message.body) == (1, b"new")
        twin.wait(client.close())


def test_a_topic_that_is_gone_after_a_restart_is_reported(twin):
    with Server(memory=True, bind="tcp://127.0.0.1:*") as server:
        url = server.endpoints["zmtp"]
        client = twin.Client(url, timeout=TIMEOUT_S)
        twin.wait(client.create("t", persistence="transient"))
        subscription = twin.wait(client.subscribe("t"))
    with Server(memory=True, bind=url):
        with pytest.raises(TopicError):
            twin.wait(subscription.recv(timeout=TIMEOUT_S))
        twin.wait(client.close())


@pytest.mark.slow
def test_clients_of_a_broker_that_is_killed_miss_and_repeat_nothing(tmp_path):
    numbers: list[int] = []
    got: list[tuple[int, bytes]] = []
    ended = threading.Event()
    data = tmp_path / "data"
    with broker(tmp_path, data, "--bind", "tcp://127.0.0.1:*", "--topic", "kept:broadcast:strong") as command:
        url = command.serving()["zmtp"]
        writer, reader = (omq.broker.Client(url, timeout=60.0) for _ in range(2))
        subscription = reader.subscribe("kept", replay="earliest")

        def publish() -> None:
            while not ended.is_set():
                some = [b"%d" % n for n in range(len(numbers) + 1, len(numbers) + 101)]
                numbers.extend(writer.publish_many("kept", some))

        def read() -> None:
            got.extend((message.id, message.body) for message in subscription)

        threads = [threading.Thread(target=work) for work in (publish, read)]
        for thread in threads:
            thread.start()
        until(lambda: len(numbers) >= 200)
    for more in (100, 200, 300):
        with broker(tmp_path, data, "--bind", url) as command:
            command.serving()
            before = len(numbers)
            until(lambda count=before + more: len(numbers) >= count)
    ended.set()
    with broker(tmp_path, data, "--bind", url):
        threads[0].join(60)
        until(lambda: len(got) >= len(numbers))
        subscription.close()
        threads[1].join(TIMEOUT_S)
        assert numbers == list(range(1, len(numbers) + 1))
        assert got == [(number, b"%d" % number) for number in numbers]
        writer.close()
        reader.close()


# ------------------------------------------------------------------ many at once, interruptions, cancellation


@pytest.mark.slow
def test_fifty_subscribers_and_a_hundred_topics_at_once(url):
    async def run() -> None:
        names = [f"crowd {n}" for n in range(100)]
        async with omq.asyncio.broker.Client(url, timeout=60.0) as writer:
            await asyncio.gather(*[writer.create(name, persistence="transient") for name in names])

            async def follow(number: int) -> list[tuple[str, int, bytes]]:
                async with omq.asyncio.broker.Client(url, timeout=60.0) as client:
                    mine = [names[(number * 2 + n) % 100] for n in range(10)]
                    subscriptions = await asyncio.gather(*[client.subscribe(name, replay="earliest") for name in mine])
                    got = []
                    for subscription in subscriptions:
                        got += [await subscription.recv(timeout=60.0) for _ in range(4)]
                    return [(message.topic, message.id, message.body) for message in got]

            followers = [asyncio.create_task(follow(number)) for number in range(50)]
            for n in range(4):
                await asyncio.gather(*[writer.publish(name, f"{name} {n}".encode()) for name in names])
            for number, got in enumerate(await asyncio.gather(*followers)):
                mine = [names[(number * 2 + n) % 100] for n in range(10)]
                assert got == [(name, n + 1, f"{name} {n}".encode()) for name in mine for n in range(4)]
            await asyncio.gather(*[writer.delete(name) for name in names])

    uvloop.run(run())


class Interrupted(Exception):
    """The exception of the signal handler."""


def test_an_interrupted_call_leaves_the_client_well(url):
    def interrupt(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with omq.broker.Client(url, timeout=TIMEOUT_S) as client:
            client.create("interrupted", persistence="transient")
            subscription = client.subscribe("interrupted")
            for n in range(1, 6):
                signal.setitimer(signal.ITIMER_REAL, 0.03)
                with pytest.raises(Interrupted):
                    subscription.recv()
                assert client.publish("interrupted", b"%d" % n) == n
                assert subscription.recv(timeout=TIMEOUT_S).id == n
            client.delete("interrupted")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_interruptions_at_any_moment_repeat_and_lose_nothing_that_was_answered(url):
    def interrupt(*_: object) -> None:
        raise Interrupted

    chance = random.Random(7)
    before = signal.signal(signal.SIGALRM, interrupt)
    answered: list[bytes] = []
    tried: list[bytes] = []
    interrupted = 0
    try:
        with omq.broker.Client(url, timeout=TIMEOUT_S) as client:
            client.create("stormy", persistence="transient")
            while not answered or interrupted < 30:
                body = b"%d" % len(tried)
                tried.append(body)
                try:
                    # The longer ones let some be answered, also where the machine has other work.
                    signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.0001, chance.choice((0.01, 0.2))))
                    client.publish("stormy", body)
                    signal.setitimer(signal.ITIMER_REAL, 0)
                    answered.append(body)
                except Interrupted:
                    interrupted += 1
            got = [message.body for message in client.read("stormy")]
            assert len(set(got)) == len(got)
            assert set(answered) <= set(got) <= set(tried)
            client.delete("stormy")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_cancelled_calls_take_nothing_and_leave_nothing(url):
    async def run() -> None:
        async with omq.asyncio.broker.Client(url, timeout=TIMEOUT_S) as client:
            await client.create("cancelled", persistence="transient")
            subscription = await client.subscribe("cancelled")
            got: list[int] = []
            chance = random.Random(5)
            published = 0
            while len(got) < 200:
                taking = asyncio.ensure_future(subscription.recv())
                if published - len(got) < 3:
                    published = await client.publish("cancelled", b"x")
                for _ in range(chance.randrange(3)):
                    await asyncio.sleep(0)
                taking.cancel()
                done = await asyncio.gather(taking, return_exceptions=True)
                got += [message.id for message in done if isinstance(message, omq.broker.Message)]
                if published > len(got) and chance.random() < 0.5:
                    got.append((await subscription.recv()).id)
            assert got == list(range(1, len(got) + 1))

            for steps in range(12):
                subscribing = asyncio.ensure_future(client.subscribe("cancelled", name="n"))
                for _ in range(steps):
                    await asyncio.sleep(0)
                subscribing.cancel()
                for one in await asyncio.gather(subscribing, return_exceptions=True):
                    if isinstance(one, omq.asyncio.broker.Subscription):
                        await one.close()
                async with await client.subscribe("cancelled", name="n"):
                    pass

            before = (await client.topics())[0]
            sent = [asyncio.ensure_future(client.publish("cancelled", b"%d" % n)) for n in range(200)]
            for n, one in enumerate(sent):
                if n % 3 == 0:
                    await asyncio.sleep(0)
                if n % 2:
                    one.cancel()
            numbers = [n for n in await asyncio.gather(*sent, return_exceptions=True) if isinstance(n, int)]
            assert len(numbers) >= 100
            assert len(set(numbers)) == len(numbers)
            after = [message.body async for message in client.read("cancelled", before.last + 1)]
            late = after[after.index(b"0") :] if b"0" in after else after
            assert len(set(late)) == len(late)
            await client.delete("cancelled")

    uvloop.run(run())


def test_a_client_of_another_loop_is_refused(url):
    client = omq.asyncio.broker.Client(url, timeout=TIMEOUT_S)

    async def first() -> None:
        await client.topics()

    async def second() -> None:
        with pytest.raises(omq.StateError):
            await client.topics()
        with pytest.raises(omq.StateError):
            await client.close()
        assert not client.closed

    runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    with runner:
        runner.run(first())
        uvloop.run(second())
        runner.run(client.close())


def test_names_are_free_and_jobs_go_on_when_a_client_is_dead(tmp_path: Path, proxy, url):
    with omq.broker.Client(url, timeout=TIMEOUT_S) as client:
        client.create("dead", delivery="round-robin", persistence="transient")
        client.publish_many("dead", [b"a", b"b"])
        link = proxy.link(url)
        other = omq.broker.Client(link.endpoint, timeout=TIMEOUT_S)
        assert other.consume("dead").recv().body == b"a"
        consumer = client.consume("dead")
        link.refuse()
        link.reset()
        assert sorted(job.body for job in itertools.islice(consumer, 2)) == [b"a", b"b"]
        until(lambda: other._connection._connection_monitor.is_over())
        other.close()
