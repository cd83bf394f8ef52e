"""A producer or a consumer of a device, as a process that can be killed: pyzmq, and a journal of what it did.

Each line of the journal is written before its action is done, or after it has come, by one system call: a kill cuts
none in two.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from typing import Any

import zmq

WINDOWS = 1, 3, 40
ANSWER_TIMEOUT_MS = 300  # milliseconds without an answer, after which all that waits is sent again


def produce(job: dict[str, Any], journal: int) -> None:
    """Sends until SIGTERM, then waits for the last answers; what the one before it had no answer for, goes first."""
    ending = []
    signal.signal(signal.SIGTERM, lambda number, frame: ending.append(number))
    os.write(journal, f"{json.dumps(['b', job['seed']])}\n".encode())  # from now on it ends as it is asked to
    chance = random.Random(job["seed"])
    window = chance.choice(WINDOWS)
    socket = zmq.Context().socket(zmq.DEALER)
    socket.linger = 0
    socket.connect(job["endpoint"])
    name, sequence = job["name"], job["next"]
    waiting: dict[int, list[bytes]] = {}

    def send(number: int) -> None:
        size = random.Random(number).choice((0, 10, 1000, 30_000 if chance.random() < 0.1 else 5))
        body = f"{name}.{number}.".encode()
        waiting[number] = [b"%d" % number, f"DEDUP:{name}:{number}".encode(), b"", body, b"x" * size]
        socket.send_multipart(waiting[number])

    for number in job["again"]:
        send(number)
    while waiting or not ending:
        while not ending and len(waiting) < window:
            os.write(journal, f"{json.dumps(['t', sequence])}\n".encode())
            send(sequence)
            sequence += 1
        if not socket.poll(ANSWER_TIMEOUT_MS):
            for frames in waiting.values():
                socket.send_multipart(frames)
            continue
        id, status, *_, text = socket.recv_multipart()
        assert status == b"1", status
        if waiting.pop(int(id), None) is not None:
            kind = "f" if text == b"REPLICATION_FAILED" else "a"  # stored here only
            os.write(journal, f"{json.dumps([kind, int(id)])}\n".encode())
    socket.close()


def consume(job: dict[str, Any], journal: int) -> None:
    """Takes messages, and acknowledges most of them, until it is killed."""
    chance = random.Random(job["seed"])
    socket = zmq.Context().socket(zmq.ROUTER)
    socket.setsockopt(zmq.METADATA, b"X-Pzq-Deliveries:1")
    socket.rcvhwm = socket.sndhwm = 0  # libzmq's ROUTER drops what its peer does not take at once
    socket.connect(job["endpoint"])
    while True:
        peer, key, sent, _, tries, _, body, *_ = socket.recv_multipart()
        done = chance.random() > 0.02
        line = ["r", body.decode(), key.decode(), int(tries), int(sent), done]
        os.write(journal, f"{json.dumps(line)}\n".encode())
        socket.send_multipart([peer, key, b"1" if done else b"0"])


if __name__ == "__main__":
    arguments = json.loads(sys.argv[1])
    file = os.open(arguments["journal"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    {"produce": produce, "consume": consume}[arguments["role"]](arguments, file)
