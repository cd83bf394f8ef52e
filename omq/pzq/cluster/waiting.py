"""What producers wait for in a cluster: messages that too few nodes are known to have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import count

from omq.pzq.cluster.keys import KeyMap, KeyRun, Keys


class _Batch:
    """Messages whose story is the same so far.

    Attributes:
        keys: Which.
        having: Who has them all.
        until: When the time of their producers is up.
        waits: They were not taken out.
    """

    __slots__ = ("having", "keys", "until", "waits")

    def __init__(self, keys: Keys, having: set[str], until: float) -> None:
        self.keys = keys
        self.having = having
        self.until = until
        self.waits = True


class Waiting:
    """Messages come in batches, and are mostly acknowledged in the same ones; a batch is split where they are not."""

    def __init__(self) -> None:
        self._batches: KeyMap[_Batch] = KeyMap()
        self._ready: dict[_Batch, None] = {}  # to be looked at: somebody else has them than before
        self._times: list[tuple[float, int, _Batch]] = []  # a heap; the first of them waits
        self._serial = count()

    def __contains__(self, key: str) -> bool:
        return key in self._batches

    def __iter__(self) -> Iterator[tuple[str, frozenset[str], float]]:
        """Each message, who has it, and until when its producer waits."""
        for run, batch in self._batches.runs():
            for key in run.texts():
                yield key, frozenset(batch.having), batch.until

    def until(self) -> float | None:
        """When the time of the first producer is up."""
        return self._times[0][0] if self._times else None

    def add(self, keys: Sequence[str], until: float, having: Iterable[str] = ()) -> None:
        """Messages wait from now on."""
        batch = self._put(Keys.of(keys), set(having), until)
        if batch.having:
            self._ready[batch] = None

    def _put(self, keys: Keys, having: set[str], until: float) -> _Batch:
        batch = _Batch(keys, having, until)
        self._batches.put(keys, batch)
        heappush(self._times, (until, next(self._serial), batch))
        return batch

    def has(self, peer: str, keys: Sequence[str]) -> bool:
        """A peer has messages; whether any of them waits for that."""
        keys = Keys.of(keys)
        whole = self._batches.get(keys[0])
        if whole is not None and whole.keys == keys:
            if peer in whole.having:
                return False
            whole.having.add(peer)
            self._ready[whole] = None
            return True
        found = [(batch, group) for batch, group in self._grouped(keys) if peer not in batch.having]
        for batch, group in found:
            mine = self._split(batch, group)
            mine.having.add(peer)
            self._ready[mine] = None
        return bool(found)

    def enough(self, replicas: int) -> Iterator[Keys]:
        """Takes out the messages that so many peers have."""
        ready, self._ready = self._ready, {}
        for batch in ready:
            if len(batch.having) >= replicas:
                self._take(batch)
                yield batch.keys

    def expired(self, now: float) -> Iterator[Keys]:
        """Takes out the messages whose producers waited long enough."""
        while self._times and self._times[0][0] <= now:
            batch = self._times[0][2]
            self._take(batch)
            yield batch.keys

    def drop(self, keys: Iterable[str]) -> list[str]:
        """Takes out these messages; those that have waited."""
        dropped: list[str] = []
        for batch, group in self._grouped(keys):
            self._take(self._split(batch, group))
            dropped += group
        return dropped

    def _grouped(self, keys: Iterable[str]) -> list[tuple[_Batch, Keys]]:
        groups: dict[_Batch, list[KeyRun]] = {}
        for run, batch in self._batches.find(keys):
            groups.setdefault(batch, []).append(run)
        return [(batch, Keys(runs)) for batch, runs in groups.items()]

    def _split(self, batch: _Batch, keys: Keys) -> _Batch:
        """Makes another batch of some messages of a batch; where they are all of them, it is the same."""
        if len(keys) == len(batch.keys):
            return batch
        mine = self._put(keys, set(batch.having), batch.until)
        if batch in self._ready:
            self._ready[mine] = None
        batch.keys = Keys([run for run, its in self._batches.find(batch.keys) if its is batch])
        return mine

    def _take(self, batch: _Batch) -> None:
        self._ready.pop(batch, None)
        self._batches.take(batch.keys)
        batch.waits = False
        while self._times and not self._times[0][2].waits:
            heappop(self._times)
