"""A broker that is killed again and again under load, and what it acknowledged to its clients meanwhile."""

from __future__ import annotations

import json
import random
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import zmq

from tests.support.fork_server import ForkedProcess
from tests.support.libzmq_broker_client import RawClient, raw, read_block, record, u32

ROOT = Path(__file__).parents[2]
TOPICS = ("log", "jobs")
PIPELINED = 8  # appends without an answer


class BrokerChaos:
    """Publishes to a broadcast and to a round-robin topic, reads the one and consumes the other.

    Attributes:
        tried: Topic and bodies of each append, by its sequence.
        first_ids: The first ids that were acknowledged, by sequence.
        seen: Ids and bodies that the subscriber got, in order; a repetition or a gap fails at once.
        settled: Jobs whose acknowledgement was durable: FLUSHED came behind it.
        position: The named position that was durable.
    """

    def __init__(self, directory: Path, seed: int, port: int) -> None:
        self._directory = directory
        self._chance = random.Random(seed)
        self._endpoint = f"tcp://127.0.0.1:{port}"
        self._broker: ForkedProcess | None = None
        self._clients: list[RawClient] = []
        self._names = [f"{number:032x}" for number in range(3)]
        self.tried: dict[int, tuple[str, list[bytes]]] = {}
        self.first_ids: dict[int, int] = {}
        self.seen: list[tuple[int, bytes]] = []
        self.settled: set[int] = set()
        self.position = 0
        self._acked: set[int] = set()  # sent, not known to be durable
        self._done: set[int] = set()  # sent at any time
        self._moved = 0
        self._flushing: set[int] = set()
        self._mark = 0
        self._publishes = True

    # ------------------------------------------------------------------ life and death

    def begin(self) -> None:
        """Starts the broker, and the clients again where they were."""
        command = ["omq.cli.main", "broker", str(self._directory), "--bind", self._endpoint]
        command += ["--topic", "log:broadcast:strong", "--topic", "jobs:round-robin:strong", "--log-level", "error"]
        self._broker = ForkedProcess("-m", *command, cwd=ROOT, stderr=subprocess.PIPE)
        self._clients = [RawClient(self._endpoint, client=name) for name in self._names]
        self._producer, self._reader, self._worker = self._clients
        self._waiting = dict.fromkeys(sorted(set(self.tried) - set(self.first_ids)))
        for sequence in self._waiting:
            self._append(sequence)
        last = self.seen[-1][0] if self.seen else 0
        if last:
            self._check_position()
        self._reader.send(b"SUBSCRIBE", b"s", b"log", {"replay": last, "credit": 1 << 22})
        assert self._reader.answer(b"s")[0] == b"SUBSCRIBED"
        self._reader.send(b"SUBSCRIBE", b"n", b"log", {"replay": "earliest", "name": "n", "credit": 0})
        name, _, answer, *text = self._reader.answer(b"n")
        assert name == b"SUBSCRIBED", (answer, text)
        self._acked.clear()
        self._flushing.clear()
        self._worker.send(b"CONSUME", b"c", b"jobs", {"credit": 50, "ack_timeout": 60})
        assert self._worker.answer(b"c")[0] == b"CONSUMING"

    def _check_position(self) -> None:
        (names,) = self._reader.ask(b"DURABLES", b"log")
        (held,) = json.loads(names)
        assert self.position <= held["position"] <= max(self._moved, self.position), (self.position, held, self._moved)

    def end(self) -> None:
        """Kills the broker."""
        if self._broker is not None:
            self._broker.kill()
            self._broker.wait()
            assert self._broker.stderr is not None
            text = self._broker.stderr.read().decode()
            self._broker.stderr.close()
            self._broker = None
            assert "Traceback" not in text, text
        for client in self._clients:
            client.close()
        self._clients.clear()

    def live(self, seconds: float) -> None:
        """Goes on for a while."""
        self._go_on(seconds, lambda: False)

    def finish(self) -> None:
        """Publishes nothing more, and waits for every answer and every message."""
        self._publishes = False
        self._go_on(30, lambda: not self._waiting)
        with raw(self._endpoint) as client:
            (info,) = json.loads(client.ask(b"TOPICS", b"log")[0])
        self._go_on(30, lambda: len(self.seen) == info["last"])
        assert set(self.tried) == set(self.first_ids)
        assert len(self.seen) == info["last"]

    def _go_on(self, seconds: float, until: Callable[[], bool]) -> None:
        poller = zmq.Poller()
        by_socket = {}
        for client, takes in zip(self._clients, (self._published, self._read, self._worked), strict=True):
            by_socket[client.socket] = takes
            poller.register(client.socket, zmq.POLLIN)
            while client.others:  # came while an answer was waited for
                takes(client.others.pop(0))
        end = time.monotonic() + seconds
        while time.monotonic() < end and not until():
            while self._publishes and len(self._waiting) < PIPELINED:
                self._new()
            for socket, _ in poller.poll(20):
                while socket.poll(0):
                    by_socket[socket](socket.recv_multipart())

    # ------------------------------------------------------------------ what the clients do

    def _new(self) -> None:
        sequence = len(self.tried) + 1
        size = 100_000 if self._chance.random() < 0.02 else self._chance.randrange(50)
        bodies = [b"%d.%d." % (sequence, number) + b"x" * size for number in range(self._chance.randrange(1, 6))]
        self.tried[sequence] = self._chance.choice(TOPICS), bodies
        self._waiting[sequence] = None
        self._append(sequence)

    def _append(self, sequence: int) -> None:
        topic, bodies = self.tried[sequence]
        records = b"".join(map(record, bodies))
        self._producer.send(b"APPEND", b"%d" % sequence, topic, records, b"producer", sequence)

    def _published(self, message: list[bytes]) -> None:
        assert message[0] == b"PUBLISHED", message
        sequence, first = int(message[1]), int.from_bytes(message[2], "big")
        assert self.first_ids.setdefault(sequence, first) == first
        self._waiting.pop(sequence, None)

    def _read(self, message: list[bytes]) -> None:
        if message[0] == b"FLUSHED":
            self.position = self._mark
            return
        assert message[:2] == [b"BLOCK", b"s"], message
        for id, body, _, _ in read_block(*message[2:4]):
            assert id == (self.seen[-1][0] if self.seen else 0) + 1
            self.seen.append((id, body))
        self._reader.send(b"CREDIT", b"s", len(message[3]))
        if self._chance.random() < 0.3:
            self._moved = self.seen[-1][0]
            self._reader.send(b"POSITION", b"n", self._moved)
            if self._mark == self.position:
                self._mark = self._moved
                self._reader.send(b"FLUSH", b"f")

    def _worked(self, message: list[bytes]) -> None:
        if message[0] == b"FLUSHED":
            self.settled |= self._flushing
            self._flushing.clear()
            return
        assert message[:2] == [b"JOBS", b"c"], message
        for id, *_ in read_block(*message[2:4]):
            assert id not in self.settled, f"job {id} comes again"
            if self._chance.random() < 0.1:
                self._worker.send(b"NACK", b"c", id, id)
            else:
                self._worker.send(b"ACK", b"c", id, id)
                self._acked.add(id)
                self._done.add(id)
        if not self._flushing and self._acked:
            self._flushing, self._acked = self._acked, set()
            self._worker.send(b"FLUSH", b"f")

    # ------------------------------------------------------------------ what must hold

    def check(self) -> None:
        """Reads everything, and holds it against what was tried and what was acknowledged."""
        with raw(self._endpoint) as client:
            stored = {topic: self._stored(client, topic) for topic in TOPICS}
        left = {topic: dict(bodies) for topic, bodies in stored.items()}
        for sequence, (topic, bodies) in self.tried.items():
            for id, body in enumerate(bodies, self.first_ids[sequence]):
                if id >= min(stored[topic], default=id + 1):
                    assert left[topic].pop(id, None) == body, f"append {sequence} is not as it was"
                else:
                    assert topic == "jobs", f"message {id} is lost"
                    assert id in self._done, f"job {id} is lost"
        assert not any(left.values()), "there are messages that were not sent, or some twice"
        for id, body in self.seen:
            assert stored["log"][id] == body

    def _stored(self, client: RawClient, topic: str) -> dict[int, bytes]:
        start, bodies = 1, dict[int, bytes]()
        while start:
            following, oldest, *parts = client.ask(b"READ", topic, start, 0, u32(1 << 22), expect=b"RANGE")
            for header, records in zip(parts[::2], parts[1::2], strict=True):
                bodies |= {id: body for id, body, _, _ in read_block(header, records)}
            start = int.from_bytes(following, "big")
        first = int.from_bytes(oldest, "big")
        assert list(bodies) == list(range(first, first + len(bodies))), "ids are dense"
        return bodies
