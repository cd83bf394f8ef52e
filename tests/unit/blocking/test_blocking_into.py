"""recv_into: a large frame goes from the kernel into the caller's buffer, and nothing of anybody's is lost by that."""

from __future__ import annotations

import hashlib
import random
import socket
import threading
import tracemalloc
from typing import Any

import pytest

import omq
from tests.support.fork_server import SOCKETS, ForkedProcess
from tests.support.raw_peer import GREETING, frames, ready
from tests.support.waits import until
from tests.unit.blocking.conftest import BOUND, Crew, Sockets, asleep

LARGE = 3_000_000


def body(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


def raw_push(pull: Any) -> socket.socket:
    """A connection that speaks ZMTP by hand, so that a test decides which bytes have arrived."""
    peers = len(pull.peers)
    sock = socket.create_connection(("127.0.0.1", int(pull.endpoints[0].rpartition(":")[2])))
    sock.sendall(GREETING)
    data = b""
    while len(data) < 64:
        data += sock.recv(4096)
    sock.sendall(ready(b"PUSH"))
    pull.wait_connected(peers + 1, timeout=BOUND)
    return sock


def arrived(pull: Any, size: int) -> None:
    """Waits until a number of bytes have been read from all peers together."""

    def read() -> bool:
        # The check makes the kernel report also a few bytes of a large frame.
        any(session.peer.has_unread for session in tuple(pull._engine.sessions))
        return sum(peer.bytes_in for peer in pull.peers) >= size

    until(read, "the bytes")


@pytest.mark.parametrize("transport", ["tcp://127.0.0.1:*", "ipc://*"])
def test_sizes_of_every_kind_come_whole_and_in_order(make: Sockets, crew: Crew, transport: str) -> None:
    pull, push = make.linked(omq.PULL, omq.PUSH, transport, max_message_size=None)
    sizes = [0, 1, 300, 32_768, 32_769, 70_000, 1 << 20, (1 << 20) + 1, 5_000_000, 10, 200_000, 40_000] * 3
    crew(lambda: [push.send(body(size, seed)) for seed, size in enumerate(sizes)])
    buffer = bytearray(5_000_000)
    for seed, size in enumerate(sizes):
        assert pull.recv_into(buffer, timeout=BOUND) == size
        assert buffer[:size] == body(size, seed)
    crew.join()


def test_a_large_frame_takes_no_memory_of_its_own(make: Sockets, crew: Crew) -> None:
    pull, push = make.linked(omq.PULL, omq.PUSH, "tcp://127.0.0.1:*")
    message, buffer = bytes(64 << 20), bytearray(b"x") * (64 << 20)
    crew(lambda: pull.recv_into(buffer, timeout=BOUND))
    asleep(pull)
    tracemalloc.start()
    try:
        push.send(message, timeout=BOUND)
        assert crew.join() == [len(message)]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert buffer == message
    assert peak < 1 << 20


#: Sends messages without a pause.
FLOOD = """
import sys, omq
with omq.PUSH(connect=sys.argv[1], linger=0) as push:
    message = bytes(int(sys.argv[2]))
    while True:
        push.send(message)
"""


@pytest.mark.alone  # next to other processes, most frames arrive before the receiver asks for them
def test_of_a_peer_that_never_waits_most_frames_take_no_memory_of_their_own_either(make: Sockets) -> None:
    size, count = 3 << 19, 200
    pull = make(omq.PULL, bind="tcp://127.0.0.1:*")
    buffer = bytearray(size)
    with ForkedProcess("-c", FLOOD, pull.endpoints[0], str(size), template=SOCKETS) as sender:
        try:
            tracemalloc.start()
            peaks = []
            for _ in range(count):
                tracemalloc.reset_peak()
                assert pull.recv_into(buffer, timeout=BOUND) == size
                peaks.append(tracemalloc.get_traced_memory()[1])
                hashlib.sha256(buffer)  # meanwhile the next ones come
        finally:
            tracemalloc.stop()
            sender.kill()
    # The first may be there before it is asked for, and so is the beginning of each: a megabyte of memory for that.
    assert sum(peak > 5 << 18 for peak in peaks) < count // 2, peaks


def test_a_large_frame_that_has_begun_moves_over(make: Sockets, crew: Crew) -> None:
    pull = make(omq.PULL, bind="tcp://127.0.0.1:*")
    message = body(LARGE)
    wire = frames(message)
    with raw_push(pull) as sock:
        sock.sendall(wire[:2_000_000])
        arrived(pull, 2_000_000)
        buffer = bytearray(LARGE)
        crew(lambda: pull.recv_into(buffer, timeout=BOUND))
        asleep(pull)
        sock.sendall(wire[2_000_000:])
        assert crew.join() == [LARGE]
    assert buffer == message


def test_a_call_that_runs_out_of_time_in_a_frame_loses_nothing_of_it(make: Sockets) -> None:
    pull = make(omq.PULL, bind="tcp://127.0.0.1:*")
    message = body(LARGE)
    wire = frames(message)
    with raw_push(pull) as sock:
        sock.sendall(wire[: LARGE // 2])
        with pytest.raises(omq.ReceiveTimeout):
            pull.recv_into(bytearray(LARGE), timeout=0.2)
        other = bytearray(LARGE)
        with pytest.raises(omq.ReceiveTimeout):
            pull.recv_into(other, timeout=0.05)
        del other[:]  # nothing reaches into it any more
        sock.sendall(wire[LARGE // 2 :])
        assert pull.recv(timeout=BOUND) == message


def test_calls_that_run_out_of_time_in_a_frame_do_not_move_it_to_and_fro(make: Sockets) -> None:
    pull = make(omq.PULL, bind="tcp://127.0.0.1:*")
    message = body(LARGE)
    wire = frames(message)
    buffer = bytearray(LARGE)
    with raw_push(pull) as sock:
        sock.sendall(wire[: LARGE // 2])
        arrived(pull, LARGE // 2)
        with pytest.raises(omq.ReceiveTimeout):
            pull.recv_into(buffer, timeout=0)
        tracemalloc.start()
        try:
            for _ in range(3):
                before = tracemalloc.get_traced_memory()[0]
                tracemalloc.reset_peak()
                with pytest.raises(omq.ReceiveTimeout):
                    pull.recv_into(buffer, timeout=0)
                # Each time that it moves it takes memory of its own again.
                assert tracemalloc.get_traced_memory()[1] - before < LARGE // 4
        finally:
            tracemalloc.stop()
        sock.sendall(wire[LARGE // 2 :])
        assert pull.recv_into(buffer, timeout=BOUND) == LARGE
        sock.sendall(wire)  # the next one lands as before
        assert pull.recv_into(buffer, timeout=BOUND) == LARGE
    assert buffer == message


def test_another_peer_may_be_first(make: Sockets, crew: Crew) -> None:
    pull = make(omq.PULL, bind="tcp://127.0.0.1:*")
    slow, quick = body(LARGE, 1), body(LARGE, 2)
    wire = frames(slow)
    with raw_push(pull) as one, raw_push(pull) as other:
        one.sendall(wire[:1_000_000])
        arrived(pull, 1_000_000)
        buffer = bytearray(LARGE)
        crew(lambda: pull.recv_into(buffer, timeout=BOUND))
        asleep(pull)
        other.sendall(frames(quick))
        assert crew.join() == [LARGE]
        assert buffer == quick
        one.sendall(wire[1_000_000:])
        assert pull.recv_into(buffer, timeout=BOUND) == LARGE
        assert buffer == slow


def test_a_small_message_of_another_peer_may_be_first(make: Sockets, crew: Crew) -> None:
    pull = make(omq.PULL, bind="tcp://127.0.0.1:*")
    slow = body(LARGE, 1)
    wire = frames(slow)
    with raw_push(pull) as one, raw_push(pull) as other:
        buffer = bytearray(LARGE)
        crew(lambda: pull.recv_into(buffer, timeout=BOUND))
        asleep(pull)
        one.sendall(wire[:1_000_000])
        arrived(pull, 900_000)
        other.sendall(frames(b"quick"))
        assert crew.join() == [5]
        assert buffer[:5] == b"quick"
        one.sendall(wire[1_000_000:])
        assert pull.recv(timeout=BOUND) == slow


def test_a_frame_that_does_not_fit_stays(make: Sockets) -> None:
    pull, push = make.linked(omq.PULL, omq.PUSH, "tcp://127.0.0.1:*")
    message = body(LARGE)
    push.send(message, timeout=BOUND)
    with pytest.raises(omq.MessageTooLarge, match=f"{LARGE - 1}"):
        pull.recv_into(bytearray(LARGE - 1), timeout=BOUND)
    buffer = bytearray(LARGE)
    assert pull.recv_into(buffer, timeout=BOUND) == LARGE
    assert buffer == message


def test_a_message_of_large_parts_stays(make: Sockets) -> None:
    pull, push = make.linked(omq.PULL, omq.PUSH, "tcp://127.0.0.1:*")
    parts = [body(LARGE, 1), body(LARGE, 2)]
    push.send_multipart(parts, timeout=BOUND)
    with pytest.raises(omq.MultipartError):
        pull.recv_into(bytearray(2 * LARGE), timeout=BOUND)
    assert pull.recv_multipart(timeout=BOUND) == parts


def test_threads_that_receive_in_different_ways_share_the_messages(make: Sockets, crew: Crew) -> None:
    pull, push = make.linked(omq.PULL, omq.PUSH, "tcp://127.0.0.1:*")
    messages = [body(100_000 + 7 * i, i) for i in range(60)]
    got: list[bytes] = []
    lock = threading.Lock()

    def into() -> None:
        buffer = bytearray(200_000)
        while True:
            size = pull.recv_into(buffer, timeout=BOUND)
            if size == 3:
                return
            with lock:
                got.append(bytes(buffer[:size]))

    def plain() -> None:
        while (message := pull.recv(timeout=BOUND)) != b"end":
            with lock:
                got.append(message)

    for work in (into, plain, into):
        crew(work)
    for message in [*messages, b"end", b"end", b"end"]:
        push.send(message, timeout=BOUND)
    crew.join()
    assert sorted(got) == sorted(messages)


def test_a_peer_that_goes_in_the_middle_leaves_the_call_waiting_for_the_next(make: Sockets, crew: Crew) -> None:
    pull = make(omq.PULL, bind="tcp://127.0.0.1:*")
    buffer = bytearray(LARGE)
    crew(lambda: pull.recv_into(buffer, timeout=BOUND))
    asleep(pull)
    with raw_push(pull) as sock:
        sock.sendall(frames(body(LARGE))[: LARGE // 2])
        arrived(pull, LARGE // 4)
    until(lambda: not pull.peers, "the end of the peer")
    with raw_push(pull) as sock:
        sock.sendall(frames(body(LARGE, 2)))
        assert crew.join() == [LARGE]
    assert buffer == body(LARGE, 2)


def test_closing_in_the_middle_lets_the_buffer_go(make: Sockets, crew: Crew) -> None:
    pull = make(omq.PULL, bind="tcp://127.0.0.1:*")
    buffer = bytearray(LARGE)

    def wait() -> None:
        with pytest.raises(omq.ClosedError):
            pull.recv_into(buffer, timeout=BOUND)

    crew(wait)
    asleep(pull)
    with raw_push(pull) as sock:
        sock.sendall(frames(body(LARGE))[: LARGE // 2])
        arrived(pull, LARGE // 4)
        pull.stop()
        crew.join()
    buffer += b"x"  # an exported buffer could not grow


def test_a_filtered_frame_does_not_end_the_call(make: Sockets, crew: Crew) -> None:
    pub = make(omq.PUB, bind="tcp://127.0.0.1:*")
    sub = make(omq.SUB, connect=pub.endpoints[0], subscribe=b"a")
    pub.wait_subscribed(b"a", timeout=BOUND)
    wanted = b"a" + body(LARGE)
    pub.set_options(send_hwm=0)
    buffer = bytearray(LARGE + 1)
    crew(lambda: sub.recv_into(buffer, timeout=BOUND))
    asleep(sub)
    pub.send(b"b" + body(LARGE))
    pub.send(wanted)
    assert crew.join() == [LARGE + 1]
    assert buffer == wanted


@pytest.mark.parametrize("first", [300, 70_000, LARGE], ids=["small", "large", "larger than what is read at once"])
@pytest.mark.parametrize("hwm", [1, 2, 1000])
def test_what_comes_behind_a_message_is_not_read_into_its_memory(
    make: Sockets, crew: Crew, first: int, hwm: int
) -> None:
    pull = make(omq.PULL, bind="tcp://127.0.0.1:*", recv_hwm=hwm)
    bodies = [body(first, 1), body(LARGE, 2), body(LARGE, 3)]
    wire = b"".join(frames(one) for one in bodies)
    with raw_push(pull) as sock:
        buffer = bytearray(LARGE)
        waiting = crew(lambda: pull.recv_into(buffer, timeout=BOUND))
        asleep(pull)
        sock.sendall(wire[: first // 2])
        if first > 300:
            arrived(pull, first // 2)
        # The end of the message and the next ones are there together: the call that takes it may read on.
        crew(lambda: sock.sendall(wire[first // 2 :]))
        waiting.join(BOUND)
        assert buffer[:first] == bodies[0]
        for one in bodies[1:]:
            assert pull.recv_into(buffer, timeout=BOUND) == len(one)
            assert buffer == one
        crew.join()


#: Sends pairs of messages of which the second comes some microseconds behind the last octet of the first.
PAIRS = """
import socket, sys, time
from tests.support.raw_peer import GREETING, frames, ready
sock = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
sock.sendall(GREETING + ready(b"PUSH"))
for number in range(int(sys.argv[2])):
    first, second = (frames(b"%08d" % one * 10_000) for one in (2 * number, 2 * number + 1))
    sock.sendall(first[:-1])
    time.sleep(0.0005)
    later = time.perf_counter() + number % 100 * 1e-6
    sock.sendall(first[-1:])
    while time.perf_counter() < later:
        pass
    sock.sendall(second)
    time.sleep(0.0005)
"""


def test_what_comes_between_the_end_of_a_message_and_its_taking_is_not_read_into_its_memory(make: Sockets) -> None:
    pairs = 1000
    pull = make(omq.PULL, bind="tcp://127.0.0.1:*", recv_hwm=1)
    port = pull.endpoints[0].rpartition(":")[2]
    buffer = bytearray(80_000)
    with ForkedProcess("-c", PAIRS, port, str(pairs), template=SOCKETS) as sender:
        try:
            for number in range(2 * pairs):
                assert pull.recv_into(buffer, timeout=BOUND) == 80_000
                assert buffer == b"%08d" % number * 10_000, number
        finally:
            sender.kill()
