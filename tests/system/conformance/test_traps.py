"""Traps that no other test is about; the whole list, with the test of each, is docs/explanation/traps.md."""

from __future__ import annotations

import asyncio
import hashlib
import random
import socket
import threading
import time
from pathlib import Path

import pytest

import omq
import omq.asyncio
from bench.peers.bare_connections import GREETING
from tests.support.waits import BOUND, until


def raw_connection(endpoint, kind):
    """A connection that has made the handshake as a socket of this type."""
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    sock = socket.create_connection((host, int(port)), timeout=BOUND)
    body = b"\x05READY\x0bSocket-Type" + len(kind).to_bytes(4, "big") + kind
    sock.sendall(GREETING + bytes([4, len(body)]) + body)
    got = b""
    while len(got) < 64 + 2:
        got += sock.recv(4096)
    return sock


def resident():
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmRSS"].split()[0])


def test_a_flood_of_empty_parts_that_never_ends_costs_its_sender_the_connection(twin):
    """Each frame is within every limit of size; only the number of parts is not."""
    pull = twin("PULL", bind="tcp://127.0.0.1:*", max_parts=1000)
    good = twin("PUSH", connect=pull.endpoints[0])
    with raw_connection(pull.endpoints[0], b"PUSH") as flood:
        pull.wait_connected(2, timeout=BOUND)
        before = resident()
        with pytest.raises(OSError, match=r"reset|pipe"):  # noqa: PT012
            while True:
                flood.sendall(b"\1\0" * 50_000)
                if not pull.poll(0) and len(pull.peers) == 1:
                    time.sleep(0.01)
        assert resident() - before < 8_000
    good.send(b"unharmed")
    assert pull.recv(timeout=BOUND) == b"unharmed"
    until(lambda: len(pull.peers) == 1)


def test_a_dead_worker_is_noticed_without_a_send(twin, endpoint):
    push = twin("PUSH", bind=endpoint)
    pull = twin("PULL", connect=push.endpoints[0])
    push.wait_connected(timeout=BOUND)
    pull.stop()
    until(lambda: not push.peers)
    # So the next message is not given to the dead.
    push.send(b"for the next")
    assert twin("PULL", connect=push.endpoints[0]).recv(timeout=BOUND) == b"for the next"


@pytest.mark.parametrize("size", [0, 10, 5_000, 40_000, 300_000])
def test_what_was_delivered_does_not_change_afterwards(twin, endpoint, size):
    """Slabs and batches are used again and again; what the user has got is his."""
    pull = twin("PULL", bind=endpoint)
    push = twin("PUSH", connect=pull.endpoints[0])
    kept = []
    for turn in range(3):
        count = 300 if size < 100_000 else 20
        sent = [b"%d %d " % (turn, n) + random.randbytes(size) for n in range(count)]
        waiting = twin.spawn(push, "send_many", sent)
        got = [pull.recv(timeout=BOUND) for _ in range(count)]
        waiting.result()
        assert got == sent
        kept += [(message, hashlib.sha256(message).digest()) for message in got]
    assert all(hashlib.sha256(message).digest() == digest for message, digest in kept)


def test_order_holds_whichever_way_a_message_takes(twin, endpoint):
    """Straight into the batch, through the queue when peers are full, in runs: the sequence is one."""
    pull = twin("PULL", bind=endpoint, recv_hwm=7)
    push = twin("PUSH", connect=pull.endpoints[0], send_hwm=11)
    chance = random.Random(7)
    total = 3000

    def send() -> None:
        sent = 0
        while sent < total:
            run = min(chance.choice([1, 1, 1, 5, 40]), total - sent)
            body = bytes(chance.choice([0, 100, 5000, 60_000]))
            if run == 1:
                push.send(b"%d " % sent + body)
            else:
                push.send_many([b"%d " % (sent + n) + body for n in range(run)])
            sent += run

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    for number in range(total):
        if number % 500 == 0:
            time.sleep(0.05)  # the owner is away: the sender runs into its mark
        assert int(pull.recv(timeout=BOUND).split(b" ")[0]) == number
    thread.join(BOUND)


def test_duplicate_connects_of_a_push_are_two_connections_and_one_queue(twin, endpoint):
    pull = twin("PULL", bind=endpoint)
    push = twin("PUSH", connect=[pull.endpoints[0]] * 2)
    push.wait_connected(2, timeout=BOUND)
    pull.wait_connected(2, timeout=BOUND)
    for number in range(100):
        push.send(b"%d" % number)
    assert sorted(int(pull.recv(timeout=BOUND)) for _ in range(100)) == list(range(100))
    push.disconnect(pull.endpoints[0])
    until(lambda: len(push.peers) == 1 and len(pull.peers) == 1)
    push.send(b"over the other")
    assert pull.recv(timeout=BOUND) == b"over the other"


