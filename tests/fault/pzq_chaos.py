"""A device, its producers and its consumers, killed at random under load, and what their journals record of it."""

from __future__ import annotations

import json
import random
import signal
import time
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.support.fork_server import ForkedProcess
from tests.support.libzmq_pzq_clients import figures
from tests.support.waits import until

ROOT = Path(__file__).parents[2]
PRODUCERS = CONSUMERS = 2
BOUND = 40.0  # seconds for anything to come to rest


class Clients:
    """Runs producers and consumers as processes, and reads their journals.

    Args:
        directory: For the journals.
        seed: Of all that is left to chance.
        bound: Seconds for anything to come to rest.
    """

    def __init__(self, directory: Path, seed: int, bound: float) -> None:
        self._directory = directory
        self._seed = seed
        self._bound = bound
        self._chance = random.Random(seed)
        self._processes: dict[str, ForkedProcess] = {}
        self._lives = 0
        self._life: dict[str, int] = {}
        self._confirmed: dict[str, int] = {}  # messages that were settled for good, and when that was known
        self.received = self.repeated = 0

    def _begin_producer(self, number: int, endpoint: str) -> None:
        """Starts a producer where the one before it has ended."""
        tried, answered, failed = self._produced(number)
        job = {"role": "produce", "endpoint": endpoint, "name": f"p{number}", "next": max(tried, default=0) + 1}
        self._begin(f"producer {number}", {**job, "again": sorted(tried - answered - failed)})

    def _begin_consumer(self, number: int, endpoint: str) -> None:
        self._begin(f"consumer {number}", {"role": "consume", "endpoint": endpoint})

    def _begin(self, name: str, job: dict[str, Any]) -> None:
        self._lives += 1
        self._life[name] = self._lives
        journal = self._journal(name) if name.startswith("producer") else self._directory / f"c{self._lives}"
        job |= {"journal": str(journal), "seed": self._seed * 1000 + self._lives}
        arguments = ("tests.fault.pzq_client_process", json.dumps(job))
        self._processes[name] = ForkedProcess("-m", *arguments, cwd=ROOT)

    def _journal(self, name: str) -> Path:
        return self._directory / name.replace(" ", "")

    def _produced(self, number: int) -> tuple[set[int], set[int], set[int]]:
        """Returns what a producer has tried, what was answered as it should, and what otherwise."""
        lines = read(self._journal(f"producer {number}"))
        return tuple({line[1] for line in lines if line[0] == kind} for kind in "taf")  # type: ignore[return-value]

    def _end_producers(self) -> None:
        for number in range(PRODUCERS):
            name = f"producer {number}"
            process = self._processes.pop(name)
            begun = ["b", self._seed * 1000 + self._life[name]]  # not by one that was killed before
            until(
                lambda name=name, begun=begun: begun in read(self._journal(name)),  # type: ignore[misc]
                bound=self._bound,
            )
            process.send_signal(signal.SIGTERM)
            assert process.wait(self._bound) == 0

    def _confirm(self) -> None:
        """Nothing is left: what is done by now is done for good."""
        now = time.time_ns() // 1000
        for lines in self._deliveries().values():
            for line in lines:
                self._confirmed.setdefault(line[1], now)

    def _deliveries(self) -> dict[int, list[Any]]:
        """Returns what each run of a consumer has received, in order."""
        return {int(path.name[1:]): read(path) for path in self._directory.glob("c[0-9]*")}

    def _check_messages(self) -> None:
        """Holds the journals against each other."""
        came: dict[str, list[tuple[int, int, bool]]] = defaultdict(list)  # when sent, to which life, and whether done
        for life, lines in self._deliveries().items():
            for _, body, _, _, sent, done in lines:
                came[body].append((sent, life, done))
        tried: set[str] = set()
        for number in range(PRODUCERS):
            mine, answered, _ = self._produced(number)
            tried |= {f"p{number}.{sequence}." for sequence in mine}
            lost = {sequence for sequence in answered if f"p{number}.{sequence}." not in came}
            assert not lost, f"acknowledged messages of p{number} are lost: {sorted(lost)[:20]} of {len(answered)}"
        assert set(came) <= tried, "messages came that were not sent"
        self.received = len(came)
        for body, times in came.items():
            times.sort()
            for first, second in pairwise(times):
                self.repeated += 1
                assert self._may_come_again(times, first, second[0]), f"{body} came twice, without a reason: {times}"
            known = self._confirmed.get(body)
            late = [sent for sent, _, _ in times if known is not None and sent > known]
            assert not late, f"{body} came back, and was settled for good"

    def _may_come_again(self, times: list[tuple[int, int, bool]], first: tuple[int, int, bool], again: int) -> bool:
        raise NotImplementedError


