"""A device, its producers and its consumers, killed at random under load, and what their journals say of it."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.system.pzq.raw import figures
from tests.waits import until

ROOT = Path(__file__).parents[2]
PRODUCERS = CONSUMERS = 2
BOUND = 40.0  # seconds for anything to come to rest


class Player:
    """Runs processes and kills them.

    Args:
        directory: For the device and the journals.
        seed: Of all that is left to chance.
        ports: Where the device receives and sends.
    """

    def __init__(self, directory: Path, seed: int, ports: tuple[int, int]) -> None:
        self._directory = directory
        self._seed = seed
        self._chance = random.Random(seed)
        self._receive, self._send = (f"tcp://127.0.0.1:{port}" for port in ports)
        self._monitor = f"ipc://{directory}/m"
        self._hard = seed % 2 == 1
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._lives = 0
        #: When lives were ended and when they were over, in microseconds of the wall's clock; consumers' by number.
        self._device_killed: list[tuple[int, int]] = []
        self._killed: dict[int, tuple[int, int]] = {}
        self._life: dict[str, int] = {}
        self._confirmed: dict[str, int] = {}  # messages that were settled for good, and when that was known
        self.received = 0
        self.repeated = 0

    # ------------------------------------------------------------------ life and death

    def begin_device(self) -> None:
        """Starts the device, and waits until it serves."""
        ready = self._directory / "ready"
        ready.unlink(missing_ok=True)
        command = [sys.executable, "-m", "omq.cli.main", "pzq", f"--database={self._directory / 'data'}"]
        command += [f"--receive-dsn={self._receive}", f"--send-dsn={self._send}", f"--monitor-dsn={self._monitor}"]
        command += ["--ack-timeout=120000000", f"--ready-file={ready}", "--log-level=error"]
        command += ["--hard-sync"] if self._hard else []
        with open(self._directory / "device.log", "ab") as log:
            self._processes["device"] = subprocess.Popen(command, cwd=ROOT, stderr=log)
        until(lambda: ready.exists() or self._processes["device"].poll() is not None, self._log, BOUND)
        assert ready.exists(), self._log()

    def _log(self) -> str:
        return (self._directory / "device.log").read_text()

    def begin_producer(self, number: int) -> None:
        """Starts a producer where the one before it has ended."""
        tried, answered = self._produced(number)
        job = {"role": "produce", "endpoint": self._receive, "name": f"p{number}", "next": max(tried, default=0) + 1}
        self._begin(f"producer {number}", {**job, "again": sorted(tried - answered)})

    def begin_consumer(self, number: int) -> None:
        """Starts a consumer."""
        self._begin(f"consumer {number}", {"role": "consume", "endpoint": self._send})

    def _begin(self, name: str, job: dict[str, Any]) -> None:
        self._lives += 1
        self._life[name] = self._lives
        journal = self._journal(name) if name.startswith("producer") else self._directory / f"c{self._lives}"
        job |= {"journal": str(journal), "seed": self._seed * 1000 + self._lives}
        command = [sys.executable, "-m", "tests.fault.pzq_client", json.dumps(job)]
        self._processes[name] = subprocess.Popen(command, cwd=ROOT)

    def _journal(self, name: str) -> Path:
        return self._directory / name.replace(" ", "")

    def _produced(self, number: int) -> tuple[set[int], set[int]]:
        """What a producer has tried, and what was answered."""
        lines = read(self._journal(f"producer {number}"))
        return {line[1] for line in lines if line[0] == "t"}, {line[1] for line in lines if line[0] == "a"}

    def kill(self, name: str) -> None:
        """Kills a process."""
        process = self._processes.pop(name)
        begun = time.time_ns() // 1000
        process.kill()
        process.wait()
        over = time.time_ns() // 1000
        if name == "device":
            self._device_killed.append((begun, over))
        elif name.startswith("consumer"):
            self._killed[self._life[name]] = begun, over

    def begin(self) -> None:
        """Starts all of them."""
        self.begin_device()
        for number in range(CONSUMERS):
            self.begin_consumer(number)
        for number in range(PRODUCERS):
            self.begin_producer(number)

    def end(self) -> None:
        """Kills what there is."""
        for name in tuple(self._processes):
            self.kill(name)

    def hit(self) -> None:
        """Kills one of them, and starts it again."""
        time.sleep(self._chance.uniform(0.05, 0.5))
        what, number = self._chance.choice(("device", "producer", "consumer", "device")), self._chance.randrange(2)
        name = what if what == "device" else f"{what} {number}"
        self.kill(name)
        time.sleep(self._chance.uniform(0, 0.2))
        if what == "device":
            self.begin_device()
        elif what == "producer":
            self.begin_producer(number)
        else:
            self.begin_consumer(number)

    def rest(self) -> None:
        """Has the producers come to an end, and waits until nothing is left: what was done by then is done for good."""
        for number in range(PRODUCERS):
            name = f"producer {number}"
            process = self._processes.pop(name)
            begun = ["b", self._seed * 1000 + self._life[name]]
            until(lambda name=name, begun=begun: begun in read(self._journal(name)), bound=BOUND)  # type: ignore[misc]
            process.send_signal(signal.SIGTERM)
            assert process.wait(BOUND) == 0
        until(lambda: figures(self._monitor)["messages"] == 0, lambda: str(figures(self._monitor)), BOUND)
        now = time.time_ns() // 1000
        for deliveries in self._deliveries().values():
            for line in deliveries:
                self._confirmed.setdefault(line[1], now)

    # ------------------------------------------------------------------ what must hold

    def _deliveries(self) -> dict[int, list[Any]]:
        """What each life of a consumer has got, in its order."""
        found = self._directory.glob("c[0-9]*")
        return {int(path.name[1:]): read(path) for path in found}

    def check(self) -> None:
        """Holds the journals against each other."""
        deliveries = self._deliveries()
        self._check_order(deliveries)
        by_message: dict[str, list[tuple[int, int, bool]]] = defaultdict(list)
        for life, lines in deliveries.items():
            for _, body, _, _, sent, done in lines:
                by_message[body].append((sent, life, done))
        tried: set[str] = set()
        for number in range(PRODUCERS):
            mine, answered = self._produced(number)
            tried |= {f"p{number}.{sequence}." for sequence in mine}
            lost = {sequence for sequence in answered if f"p{number}.{sequence}." not in by_message}
            assert not lost, f"acknowledged messages of p{number} are lost: {sorted(lost)[:20]}"
        assert set(by_message) <= tried, "messages came that nobody sent"
        self.received = len(by_message)
        for body, came in by_message.items():
            came.sort()
            for (before, life, _), (again, _, _) in pairwise(came):
                self.repeated += 1
                # What a consumer has read of a device before, it may send back to the next one, which has sent it anew.
                back = any(not done and whose == life and sent <= before for sent, whose, done in came)
                assert back or self._may_repeat(life, before, again), f"{body} came twice, and nobody had died: {came}"
            known = self._confirmed.get(body)
            late = [sent for sent, _, _ in came if known is not None and sent > known]
            assert not late, f"{body} came back, and was settled for good"
        assert "Traceback" not in self._log(), self._log()

    def _may_repeat(self, life: int, before: int, again: int) -> bool:
        """Whether a message that was delivered to a consumer may be delivered again."""
        # By when it was sent: what a consumer has in its buffers it may read after the device's death.
        kills = [*self._device_killed, *([self._killed[life]] if life in self._killed else [])]
        return any(before < over and begun < again for begun, over in kills)

    def _check_order(self, deliveries: dict[int, list[Any]]) -> None:
        """What is delivered for the first time comes in the order of its arrival, as long as both ends live."""
        for life, lines in deliveries.items():
            last: dict[int, str] = {}
            for _, body, key, tries, sent, _ in lines:
                if tries == 1:
                    number = key.partition("|")[2]
                    device = sum(sent > over for _, over in self._device_killed)
                    assert number > last.get(device, ""), f"consumer {life}: {body} came behind what had come after it"
                    last[device] = number


def read(path: Path) -> list[Any]:
    """A journal."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
