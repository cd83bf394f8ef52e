"""The content that a store must have after a series of processes."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omq._core import blocks
from omq.store.lmdb.store import LmdbStore

ROOT = Path(__file__).parents[2]
Batch = tuple[str, int, int]  # topic, number, count


@dataclass
class History:
    """The writes that a series of processes tried, and their answers.

    Attributes:
        tried: Appends and commits, by number.
        done: The first ids that were acknowledged, by number.
        acked: Ranges of jobs that were acknowledged.
        position: The highest that was acknowledged.
        staged: The highest number of a stage: its commit may not have been tried, and the stage is there.
    """

    tried: dict[int, Batch] = field(default_factory=dict)
    kinds: dict[int, str] = field(default_factory=dict)
    done: dict[int, int | None] = field(default_factory=dict)
    acked: list[tuple[int, int]] = field(default_factory=list)
    position: int = 0
    staged: int = 0
    failed: list[str] = field(default_factory=list)
    over: bool = False
    last_report: list[Any] = field(default_factory=list)

    def run(self, directory: Path, seed: int, steps: int, *before: str, kill: Any = None) -> int:
        """Runs a process, perhaps below another command, and records its output; returns its exit status."""
        command = [*before, sys.executable, "-m", "tests.fault.store_writer", str(directory), str(seed), str(steps)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL
        )
        left = {number: batch for number, batch in self.tried.items() if number not in self.done}
        again = [batch for number, batch in left.items() if self.kinds[number] == "append"]
        begin = {"next": max(self.staged, *self.tried, 0) + 1, "again": again}
        assert process.stdin is not None
        assert process.stdout is not None
        self.over = False
        try:
            process.stdin.write(json.dumps(begin).encode() + b"\n")
            process.stdin.close()
        except BrokenPipeError:
            pass
        if kill is not None:
            kill(process)
        for line in process.stdout:
            if line.endswith(b"\n"):
                self._take(json.loads(line))
        process.stdout.close()
        return process.wait()

    def _take(self, line: list[Any]) -> None:
        self.last_report = line
        match line:
            case ["try", "append" | "commit" as kind, name, number, count]:
                self.tried[number] = name, number, count
                self.kinds[number] = kind
            case ["try", "stage", number]:
                self.staged = max(self.staged, number)
            case ["done", "append", _, number, _, first, _]:
                assert self.done.get(number, first) == first
                self.done[number] = first
            case ["done", "commit", _, number, *_]:
                self.done[number] = None
            case ["done", "ack", first, last, *_]:
                self.acked.append((first, last))
            case ["done", "position", id, *_]:
                self.position = max(self.position, id)
            case ["failed", *_, error]:
                self.failed.append(error)
            case ["over", *_]:
                self.over = True
            case ["stuck"]:
                raise AssertionError("the process was stuck")

    def check(self, directory: Path) -> None:
        """Opens the store and checks that it has all answered writes, and nothing that was not tried."""
        with LmdbStore(directory, notify=lambda writes: None) as store:
            assert all("damaged" not in finding for finding in store.findings), store.findings
            topics = {state.name: state for state in store.topics()}
            found: dict[int, int] = {}
            for name, state in topics.items():
                self._check_topic(store, name, state.id, found)
            for number, first in self.done.items():
                assert number in found, f"append {number} was acknowledged and is lost"
                assert first in (None, found[number])
            if self.acked:
                acks = store.ack_set(topics["jobs"].id)
                for low, high in self.acked:
                    assert not list(acks.missing(low, high)), f"jobs {low} to {high} come back"
            if self.position:
                assert store.cursors(topics["strong"].id)["name"] >= self.position

    def _check_topic(self, store: LmdbStore, name: str, topic: int, found: dict[int, int]) -> None:
        """Reads a topic; checks that it has whole batches that were tried, each once, with dense ids."""
        ids: list[int] = []
        bodies: list[bytes] = []
        with store.read(topic) as reader:
            expected = reader.first
            for header, records in reader.blocks(reader.first):
                for message in blocks.decode(header, records, name):
                    assert message.id == expected, f"{name}: {message.id} follows {expected - 1}"
                    expected += 1
                    ids.append(message.id)
                    bodies.append(message.body)
            assert expected == reader.last + 1
            dropped = reader.first > 1
        at = 0
        while at < len(bodies):
            number, index, count = (int(part) for part in bodies[at].rstrip(b"\0").split(b"."))
            assert self.tried[number] == (name, number, count), f"{name}: {number} was never sent"
            if index and dropped and at == 0:
                at += count - index  # its first messages are acknowledged and dropped
                found[number] = ids[0] - index
                continue
            assert index == 0
            assert number not in found, f"{name}: {number} is there twice"
            found[number] = ids[at]
            for i in range(count):
                assert bodies[at + i].rstrip(b"\0") == b"%d.%d.%d" % (number, i, count)
            at += count
        if dropped:
            for number, first in self.done.items():
                batch = self.tried[number]
                if batch[0] == name and first is not None and first < ids[0] if ids else True:
                    found.setdefault(number, first or 0)
