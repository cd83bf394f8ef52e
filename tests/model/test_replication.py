"""Clusters of two or three nodes: every small number of deviations from the usual course, and faults by chance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from omq.store.replication import lease
from omq.store.replication.journal import JournalEntry, JournalUnavailable
from omq.store.replication.role_machine import Role, RoleMachine
from tests.model.replication_model import Broken, ByChance, Case, Chooser, Cluster, Deviations, Node

LARGE_SEED = 9  # the last digit of the seeds of cases with large writes
#: Writes that take longer than a lease, in chunks; leases are not cut.
LARGE: dict[str, Any] = {"chunk_bytes": 80, "record_bytes": 400, "chunk_s": 0.25}


def long_case(seed: int) -> Case:
    """Returns a case with many faults."""
    case = Case(
        nodes="abc" if seed % 2 else "ab",
        writes=4,
        rounds=12,
        faults=6,
        chunk_bytes=40 if seed % 3 == 0 else 1 << 20,
        slow=seed % 4 == 0,
        apply_s=0.2 if seed % 5 == 0 else 0.002,
        snapshot_bytes=300 if seed % 7 == 0 else 0,
        sync_s=2.0 if seed % 3 == 1 else 0.0,
    )
    return replace(case, **LARGE) if seed % 10 == LARGE_SEED else case


def walk(seed: int, machine: type[RoleMachine] = RoleMachine) -> Cluster:
    """Runs a long case by chance."""
    case = long_case(seed)
    cluster = Cluster(case, ByChance(seed, 0.1 if case.slow else 0.4), machine)
    try:
        cluster.run()
    except Broken as broken:
        raise Broken(f"{broken}, with seed {seed}") from None
    return cluster


def explore(case: Case, most: int) -> int:
    """Runs a case with every choice of a number of deviations; returns the number of runs.

    Args:
        case: The case.
        most: The highest number of deviations.
    """
    waiting: list[dict[int, int]] = [{}]
    runs = 0
    while waiting:
        deviations = waiting.pop()
        chooser = Deviations(deviations)
        runs += 1
        try:
            Cluster(case, chooser).run()
        except Broken as broken:
            taken = [f"{index}: {chooser.trace[index][1]}={option}" for index, option in deviations.items()]
            raise Broken(f"{broken}, after {taken}") from None
        if len(deviations) < most:
            begin = max(deviations, default=-1) + 1
            waiting += [
                {**deviations, index: option}
                for index in range(begin, len(chooser.trace))
                for option in range(1, chooser.trace[index][0])
            ]
    return runs


def test_the_usual_course() -> None:
    cluster = Cluster(Case(nodes="abc"), Chooser())
    cluster.run()
    assert len(cluster.acked) == 3
    assert cluster.leaders == 1


def test_a_write_that_takes_longer_than_the_lease() -> None:
    cluster = Cluster(Case(nodes="abc", **LARGE), Chooser())
    cluster.run()
    assert [len(cluster.journal.appended[number].payload or b"") > 400 for number in (1, 2, 3)]
    assert len(cluster.acked) == 3
    assert cluster.leaders == 1


def test_a_run_repeats() -> None:
    assert walk(7).chooser.trace == walk(7).chooser.trace


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(Case(nodes="ab", writes=2, rounds=4), id="two nodes"),
        pytest.param(Case(nodes="ab", writes=2, rounds=4, sync_s=1.0), id="two nodes that sync now and then"),
        pytest.param(Case(nodes="abc", writes=2, rounds=3), id="three nodes", marks=pytest.mark.slow),
        pytest.param(Case(nodes="ab", writes=2, rounds=0, events=False, chunk_bytes=40), id="chunks"),
        pytest.param(Case(nodes="ab", writes=1, rounds=5, **LARGE), id="large writes"),
        pytest.param(Case(nodes="abc", writes=2, rounds=8, **LARGE), id="more large writes", marks=pytest.mark.slow),
    ],
)
def test_every_fault(case: Case) -> None:
    assert explore(case, most=1) > 20


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("nodes", ["ab", "abc"])
def test_every_way_of_two_faults(nodes: str) -> None:
    assert explore(Case(nodes=nodes, writes=2, rounds=4), most=2) > 2000


@pytest.mark.timeout(300)
def test_faults_by_chance() -> None:
    found = [walk(seed) for seed in range(60)]
    assert max(cluster.leaders for cluster in found) > 2
    assert sum(cluster.lost > 0 for cluster in found) > 1


@pytest.mark.parametrize("seed", [4087, 4135])
def test_a_claim_after_truncated_entries_is_fenced(seed: int) -> None:
    cluster = walk(seed)
    assert cluster.journal.first > 1


def test_snapshots_by_chance() -> None:
    found = [walk(seed) for seed in range(0, 140, 7)]
    assert sum(cluster.journal.first > 1 for cluster in found) > 10  # the leader has truncated the journal
    assert any(cluster.loaded for cluster in found)


class EveryEvent(Chooser):
    """Selects the first event that is possible, each time."""

    def select(self, count: int) -> int:
        return int(self.trace[-1][1] == "event")


class ShortTerms(Cluster):
    """A cluster in which each leader ends soon, and comes back."""

    def events(self) -> list[tuple[str, Node]]:
        nodes = self.nodes.values()
        if self.journal.size > 3 * self.case.snapshot_bytes:
            raise Broken(f"the journal keeps {self.journal.size} bytes")
        down = [("restart", node) for node in nodes if node.machine is None]
        return down or [("close", node) for node in nodes if node.leads()]


def end_leaders(machine: type[RoleMachine] = RoleMachine) -> Cluster:
    """Runs a cluster with many leaders, each of which appends less than what needs a snapshot."""
    cluster = ShortTerms(Case(nodes="ab", writes=4, rounds=200, snapshot_bytes=1000), EveryEvent(), machine)
    cluster.run()
    return cluster


def test_leaders_that_end_early_truncate_the_journal() -> None:
    cluster = end_leaders()
    assert cluster.leaders > 20
    assert cluster.journal.first > 1


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_faults_by_chance() -> None:
    for seed in range(1000, 10_000):
        walk(seed)


class CountsFromTheAck(RoleMachine):
    """Counts the lease from the arrival of the ack."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        renew = self._held.renew
        self._held.renew = lambda sent: renew(self._clock.now())  # type: ignore[method-assign]


