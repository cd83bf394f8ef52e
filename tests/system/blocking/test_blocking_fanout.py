"""The system calls of a publisher with many subscribers: each write wakes one, which may take its core."""

from __future__ import annotations

import statistics
import struct
import time

import pytest

import omq
from tests.support.waits import BOUND, least

SUBSCRIBERS = 32

#: Processes with a bare subscriber each; at its end each prints how many messages of 18 bytes a segment had.
CROWD = """
import os, socket, struct, sys
host, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
greeting = b"\\xff\\0\\0\\0\\0\\0\\0\\0\\x01\\x7f\\x03\\0NULL".ljust(64, b"\\0")
ready = b"\\4\\x19\\5READY\\x0bSocket-Type\\0\\0\\0\\3SUB"
for _ in range(count):
    if os.fork() == 0:
        one = socket.create_connection((host, port))
        one.sendall(greeting)
        got = b""
        while len(got) < 64 + 2 + 25:
            got += one.recv(4096)
        one.sendall(ready + b"\\0\\1\\1")
        while one.recv(1 << 20):
            pass
        info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 200)
        octets, = struct.unpack_from("Q", info, 128)    # tcpi_bytes_received
        segments, = struct.unpack_from("I", info, 152)  # tcpi_data_segs_in
        os.write(1, b"%f\\n" % (octets / 18 / segments))
        os._exit(0)
for _ in range(count):
    os.wait()
"""

#: One process with many subscribers; each round ends when all have its last message, and prints how late that was.
LISTENERS = """
import omq, struct, sys, time
subs = [omq.SUB(connect=sys.argv[1], subscribe=b"", recv_hwm=0) for _ in range(int(sys.argv[2]))]
for _ in range(int(sys.argv[3])):
    for sub in subs:
        for _ in range(int(sys.argv[4])):
            sent, = struct.unpack("d", sub.recv(timeout=10))
    print(time.monotonic() - sent, flush=True)
"""

#: One process with many subscribers, half of them with a mark; a message begins with its number and repeats a byte.
READERS = """
import omq, struct, sys, time
subs = [omq.SUB(connect=sys.argv[1], subscribe=b"", recv_hwm=1000 * (i % 2)) for i in range(int(sys.argv[2]))]
for first in range(0, int(sys.argv[3]), 500):
    for sub in subs:
        for number in range(first, first + 500):
            message = sub.recv(timeout=20)
            assert struct.unpack_from("I", message)[0] == number, (struct.unpack_from("I", message)[0], number)
            assert message[4:] == bytes([number % 251]) * (len(message) - 4), number
print("all")
"""


@pytest.mark.alone
def test_the_tail_of_a_burst_to_many_leaves_while_its_sender_computes(program):
    """The tail has no owner then, whether its sender has a core or waits for one."""
    subscribers, rounds, burst = 40, 11, 50

    def late() -> float:
        with omq.PUB(bind="tcp://127.0.0.1:*", send_hwm=0) as pub:
            crowd = program(LISTENERS, pub.endpoints[0], str(subscribers), str(rounds), str(burst))
            pub.wait_subscribed(n=subscribers, timeout=BOUND)
            for _ in range(rounds):
                for _ in range(burst):
                    pub.send(struct.pack("d", time.monotonic()))
                end = time.monotonic() + 0.1
                while time.monotonic() < end:
                    sum(range(50))
            found = [float(seconds) for seconds in crowd.end().split()]
        assert len(found) == rounds
        return statistics.median(found)

    assert least(late, 0.025) < 0.025  # it was 50 ms


@pytest.mark.alone
def test_a_stream_to_many_leaves_in_large_pieces(program):
    with omq.PUB(bind="tcp://127.0.0.1:*", send_hwm=0) as pub:
        host, port = pub.endpoints[0].removeprefix("tcp://").rsplit(":", 1)
        crowd = program(CROWD, host, port, str(SUBSCRIBERS))
        pub.wait_subscribed(n=SUBSCRIBERS, timeout=BOUND)
        end = time.monotonic() + 1
        while time.monotonic() < end:
            for _ in range(100):
                pub.send(b"x" * 16)
        pub.flush(BOUND)
    assert statistics.median(map(float, crowd.end().split())) > 40


@pytest.mark.parametrize("size", [4, 6000, *(pytest.param(size, marks=pytest.mark.slow) for size in (100, 3000))])
def test_what_is_sent_while_batches_are_written_arrives_whole_and_in_order(program, size):
    """Breaks of all lengths have the thread that writes batches come in the midst of a message's way to its peers."""
    subscribers, count = 24, 5000 if size < 1000 else 1500
    with omq.PUB(bind="tcp://127.0.0.1:*", send_hwm=0) as pub:
        readers = program(READERS, pub.endpoints[0], str(subscribers), str(count))
        pub.wait_subscribed(n=subscribers, timeout=BOUND)
        for number in range(count):
            pub.send(struct.pack("I", number) + bytes([number % 251]) * (size + number % 50))
            if number % 40 == 0:
                end = time.monotonic() + number % 37 * 1e-4
                while time.monotonic() < end:
                    pass
        pub.flush(BOUND)
        assert readers.end().split() == ["all"]
