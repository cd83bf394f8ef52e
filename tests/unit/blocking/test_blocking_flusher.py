"""The flusher: what a caller leaves behind leaves without it, and what was accepted does not change on the way."""

from __future__ import annotations

import gc
import mmap
import random
import subprocess
import sys
import threading
import time

import pytest

import omq
from tests.support.fork_server import SOCKETS, ForkedProcess, run
from tests.support.waits import until
from tests.unit.blocking.conftest import BOUND
from tests.unit.conftest import needs_address_space

ROUNDS = 60
TAIL = 10.0  # seconds that a tail may take; a few milliseconds where nothing else runs
RECEIVER = """
import mmap, sys, omq
security = omq.CurveServer(sys.argv[2].encode()) if sys.argv[2] else None
with open(sys.argv[3], "r+b") as file, mmap.mmap(file.fileno(), 1) as seen:
    with omq.PULL(bind=sys.argv[1], busy_poll=0.001, recv_hwm=0, security=security) as pull:
        print("ready", flush=True)
        for message in pull:
            if message == b"end":
                break
            if message:
                seen[0] = int(message)
"""


@pytest.mark.parametrize("burst", [3, 8000])
@pytest.mark.parametrize("sealed", [False, True], ids=["clear", "sealed"])
def test_tails_leave_while_their_sender_computes(tmp_path, burst, sealed):
    """Another process receives, so that no thread of ours needs the GIL to see the tail.

    The sender computes until the tail has been seen there: without the flusher it would do so for ever.
    """
    public, secret = omq.curve_keypair()
    where, shared = f"ipc://{tmp_path}/s", tmp_path / "seen"
    shared.write_bytes(b"\0")
    receiver = ForkedProcess(
        *("-c", RECEIVER, where, secret.decode() if sealed else "", shared),
        stdout=subprocess.PIPE,
        text=True,
        template=SOCKETS,
    )
    assert receiver.stdout.readline() == "ready\n"
    security = omq.CurveClient(public) if sealed else None
    stayed = []
    with (
        shared.open("r+b") as file,
        mmap.mmap(file.fileno(), 1) as seen,
        omq.Context() as context,
        omq.PUSH(context, connect=where, send_hwm=0, security=security) as push,
    ):
        push.wait_connected(timeout=BOUND)
        for number in range(1, ROUNDS + 1):
            for _ in range(burst - 1):
                push.send(b"")
            push.send(b"%d" % number)
            end = time.monotonic() + TAIL
            while seen[0] != number:
                if time.monotonic() > end:
                    stayed.append(number)
                    break
            if stayed:
                break
        push.send(b"end")
        receiver.communicate(timeout=BOUND)
        push._context.term()
    assert not stayed


@pytest.mark.parametrize("size", [100, 4096, 4097, 50_000, 1 << 20])
def test_borrowed_bytes_live_until_they_have_left(make, endpoint, size):
    pull, push = make.linked(omq.PULL, omq.PUSH, endpoint, send_hwm=0, recv_hwm=4)
    count = 200 if size < 1 << 20 else 30
    for n in range(count):
        push.send(bytes([n % 256]) * size)
        if n == count // 2:
            gc.collect()
    for n in range(count):
        assert pull.recv(timeout=BOUND) == bytes([n % 256]) * size


def test_borrowed_bytes_are_given_back_when_they_have_left(make):
    pull, push = make.linked(omq.PULL, omq.PUSH, "tcp://127.0.0.1:*")
    data = bytes(50_000)
    before = sys.getrefcount(data)
    for _ in range(50):
        push.send(data)
    for _ in range(50):
        pull.recv(timeout=BOUND)
    # What the flusher has written is let go by the next call that passes by: that thread has no hold of Python.
    push.send(b"end")
    assert pull.recv(timeout=BOUND) == b"end"
    push.send(b"one more")
    assert sys.getrefcount(data) == before


@pytest.mark.parametrize("size", [10, 4097, 300_000])
def test_other_buffers_may_change_once_send_has_returned(make, endpoint, size):
    pull, push = make.linked(omq.PULL, omq.PUSH, endpoint, send_hwm=0)
    data = bytearray(size)
    for n in range(50):
        data[:] = bytes([n]) * size
        push.send(data)
        data[:] = b"\xff" * size
        data.extend(b"resized")
        del data[size:]
    for n in range(50):
        assert pull.recv(timeout=BOUND) == bytes([n]) * size


@pytest.mark.parametrize("transport", ["tcp", "ipc"])
def test_a_close_delivers_everything(make, tmp_path, transport):
    pull = make(omq.PULL, bind="tcp://127.0.0.1:*" if transport == "tcp" else f"ipc://{tmp_path}/s", recv_hwm=10)
    chance = random.Random(5)
    for _ in range(40):
        size = chance.choice([1, 16, 5000, 100_000])
        count = chance.choice([1, 3, 300]) if size < 100_000 else 20
        push = make(omq.PUSH, connect=pull.endpoints[0])
        if chance.random() < 0.5:
            push.wait_connected(timeout=BOUND)
        for n in range(count):
            push.send(n.to_bytes(3, "big") * size)
        closing = threading.Thread(target=push.close)
        closing.start()
        for n in range(count):
            assert pull.recv(timeout=BOUND) == n.to_bytes(3, "big") * size
        closing.join(BOUND)
        assert not closing.is_alive()


def test_peers_of_the_past_are_not_kept_by_a_socket_that_only_sends(make):
    import weakref

    pub = make(omq.PUB, bind="tcp://127.0.0.1:*")
    gone = []
    for _ in range(5):
        sub = make(omq.SUB, connect=pub.endpoints[0], subscribe=b"")
        pub.wait_subscribed(timeout=BOUND)
        for _ in range(3):
            pub.send(b"x")
        gone.append(weakref.ref(pub._engine.sessions[0].peer))
        sub.stop()
        until(lambda: not pub.peers, "the end of the peer")
    gc.collect()
    assert [one() for one in gone] == [None] * 5


NO_THREAD = """
import resource
import omq
with omq.Context() as context, omq.PULL(context, bind="tcp://127.0.0.1:*") as pull:
    with omq.PUSH(context, connect=pull.endpoints[0]) as push:
        push.send(b"first")
        assert pull.recv(timeout=10) == b"first"
        held = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (held + (1 << 20), resource.RLIM_INFINITY))  # less than a stack
        for number in range(300):
            push.send(b"%d" % number)
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        assert [pull.recv(timeout=10) for _ in range(300)] == [b"%d" % number for number in range(300)]
"""


@needs_address_space
def test_what_is_left_behind_leaves_also_where_no_thread_can_be_had():
    done = run("-c", NO_THREAD, template=SOCKETS)
    assert done.returncode == 0, done.stderr
