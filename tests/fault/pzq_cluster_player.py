"""Three nodes with producers and consumers, any of them killed, stopped or without its disk, and their journals."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.fault.pzq_player import ROOT, read
from tests.system.pzq.nodes import TIMEOUT, Node, empty, whole
from tests.waits import until

PRODUCERS = 2
CALM = 500  # messages
BOUND = 60.0  # seconds for anything to come to rest
SETTLING = 3 * TIMEOUT * 1e6  # microseconds after a fault in which who delivers what may change hands


class ClusterPlayer:
    """Runs clients of a cluster, and has things happen.

    Args:
        directory: For the journals.
        seed: Of all that is left to chance.
        nodes: The cluster, which runs.
    """

    def __init__(self, directory: Path, seed: int, nodes: list[Node]) -> None:
        self._directory = directory
        self._seed = seed
        self._chance = random.Random(seed)
        self._nodes = nodes
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._seeds: dict[str, int] = {}  # of each client that lives
        self._lives = 0
        self._may_wipe = True
        #: When something was wrong, in microseconds of the wall's clock.
        self._faults: list[tuple[float, float]] = []
        self._confirmed: dict[str, int] = {}
        self._consumes: dict[int, int] = {}  # the node of a consumer's life
        self._wiped: dict[int, int] = {}  # when a node lost its disk
        self.received = self.repeated = self.in_order = 0

    # ------------------------------------------------------------------ life and death

    def begin(self) -> None:
        """Starts the clients: a consumer for each node, producers for the first two."""
        for number in range(len(self._nodes)):
            self._begin_consumer(number)
        for number in range(PRODUCERS):
            self.begin_producer(number)

    def begin_producer(self, number: int) -> None:
        """Starts a producer where the one before it has ended."""
        tried, answered, failed = self._produced(number)
        again = sorted(tried - answered - failed)
        name, next_one = f"p{number}", max(tried, default=0) + 1
        job = {"role": "produce", "endpoint": self._nodes[number].receive, "name": name, "next": next_one}
        self._begin(f"producer {number}", self._directory / f"producer{number}", {**job, "again": again})

    def _begin_consumer(self, number: int) -> None:
        job = {"role": "consume", "endpoint": self._nodes[number].send}
        self._begin(f"consumer {number}", self._directory / f"c{self._lives + 1}", job)
        self._consumes[self._lives] = number

    def _begin(self, name: str, journal: Path, job: dict[str, Any]) -> None:
        self._lives += 1
        self._seeds[name] = self._seed * 1000 + self._lives
        job |= {"journal": str(journal), "seed": self._seeds[name]}
        command = [sys.executable, "-m", "tests.fault.pzq_client", json.dumps(job)]
        self._processes[name] = subprocess.Popen(command, cwd=ROOT)

    def _produced(self, number: int) -> tuple[set[int], set[int], set[int]]:
        """What a producer has tried, what is replicated, and what is not."""
        lines = read(self._directory / f"producer{number}")
        return tuple({line[1] for line in lines if line[0] == kind} for kind in "taf")  # type: ignore[return-value]

    def end(self) -> None:
        """Kills the clients."""
        for process in self._processes.values():
            process.kill()
            process.wait()

    # ------------------------------------------------------------------ what happens

    def hit(self) -> None:
        """Has something happen, and mends it."""
        time.sleep(self._chance.uniform(0.1, 1.0))
        begun = time.time_ns() // 1000
        what = self._chance.choice(("kill", "kill", "stop", "wipe", "client"))
        node = self._chance.choice(self._nodes)
        if what == "client":
            self._kill_client()
        elif what == "stop":
            node.signal(signal.SIGSTOP)
            self._wait_away()
            node.signal(signal.SIGCONT)
        else:
            node.kill()
            if what == "wipe" and self._may_wipe:
                self._may_wipe = False  # a message is on two disks: one of them lives
                shutil.rmtree(node.database)
                self._wiped[self._nodes.index(node)] = time.time_ns() // 1000
            self._wait_away()
            node.start()
        self._faults.append((begun, time.time_ns() // 1000 + SETTLING))

    def _wait_away(self) -> None:
        """Sometimes so long that others take over, sometimes not."""
        time.sleep(self._chance.choice((0.0, 0.5 * TIMEOUT, 2.0 * TIMEOUT)))

    def _kill_client(self) -> None:
        name = self._chance.choice(sorted(self._processes))
        process = self._processes.pop(name)
        process.kill()
        process.wait()
        kind, number = name.split()
        (self._begin_consumer if kind == "consumer" else self.begin_producer)(int(number))

    def calm(self) -> None:
        """Has messages pass while nothing is wrong: their order is looked at."""
        over = max((over for _, over in self._faults), default=0.0)
        until(lambda: time.time_ns() // 1000 > over, bound=BOUND)
        before = len(self._deliveries())
        until(lambda: len(self._deliveries()) > before + CALM, bound=BOUND)

    def rest(self) -> None:
        """Ends the producers, and waits until nothing is left: what was done by then is done for good."""
        for number in range(PRODUCERS):
            name, journal = f"producer {number}", self._directory / f"producer{number}"
            process = self._processes.pop(name)
            begun = ["b", self._seeds[name]]  # not by one that was killed before
            until(lambda journal=journal, begun=begun: begun in read(journal), bound=BOUND)  # type: ignore[misc]
            process.send_signal(signal.SIGTERM)
            assert process.wait(BOUND) == 0
        whole(self._nodes)
        empty(self._nodes, BOUND)
        now = time.time_ns() // 1000
        for line in self._deliveries():
            self._confirmed.setdefault(line[1], now)

    # ------------------------------------------------------------------ what must hold

    def _deliveries(self) -> list[Any]:
        return [line for path in self._directory.glob("c[0-9]*") for line in read(path)]

    def check(self) -> None:
        """Holds the journals against each other."""
        self._check_order()
        came: dict[str, list[tuple[int, bool]]] = defaultdict(list)
        for _, body, _, _, sent, done in self._deliveries():
            came[body].append((sent, done))
        tried: set[str] = set()
        for number in range(PRODUCERS):
            mine, replicated, _ = self._produced(number)
            tried |= {f"p{number}.{sequence}." for sequence in mine}
            lost = {sequence for sequence in replicated if f"p{number}.{sequence}." not in came}
            assert not lost, f"acknowledged messages of p{number} are lost: {sorted(lost)[:20]} of {len(replicated)}"
        assert set(came) <= tried, "messages came that nobody sent"
        self.received = len(came)
        for body, times in came.items():
            times.sort()
            for (before, done), (again, _) in pairwise(times):
                self.repeated += 1
                assert not done or self._may_repeat(before, again), f"{body} came twice, and nothing was wrong: {times}"
            known = self._confirmed.get(body)
            late = [sent for sent, _ in times if known is not None and sent > known]
            assert not late, f"{body} came back, and was settled for good"
        for node in self._nodes:
            assert "Traceback" not in node.log.read_text(), node.log.read_text()

    def _check_order(self) -> None:
        """What an owner delivers for the first time comes in the order of its arrival, as long as nothing happens."""
        self.in_order = 0
        for life, number in self._consumes.items():
            last: tuple[str, int] = ("", 0)
            for _, body, key, tries, sent, _ in read(self._directory / f"c{life}"):
                when, _, stored = key.partition("|")
                # What others bring back after a disk is lost comes as it comes.
                if tries != 1 or not body.startswith(f"p{number}.") or int(when) <= self._wiped.get(number, 0):
                    continue
                before, at = last
                if not any(at < over and begun < sent for begun, over in self._faults):
                    assert stored > before, f"consumer {life}: {body} came behind what had come after it"
                    self.in_order += 1
                last = stored, sent

    def _may_repeat(self, before: int, again: int) -> bool:
        """Whether something was wrong while a message was in flight, or right before it came again."""
        return any(before < over and begun < again for begun, over in self._faults)