class ClaimsAtTheEnd(RoleMachine):
    """Claims the lease after whatever was appended meanwhile."""

    async def _claim(self, claims: dict[bytes, float]) -> None:
        try:
            self._timer.base = await self._journal.last()
        except JournalUnavailable:
            pass
        await super()._claim(claims)


class ClaimsAtOnce(RoleMachine):
    """Claims the lease without the wait."""

    def _claim_at(self) -> float:
        return min(super()._claim_at(), self._timer.due(0)) if self.position >= self._timer.base else float("inf")


class AppendsAgain(RoleMachine):
    """Appends an entry in doubt again, after whatever the journal has."""

    async def _resolve(self) -> None:
        while True:
            try:
                self.position = await self._call(self._journal.last(), self._held.end)
                return
            except JournalUnavailable:
                await self._pause(0.05)


class TakesDoubtForStored(RoleMachine):
    """Answers a write in doubt as if it were stored."""

    async def _resolve(self) -> None:
        last = await self._call(self._journal.last(), self._held.end)
        if self._proposal is None or not self._proposal.in_doubt:
            await super()._resolve()
        else:
            entry, self._proposal = self._proposal.entry, None
            self._apply(last, entry, 1, answers=True)


class TakesDoubtForRefused(RoleMachine):
    """Reports that a write in doubt is not stored."""

    def _step_down(self) -> None:
        if self._proposal is not None:
            self._proposal.in_doubt = False
        super()._step_down()


class AnswersAfterItsLease(RoleMachine):
    """Leads until it notices that another node does."""

    def is_leader_now(self) -> bool:
        return self.role is Role.LEADER


