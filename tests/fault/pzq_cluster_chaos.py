"""Three nodes with producers and consumers, any of them killed, stopped or without its disk, and their journals."""

from __future__ import annotations

import shutil
import signal
import time
from pathlib import Path

from tests.fault.pzq_chaos import PRODUCERS, Clients, read
from tests.support.pzq_nodes import TIMEOUT_S, Node, empty, whole
from tests.support.waits import until

CALM = 500  # messages
BOUND = 60.0  # seconds for anything to come to rest
SETTLING = 3 * TIMEOUT_S * 1e6  # microseconds after a fault in which who delivers what may change hands


class PzqClusterChaos(Clients):
    """Runs clients of a cluster, and has things happen.

    Args:
        directory: For the journals.
        seed: Of all that is left to chance.
        nodes: The cluster, which runs.
    """

    def __init__(self, directory: Path, seed: int, nodes: list[Node]) -> None:
        super().__init__(directory, seed, BOUND)
        self._nodes = nodes
        self._may_wipe = True
        #: When something was wrong, in microseconds of the wall's clock.
        self._faults: list[tuple[float, float]] = []
        self._consumes: dict[int, int] = {}  # the node of a consumer's life
        self._wiped: dict[int, int] = {}  # when a node lost its disk
        self.in_order = 0

    # ------------------------------------------------------------------ life and death

    def begin(self) -> None:
        """Starts the clients: a consumer for each node, producers for the first two."""
        for number in range(len(self._nodes)):
            self._begin_consumer_of(number)
        for number in range(PRODUCERS):
            self.begin_producer(number)

    def begin_producer(self, number: int) -> None:
        """Starts a producer where the one before it has ended."""
        self._begin_producer(number, self._nodes[number].receive)

    def _begin_consumer_of(self, number: int) -> None:
        self._begin_consumer(number, self._nodes[number].send)
        self._consumes[self._lives] = number

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
        time.sleep(self._chance.choice((0.0, 0.5 * TIMEOUT_S, 2.0 * TIMEOUT_S)))

    def _kill_client(self) -> None:
        name = self._chance.choice(sorted(self._processes))
        process = self._processes.pop(name)
        process.kill()
        process.wait()
        kind, number = name.split()
        (self._begin_consumer_of if kind == "consumer" else self.begin_producer)(int(number))

    def calm(self) -> None:
        """Has messages pass while nothing is wrong: their order is looked at."""
        over = max((over for _, over in self._faults), default=0.0)
        until(lambda: time.time_ns() // 1000 > over, bound=BOUND)
        before = self._count()
        until(lambda: self._count() > before + CALM, bound=BOUND)

    def _count(self) -> int:
        return sum(map(len, self._deliveries().values()))

    def rest(self) -> None:
        """Ends the producers, and waits until nothing is left: what was done by then is done for good."""
        self._end_producers()
        whole(self._nodes)
        empty(self._nodes, BOUND)
        self._confirm()

    # ------------------------------------------------------------------ what must hold

    def check(self) -> None:
        """Holds the journals against each other."""
        self._check_order()
        self._check_messages()
        for node in self._nodes:
            assert "Traceback" not in node.log.read_text(), node.log.read_text()

    def _may_come_again(self, times: list[tuple[int, int, bool]], first: tuple[int, int, bool], again: int) -> bool:
        """Returns whether a message was not finished, or something failed while it was in flight, or soon after."""
        before, _, done = first
        return not done or any(before < over and begun < again for begun, over in self._faults)

    def _check_order(self) -> None:
        """Checks that an owner's first deliveries are in the order of arrival, as long as there is no fault."""
        self.in_order = 0
        for life, number in self._consumes.items():
            last: tuple[str, int] = ("", 0)
            for _, body, key, tries, sent, _ in read(self._directory / f"c{life}"):
                when, _, stored = key.partition("|")
                # What others bring back after a disk is lost comes as it comes.
                brought_back = int(when) <= self._wiped.get(number, sent) < sent
                if tries != 1 or not body.startswith(f"p{number}.") or brought_back:
                    continue
                before, at = last
                if not any(at < over and begun < sent for begun, over in self._faults):
                    assert stored > before, f"consumer {life}: {body} came behind what had come after it"
                    self.in_order += 1
                last = stored, sent
