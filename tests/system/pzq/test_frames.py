"""The wire, frame by frame, as clients of the original see it."""

from __future__ import annotations

import re
import socket
import time
from contextlib import closing

import pytest
import zmq

from bench.pzq.clients import BareConnection
from omq.pzq import Consumer
from tests.support.libzmq_pzq_clients import asked, clients, figures, raw
from tests.support.waits import stable, until
from tests.system.pzq.conftest import Make

KEY = re.compile(rb"\d{16}\|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
ORIGINAL = ["messages", "messages_inflight", "db_size", "inflight_db_size", "syncs", "expired_messages"]


@pytest.mark.parametrize("hard_sync", [False, True])
@pytest.mark.parametrize(
    ("headers", "body"),
    [([], [b"body"]), ([], [b""]), ([], [b"", b"a", b""]), ([b"header", b"other"], [b"a", b"b" * 100_000])],
)
def test_a_message_goes_from_a_producer_to_a_consumer(
    make: Make, hard_sync: bool, headers: list[bytes], body: list[bytes]
) -> None:
    device = make(hard_sync=hard_sync, ack_timeout=7_000_000)
    before = time.time_ns() // 1000
    with raw(zmq.DEALER, device.endpoints["receive"]) as producer:
        assert asked(producer, b"\0\xffid", *headers, b"", *body) == [b"\0\xffid", b"1", b""]
    with raw(zmq.ROUTER, device.endpoints["send"]) as consumer:
        peer, key, sent, timeout, empty, *parts = consumer.recv_multipart()
        assert KEY.fullmatch(key)
        assert before <= int(key[:16]) <= int(sent) <= time.time_ns() // 1000
        assert (timeout, empty, parts) == (b"7000000", b"", body)
        held = figures(device.endpoints["monitor"])
        assert (held["messages"], held["messages_inflight"]) == (1, 1)
        assert held["inflight_db_size"] == sum(map(len, body))
        consumer.send_multipart([peer, key, b"1"])
        until(lambda: figures(device.endpoints["monitor"])["messages"] == 0)
        assert figures(device.endpoints["monitor"])["inflight_db_size"] == 0


@pytest.mark.parametrize(
    ("frames", "why"),
    [
        ([b"id"], b"no empty frame"),
        ([b"id", b"header"], b"no empty frame"),
        ([b"id", b""], b"no body"),
        ([b"id", b"header", b""], b"no body"),
        ([b"id", b"REPLICA:tcp://127.0.0.1:1", b"", b"body"], b"accepted from the nodes of a cluster only"),
        ([b"id", b"DEDUP:a:b", b"", b"body"], b"sequence"),
        ([b"id", b"DEDUP:a:0", b"", b"body"], b"sequence"),
        ([b"id", b"DEDUP::1", b"", b"body"], b"the producer must have 1 to 96 bytes"),
        ([b"id", b"DEDUP:a:1", b"DEDUP:a:2", b"", b"body"], b"two DEDUP"),
        ([b"id", b"", b"x" * (64 << 20), b"y"], b"at most 67108864 are allowed"),
    ],
)
def test_what_is_malformed_is_refused_with_a_reason(make: Make, frames: list[bytes], why: bytes) -> None:
    device = make()
    with raw(zmq.DEALER, device.endpoints["receive"]) as producer:
        id, status, empty, text = asked(producer, *frames)
        assert (id, status, empty) == (b"id", b"0", b"")
        assert why in text
        assert asked(producer, b"next", b"", b"body") == [b"next", b"1", b""]
    assert figures(device.endpoints["monitor"])["messages"] == 1


@pytest.mark.slow
def test_a_frame_of_64_mib_is_stored_and_delivered_alone(make: Make) -> None:
    device = make(inflight_size=1000)
    large = b"x" * (64 << 20)
    with raw(zmq.DEALER, device.endpoints["receive"]) as producer:
        for body in (large, b"small"):
            assert asked(producer, b"id", b"", body) == [b"id", b"1", b""]
    with raw(zmq.ROUTER, device.endpoints["send"]) as consumer:
        peer, key, *_, body = consumer.recv_multipart()
        assert body == large
        assert not consumer.poll(200)
        consumer.send_multipart([peer, key, b"1"])
        assert consumer.recv_multipart()[5] == b"small"


def test_a_message_without_end_costs_its_connection(make: Make) -> None:
    device = make()
    with raw(zmq.DEALER, device.endpoints["receive"]) as endless:
        monitor = endless.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        for _ in range(70_000):
            endless.send(b"x", zmq.SNDMORE)
        endless.send(b"x")
        assert monitor.poll(10_000)
        endless.disable_monitor()
        monitor.close()
    with raw(zmq.DEALER, device.endpoints["receive"]) as producer:
        assert asked(producer, b"id", b"", b"body") == [b"id", b"1", b""]


def test_a_negative_acknowledgement_has_it_delivered_again_at_once(make: Make) -> None:
    device = make(ack_timeout=60_000_000)
    with clients(device) as (producer, consumer):
        asked(producer, b"1", b"", b"body")
        peer, key, *_ = consumer.recv_multipart()
        consumer.send_multipart([peer, key, b"0"])
        assert consumer.recv_multipart()[1] == key


def test_what_is_not_acknowledged_in_time_is_delivered_again(make: Make) -> None:
    device = make(ack_timeout=300_000)
    with clients(device) as (producer, consumer):
        asked(producer, b"1", b"", b"body")
        first = consumer.recv_multipart()
        began = time.monotonic()
        again = consumer.recv_multipart()
        assert again[1] == first[1]
        assert 0.25 < time.monotonic() - began < 5
        assert int(again[2]) >= int(first[2]) + 300_000
        assert figures(device.endpoints["monitor"])["expired_messages"] >= 1


def test_acknowledgements_that_count_for_nothing_do_no_harm(make: Make) -> None:
    device = make(ack_timeout=60_000_000)
    with clients(device) as (producer, one), raw(zmq.ROUTER, device.endpoints["send"]) as other:
        until(lambda: figures(device.endpoints["monitor"])["consumers"] == 2)
        for number in range(2):
            asked(producer, b"id", b"", b"%d" % number)
        mine, yours = one.recv_multipart(), other.recv_multipart()
        assert {mine[5], yours[5]} == {b"0", b"1"}
        for frames in (
            [yours[1], b"1"],  # of another consumer
            [b"unknown", b"1"],
            [mine[1]],
            [mine[1], b"2"],
            [mine[1], b"1", b"1"],
            [mine[1], b""],
        ):
            one.send_multipart([mine[0], *frames])
        until(lambda: figures(device.endpoints["monitor"])["refused_acks"] == 6)
        assert figures(device.endpoints["monitor"])["messages"] == 2
        one.send_multipart([mine[0], mine[1], b"1"])
        other.send_multipart([yours[0], yours[1], b"1"])
        until(lambda: figures(device.endpoints["monitor"])["messages"] == 0)


def test_consumers_have_their_turns_and_one_that_goes_gives_back_what_it_held(make: Make) -> None:
    device = make(ack_timeout=60_000_000)
    endpoint = device.endpoints["send"]
    with raw(zmq.DEALER, device.endpoints["receive"]) as producer, raw(zmq.ROUTER, endpoint, routing_id=b"same") as one:
        with raw(zmq.ROUTER, endpoint, routing_id=b"same") as other:
            until(lambda: figures(device.endpoints["monitor"])["consumers"] == 2)
            for number in range(6):
                asked(producer, b"id", b"", b"%d" % number)
            got = [[each.recv_multipart()[5] for _ in range(3)] for each in (one, other)]
            assert sorted(got) == [[b"0", b"2", b"4"], [b"1", b"3", b"5"]]
        assert [one.recv_multipart()[5] for _ in range(3)] == got[1]


def test_messages_come_in_their_order_and_survive_a_restart(make: Make) -> None:
    for hard_sync in (False, True):  # what was stored before comes first
        with (
            closing(make(hard_sync=hard_sync)) as device,
            raw(zmq.DEALER, device.endpoints["receive"], rcvhwm=0, sndhwm=0) as producer,
        ):
            for number in range(3000):
                producer.send_multipart([b"%d" % number, b"", b"%d.%d" % (hard_sync, number)])
            assert [producer.recv_multipart()[0] for _ in range(3000)] == [b"%d" % number for number in range(3000)]
    wanted = [b"%d.%d" % (hard_sync, number) for hard_sync in (False, True) for number in range(3000)]
    keys = []
    with closing(make()) as device, raw(zmq.ROUTER, device.endpoints["send"], rcvhwm=0, sndhwm=0) as consumer:
        for at in range(6000):
            peer, key, _, _, _, body = consumer.recv_multipart()
            assert body == wanted[at]
            keys.append(key)
            if at % 2:
                consumer.send_multipart([peer, key, b"1"])
        until(lambda: figures(device.endpoints["monitor"])["messages"] == 3000)
    device = make()
    assert figures(device.endpoints["monitor"])["messages"] == 3000
    with raw(zmq.ROUTER, device.endpoints["send"], rcvhwm=0, sndhwm=0) as consumer:
        found = [consumer.recv_multipart() for _ in range(3000)]
        assert [frames[5] for frames in found] == wanted[::2]
        assert [frames[1] for frames in found] == keys[::2]  # a message keeps its key
        assert not consumer.poll(100)


def test_what_was_acknowledged_before_the_end_counts(make: Make) -> None:
    device = make(ack_timeout=60_000_000)
    with clients(device, sndhwm=0, rcvhwm=0) as (producer, consumer):
        for _ in range(500):
            producer.send_multipart([b"id", b"", b"body"])
        held = [consumer.recv_multipart()[:2] for _ in range(500)]
        for frames in held:
            consumer.send_multipart([*frames, b"1"])
        until(lambda: figures(device.endpoints["monitor"])["acknowledged"] == 500)
        device.close()
    assert figures(make().endpoints["monitor"])["messages"] == 0


def test_no_more_is_in_flight_than_the_bound_allows(make: Make) -> None:
    device = make(inflight_size=10_000, ack_timeout=60_000_000)
    with clients(device) as (producer, consumer):
        for number in range(25):
            asked(producer, b"id", b"", b"%04d" % number + b"x" * 996)
        held = [consumer.recv_multipart() for _ in range(10)]
        assert not consumer.poll(200)
        assert figures(device.endpoints["monitor"])["inflight_db_size"] == 10_000
        for at in range(15):
            consumer.send_multipart([*held[at][:2], b"1"])
            held.append(consumer.recv_multipart())
        assert [frames[5][:4] for frames in held] == [b"%04d" % number for number in range(25)]


def test_a_repetition_is_stored_once_over_a_restart_too(make: Make) -> None:
    for _ in range(2):
        with closing(make()) as device, raw(zmq.DEALER, device.endpoints["receive"]) as producer:
            for sequence in (1, 2, 1, 2):
                header = b"DEDUP:a:b:%d" % sequence
                assert asked(producer, b"id", header, b"", b"body") == [b"id", b"1", b""]
            assert figures(device.endpoints["monitor"])["messages"] == 2


def test_the_monitor_reports_what_the_original_reports(make: Make) -> None:
    device = make()
    for kind in (zmq.REQ, zmq.DEALER):
        with raw(kind, device.endpoints["monitor"]) as monitor:
            monitor.send(b"MONITOR")
            (text,) = monitor.recv_multipart()
            lines = [line.split(": ") for line in text.decode().splitlines()]
            assert [name for name, _ in lines] == ORIGINAL
            assert all(value.isdigit() for _, value in lines)
            for frames in ([b"monitor"], [b"MONITOR", b"XML"], [b"x"] * 9):
                monitor.send_multipart(frames)
                assert monitor.recv().startswith(b"error: ")


@pytest.mark.parametrize(
    ("count", "size"), [(30, 1 << 20), (20_000, 0), pytest.param(20_000, 3, marks=pytest.mark.slow)]
)
def test_a_consumer_that_does_not_read_is_not_sent_the_same_again_and_again(make: Make, count: int, size: int) -> None:
    device = make(ack_timeout=100_000, reaper_frequency=20_000)
    deaf = BareConnection(device.endpoints["send"], b"ROUTER")
    deaf.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    with raw(zmq.DEALER, device.endpoints["receive"]) as producer:
        for _ in range(count):
            producer.send_multipart([b"id", b"", b"x" * size])
        for _ in range(count):
            producer.recv_multipart()

    def expired() -> int:
        return int(figures(device.endpoints["monitor"])["expired_messages"])

    until(expired)
    stable(expired, quiet=0.3)
    with Consumer(device.endpoints["send"]) as consumer:
        for _ in range(count):
            consumer.recv(timeout=5).ack()
        until(lambda: figures(device.endpoints["monitor"])["messages"] == 0)
    deaf.close()


def test_a_consumer_that_hangs_gets_nothing_while_another_one_is_busy(make: Make) -> None:
    device = make(ack_timeout=1_000_000)
    with clients(device) as (producer, _), Consumer(device.endpoints["send"], prefetch=1) as other:
        until(lambda: figures(device.endpoints["monitor"])["consumers"] == 2)
        for _ in range(61):
            asked(producer, b"id", b"", b"body")
        for _ in range(61):
            other.recv(timeout=5).ack()
        stats = figures(device.endpoints["monitor"])
        assert 0 < stats["expired_messages"] < 66, stats


def test_a_consumer_that_forgets_a_message_is_tried_again(make: Make) -> None:
    device = make(ack_timeout=200_000)
    with clients(device) as (producer, forgetful), raw(zmq.ROUTER, device.endpoints["send"]) as other:
        until(lambda: figures(device.endpoints["monitor"])["consumers"] == 2)
        for _ in range(2):
            asked(producer, b"id", b"", b"body")
        forgetful.recv_multipart()
        peer, key, *_ = other.recv_multipart()
        other.send_multipart([peer, key, b"1"])
        until(lambda: figures(device.endpoints["monitor"])["expired_messages"] == 1)
        taken, began = 0, time.monotonic()
        while taken < 20:
            assert time.monotonic() - began < 20, taken
            asked(producer, b"id", b"", b"body")
            for consumer in (forgetful, other):
                while consumer.poll(2):
                    peer, key, *_ = consumer.recv_multipart()
                    consumer.send_multipart([peer, key, b"1"])
                    taken += consumer is forgetful


def test_dead_letters_that_cannot_come_are_reported(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    make(dead_letter="tcp://127.0.0.1:*").close()
    assert "without max_deliveries none comes" in caplog.text
    make(max_deliveries=3, dead_letter="tcp://127.0.0.1:*").close()
    make(dead_letter="tcp://127.0.0.1:*").close()  # there may be some
    assert caplog.text.count("none comes") == 1


def test_what_is_delivered_too_often_becomes_a_dead_letter(make: Make) -> None:
    device = make(max_deliveries=2, ack_timeout=60_000_000, dead_letter="tcp://127.0.0.1:*")
    with clients(device) as (producer, consumer), raw(zmq.ROUTER, device.endpoints["dead_letter"]) as graves:
        asked(producer, b"1", b"", b"bad", b"part")
        for _ in range(2):
            peer, key, *_ = consumer.recv_multipart()
            consumer.send_multipart([peer, key, b"0"])
        peer, key, _, _, empty, *parts = graves.recv_multipart()
        assert (empty, parts) == (b"", [b"bad", b"part"])
        stats = figures(device.endpoints["monitor"])
        assert (stats["messages"], stats["dead_letters"], stats["dead_lettered"]) == (0, 1, 1)
        graves.send_multipart([peer, key, b"1"])
        until(lambda: figures(device.endpoints["monitor"])["dead_letters"] == 0)
        assert not consumer.poll(100)


@pytest.mark.parametrize("max_deliveries", [None, 1])
def test_what_is_overdue_leaves_its_room_to_others_at_once(make: Make, max_deliveries: int | None) -> None:
    device = make(inflight_size=10, ack_timeout=500_000, reaper_frequency=10_000, max_deliveries=max_deliveries)
    with clients(device) as (producer, hanging):
        for number in b"ab":
            asked(producer, b"id", b"", bytes([number]) * 20)
        assert hanging.recv_multipart()[-1] == b"a" * 20
        with raw(zmq.ROUTER, device.endpoints["send"]) as consumer:
            consumer.rcvtimeo = 10_000
            until(lambda: figures(device.endpoints["monitor"])["consumers"] == 2)
            peer, key, *_, body = consumer.recv_multipart()
            assert body == (b"a" if max_deliveries is None else b"b") * 20
            consumer.send_multipart([peer, key, b"1"])
            assert not hanging.poll(0), "it hangs, and there is another one"


def test_consumers_whose_messages_fill_the_room_have_them_in_turn(make: Make) -> None:
    device = make(inflight_size=10)
    with clients(device) as (producer, one), raw(zmq.ROUTER, device.endpoints["send"]) as two:
        until(lambda: figures(device.endpoints["monitor"])["consumers"] == 2)
        for number in range(6):
            asked(producer, b"id", b"", b"%d" % number * 20)
        got: dict[zmq.Socket[bytes], list[bytes]] = {one: [], two: []}
        for _ in range(6):
            ready = zmq.select([one, two], [], [], 10)[0][0]
            peer, key, *_, body = ready.recv_multipart()
            got[ready].append(body[:1])
            ready.send_multipart([peer, key, b"1"])
        assert sorted(got.values()) == [[b"0", b"2", b"4"], [b"1", b"3", b"5"]]