@pytest.mark.parametrize("transport", ["tcp", "ipc"])
def test_a_cancelled_send_never_tears_a_message(tmp_path, transport):
    """Large messages of several parts to a slow reader, cancelled at any moment: whole ones arrive, in order."""
    endpoint = "tcp://127.0.0.1:*" if transport == "tcp" else f"ipc://{tmp_path}/s"
    chance = random.Random(3)
    body = bytes(range(256)) * 1200

    async def main() -> None:
        async with omq.asyncio.PULL(bind=endpoint, recv_hwm=1) as pull:
            push = omq.asyncio.PUSH(connect=pull.endpoints[0], send_hwm=2)
            await push.wait_connected(timeout=BOUND)
            sent, got = [], []

            async def read() -> None:
                while True:
                    parts = await pull.recv_multipart(timeout=1)
                    assert parts[1:] == [body, b"", body]
                    got.append(int(parts[0]))
                    await asyncio.sleep(0.01)

            reader = asyncio.create_task(read())
            for number in range(300):
                call = asyncio.create_task(push.send_multipart([b"%d" % number, body, b"", body]))
                await asyncio.sleep(chance.choice([0, 0, 0.001]))
                if call.cancel():
                    await asyncio.wait([call])
                if not call.cancelled():
                    sent.append(number)
            with pytest.raises(omq.ReceiveTimeout):
                await reader
            await push.close(0)
            assert got == sent
            assert 0 < len(sent) < 300, "some were cancelled, and some not"

    asyncio.run(asyncio.wait_for(main(), 3 * BOUND))


def test_control_traffic_does_not_queue_behind_data(twin):
    """A subscription gets through while the other direction is full of messages that are not taken."""
    pub = twin("XPUB", bind="tcp://127.0.0.1:*", send_hwm=1000)
    with raw_connection(pub.endpoints[0], b"SUB") as sub:
        sub.sendall(b"\0\1\1")
        assert pub.recv(timeout=BOUND) == b"\1"
        for _ in range(200):
            pub.send(bytes(100_000))
        sub.sendall(b"\0\5\1more")
        assert pub.recv(timeout=BOUND) == b"\1more"


def test_what_a_monitor_holds_is_bounded_and_it_counts_what_it_missed(twin):
    pull = twin("PULL", bind="tcp://127.0.0.1:*")
    monitor = pull.monitor(limit=4)
    for _ in range(20):
        push = twin("PUSH", connect=pull.endpoints[0])
        push.wait_connected(timeout=BOUND)
        push.stop()
    until(lambda: not pull.peers)
    pull.stop()
    events = []
    while not events or events[-1].kind != "monitor_stopped":
        events.append(twin.wait(lambda: monitor.recv(timeout=BOUND)))
    assert events[0].kind == "missed"
    assert events[0].count >= 50, "three events a connection, and four are held"
    assert len(events) == 5


@pytest.mark.parametrize("kind", ["PUB", "XPUB"])
def test_a_peer_with_endless_prefixes_costs_itself_its_connection(twin, endpoint, kind):
    pub = twin(kind, bind=endpoint, max_subscriptions=100, recv_hwm=0)
    good = twin("SUB", connect=pub.endpoints[0], subscribe=[b"%d" % n for n in range(100)])
    pub.wait_subscribed(n=100, timeout=BOUND)
    for number in range(50):
        good.subscribe(b"%d" % number)  # again: it is not a further one
        good.unsubscribe(b"%d" % (99 - number))
        good.subscribe(b"other %d" % number)
    pub.wait_subscribed(b"other 49", timeout=BOUND)
    monitor = pub.monitor()
    greedy = twin("SUB", connect=pub.endpoints[0], subscribe=[b"prefix %d" % n for n in range(101)])
    reasons = []
    while not any("max_subscriptions=100" in reason for reason in reasons):
        reasons.append(twin.wait(lambda: monitor.recv(timeout=BOUND)).reason)
    greedy.stop()
    until(lambda: len(pub.peers) == 1)
    pub.send(b"other 49")
    assert good.recv(timeout=BOUND) == b"other 49"
    monitor.close()
