"""A process that writes to a store and prints what it does. Tests kill it at any point.

    python -m tests.fault.store_writer DIR SEED STEPS

It reads a line of JSON first: the number of the next append, and appends to be tried again. What it writes to standard
output, a line of JSON each, is what its killer may believe: `["try", ...]` before something is submitted, `["done",
...]` once it was acknowledged, `["failed", ..., error]` once it was refused, `["over"]` at the end.
"""

import json
import os
import random
import sys
import threading
from typing import Any

from omq._core import blocks
from omq.store.interface import Acknowledge, Append, CommitStages, MakeTopic, SetCursor, Stage, Write
from omq.store.lmdb.store import LmdbStore

TOPICS = {"strong": "broadcast", "weak": "broadcast", "jobs": "round_robin"}
LARGE = 300_000  # bytes of some bodies


def bodies_of(number: int, count: int) -> list[bytes]:
    """Returns the bodies of an append; some are large."""
    return [b"%d.%d.%d" % (number, i, count) + bytes(LARGE if number % 17 == 0 else 0) for i in range(count)]


def report(*what: Any) -> None:
    os.write(1, json.dumps(what).encode() + b"\n")


class Load:
    """Writes to a store, several writes at a time."""

    def __init__(self, directory: str, seed: int) -> None:
        self._random = random.Random(seed)
        self._changed = threading.Condition()
        self._waiting = 0
        self.store = LmdbStore(directory, notify=self._notify, flush_interval=0.05)
        self.topics = {name: self._make(name, delivery) for name, delivery in TOPICS.items()}
        self.number = 1

    def _make(self, name: str, delivery: str) -> int:
        write = MakeTopic(name, delivery, "weak" if name == "weak" else "strong", context=["make", name])
        self.submit(write)
        self.wait(0)
        return write.topic_id

    def _notify(self, writes: list[Write]) -> None:
        for write in writes:
            if write.error is not None:
                report("failed", *write.context, type(write.error).__name__)
            else:
                report(
                    "done", *write.context, getattr(write, "first", None), getattr(write, "published", None) and "yes"
                )
        with self._changed:
            self._waiting -= len(writes)
            self._changed.notify_all()

    def submit(self, write: Write) -> None:
        report("try", *write.context)
        with self._changed:
            self._waiting += 1
        self.store.submit(write)

    def wait(self, left: int) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: self._waiting <= left, 60):
                report("stuck")
                os._exit(1)

    def append(self, name: str, number: int, count: int) -> None:
        records = blocks.encode(bodies_of(number, count))
        context = ["append", name, number, count]
        write = Append(self.topics[name], records, count, b"p", number, max(number - 50, 0), context=context)
        if name == "weak" and not self._waiting and self._random.random() < 0.8:
            self.note(write)
        else:
            self.submit(write)

    def note(self, write: Append) -> None:
        """Appends to the write-ahead log; the next write or `catch_up` commits it."""
        report("try", *write.context)
        self._waiting += 1
        if not self.store.write_at_once([write], allow_wal=True):
            self.store.submit(write)
        elif self._random.random() < 0.2:
            self.store.catch_up()

    def step(self) -> None:
        chance = self._random.random()
        if chance < 0.7:
            name = self._random.choice(list(TOPICS))
            for _ in range(self._random.choice([1, 1, 10]) if name == "weak" else 1):
                self.append(name, self.number, self._random.randint(1, 20))
                self.number += 1
        elif chance < 0.8:
            jobs = self.store.topic(self.topics["jobs"])
            if jobs.last:
                first = self._random.randint(1, jobs.last)
                last = min(jobs.last, first + self._random.randint(0, 30))
                self.submit(Acknowledge(jobs.id, [(first, last)], last, context=["ack", first, last]))
        elif chance < 0.9:
            last = self.store.topic(self.topics["strong"]).last
            self.submit(SetCursor(self.topics["strong"], "name", last, context=["position", last]))
        else:
            name = self._random.choice(["strong", "weak"])
            stage = b"stage %d" % self.number
            count = self._random.randint(1, 20)
            records = blocks.encode(bodies_of(self.number, count))
            self.submit(Stage(self.topics[name], records, count, stage, 1, context=["stage", self.number]))
            self.submit(CommitStages(b"commit %d" % self.number, [stage], context=["commit", name, self.number, count]))
            self.number += 1
        self.wait(self._random.choice([0, 0, 3, 10]))


def main() -> None:
    begin = json.loads(sys.stdin.readline())
    load = Load(sys.argv[1], int(sys.argv[2]))
    load.number = begin["next"]
    for name, number, count in begin["again"]:
        load.append(name, number, count)
    for _ in range(int(sys.argv[3])):
        if 0 not in load.topics.values():  # a topic could not be created
            load.step()
    load.wait(0)
    if load.store.broken is not None:
        # Committed records can still be read.
        for topic in load.store.topics():
            with load.store.read(topic.id) as reader:
                for _ in reader.blocks(reader.first):
                    pass
        report("over", "broken")
        os._exit(0)
    load.store.close()
    report("over")


if __name__ == "__main__":
    main()
