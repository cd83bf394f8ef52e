"""`flush`: returns when everything accepted has left, raises when it has not in time, and loses nothing by either."""

from __future__ import annotations

import socket as bare

import pytest

import omq
from tests.support.waits import BOUND
from tests.system.conformance.conftest import drain, fill

LARGE = bytes(1 << 20)


def _stuff(push, body):
    """Sends until nothing more leaves; how many messages.

    A Unix socket is writable to poll(2) again when three quarters of its buffer are free, and may have room before:
    where the peer reads its first 128 KiB after the last write, `flush` writes what waits, and there is room again.
    """
    sent = 0
    while True:
        sent += fill(push, 1_000_000, body, timeout=0.1, first=sent)
        try:
            push.flush(timeout=0.01)
        except omq.SendTimeout:
            return sent


def test_flush_returns_at_once_where_nothing_waits(twin, endpoint):
    pull = twin("PULL", bind=endpoint)
    push = twin("PUSH", connect=pull.endpoints[0])
    push.flush(timeout=0)
    push.wait_connected(timeout=BOUND)
    push.flush(timeout=0)
    push.send_many([b"x"] * 100)
    push.flush(timeout=BOUND)
    assert drain(pull, 100) == [b"x"] * 100


def test_flush_waits_for_a_peer_to_come(twin, tmp_path):
    push = twin("PUSH", connect=f"ipc://{tmp_path}/s", reconnect_interval=0.01)
    push.send_many([b"%d" % n for n in range(100)])
    with pytest.raises(omq.SendTimeout, match=r"have left within 0\.05 s"):
        push.flush(timeout=0.05)
    waiting = twin.spawn(push, "flush")
    assert not waiting.done(0.05)
    pull = twin("PULL", bind=f"ipc://{tmp_path}/s")
    waiting.result()
    assert drain(pull, 100) == [b"%d" % n for n in range(100)]


@pytest.mark.parametrize("size", [10, 10_000, 1 << 20])
def test_flush_waits_until_a_slow_peer_has_taken_enough(twin, size, tmp_path):
    """Messages stand in the queue, in a batch, and in the kernel; what the kernel has has left."""
    pull = twin("PULL", bind=f"ipc://{tmp_path}/s", recv_hwm=1)
    push = twin("PUSH", connect=pull.endpoints[0], send_hwm=50)
    push.wait_connected(timeout=BOUND)
    sent = _stuff(push, bytes(size))
    waiting = twin.spawn(push, "flush")
    assert not waiting.done(0.02)
    got = [pull.recv_multipart(timeout=BOUND) for _ in range(sent)]
    waiting.result()
    assert [int(number) for _, number in got] == list(range(sent))


def test_flush_waits_for_concurrent_sends_without_disturbing_them(twin, endpoint):
    pull = twin("PULL", bind=endpoint, recv_hwm=100)
    push = twin("PUSH", connect=pull.endpoints[0], send_hwm=100)
    sending = twin.spawn(push, "send_many", [b"%d" % n for n in range(20_000)])
    flushing = twin.spawn(push, "flush")
    got = drain(pull, 20_000)
    assert sending.result() == 20_000
    flushing.result()
    assert got == [b"%d" % n for n in range(20_000)]
    # The flusher, or the loop's turn, has its work back.
    push.send(b"later")
    assert pull.recv(timeout=BOUND) == b"later"


def test_the_end_of_the_socket_ends_it(twin, tmp_path):
    push = twin("PUSH", connect=f"ipc://{tmp_path}/absent", linger=0)
    push.send(b"x")
    waiting = twin.spawn(push, "flush")
    assert not waiting.done(0.05)
    push.close()
    with pytest.raises(omq.ClosedError):
        waiting.result()
    with pytest.raises(omq.ClosedError):
        push.flush()


def test_a_peer_that_goes_leaves_what_the_next_one_gets(twin, tmp_path):
    """Messages that only waited for the peer go to the next; those in its kernel are lost with it."""
    push = twin("PUSH", bind="tcp://127.0.0.1:*")
    host, port = push.endpoints[0].removeprefix("tcp://").rsplit(":", 1)
    with bare.create_connection((host, int(port))) as peer:
        greeting = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\0NULL".ljust(64, b"\0")
        peer.sendall(greeting + b"\4\x1a\5READY\x0bSocket-Type\0\0\0\4PULL")
        push.wait_connected(timeout=BOUND)
        push.send(LARGE, timeout=BOUND)
        fill(push, 100, LARGE)
        waiting = twin.spawn(push, "flush")
        assert not waiting.done(0.05)
    pull = twin("PULL", connect=push.endpoints[0])
    drain(pull, 1)
    waiting.result()


def test_a_publisher_waits_for_its_subscribers(twin):
    pub = twin("PUB", bind="tcp://127.0.0.1:*", send_hwm=0)
    sub = twin("SUB", connect=pub.endpoints[0], subscribe=b"", recv_hwm=10)
    pub.wait_subscribed(timeout=BOUND)
    for number in range(2000):
        pub.send(b"%d" % number + bytes(10_000))
    waiting = twin.spawn(pub, "flush")
    got = drain(sub, 2000)
    waiting.result()
    assert len(got) == 2000


def test_what_cannot_be_flushed_is_refused(twin, endpoint):
    pull = twin("PULL", bind=endpoint)
    with pytest.raises(omq.StateError, match="PULL socket does not send"):
        pull.flush()
    push = twin("PUSH")
    for timeout in (-1, float("nan")):
        with pytest.raises(ValueError, match="timeout"):
            push.flush(timeout)


def test_several_flush_at_once(twin, endpoint):
    pull = twin("PULL", bind=endpoint)
    push = twin("PUSH", connect=pull.endpoints[0])
    push.send_many([b"x"] * 500)
    begun = [twin.spawn(push, "flush") for _ in range(5)]
    for waiting in begun:
        waiting.result()
    assert len(drain(pull, 500)) == 500
