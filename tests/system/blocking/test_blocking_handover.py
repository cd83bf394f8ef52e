"""Handover between callers, the I/O thread and the flusher, under load: nothing lost, reordered or twice."""

from __future__ import annotations

import time

import pytest

SENDER = """
import random, struct, sys, time
import omq

endpoint, count, seed, pauses = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
chance = random.Random(seed)
number = struct.Struct("<Q")
with omq.PUSH(connect=endpoint) as push:
    sent = 0
    while sent < count:
        burst = min(chance.choice([1, 3, 50, 3000, 20000]), count - sent)
        how = chance.random()
        if how < 0.7:
            size = chance.choice([0, 0, 0, 100, 5000]) if burst <= 3000 else 0
            for n in range(sent, sent + burst):
                push.send(number.pack(n) + b"x" * size)
        else:
            push.send_many([number.pack(n) for n in range(sent, sent + burst)])
        sent += burst
        if chance.random() < pauses:
            # Half of them asleep, half of them at work.
            end = time.perf_counter() + chance.random() * 0.05
            if chance.random() < 0.5:
                time.sleep(max(end - time.perf_counter(), 0))
            while time.perf_counter() < end:
                pass
"""

RECEIVER = """
import random, struct, sys, time
import omq

count, seed, pauses = int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
chance = random.Random(seed)
number = struct.Struct("<Q")
with omq.PULL(bind=sys.argv[1]) as pull:
    print(pull.endpoints[0], flush=True)
    got = 0
    while got < count:
        burst = min(chance.choice([1, 3, 50, 3000, 20000]), count - got)
        how = chance.random()
        if how < 0.6:
            for n in range(got, got + burst):
                message = pull.recv(timeout=30)
                assert number.unpack(message[:8])[0] == n, (n, message[:8])
            got += burst
        else:
            for message in pull.recv_many(burst, timeout=30):
                assert number.unpack(message[:8])[0] == got, (got, message[:8])
                got += 1
        if chance.random() < pauses:
            time.sleep(chance.random() * 0.05)
    assert not pull.poll(0.2)
print("in order")
"""


def _run(program, endpoint, count, seed, pauses, bound):
    receiver = program(RECEIVER, endpoint, str(count), str(seed), str(pauses))
    sender = program(SENDER, receiver.line(), str(count), str(seed + 1), str(pauses))
    sender.end(bound)
    assert receiver.end(bound) == "in order\n"


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["tcp", "ipc"])
def test_messages_of_two_processes_that_pause(program, tmp_path, transport):
    endpoint = "tcp://127.0.0.1:*" if transport == "tcp" else f"ipc://{tmp_path}/s"
    _run(program, endpoint, 100_000, 1, 0.9, 40)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("transport", ["tcp", "ipc"])
def test_ten_million_messages_of_two_processes_that_pause(program, tmp_path, transport):
    endpoint = "tcp://127.0.0.1:*" if transport == "tcp" else f"ipc://{tmp_path}/s"
    began = time.monotonic()
    _run(program, endpoint, 10_000_000, 7, 0.5, 600)
    print(f"{transport}: 10,000,000 messages in {time.monotonic() - began:.0f} s")


@pytest.mark.parametrize(
    ("size", "crew"),
    [
        (16, 4),
        (1 << 20, 4),
        *(pytest.param(size, 20, marks=pytest.mark.slow) for size in (16, 5000, 100_000, 1 << 20)),
    ],
)
def test_what_processes_send_before_they_exit_arrives(program, size, crew):
    """Many processes, four at a time: each sends and leaves at once; a close waits, for ever if it must."""
    source = """
import sys, omq
count, size, way = int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
push = omq.PUSH(connect=sys.argv[1])
for n in range(count):
    push.send(n.to_bytes(4, "big") + b"x" * (size - 4))
if way == "close":
    push.close()
elif way == "term":
    omq.Context.default().term()
elif way == "raise":
    sys.exit(0)
"""
    count = max(3, min(1000, (8 << 20) // size))
    sink = """
import sys, omq
from collections import Counter
with omq.PULL(bind="tcp://127.0.0.1:*") as pull:
    print(pull.endpoints[0], flush=True)
    seen = Counter(pull.recv(timeout=15)[:4] for _ in range(int(sys.argv[1])))
    assert not pull.poll(0.1)
    assert set(seen.values()) == {int(sys.argv[2])}, seen
"""
    receiver = program(sink, str(crew * count), str(crew))
    endpoint = receiver.line()
    running = []
    for n in range(crew):
        way = ("close", "term", "raise", "nothing")[n % 4]
        running.append(program(source, endpoint, str(count), str(size), way))
        if len(running) == 4:
            running.pop(0).end(silent=False)
    for one in running:
        one.end(silent=False)
    receiver.end()
