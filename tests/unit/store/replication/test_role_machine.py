"""One node on a journal in memory, in virtual time: elections, doubt, what is proposed, and the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any

import pytest

from omq.store.errors import InDoubt, NotLeader, StoreError, StoreFailed, TopicFull
from omq.store.interface import Append, Write
from omq.store.replication.codec import Entry, Kind, Lease, decode, encode
from omq.store.replication.journal import JournalEntry, JournalUnavailable, JournalUnusable
from omq.store.replication.lease import TAKEOVER_FACTOR
from omq.store.replication.role_machine import (
    LARGE_ENTRY_BYTES,
    MIN_SNAPSHOT_DELAY_S,
    NO_ANSWER,
    NodeClock,
    ReplicaSettings,
    Role,
    RoleMachine,
)
from tests.model.replication_model import ModelStore
from tests.model.virtual_loop import VirtualLoop
from tests.support.async_waits import until
from tests.support.memory_journal import ACK_LOST, TORN, MemoryJournal, NodeJournal

LEASE_S = 1.0


class LoopClock(NodeClock):
    """The clock of the loop.

    Attributes:
        call_s: The seconds that a call in another thread takes.
    """

    call_s = 0.0

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def wait(self, tasks: Iterable[asyncio.Future[Any]], until: float) -> None:
        now = self.now()
        await super().wait(tasks, max(until, now + 1e-6) if until > now else until)  # time passes, despite rounding

    def call(self, function: Callable[..., Any], *arguments: object) -> asyncio.Future[Any]:
        async def late() -> Any:
            await asyncio.sleep(self.call_s)
            return function(*arguments)

        return asyncio.ensure_future(late())


class PickyStore(ModelStore):
    """A store that checks writes with a context, which is the error or `None`."""

    def __init__(self) -> None:
        super().__init__(0.01)
        self.checked: list[int] = []  # the number of records at each check
        self.failure: StoreError | None = None

    def needs_check(self, write: Write) -> bool:
        return write.context is not None

    def check(self, write: Write) -> None:
        self.checked.append(len(self.records))
        if isinstance(write.context, StoreError):
            raise write.context

    def apply(self, sequence: int, entry: Entry, applied: Any = None) -> Any:
        if self.failure is None:
            return super().apply(sequence, entry, applied)
        if applied is not None:
            applied(entry.writes, self.failure)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_exception(self.failure)
        return done


class Node:
    """A running node."""

    def __init__(
        self, servers: MemoryJournal, name: str = "a", snapshot_bytes: int = 0, store: PickyStore | None = None
    ) -> None:
        self.servers = servers
        self.store = store or PickyStore()
        self.journal: NodeJournal = servers.node()
        self.finished: list[Write] = []
        self.clock = LoopClock()
        self.roles: list[tuple[Role, str]] = []
        self.machine = RoleMachine(
            ReplicaSettings(name, (f"tcp://{name}",), snapshot_bytes=snapshot_bytes),
            self.journal,
            self.store,
            finished=self.finished.extend,
            role_changed=lambda role, lease: self.roles.append((role, lease.node if lease else "")),
            clock=self.clock,
        )
        self.task = asyncio.ensure_future(self.machine.run())

    async def leads(self) -> None:
        await until(self.machine.is_leader_now)

    async def write(self, *records: str) -> list[Write]:
        writes: list[Write] = [Append(1, record.encode(), 1) for record in records]
        self.machine.submit(writes)
        await self.wait(writes)
        return writes

    async def wait(self, writes: list[Write]) -> None:
        await until(lambda: all(write.done for write in writes))


def run(test: Callable[[MemoryJournal], Coroutine[Any, Any, None]], chunk_bytes: int = 1 << 20) -> None:
    """Runs a test in virtual time, a minute at most."""

    async def main() -> None:
        await asyncio.wait_for(test(MemoryJournal(chunk_bytes, LEASE_S)), 60)

    loop = VirtualLoop()
    try:
        loop.run_until_complete(main())
    finally:
        while tasks := asyncio.all_tasks(loop):
            for task in tasks:
                task.cancel()
            loop.run_until_complete(asyncio.wait(tasks, timeout=1))
        loop.close()


def entry_of(kind: Kind, term: int, node: str = "b", *writes: Write, previous: int = 0) -> bytes:
    lease = Lease(node, (f"tcp://{node}",), int(LEASE_S * 1e6)) if kind is Kind.LEASE else None
    return encode(Entry(kind, term, previous + 1, list(writes), lease, previous))


def store(servers: MemoryJournal, *payloads: bytes) -> None:
    for payload in payloads:
        for chunk in servers.cut(payload):
            servers.store(chunk, servers.last)


def test_a_node_leads_after_a_lease_without_entries() -> None:
    async def test(servers: MemoryJournal) -> None:
        node = Node(servers)
        await asyncio.sleep(1.2 * LEASE_S)
        assert node.machine.role is Role.FOLLOWER
        await node.leads()
        assert asyncio.get_running_loop().time() < 1.4 * LEASE_S
        assert [role for role, _ in node.roles] == [Role.CANDIDATE, Role.LEADER]
        (write,) = await node.write("x")
        assert (write.error, node.store.records) == (None, ["x"])

    run(test)


def test_the_clock_of_a_cluster_follows_no_change_of_the_time_of_a_system(monkeypatch: pytest.MonkeyPatch) -> None:
    times = [10**15]
    monkeypatch.setattr("omq.store.replication.role_machine.wall", lambda: times[-1])

    async def test(servers: MemoryJournal) -> None:
        node = Node(servers)
        await node.leads()
        for hours in (0, 48, -48):
            times.append(10**15 + hours * 3600 * 10**6)
            await node.write("x")
            await asyncio.sleep(LEASE_S)
        entries = [decode(entry.payload) for entry in servers.appended]
        assert [entry.wall for entry in entries if entry.writes] == times[1:]
        assert entries[0].timestamp == times[0]
        seconds = [(entry.timestamp - times[0]) / 1e6 for entry in entries]
        assert seconds == sorted(set(seconds))
        assert 2 * LEASE_S < seconds[-1] <= asyncio.get_running_loop().time()

    run(test)


def test_a_follower_names_the_leader() -> None:
    async def test(servers: MemoryJournal) -> None:
        node = Node(servers)
        store(servers, entry_of(Kind.LEASE, 1))
        await asyncio.sleep(0.1)
        (write,) = await node.write("x")
        assert isinstance(write.error, NotLeader)
        assert (write.error.node, write.error.endpoints) == ("b", ("tcp://b",))
        assert node.roles[-1] == (Role.FOLLOWER, "b")

    run(test)


@pytest.mark.parametrize("term", [2, 3])
def test_another_lease_of_a_known_term_stops_the_node(term: int) -> None:
    async def test(servers: MemoryJournal) -> None:
        node = Node(servers)
        store(servers, entry_of(Kind.LEASE, 3, "b"), entry_of(Kind.LEASE, term, "c", previous=1))
        with pytest.raises(StoreFailed, match=f"the entry 2 of the journal has the term {term}"):
            await node.task

    run(test)


def test_a_node_that_does_not_read_claims_once() -> None:
    async def test(servers: MemoryJournal) -> None:
        node = Node(servers)
        node.journal.faults.entries_pass = False
        store(servers, entry_of(Kind.LEASE, 1, "b"))
        await asyncio.sleep(10 * LEASE_S)
        assert len(servers.appended) == 1
        assert not node.machine.is_leader_now()
        node.journal.faults.heal()
        await node.leads()
        assert node.machine.term == 2

    run(test)


def test_chunks_of_a_leader_keep_its_lease() -> None:
    async def test(servers: MemoryJournal) -> None:
        leader = Node(servers, "a")
        await leader.leads()
        followers = [Node(servers, name) for name in "bc"]
        leader.journal.faults.chunk_s = 0.4 * LEASE_S
        marks = servers.marks
        writing = asyncio.ensure_future(leader.write("x" * 900))
        while not writing.done():
            assert leader.machine.is_leader_now()
            await asyncio.sleep(0.01)
        (write,) = writing.result()
        assert (write.error, leader.machine.term) == (None, 1)
        assert asyncio.get_running_loop().time() > 4 * LEASE_S
        assert servers.marks - marks == 2  # of nodes that have begun to follow
        await until(lambda: all(node.store.records == leader.store.records for node in followers))

    run(test, chunk_bytes=100)


def test_an_entry_that_is_interrupted_all_the_time_keeps_the_lease() -> None:
    async def test(servers: MemoryJournal) -> None:
        leader, follower = Node(servers, "a"), Node(servers, "b")
        await until(lambda: leader.machine.is_leader_now() or follower.machine.is_leader_now())
        if follower.machine.is_leader_now():
            leader, follower = follower, leader
        leader.journal.faults.chunk_s = 0.2 * LEASE_S
        writing = asyncio.ensure_future(leader.write("x" * 900))
        for _ in range(4):
            await asyncio.sleep(0.7 * LEASE_S)
            await follower.journal.last()
        assert not writing.done()
        (write,) = await writing
        assert (write.error, leader.machine.term, leader.store.records) == (None, 1, ["x" * 900])

    run(test, chunk_bytes=100)


def test_chunks_of_a_lost_leader_delay_a_claim_and_do_not_prevent_it() -> None:
    async def test(servers: MemoryJournal) -> None:
        node = Node(servers)
        store(servers, entry_of(Kind.LEASE, 1, "b"))
        await asyncio.sleep(0.9 * LEASE_S)
        for chunk in servers.cut(entry_of(Kind.WRITES, 1, "b", Append(1, bytes(400), 1), previous=1))[:3]:
            servers.store(chunk, servers.last)
        begin, marks = asyncio.get_running_loop().time(), servers.marks
        await node.leads()
        assert TAKEOVER_FACTOR * LEASE_S <= asyncio.get_running_loop().time() - begin < 1.1 * TAKEOVER_FACTOR * LEASE_S
        assert servers.marks == marks
        (write,) = await node.write("x")
        assert (write.error, node.store.records) == (None, ["x"])

    run(test, chunk_bytes=100)


def test_a_claim_that_is_fenced_interrupts_no_chunks() -> None:
    async def test(servers: MemoryJournal) -> None:
        node = Node(servers)
        read, delays = node.journal.read, [0.0]

        async def read_late(after: int) -> AsyncIterator[JournalEntry]:
            async for entry in read(after):
                await asyncio.sleep(delays[-1])
                yield entry

        node.journal.read = read_late  # type: ignore[method-assign]
        store(servers, entry_of(Kind.LEASE, 1, "b"))
        await asyncio.sleep(0.1 * LEASE_S)
        marks = servers.marks
        chunks = servers.cut(entry_of(Kind.WRITES, 1, "b", Append(1, bytes(1900), 1), previous=1))
        delays.append(1.5 * LEASE_S)
        for chunk in chunks:
            servers.store(chunk, servers.last)
            await asyncio.sleep(0.2 * LEASE_S)
        assert Role.CANDIDATE in [role for role, _ in node.roles]
        assert servers.marks == marks
        delays.append(0.0)
        await until(lambda: len(node.store.records) == 1)
        assert node.machine.term == 1
        assert node.roles[-1] == (Role.FOLLOWER, "b")

    run(test, chunk_bytes=100)


def test_writes_of_an_older_term_stop_the_node() -> None:
    async def test(servers: MemoryJournal) -> None:
        node = Node(servers)
        store(servers, entry_of(Kind.LEASE, 2), entry_of(Kind.WRITES, 1, "b", Append(1, b"x", 1), previous=1))
        with pytest.raises(StoreFailed, match="the entry 2 of the journal has the term 1"):
            await node.task
        assert node.store.records == []

    run(test)


def test_a_leader_stops_if_the_journal_has_lost_entries() -> None:
    async def test(servers: MemoryJournal) -> None:
        node = Node(servers)
        await node.leads()
        await node.write("x")
        del servers.chunks[-1]
        last = servers.last
        (write,) = await node.write("y")
        assert isinstance(write.error, NotLeader)
        with pytest.raises(StoreFailed, match="this node has applied the entry"):
            await node.task
        assert not servers.fences(last, set())  # it has not filled the gap

    run(test)


@pytest.mark.parametrize("truncated", [False, True])
def test_a_node_stops_if_the_journal_has_other_entries_than_it_has_applied(truncated: bool) -> None:
    async def test(servers: MemoryJournal) -> None:
        first, second = Node(servers, "a"), Node(servers, "b")
        await until(lambda: first.machine.is_leader_now() or second.machine.is_leader_now())
        leader, follower = (first, second) if first.machine.is_leader_now() else (second, first)
        await leader.write("x")
        await until(lambda: bool(follower.store.records))
        follower.task.cancel()
        leader.task.cancel()
        await asyncio.wait([leader.task, follower.task])
        del servers.chunks[-1]  # a power failure of all servers, which have not synced it
        lagging = Node(servers, "c")
        await lagging.leads()
        await lagging.write("y", "z")
        behind = RoleMachine(ReplicaSettings("b"), servers.node(), follower.store, finished=print, clock=LoopClock())
        await lagging.write("w")
        if truncated:
            servers.truncate(follower.store.position[0] + 1)
        with pytest.raises(StoreFailed, match="follows another one than" if truncated else "has another entry"):
            await behind.run()
        assert follower.store.records == ["x"]

    run(test)


def test_a_journal_that_has_grown_beyond_lost_entries_is_not_led() -> None:
    async def test(servers: MemoryJournal) -> None:
        node = Node(servers)
        await node.leads()
        await node.write("x")
        node.task.cancel()
        await asyncio.wait([node.task])
        del servers.chunks[node.store.position[0] - 1 :]  # servers from a backup
        while servers.last <= node.store.position[0]:
            await servers.node().last()
        again = RoleMachine(ReplicaSettings("a"), servers.node(), node.store, finished=print, clock=LoopClock())
        last = servers.last
        with pytest.raises(StoreFailed, match="the journal has another entry 3 than this node has applied"):
            await again.run()
        assert not servers.fences(last, set())

    run(test)


def test_a_leader_that_ends_hands_over_at_once() -> None:
    async def test(servers: MemoryJournal) -> None:
        first = Node(servers, "a")
        await first.leads()
        second = Node(servers, "b")
        await asyncio.sleep(0.1)
        first.journal.faults.latency = lambda: 0.05
        write = Append(1, b"x", 1)
        first.machine.submit([write])
        first.machine.close()
        begin = asyncio.get_running_loop().time()
        while not second.machine.is_leader_now():
            assert not (first.machine.is_leader_now() and second.machine.is_leader_now())
            await asyncio.sleep(0.001)
        await first.task
        assert asyncio.get_running_loop().time() - begin < 0.5 * LEASE_S
        assert (write.error, second.store.records) == (None, ["x"])

    run(test)


def test_a_resigning_leader_does_not_answer_until_the_ack() -> None:
    async def test(servers: MemoryJournal) -> None:
        node = Node(servers)
        await node.leads()
        last = servers.last
        node.journal.faults.latency = lambda: 0.05
        node.machine.close()
        await until(lambda: servers.last > last)
        assert not node.machine.is_leader_now()
        await node.task

    run(test)


@pytest.mark.parametrize("outcome", [ACK_LOST, TORN])
def test_doubt_ends_with_the_journal(outcome: str) -> None:
    async def test(servers: MemoryJournal) -> None:
        node = Node(servers)
        await node.leads()
        outcomes = [outcome]
        node.journal.faults.outcome = lambda: outcomes.pop() if outcomes else ""
        node.journal.faults.timeout = 0.2
        (write,) = await node.write("a record that takes several chunks")
        assert write.error is None
        assert len(node.store.records) == 1
        assert node.machine.term == 1

    run(test, chunk_bytes=40)


def test_a_write_is_in_doubt_when_the_lease_is_over() -> None:
    async def test(servers: MemoryJournal) -> None:
        node = Node(servers)
        await node.leads()
        node.journal.faults.part()
        writes: list[Write] = [Append(1, b"x", 1)]
        node.machine.submit(writes)
        await asyncio.sleep(0.1)
        writes.append(Append(1, b"y", 1))
        node.machine.submit(writes[1:])
        await node.wait(writes)
        assert [type(write.error) for write in writes] == [InDoubt, NotLeader]  # the second was not sent
        assert not node.machine.is_leader_now()
        node.journal.faults.heal()
        await node.leads()  # at once: its own lease was the last one

    run(test)


def test_checks_see_all_earlier_writes() -> None:
    async def test(servers: MemoryJournal) -> None:
        node = Node(servers)
        await node.leads()
        writes: list[Write] = [
            Append(1, b"x", 1),
            Append(1, b"y", 1, context="checked"),
            Append(1, b"z", 1, context=TopicFull(1, 1, 1)),
        ]
        node.machine.submit(writes)
        await node.wait(writes)
        assert node.store.checked == [1, 2]
        assert [type(write.error) for write in writes] == [type(None), type(None), TopicFull]
        assert node.store.records == ["x", "y"]

    run(test)


def test_a_write_that_no_entry_can_have_fails_alone() -> None:
    async def test(servers: MemoryJournal) -> None:
        node = Node(servers)
        await node.leads()
        writes: list[Write] = [Append(1, b"x", 1), Append(1, b"y", 1, b"p" * 200, 1), Append(1, b"z", 1)]
        node.machine.submit(writes)
        await node.wait(writes)
        assert [write.error is None for write in writes] == [True, False, True]
        assert node.store.records == ["x", "z"]

    run(test)


def test_writes_that_wait_share_an_entry() -> None:
    async def test(servers: MemoryJournal) -> None:
        node = Node(servers)
        await node.leads()
        node.journal.faults.latency = lambda: 0.01
        first = len(servers.appended)
        writes: list[Write] = [Append(1, str(number).encode(), 1) for number in range(100)]
        node.machine.submit(writes[:1])
        await asyncio.sleep(0.005)  # it is on its way
        for write in writes[1:]:
            node.machine.submit([write])
        await node.wait(writes)
        assert [len(decode(entry.payload).writes) for entry in servers.appended[first:]] == [1, 99]

    run(test)


def test_a_node_reports_why_the_journal_does_not_answer() -> None:
    async def test(servers: MemoryJournal) -> None:
        node = Node(servers)
        await node.leads()
        node.journal.faults.timeout = 60.0
        node.journal.faults.part()
        await until(lambda: node.machine.trouble == NO_ANSWER)
        assert node.machine.role is Role.FOLLOWER
        node.journal.failure = "the disks of the servers are full"
        await until(lambda: node.machine.trouble == "the disks of the servers are full")
        node.journal.faults.heal()
        await node.leads()
        await until(lambda: node.machine.trouble == "")

    run(test)


def test_a_new_leader_truncates_the_journal_up_to_the_snapshot_before() -> None:
    async def test(servers: MemoryJournal) -> None:
        first = Node(servers, "a", snapshot_bytes=300)
        await first.leads()
        while servers.snapshot is None:
            await first.write("x")
        first.machine.close()
        await first.task
        (position, _), begin = servers.snapshot, servers.first
        assert begin == 1  # there was no snapshot before
        second = Node(servers, "b", snapshot_bytes=300)
        await second.leads()
        while servers.first == begin:
            assert servers.last < position + 100
            await second.write("y")
        assert servers.first == position + 1 < servers.snapshot[0]

    run(test)


def test_leaders_that_end_early_truncate_the_journal() -> None:
    async def test(servers: MemoryJournal) -> None:
        store = PickyStore()
        for _ in range(30):
            node = Node(servers, "a", snapshot_bytes=1000, store=store)
            await node.leads()
            await node.write("x" * 200)
            await asyncio.sleep(LEASE_S / 10)
            assert servers.size < 2500
            node.machine.close()
            await node.task
        assert servers.first > 1
        assert len(store.records) == 30

    run(test)


def test_a_leader_makes_one_snapshot_of_a_long_journal() -> None:
    async def test(servers: MemoryJournal) -> None:
        first = Node(servers, "a")
        await first.leads()
        for _ in range(20):
            await first.write("x" * 200)
        first.machine.close()
        await first.task
        second = Node(servers, "b", snapshot_bytes=2000)
        begun: list[Path] = []
        copy = second.store.snapshot

        async def snapshot(target: Path) -> int:
            begun.append(target)
            await asyncio.sleep(LEASE_S / 10)
            return await copy(target)

        second.store.snapshot = snapshot  # type: ignore[method-assign]
        await second.leads()
        await asyncio.sleep(2 * LEASE_S)
        assert len(begun) == 1

    run(test)


def test_a_new_leader_does_not_repeat_the_snapshot_of_the_last_one() -> None:
    async def test(servers: MemoryJournal) -> None:
        first, second = (Node(servers, name, snapshot_bytes=20_000) for name in "ab")
        await until(lambda: first.machine.is_leader_now() or second.machine.is_leader_now())
        if second.machine.is_leader_now():
            first, second = second, first
        for _ in range(40):
            await first.write("x" * 2000)
        await until(lambda: servers.first > 1)
        while servers.size > 25_000:  # the snapshot is a while ago
            await first.write("x" * 2000)
        position = servers.snapshot[0] if servers.snapshot else 0
        first.machine.close()
        await second.leads()
        await asyncio.sleep(2 * LEASE_S)
        assert servers.snapshot
        assert servers.snapshot[0] == position
        while servers.snapshot[0] == position:
            assert servers.size < 60_000
            await second.write("y" * 2000)

    run(test)


def test_a_snapshot_that_fails_is_repeated_after_growing_delays() -> None:
    async def test(servers: MemoryJournal) -> None:
        node = Node(servers, snapshot_bytes=1000)
        copy, now = node.store.snapshot, asyncio.get_running_loop().time
        begun: list[float] = []

        async def snapshot(target: Path) -> int:
            begun.append(now())
            if len(begun) < 3:
                raise StoreError("no space")
            return await copy(target)

        node.store.snapshot = snapshot  # type: ignore[method-assign]
        await node.leads()
        for _ in range(10):
            await node.write("x" * 200)
        await until(lambda: len(begun) == 2)
        assert node.machine.snapshot_failure == "the snapshot has failed, and the journal grows: no space"
        assert node.machine.is_leader_now()
        assert node.machine.trouble == ""
        await until(lambda: servers.snapshot is not None)
        await until(lambda: node.machine.snapshot_failure == "")
        first, second, third = begun
        delay = MIN_SNAPSHOT_DELAY_S
        assert delay <= second - first < delay + 2 * LEASE_S
        assert 2 * delay <= third - second < 2 * delay + 2 * LEASE_S

    run(test)


@pytest.mark.parametrize("lost", ["entries", "snapshot"])
def test_a_leader_replaces_what_the_servers_have_lost(
    lost: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omq.store.replication.role_machine.CHECK_INTERVAL_S", 5 * LEASE_S)

    async def test(servers: MemoryJournal) -> None:
        node = Node(servers, snapshot_bytes=10_000)
        await node.leads()
        await node.write("x", "y")
        if lost == "snapshot":
            while servers.first == 1:
                await node.write("z" * 500)
            servers.snapshot = None
        else:
            servers.truncate(servers.last + 1)
        await asyncio.sleep(6 * LEASE_S)
        assert servers.snapshot is not None
        assert servers.snapshot[0] >= servers.first - 1
        other = Node(servers, "b")
        await until(lambda: other.store.records == node.store.records)
        await asyncio.sleep(15 * LEASE_S)

    run(test)
    assert len([one for one in caplog.records if "that no snapshot contains" in one.getMessage()]) == 1


@pytest.mark.parametrize("error", [None, JournalUnavailable("no answer"), JournalUnusable("another stream")])
def test_a_leader_does_not_wait_for_the_size_of_the_journal(error: StoreError | None) -> None:
    async def test(servers: MemoryJournal) -> None:
        node = Node(servers, snapshot_bytes=1000)
        asked = []

        async def size() -> int:
            asked.append(node.machine.is_leader_now())
            if error is not None:
                raise error
            await asyncio.Event().wait()
            return 0

        node.journal.size = size  # type: ignore[method-assign]
        await node.leads()
        begin = asyncio.get_running_loop().time()
        (write,) = await node.write("x")
        assert asyncio.get_running_loop().time() - begin < 0.1 * LEASE_S
        await asyncio.sleep(5 * LEASE_S)
        assert (write.error, node.machine.trouble) == (None, "")
        assert asked == [True] * (6 if error else 1)  # it asks again
        assert [role for role, _ in node.roles] == [Role.CANDIDATE, Role.LEADER]
        await asyncio.wait_for(_closed(node), LEASE_S)

    run(test)


async def _closed(node: Node) -> None:
    node.machine.close()
    await node.task


@pytest.mark.parametrize("context", [None, "checked"])
def test_a_leader_renews_its_lease_while_its_store_applies_an_entry(context: str | None) -> None:
    async def test(servers: MemoryJournal) -> None:
        node = Node(servers)
        await node.leads()
        node.store.delay = 5 * LEASE_S
        writes: list[Write] = [Append(1, b"x", 1), Append(1, b"y", 1, context=context)]
        node.machine.submit(writes)
        waiting = asyncio.ensure_future(node.wait(writes))
        while not waiting.done():
            assert node.machine.is_leader_now()
            await asyncio.sleep(0.01)
        assert asyncio.get_running_loop().time() > 5 * LEASE_S
        assert [write.error for write in writes] == [None, None]
        assert (node.machine.term, node.store.records) == (1, ["x", "y"])

    run(test)


def test_a_leader_renews_its_lease_while_it_encodes_a_large_entry() -> None:
    async def test(servers: MemoryJournal) -> None:
        node = Node(servers)
        await node.leads()
        node.clock.call_s = 3 * LEASE_S
        record = "x" * LARGE_ENTRY_BYTES
        writes: list[Write] = [Append(1, record.encode(), 1)]
        node.machine.submit(writes)
        waiting = asyncio.ensure_future(node.wait(writes))
        while not waiting.done():
            assert node.machine.is_leader_now()
            await asyncio.sleep(0.01)
        assert asyncio.get_running_loop().time() > 3 * LEASE_S
        assert writes[0].error is None
        assert (node.machine.term, node.store.records) == (1, [record])
        reader = Node(servers, "b")
        await until(lambda: reader.store.records == [record])

    run(test)


def test_a_large_entry_is_refused_if_the_lease_ends_while_it_is_encoded() -> None:
    async def test(servers: MemoryJournal) -> None:
        node = Node(servers)
        await node.leads()
        node.clock.call_s = 100 * LEASE_S
        writes: list[Write] = [Append(1, bytes(LARGE_ENTRY_BYTES), 1), Append(1, b"y", 1)]
        node.machine.submit(writes)
        await asyncio.sleep(0.1 * LEASE_S)
        node.journal.faults.requests_pass = False
        await node.wait(writes)
        assert [type(write.error) for write in writes] == [NotLeader, NotLeader]
        assert node.store.records == []

    run(test)


def test_a_large_write_that_is_not_valid_fails_alone() -> None:
    async def test(servers: MemoryJournal) -> None:
        node = Node(servers)
        await node.leads()
        writes: list[Write] = [Append(1, b"x", 1), Append(1, bytes(LARGE_ENTRY_BYTES), 1, bytes(1000))]
        node.machine.submit(writes)
        await node.wait(writes)
        assert writes[0].error is None
        assert "it has 1000 bytes" in str(writes[1].error)

    run(test)


@pytest.mark.parametrize("stalled", [False, True])
def test_a_leader_whose_store_applies_nothing_loses_its_lease(stalled: bool) -> None:
    async def test(servers: MemoryJournal) -> None:
        node = Node(servers)
        await node.leads()
        node.store.delay, node.store.stalled = 1000.0, stalled
        node.machine.submit([Append(1, b"x", 1)])
        begin = asyncio.get_running_loop().time()
        await until(lambda: not node.machine.is_leader_now())
        leases = (asyncio.get_running_loop().time() - begin) / LEASE_S
        assert leases < 2.5 if stalled else 9 < leases < 12

    run(test)


def test_a_node_that_cannot_apply_stops_and_leaves_doubt() -> None:
    async def test(servers: MemoryJournal) -> None:
        node = Node(servers)
        await node.leads()
        node.store.failure = StoreFailed("the disk is damaged")
        (write,) = await node.write("x")
        assert isinstance(write.error, InDoubt)
        assert "the disk is damaged" in str(write.error)
        with pytest.raises(StoreFailed):
            await node.task
        assert not node.machine.is_leader_now()

    run(test)
