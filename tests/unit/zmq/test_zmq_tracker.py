"""Trackers of `omq.zmq`: they are done when the memory is free, and not before."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

import omq.zmq as zmq
import omq.zmq.asyncio as zmq_asyncio
from omq.errors import ClosedError
from tests.unit.core.test_waiting import peer, read

PairOf = Callable[[int, int], tuple[Any, Any]]

#: More than the kernels of both sides take.
LARGE = 20_000_000


@pytest.mark.parametrize("kind", [bytes, bytearray, lambda data: memoryview(bytearray(data))])
def test_memory_is_in_use_until_its_last_byte_has_left(
    context: zmq.Context[Any], free_place: str, kind: Callable[[bytes], Any]
) -> None:
    push, pull = context.socket(zmq.PUSH), context.socket(zmq.PULL)
    pull.rcvtimeo = 10_000
    push.connect(free_place)
    tracker = push.send(kind(bytes(100_000)), copy=False, track=True)
    assert not tracker.done
    with pytest.raises(zmq.NotDone):
        tracker.wait(0.05)
    pull.bind(free_place)
    assert pull.recv() == bytes(100_000)
    tracker.wait(10)
    assert tracker.done
    assert push.send(b"small", copy=False, track=True).done


def test_memory_that_is_free_again_may_change(pair_of: PairOf) -> None:
    pull, push = pair_of(zmq.PULL, zmq.PUSH)
    memory = bytearray(1_000_000)
    for number in range(50):
        memory[:] = bytes([number]) * len(memory)
        push.send_multipart([b"head", memory], copy=False, track=True).wait(10)
    for number in range(50):
        assert pull.recv_multipart() == [b"head", bytes([number]) * len(memory)]
    memory.append(0)


def test_memory_is_not_copied(context: zmq.Context[Any], free_place: str) -> None:
    push, pull = context.socket(zmq.PUSH), context.socket(zmq.PULL)
    pull.rcvtimeo = 10_000
    push.connect(free_place)
    memory = bytearray(100_000)
    tracker = push.send_multipart([b"head", memory], copy=False, track=True)
    memory[-1] = 1  # the program should have waited
    pull.bind(free_place)
    assert pull.recv_multipart()[1][-1] == 1
    tracker.wait(10)


def test_a_tracker_shows_without_a_call_of_the_socket(pair_of: PairOf) -> None:
    pull, push = pair_of(zmq.PULL, zmq.PUSH)
    trackers = [push.send(bytearray(LARGE), copy=False, track=True) for _ in range(3)]
    for _ in trackers:
        pull.recv()
    for tracker in trackers:
        assert all(event.wait(10) for event in tracker.events)
        assert tracker.done


def test_buffers_may_be_used_again_in_turn(pair_of: PairOf) -> None:
    """Takes a buffer back once its tracker is done, as vLLM does; the buffer may then get another size."""
    dealer, router = pair_of(zmq.DEALER, zmq.ROUTER)
    dealer.send(b"ready")
    identity, _ = router.recv_multipart()
    pending: deque[Any] = deque()
    free: list[bytearray] = []
    got = []
    for number in range(100):
        while pending and pending[-1][0].done:
            free.append(pending.pop()[1])
        memory = free.pop() if free else bytearray()
        memory[:] = bytes([number]) * (200_000 + number)
        tracker = router.send_multipart([identity, b"head", memory], copy=False, track=True)
        pending.appendleft((tracker, memory))
        frames = dealer.recv_multipart(copy=False)
        got.append(frames[1].bytes)
    assert got == [bytes([number]) * (200_000 + number) for number in range(100)]


def test_every_subscriber_counts(context: zmq.Context[Any]) -> None:
    pub = context.socket(zmq.XPUB)
    pub.xpub_verboser = 1
    pub.bind("tcp://127.0.0.1:*")
    subs = [context.socket(zmq.SUB) for _ in range(3)]
    for sub in subs:
        sub.rcvtimeo = 10_000
        sub.connect(pub.last_endpoint.decode())
        sub.subscribe(b"")
        assert pub.recv() == b"\1"
    memory = bytearray(LARGE)
    tracker = pub.send(memory, copy=False, track=True)
    for sub in subs:
        assert sub.recv() == memory
    tracker.wait(10)


def test_memory_is_free_after_close_without_linger(context: zmq.Context[Any], free_place: str) -> None:
    push = context.socket(zmq.PUSH)
    push.connect(free_place)
    trackers = [push.send(bytearray(100_000), copy=False, track=True) for _ in range(3)]
    push.close(linger=0)
    for tracker in trackers:
        tracker.wait(10)
        assert tracker.done


def test_memory_is_free_after_the_connection_has_ended(context: zmq.Context[Any]) -> None:
    """Of the first message a part has left; the second one waits for the next peer."""
    push = context.socket(zmq.PUSH)
    push.linger = 0
    push.reconnect_ivl = -1
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10)
        push.connect(f"tcp://127.0.0.1:{server.getsockname()[1]}")
        with peer(server):
            first = push.send(bytearray(LARGE), copy=False, track=True)
            second = push.send(bytearray(LARGE), copy=False, track=True)
            assert not first.done
        first.wait(10)
        assert not second.done
    push.close()
    second.wait(10)


def test_a_wait_sends_in_its_own_thread(context: zmq.Context[Any]) -> None:
    """Otherwise each message would wait until the I/O thread notices that the program does not come back."""
    push = context.socket(zmq.PUSH)
    push.linger = 0
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10)
        push.connect(f"tcp://127.0.0.1:{server.getsockname()[1]}")
        with peer(server) as connection:
            (event,) = push.send(bytearray(LARGE), copy=False, track=True).events
            assert not push._handle.serve_until(event, 0.01)
            reader = threading.Thread(target=read, args=([connection], LARGE))
            reader.start()
            assert push._handle.serve_until(event, 10)
            reader.join()
    push.close()
    with pytest.raises(ClosedError):
        push._handle.serve_until(event, 0)


def test_a_part_that_waits_for_others_is_a_copy(pair_of: PairOf) -> None:
    pull, push = pair_of(zmq.PULL, zmq.PUSH)
    memory = bytearray(b"first")
    push.send(memory, zmq.SNDMORE)
    memory[:] = b"later"
    push.send(memory)
    assert pull.recv_multipart() == [b"first", b"later"]


def test_a_wait_may_block_the_loop_that_serves_the_socket(free_place: str) -> None:
    async def play() -> None:
        with zmq_asyncio.Context() as context, zmq.Context() as other:
            push, pull = context.socket(zmq.PUSH), other.socket(zmq.PULL)
            pull.rcvtimeo = 10_000
            push.connect(free_place)
            pull.bind(free_place)
            await push.send(b"first")
            assert pull.recv() == b"first"
            tracker = await push.send(bytearray(LARGE), copy=False, track=True)
            await asyncio.sleep(0)
            assert len(pull.recv()) == LARGE
            tracker.wait(10)
            push.close()
            pull.close()

    asyncio.run(play())