class LeadsBeforeItHasApplied(RoleMachine):
    """Leads once it has the lease, before it has applied what it has read."""

    async def _applied(self, left: int) -> None:
        if left:
            await super()._applied(left)

    async def _check_applied(self) -> None:
        pass  # it needs what `_applied` waits for


class SkipsTheSnapshot(RoleMachine):
    """Continues at the beginning of a truncated journal."""

    async def _load_snapshot(self, first: int) -> bool:
        self.position = first - 1
        return True


class AnswersBeforeTheJournal(RoleMachine):
    """Applies writes that it has not appended."""

    async def _append(self, entry: Any) -> None:
        self._apply(self.position + 1, entry, 1, answers=True)


class ForgetsWhatTheJournalKeeps(RoleMachine):
    """Makes snapshots only by what it has read and appended since its start."""

    async def _count_kept(self) -> None:
        pass


class RenewsWhileItSends(RoleMachine):
    """Renews the lease with each chunk that it sends."""

    def _sending(self) -> Callable[[], None]:
        super()._sending()()
        return lambda: None


class CountsFromTheAckOfAChunk(RoleMachine):
    """Counts the lease from the arrival of the ack of a chunk."""

    def _sending(self) -> Callable[[], None]:
        return lambda: self._held.renew(self._clock.now())


class SkipsToAChunk(RoleMachine):
    """Takes a chunk for all that is before it."""

    def _absorb(self, read: JournalEntry) -> bool:
        found = super()._absorb(read)
        self.position = max(self.position, read.sequence)
        return found


class WaitsFromTheLastEntry(RoleMachine):
    """Claims the lease after a chunk, and counts the wait from the entry before it."""

    def _absorb(self, read: JournalEntry) -> bool:
        since = self._timer.since
        found = super()._absorb(read)
        if read.payload is None:
            self._timer.since = since
        return found


def walk_until_broken(machine: type[RoleMachine], begin: int = 0, step: int = 5) -> None:
    for seed in range(begin, 400 * step, step):  # those in which a store is slow
        walk(seed, machine)


MUTATIONS = {
    CountsFromTheAck: "lead at the same time",
    ClaimsAtTheEnd: "lead at the same time|follows another one",
    ClaimsAtOnce: "lead at the same time",
    AnswersAfterItsLease: "lead at the same time",
    AppendsAgain: "different orders|follows another one",
    TakesDoubtForStored: "different orders|follows another one",
    TakesDoubtForRefused: "it was in the refused",
    LeadsBeforeItHasApplied: "does not have the acknowledged write|is applied after",
    SkipsTheSnapshot: "different|follows another one",
    AnswersBeforeTheJournal: "acknowledged|journal ends",
}


LARGE_MUTATIONS = {
    RenewsWhileItSends: "lead at the same time",
    CountsFromTheAckOfAChunk: "lead at the same time",
    SkipsToAChunk: "follows another one|different|acknowledged",
    WaitsFromTheLastEntry: "lead at the same time",
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("machine", LARGE_MUTATIONS, ids=lambda machine: machine.__name__)
def test_a_mutation_with_large_writes_is_found(machine: type[RoleMachine]) -> None:
    with pytest.raises(Broken, match=LARGE_MUTATIONS[machine]):
        walk_until_broken(machine, LARGE_SEED, 10)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("machine", MUTATIONS, ids=lambda machine: machine.__name__)
def test_a_mutation_is_found(machine: type[RoleMachine]) -> None:
    with pytest.raises(Broken, match=MUTATIONS[machine]):
        walk_until_broken(machine)


def test_a_leader_that_forgets_what_the_journal_keeps_is_found() -> None:
    with pytest.raises(Broken, match="the journal keeps"):
        end_leaders(ForgetsWhatTheJournalKeeps)


def test_a_wait_without_a_margin_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "TAKEOVER_FACTOR", 1.0)
    with pytest.raises(Broken, match="lead at the same time"):
        walk_until_broken(RoleMachine)