class PzqChaos(Clients):
    """Runs a device and its clients, and kills them.

    Args:
        directory: For the device and the journals.
        seed: Of all that is left to chance.
        ports: Where the device receives and sends.
    """

    def __init__(self, directory: Path, seed: int, ports: tuple[int, int]) -> None:
        super().__init__(directory, seed, BOUND)
        self._receive, self._send = (f"tcp://127.0.0.1:{port}" for port in ports)
        self._monitor = f"ipc://{directory}/m"
        self._hard = seed % 2 == 1
        #: When lives were ended and when they were over, in microseconds of the wall's clock; consumers' by number.
        self._device_killed: list[tuple[int, int]] = []
        self._killed: dict[int, tuple[int, int]] = {}

    # ------------------------------------------------------------------ life and death

    def begin_device(self) -> None:
        """Starts the device, and waits until it serves."""
        ready = self._directory / "ready"
        ready.unlink(missing_ok=True)
        command = ["omq.cli.main", "pzq", f"--database={self._directory / 'data'}"]
        command += [f"--receive-dsn={self._receive}", f"--send-dsn={self._send}", f"--monitor-dsn={self._monitor}"]
        command += ["--ack-timeout=120000000", f"--ready-file={ready}", "--log-level=error"]
        command += ["--hard-sync"] if self._hard else []
        with open(self._directory / "device.log", "ab") as log:
            self._processes["device"] = ForkedProcess("-m", *command, cwd=ROOT, stderr=log)
        until(lambda: ready.exists() or self._processes["device"].poll() is not None, self._log, BOUND)
        assert ready.exists(), self._log()

    def _log(self) -> str:
        return (self._directory / "device.log").read_text()

    def begin_producer(self, number: int) -> None:
        """Starts a producer."""
        self._begin_producer(number, self._receive)

    def begin_consumer(self, number: int) -> None:
        """Starts a consumer."""
        self._begin_consumer(number, self._send)

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
        self._end_producers()
        until(lambda: figures(self._monitor)["messages"] == 0, lambda: str(figures(self._monitor)), BOUND)
        self._confirm()

    # ------------------------------------------------------------------ what must hold

    def check(self) -> None:
        """Holds the journals against each other."""
        self._check_order()
        self._check_messages()
        assert "Traceback" not in self._log(), self._log()

    def _may_come_again(self, times: list[tuple[int, int, bool]], first: tuple[int, int, bool], again: int) -> bool:
        before, life, _ = first
        # What a consumer has read of a device before, it may send back to the next one, which has sent it again.
        back = any(not done and whose == life and sent <= before for sent, whose, done in times)
        return back or self._may_repeat(life, before, again)

    def _may_repeat(self, life: int, before: int, again: int) -> bool:
        """Returns whether a message that was delivered to a consumer may be delivered again."""
        # By when it was sent: what a consumer has in its buffers it may read after the device's death.
        kills = [*self._device_killed, *([self._killed[life]] if life in self._killed else [])]
        return any(before < over and begun < again for begun, over in kills)

    def _check_order(self) -> None:
        """Checks that first deliveries are in the order of arrival, as long as both ends live."""
        for life, lines in self._deliveries().items():
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
