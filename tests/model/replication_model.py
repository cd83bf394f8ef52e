"""A cluster of role machines on a journal in memory, in virtual time, with the faults that a chooser selects.

The code of the roles is the real one. The journal, the stores and the clocks are models: a node's clock has a rate of
its own, a paused node does nothing, and a killed one comes back with what its store has applied, or synced. A client
submits writes, each attempt under its own name, so that the stores show what has become of it.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter, deque
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omq.store.errors import InDoubt, NotLeader
from omq.store.interface import Append, Write
from omq.store.replication.codec import Entry
from omq.store.replication.role_machine import Applied, NodeClock, ReplicaSettings, Role, RoleMachine
from tests.model.virtual_loop import NothingHappens, VirtualLoop
from tests.support.memory_journal import OUTCOMES, MemoryJournal, NodeJournal

LEASE_S = 1.0
LATENCY_S = 0.002
SLOW_S = 0.7  # a message that takes long: most of a lease
ROUND_S = 0.3  # the time between two events
TIMEOUT_S = 0.3  # of a call of the journal
PATIENCE_S = 3.0  # the client's
HEALING_S = 40.0
#: What may happen to a node: it is killed, ended, or stopped for a while; its connection to the journal is cut, in both
#: directions, in one, or for reads; the journal is truncated up to its position.
FAULTS = ("crash", "close", "pause", "part", "deaf", "mute", "blind", "truncate")
#: The rates of the nodes' clocks: they differ by less than `TAKEOVER_FACTOR`.
RATES = {"a": 0.95, "b": 1.15, "c": 1.0}


class Broken(Exception):
    """Raised when a promise does not hold."""


class Chooser:
    """Selects one of several possibilities each time; 0 is the usual one.

    Attributes:
        trace: The number of possibilities at each choice, and what it was about.
    """

    def __init__(self) -> None:
        self.trace: list[tuple[int, str]] = []

    def choose(self, count: int, label: str) -> int:
        if count < 2:
            return 0
        self.trace.append((count, label))
        return self.select(count)

    def select(self, count: int) -> int:
        return 0


class Deviations(Chooser):
    """Selects the usual possibility, apart from given choices."""

    def __init__(self, deviations: dict[int, int]) -> None:
        super().__init__()
        self.deviations = deviations

    def select(self, count: int) -> int:
        return min(self.deviations.get(len(self.trace) - 1, 0), count - 1)


class ByChance(Chooser):
    """Selects at random; an unusual possibility with a probability."""

    def __init__(self, seed: int, probability: float) -> None:
        super().__init__()
        self._random = random.Random(seed)
        self._probability = probability

    def select(self, count: int) -> int:
        return self._random.randrange(1, count) if self._random.random() < self._probability else 0


class ModelStore:
    """The store of a node: the records of all appends, in order. It survives the node.

    Args:
        delay: The seconds in which it applies an entry.
        sync_interval: The seconds between two syncs. What is applied since then is lost with the node; 0: nothing is.
    """

    def __init__(self, delay: float, sync_interval: float = 0.0) -> None:
        self.position = (0, 0)
        self.timestamp = 0
        self.stalled = False
        self.records: list[str] = []
        self.lost = 0  # entries and marks, at all crashes
        self._sync_interval = sync_interval
        self._sync_at = 0.0
        self.sync()
        self._waiting: deque[tuple[int, Entry, asyncio.Future[None], Applied | None]] = deque()
        self._applying: asyncio.Task[None] | None = None
        self.delay = delay
        self.loaded = 0

    def apply(self, sequence: int, entry: Entry, applied: Applied | None = None) -> Awaitable[None]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((sequence, entry, done, applied))
        if self._applying is None or self._applying.done():
            self._applying = asyncio.ensure_future(self._apply_all())
        return done

    async def _apply_all(self) -> None:
        while self._waiting:
            sequence, entry, done, applied = self._waiting[0]
            await asyncio.sleep(self.delay if entry.writes else LATENCY_S)
            self._waiting.popleft()
            if sequence <= self.position[0]:
                raise Broken(f"the entry {sequence} is applied after {self.position[0]}")
            if self._sync_interval and asyncio.get_running_loop().time() >= self._sync_at:
                self.sync()
                self._sync_at = asyncio.get_running_loop().time() + self._sync_interval
            for write in entry.writes:
                assert isinstance(write, Append)
                self.records.append(bytes(write.records).decode())
                write.first = len(self.records)
            self.position = sequence, entry.term
            self.timestamp = entry.timestamp
            if applied is not None:
                applied(entry.writes, None)
            if not done.done():
                done.set_result(None)

    def sync(self) -> None:
        """Keeps the state for a crash."""
        self._synced = self.position, self.timestamp, [*self.records]

    def crash(self) -> None:
        """Drops what is not applied, or not synced."""
        if self._applying is not None:
            self._applying.cancel()
        for _, _, done, _ in self._waiting:
            done.cancel()
        self._waiting.clear()
        if self._sync_interval:
            self.lost += self.position[0] - self._synced[0][0]
            self.position, self.timestamp, records = self._synced
            self.records = [*records]

    def needs_check(self, write: Write) -> bool:
        return False

    def check(self, write: Write) -> None:
        pass

    def upkeep(self) -> list[Write]:
        return []

    async def snapshot(self, target: Path) -> int:
        target.mkdir()  # noqa: ASYNC240
        state = [*self.position, self.timestamp, self.records]
        (target / "state").write_text(json.dumps(state))
        await asyncio.sleep(LATENCY_S)
        return int(state[0])  # type: ignore[call-overload]

    async def load(self, directory: Path) -> None:
        self.loaded += 1
        sequence, term, self.timestamp, self.records = json.loads((directory / "state").read_text())
        self.position = sequence, term
        self.sync()


class ModelClock(NodeClock):
    """The clock of a node. A paused node does not return from a wait."""

    def __init__(self, node: Node, rate: float, offset: float) -> None:
        self._node = node
        self._rate = rate
        self._offset = offset

    def now(self) -> float:
        return self._offset + self._rate * asyncio.get_running_loop().time()

    async def wait(self, tasks: Iterable[asyncio.Future[Any]], until: float) -> None:
        seconds = (until - self.now()) / self._rate
        waiting = list(tasks)
        timeout = None if until == float("inf") else max(seconds, 1e-6 if seconds > 0 else 0.0)
        if waiting:
            await asyncio.wait(waiting, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.sleep(timeout or 0.0)
        await self._node.runs()


class Node:
    """A node of the cluster.

    Attributes:
        machine: `None` while it is down.
    """

    def __init__(self, cluster: Cluster, name: str, rate: float) -> None:
        self.cluster = cluster
        self.name = name
        delay = cluster.case.apply_s if name == cluster.case.nodes[-1] else LATENCY_S
        self.store = ModelStore(delay, cluster.case.sync_s)
        self.machine: RoleMachine | None = None
        self.journal: NodeJournal
        self.paused = False
        self.resumed = asyncio.Event()
        self._clock = ModelClock(self, rate, 1000.0 * ord(name))
        self._task: asyncio.Task[None]

    def start(self) -> None:
        self.journal = journal = self.cluster.journal.node()
        journal.faults.latency = self.cluster.latency
        journal.faults.outcome = self.cluster.outcome
        journal.faults.timeout = TIMEOUT_S
        journal.faults.chunk_s = self.cluster.case.chunk_s
        journal.faults.running = self.runs
        settings = ReplicaSettings(self.name, (f"tcp://{self.name}",), snapshot_bytes=self.cluster.case.snapshot_bytes)
        self.machine = self.cluster.machine(
            settings, journal, self.store, finished=lambda writes: self._finished(journal, writes), clock=self._clock
        )
        self._task = asyncio.ensure_future(self.machine.run())

    def _finished(self, journal: NodeJournal, writes: list[Write]) -> None:
        for write in writes:
            if journal is self.journal and self.machine is not None and not write.context.done():
                write.context.set_result(None)

    async def crash(self) -> None:
        self.machine = None
        self.resume()
        self._task.cancel()
        await asyncio.wait([self._task])
        self.store.crash()

    async def close(self) -> None:
        """Ends the node, which resigns if it leads."""
        if self.machine is not None:
            self.machine.close()
            await asyncio.wait([self._task], timeout=PATIENCE_S)
            self.store.sync()
            await self.crash()

    def pause(self) -> None:
        self.paused = True
        self.resumed.clear()

    def resume(self) -> None:
        self.paused = False
        self.resumed.set()

    async def runs(self) -> None:
        """Waits while it is paused."""
        while self.paused:
            await self.resumed.wait()

    def check_runs(self) -> None:
        if self.machine is not None and self._task.done() and self._task.exception() is not None:
            raise Broken(f"the node {self.name} has ended: {self._task.exception()!r}")

    def leads(self) -> bool:
        return self.machine is not None and self.machine.is_leader_now()


@dataclass
class Case:
    """The size of a run, and the faults in it.

    Attributes:
        nodes: The names of the nodes.
        writes: The number of writes of the client.
        rounds: The number of times at which an event may happen.
        faults: The number of events that are not healing.
        chunk_bytes: The size to which entries are cut.
        record_bytes: The bytes of a record, at least.
        chunk_s: The seconds that each chunk takes of an entry with several.
        outcomes: Whether appends may have unusual outcomes.
        slow: Whether messages may take long.
        events: Whether events may happen.
        apply_s: The seconds in which the store of the last node applies an entry.
        snapshot_bytes: The bytes of entries after which the leader makes a snapshot; 0: never.
        sync_s: The seconds between two syncs of a store, of which a crash loses the rest; 0: it loses nothing.
    """

    nodes: str = "ab"
    writes: int = 3
    rounds: int = 6
    faults: int = 2
    chunk_bytes: int = 1 << 20
    record_bytes: int = 0
    chunk_s: float = 0.0
    outcomes: bool = True
    slow: bool = False
    events: bool = True
    apply_s: float = LATENCY_S
    snapshot_bytes: int = 0
    sync_s: float = 0.0


class Cluster:
    """A run of a case.

    Args:
        case: The case.
        chooser: Selects what happens.
        machine: The class of the nodes; a test replaces it by one with a fault.
    """

    def __init__(self, case: Case, chooser: Chooser, machine: type[RoleMachine] = RoleMachine) -> None:
        self.case = case
        self.chooser = chooser
        self.machine = machine
        self.healing = False
        self.faults = 0
        self.acked: dict[str, int] = {}  # the ids by record
        self.refused: set[str] = set()
        self.tried: list[str] = []
        self.leaders = 0
        self.loaded = 0  # snapshots
        self.lost = 0  # what the stores had applied and not synced
        self.closing: list[asyncio.Task[None]] = []
        self.failed: dict[str, Any] = {}  # the error of a callback
        self._led = ""

    def run(self) -> None:
        """Runs the case.

        Raises:
            Broken: A promise does not hold.
        """
        loop = VirtualLoop()
        loop.set_exception_handler(self._loop_failed)
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(self._run(loop))
        except NothingHappens:
            raise Broken("nothing happens any more") from None
        finally:
            loop.observe = lambda: None
            while tasks := asyncio.all_tasks(loop):
                for task in tasks:
                    task.cancel()
                loop.run_until_complete(asyncio.wait(tasks, timeout=1))
            asyncio.set_event_loop(None)
            loop.close()

    def _loop_failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.failed = context

    # What is chosen

    def latency(self) -> float:
        if self.case.slow and not self.healing and self.chooser.choose(2, "latency"):
            return SLOW_S
        return LATENCY_S

    def outcome(self) -> str:
        if self.healing or not self.case.outcomes or self.faults >= self.case.faults:
            return ""
        chosen = self.chooser.choose(len(OUTCOMES) + 1, "outcome of an append")
        self.faults += bool(chosen)
        return ("", *OUTCOMES)[chosen]

    def events(self) -> list[tuple[str, Node]]:
        """Returns the events that are possible, apart from none."""
        found = []
        for node in self.nodes.values():
            if node.machine is None:
                found.append(("restart", node))
                continue
            if node.paused:
                found.append(("resume", node))
            if not node.journal.faults.pass_all:
                found.append(("heal", node))
            if self.faults < self.case.faults:
                found += [(event, node) for event in FAULTS]
        return found

    async def happen(self, event: str, node: Node) -> None:
        if event in FAULTS:
            self.faults += 1
        match event:
            case "crash":
                await node.crash()
            case "close":
                self.closing.append(asyncio.ensure_future(node.close()))
            case "restart":
                node.start()
            case "pause":
                node.pause()
            case "resume":
                node.resume()
            case "part":
                node.journal.faults.part()
            case "deaf":
                node.journal.faults.answers_pass = False
            case "blind":
                node.journal.faults.entries_pass = False
            case "mute":
                node.journal.faults.requests_pass = False
            case "heal":
                node.journal.faults.heal()
            case "truncate":
                await self.truncate(node)

    async def truncate(self, node: Node) -> None:
        """Replaces the journal up to the position of a node by a snapshot of its store."""
        position = node.store.position[0]
        if position and (self.journal.snapshot is None or self.journal.snapshot[0] < position):
            self.journal.snapshot = (
                position,
                {"state": json.dumps([*node.store.position, node.store.timestamp, node.store.records]).encode()},
            )
            self.journal.truncate(position + 1)

    # The run

    async def _run(self, loop: VirtualLoop) -> None:
        self.journal = MemoryJournal(self.case.chunk_bytes, LEASE_S)
        self.nodes = {name: Node(self, name, RATES[name]) for name in self.case.nodes}
        for node in self.nodes.values():
            node.start()
        loop.observe = self.check
        client = asyncio.ensure_future(self._client())
        await asyncio.sleep(2 * LEASE_S)
        for _ in range(self.case.rounds if self.case.events else 0):
            await asyncio.sleep(ROUND_S)
            events = self.events()
            chosen = self.chooser.choose(len(events) + 1, "event")
            if chosen:
                event, node = events[chosen - 1]
                self.chooser.trace[-1] = len(events) + 1, f"{event} {node.name}"
                await self.happen(event, node)
        if self.case.events:
            await asyncio.sleep(2 * LEASE_S)  # without a new fault
        await self._heal()
        done, _ = await asyncio.wait([client], timeout=HEALING_S)
        if not done:
            raise Broken(f"no progress: {len(self.acked)} writes are acknowledged")
        client.result()
        end = loop.time() + HEALING_S
        while len({(tuple(node.store.records), node.store.position) for node in self.nodes.values()}) > 1:
            if loop.time() > end:
                raise Broken(f"the stores stay different: {[node.store.position for node in self.nodes.values()]}")
            await asyncio.sleep(0.1)
        self.check()
        self.check_records()
        self.loaded = sum(node.store.loaded for node in self.nodes.values())
        self.lost = sum(node.store.lost for node in self.nodes.values())
        for node in self.nodes.values():
            await node.crash()

    async def _heal(self) -> None:
        self.healing = True
        for node in self.nodes.values():
            node.resume()
        if self.closing:
            await asyncio.wait(self.closing)
        for node in self.nodes.values():
            if node.machine is None:
                node.start()
            node.resume()
            node.journal.faults.heal()

    async def _client(self) -> None:
        for number in range(self.case.writes):
            attempt = 0
            while True:
                node = self._node_for_client(attempt)
                record = f"{number}.{attempt}".ljust(self.case.record_bytes, ".")
                attempt += 1
                outcome = await self._submit(node, record)
                if outcome == "acked":
                    break
                await asyncio.sleep(0.2)
            await asyncio.sleep(ROUND_S)

    def _node_for_client(self, attempt: int) -> Node:
        for node in self.nodes.values():
            if node.leads() and not node.paused and attempt % 3 != 2:
                return node
        nodes = list(self.nodes.values())
        return nodes[attempt % len(nodes)]

    async def _submit(self, node: Node, record: str) -> str:
        if node.machine is None or node.paused:
            return "down"
        self.tried.append(record)
        write = Append(1, record.encode(), 1, context=asyncio.get_running_loop().create_future())
        node.machine.submit([write])
        await asyncio.wait([write.context], timeout=PATIENCE_S)
        if not write.context.done():
            write.context.cancel()
            return "unknown"
        if write.error is None:
            self.acked[record] = write.first
            return "acked"
        if isinstance(write.error, NotLeader):
            self.refused.add(record)
            return "refused"
        if not isinstance(write.error, InDoubt):
            raise Broken(f"a write fails: {write.error!r}")
        return "unknown"

    # What has to hold

    def check(self) -> None:
        """Checks what holds at each time.

        Raises:
            Broken: It does not hold.
        """
        if self.failed:
            raise Broken(f"a callback has failed: {self.failed!r}")
        leaders = [node for node in self.nodes.values() if node.leads()]
        if len(leaders) > 1:
            raise Broken(f"{' and '.join(node.name for node in leaders)} lead at the same time")
        longest: list[str] = max((node.store.records for node in self.nodes.values()), key=len)
        for node in self.nodes.values():
            node.check_runs()
            if longest[: len(node.store.records)] != node.store.records:
                raise Broken(f"the stores have different orders: {node.store.records}, {longest}")
        for node in leaders:
            if node.name != self._led:
                self._led = node.name
                self.leaders += 1
            for record, first in self.acked.items():
                if node.store.records[first - 1 : first] != [record]:
                    raise Broken(f"the leader {node.name} does not have the acknowledged write {record}")
            if node.machine is not None and node.machine.role is not Role.LEADER:
                raise Broken(f"{node.name} answers as a {node.machine.role.value}")

    def check_records(self) -> None:
        """Checks what has become of each attempt.

        Raises:
            Broken: An acknowledged write is not there once, or a refused one is there.
        """
        for node in self.nodes.values():
            counts = Counter(node.store.records)
            for record in self.tried:
                least, most = (1, 1) if record in self.acked else (0, 0) if record in self.refused else (0, 1)
                if not least <= counts[record] <= most:
                    raise Broken(f"{node.name} has {record} {counts[record]} times; it was in {self._outcome(record)}")

    def _outcome(self, record: str) -> str:
        return "the acknowledged" if record in self.acked else "the refused" if record in self.refused else "doubt"
