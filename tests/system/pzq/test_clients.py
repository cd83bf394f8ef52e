"""omq's own clients, blocking and asyncio, with a device."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import omq.asyncio.pzq as twin
import omq.pzq
from omq.errors import EndpointError, ReceiveTimeout, UsageError
from omq.pzq import Consumer, Device, Producer, ProduceTimeout, Refused
from tests.support.libzmq_pzq_clients import figures
from tests.support.ports import held
from tests.support.waits import until
from tests.system.pzq.conftest import Make


def test_what_is_sent_is_delivered_with_the_number_of_its_delivery(make: Make) -> None:
    device = make(ack_timeout=60_000_000)
    with Producer(device.endpoints["receive"]) as producer, Consumer(device.endpoints["send"]) as consumer:
        producer.send(b"one", headers=[b"header"], id=b"id")
        producer.send([b"two", b"", b"parts"])
        assert producer.send_many(b"%d" % number for number in range(3000)) == 3000
        first = consumer.recv(timeout=5)
        assert (first.body, first.parts, first.deliveries) == (b"one", [b"one"], 1)
        first.nack()
        second = consumer.recv(timeout=5)
        while second.body != b"one":
            second.ack()
            second = consumer.recv(timeout=5)
        assert (second.key, second.deliveries) == (first.key, 2)
        assert second.sent >= first.sent
        second.ack()
        for delivery in consumer:
            delivery.ack()
            if delivery.body == b"2999":
                break
        until(lambda: figures(device.endpoints["monitor"])["messages"] == 0)
        with pytest.raises(ReceiveTimeout):
            consumer.recv(timeout=0.05)


def test_a_consumer_holds_no_more_than_it_wants(make: Make) -> None:
    device = make(ack_timeout=60_000_000)
    with Producer(device.endpoints["receive"]) as producer:
        producer.send_many([b"x"] * 50)
        with Consumer(device.endpoints["send"], prefetch=7) as consumer:
            until(lambda: figures(device.endpoints["monitor"])["messages_inflight"] == 7)
            for _ in range(50):
                consumer.recv(timeout=5).ack()
            until(lambda: figures(device.endpoints["monitor"])["messages"] == 0)


def test_what_is_refused_raises(make: Make) -> None:
    device = make()
    with Producer(device.endpoints["receive"], timeout=20) as producer:
        with pytest.raises(Refused, match="bytes; at most 67108864 are allowed"):
            producer.send([b"x" * (64 << 20), b"y"])
        with pytest.raises(Refused, match="the body has 89128960 bytes; at most"):  # the device would hang up
            producer.send(bytes(85 << 20), timeout=1)
        with pytest.raises(Refused, match="accepted from the nodes of a cluster only") as caught:
            producer.send(b"x", headers=[b"REPLICA:me"])
        assert caught.value.indexes == (0,)
        with pytest.raises(Refused) as caught:
            producer.send_many([b"a", [b"x" * (64 << 20), b"y"], b"b"])
        assert caught.value.indexes == (1,)
        for bad in ([], [b"a", 1]):
            with pytest.raises((UsageError, TypeError)):
                producer.send(bad)  # type: ignore[arg-type]
        with pytest.raises(UsageError):
            producer.send(b"x", headers=[b""])
    assert figures(device.endpoints["monitor"])["messages"] == 2


def test_messages_of_repeated_names_and_ids_are_stored_all_the_same(make: Make) -> None:
    device = make()
    for body in (b"first", b"second"):
        with Producer(device.endpoints["receive"], producer=b"me") as producer:
            producer.send(body)
            producer.send(body, id=b"id")
    assert figures(device.endpoints["monitor"])["messages"] == 4


def test_what_does_not_fit_a_client_is_refused() -> None:
    for wrong in (-1, float("nan")):
        with pytest.raises(ValueError, match="timeout"):
            Producer("tcp://127.0.0.1:1", timeout=wrong)
    for client in (Producer, Consumer):
        with pytest.raises(EndpointError):
            client(None)  # type: ignore[arg-type]
        with pytest.raises(EndpointError):
            client(["tcp://127.0.0.1:1", "here"])
        with pytest.raises(UsageError, match="endpoint: is empty"):
            client([])
    with Producer("tcp://127.0.0.1:1", linger=0) as producer, pytest.raises(ValueError, match="timeout"):
        producer.send(b"x", timeout=-1)


def test_a_call_waits_no_longer_than_it_may_for_another_one() -> None:
    with held() as port, Producer(f"tcp://127.0.0.1:{port}", linger=0) as producer:
        begun = threading.Event()

        def long() -> None:
            begun.set()
            with pytest.raises(ProduceTimeout, match="may be stored"):
                producer.send(b"x", timeout=2)

        thread = threading.Thread(target=long)
        thread.start()
        begun.wait()
        with pytest.raises(ProduceTimeout):
            producer.send(b"y", timeout=0.1)
        assert thread.is_alive()
        thread.join()

    async def play(port: int) -> None:
        async with twin.Producer(f"tcp://127.0.0.1:{port}", linger=0) as producer:
            long = asyncio.create_task(producer.send(b"x", timeout=60))
            await asyncio.sleep(0)
            for timeout in (0.1, 0):
                with pytest.raises(ProduceTimeout, match="nothing was sent"):
                    await producer.send(b"y", timeout=timeout)
            long.cancel()
            await asyncio.wait([long])
            with pytest.raises(ProduceTimeout, match="may be stored"):
                await producer.send(b"y", timeout=0)

    with held() as port:
        asyncio.run(play(port))


@pytest.mark.parametrize(
    ("count", "work", "prefetch"), [(60, 0.02, 1000), pytest.param(6, 0.5, 1, marks=pytest.mark.slow), (4, 0.5, 3)]
)
def test_a_slow_consumer_does_each_message_once(make: Make, count: int, work: float, prefetch: int) -> None:
    """Its messages take it longer, all together or each, than the ack deadline."""
    device = make(ack_timeout=300_000)
    with Producer(device.endpoints["receive"]) as producer:
        producer.send_many(b"%d" % number for number in range(count))
    done = []
    with Consumer(device.endpoints["send"], prefetch=prefetch) as consumer:
        while len(done) < count:
            delivery = consumer.recv(timeout=5)
            time.sleep(work)
            done.append(delivery.body)
            delivery.ack()
        until(lambda: figures(device.endpoints["monitor"])["messages"] == 0)
        with pytest.raises(ReceiveTimeout):
            consumer.recv(timeout=0.5)
    assert done == [b"%d" % number for number in range(count)]


def test_a_longer_time_ends_in_time_next_to_what_another_has(make: Make) -> None:
    """The second consumer's later deadline is kept, and ends before the first one's longer one."""
    device = make(ack_timeout=2_000_000)
    send = device.endpoints["send"]
    with (
        Producer(device.endpoints["receive"]) as producer,
        Consumer(send, prefetch=2) as first,
        Consumer(send) as second,
    ):
        producer.send_many([b"a", b"a", b"a", b"a"])
        mine = [first.recv(timeout=5), first.recv(timeout=5)]
        for delivery in (second.recv(timeout=5), second.recv(timeout=5)):
            delivery.ack()
        time.sleep(0.6)
        answered = time.monotonic()
        mine[0].ack()
        time.sleep(1.2)
        producer.send(b"later")
        while (delivery := second.recv(timeout=10)).key != mine[1].key:
            assert delivery.body == b"later"  # it is held
        assert time.monotonic() - answered < 2.8


def test_a_message_that_a_busy_consumer_has_passed_comes_again_in_time(make: Make) -> None:
    device = make(ack_timeout=300_000)
    with Producer(device.endpoints["receive"]) as producer, Consumer(device.endpoints["send"]) as consumer:
        producer.send_many(b"%d" % number for number in range(100))
        dropped = consumer.recv(timeout=5)
        while (delivery := consumer.recv(timeout=5)).key != dropped.key:
            time.sleep(0.01)
            delivery.ack()
        assert delivery.deliveries == 2


def test_what_is_acknowledged_and_comes_again_is_not_given_out() -> None:
    """The same happens when the acknowledgement was lost with its connection."""
    with omq.ROUTER(bind="tcp://127.0.0.1:*") as device:

        def deliver() -> bytes:
            device.wait_connected()
            (peer,) = device.peers
            for key in (b"a", b"a", b"b"):
                device.send_multipart([peer.identity, key, b"1", b"5000000", b"1", b"", b"body"])
            return peer.identity

        async def play() -> bytes:
            async with twin.Consumer(device.endpoints[0]) as consumer:
                peer = await asyncio.to_thread(deliver)
                await (await consumer.recv(timeout=5)).ack()
                assert (await consumer.recv(timeout=5)).key == b"b"
            return peer

        with Consumer(device.endpoints[0]) as consumer:
            peer = deliver()
            consumer.recv(timeout=5).ack()
            assert consumer.recv(timeout=5).key == b"b"
        acks = [device.recv_multipart(timeout=5) for _ in range(2)]
        assert acks == [[peer, b"a", b"1"]] * 2
        until(lambda: not device.peers)
        peer = asyncio.run(play())
        acks = [device.recv_multipart(timeout=5) for _ in range(2)]
        assert acks == [[peer, b"a", b"1"]] * 2


def test_a_device_is_started_once(tmp_path: Path) -> None:
    async def play() -> None:
        device = twin.Device(tmp_path / "data")
        async with device, twin.Producer(device.endpoints["receive"]) as producer:
            with pytest.raises(UsageError):
                await device.start()
            await producer.send(b"it still serves")
        with pytest.raises(UsageError):
            await device.start()
        async with twin.Device(tmp_path / "data"):
            pass

    asyncio.run(play())


def test_metadata_of_ones_own_goes_with_a_consumers(make: Make) -> None:
    with omq.ROUTER(bind="tcp://127.0.0.1:*") as device, Consumer(device.endpoints[0], metadata={b"X-Mine": b"1"}):
        device.wait_connected()
        assert device.peers[0].properties[b"x-mine"] == b"1"
        assert device.peers[0].properties[b"x-pzq-prefetch"] == b"1000"


def test_a_timeout_names_why_there_is_no_peer() -> None:
    async def play(endpoint: str) -> None:
        async with twin.Producer(endpoint, linger=0) as producer:
            await producer.send(b"x", timeout=0.3)

    with omq.PULL(bind="tcp://127.0.0.1:*") as other, Producer(other.endpoints[0], linger=0) as producer:
        with pytest.raises(ProduceTimeout) as caught:
            producer.send(b"x", timeout=0.3)
        assert "incompatible" in str(caught.value.__cause__)
        with pytest.raises(ProduceTimeout) as caught:
            asyncio.run(play(other.endpoints[0]))
        assert "incompatible" in str(caught.value.__cause__)


def test_a_device_that_does_not_answer() -> None:
    with held() as port, Producer(f"tcp://127.0.0.1:{port}", linger=0) as producer:
        with pytest.raises(ProduceTimeout):
            producer.send(b"x", timeout=0.05)
        with pytest.raises(TimeoutError):
            producer.send_many([b"x", b"y"], timeout=0.05)


def test_a_producer_goes_on_when_its_device_is_back_and_nothing_is_twice(tmp_path: Path) -> None:
    with held() as port:
        receive = f"tcp://127.0.0.1:{port}"
        with Producer(receive, timeout=60) as producer:
            sent: list[int] = []

            def produce() -> None:
                for start in range(0, 6000, 200):
                    count = producer.send_many(b"%d" % number for number in range(start, start + 200))
                    sent.append(count)

            thread = threading.Thread(target=produce)
            with closing(Device(tmp_path / "data", receive=receive)) as device:
                device.start()
                thread.start()
                until(lambda: len(sent) > 3)
            with (
                Device(tmp_path / "data", receive=receive, ack_timeout=60_000_000) as device,
                Consumer(device.endpoints["send"]) as consumer,
            ):
                got = set()
                for _ in range(6000):
                    delivery = consumer.recv(timeout=20)
                    got.add(delivery.body)
                    delivery.ack()
                assert got == {b"%d" % number for number in range(6000)}
                thread.join()
                with pytest.raises(ReceiveTimeout):
                    consumer.recv(timeout=0.2)


def test_the_twin_does_the_same(tmp_path: Path) -> None:
    async def play() -> None:
        async with (
            twin.Device(tmp_path / "data", hard_sync=True) as device,
            twin.Producer(device.endpoints["receive"]) as producer,
            twin.Consumer(device.endpoints["send"]) as consumer,
        ):
            await producer.send(b"one")
            assert await producer.send_many([b"two", [b"three", b"four"]]) == 2
            with pytest.raises(Refused):
                await producer.send(b"x", headers=[b"REPLICA:me"])
            first = await consumer.recv(timeout=5)
            await first.nack()
            bodies = set()
            async for delivery in consumer:
                await delivery.ack()
                bodies.add((delivery.body, delivery.deliveries))
                if len(bodies) == 3 and (b"one", 2) in bodies:
                    break
            assert {body for body, _ in bodies} == {b"one", b"two", b"threefour"}

    asyncio.run(play())


def test_what_is_public_is_there_twice() -> None:
    assert set(omq.pzq.__all__) == set(twin.__all__)


@pytest.mark.parametrize("options", [{"receive": "here"}, {"send": None}, {"monitor": ""}, {"dead_letter": "udp://x"}])
def test_an_invalid_endpoint_is_refused_by_its_name(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(EndpointError, match=f"^{next(iter(options))}: "):
        Device(tmp_path / "data", **options)


@pytest.mark.parametrize(
    ("option", "value", "error"),
    [
        ("hard_sync", "no", "True or False"),
        ("http", 8080, "HOST:PORT"),
        ("ack_timeout", 0, "whole number"),
        ("inflight_size", True, "whole number"),
        ("max_deliveries", 0, "whole number"),
    ],
)
def test_what_is_of_no_use_to_a_device_is_refused(tmp_path: Path, option: str, value: Any, error: str) -> None:
    with pytest.raises(UsageError, match=error):
        Device(tmp_path / "data", **{option: value})


def test_a_prefetch_that_does_not_fit_is_refused() -> None:
    with pytest.raises(UsageError, match="prefetch"):
        Consumer("tcp://127.0.0.1:1", prefetch=0)
