"""The statistics of asyncio sockets."""

from __future__ import annotations

import asyncio
import threading

import omq.asyncio as omq
from tests.unit.conftest import on_both_loops, until

pytestmark = on_both_loops


async def test_messages_are_counted(make, endpoint):
    pull, push = await make.linked(omq.PULL, omq.PUSH, endpoint)
    for _ in range(10):
        await push.send(bytes(100))
    await push.send_multipart([b"a", b"b"])
    await until(lambda: pull.stats.messages_received == 11)
    await until(lambda: push.stats.messages_sent == 11)
    assert pull.stats.recv_queue_messages == 11
    assert push.stats.sent_bytes == pull.stats.received_bytes >= 1002
    assert len(await pull.recv_many(100)) == 11
    assert pull.stats.recv_queue_messages == 0


async def test_peers_that_left_still_count(make, endpoint):
    pull = make(omq.PULL, bind=endpoint)
    for number in range(1, 4):
        push = make(omq.PUSH, connect=pull.endpoints[0])
        await push.send(b"x")
        assert await pull.recv(timeout=5) == b"x"
        push.stop()
        await until(lambda: not pull.peers)
        assert pull.stats.messages_received == number
    assert pull.stats.peers == 0


async def test_messages_for_a_full_subscriber_are_dropped(make, endpoint):
    pub, _ = await make.linked(omq.PUB, omq.SUB, endpoint, send_hwm=1, recv_hwm=1, subscribe=b"")
    await pub.wait_subscribed(timeout=5)
    published = 0
    while not pub.stats.messages_dropped:
        await pub.send(bytes(100_000))
        published += 1
        assert published < 10_000
    stats = pub.stats
    assert stats.messages_sent + stats.send_queue_messages + stats.messages_dropped == published


async def test_a_connection_after_the_first_one_is_a_reconnect(make, endpoint):
    push = make(omq.PUSH, connect=endpoint, reconnect_interval=0.01)
    for reconnects in range(2):
        pull = make(omq.PULL, bind=endpoint)
        await push.wait_connected(timeout=5)
        assert push.stats.reconnects == reconnects
        pull.stop()
        await until(lambda: not push.peers)


async def test_another_thread_reads_them(make, endpoint):
    pull, push = await make.linked(omq.PULL, omq.PUSH, endpoint)
    over = threading.Event()

    def watch():
        seen = [pull.stats]
        while not over.is_set():
            seen.append(pull.stats)
        return seen

    watcher = asyncio.ensure_future(asyncio.to_thread(watch))
    for _ in range(500):
        await push.send(b"x")
        assert await pull.recv(timeout=5) == b"x"
    over.set()
    received = [stats.messages_received for stats in await watcher]
    assert received == sorted(received)
    assert pull.stats.messages_received == 500
