"""What producers wait for in a cluster: messages that too few nodes are known to have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence


class _Batch:
    """Messages whose story is the same so far.

    Attributes:
        keys: Which.
        having: Who has them all.
        until: When the time of their producers is up.
    """

    __slots__ = ("having", "keys", "until")

    def __init__(self, keys: Sequence[str], having: set[str], until: float) -> None:
        self.keys = keys
        self.having = having
        self.until = until


class Waiting:
    """Messages come in batches, and are mostly acknowledged in the same ones; a batch is split where they are not."""

    def __init__(self) -> None:
        self._batches: dict[str, _Batch] = {}  # by key, those that come first with the first key
        self._ready: dict[_Batch, None] = {}  # to be looked at: somebody else has them than before

    def __contains__(self, key: str) -> bool:
        return key in self._batches

    def __iter__(self) -> Iterator[tuple[str, frozenset[str], float]]:
        """Each message, who has it, and until when its producer waits."""
        for key, batch in self._batches.items():
            yield key, frozenset(batch.having), batch.until

    def until(self) -> float | None:
        """When the time of the first producer is up."""
        return next((batch.until for batch in self._batches.values()), None)

    def add(self, keys: Sequence[str], until: float, having: Iterable[str] = ()) -> None:
        """Messages wait from now on; their time is up no sooner than that of all before."""
        batch = _Batch(keys, set(having), until)
        self._batches.update(dict.fromkeys(keys, batch))
        if batch.having:
            self._ready[batch] = None

    def has(self, peer: str, keys: Sequence[str]) -> bool:
        """A peer has messages; whether any of them waits for that."""
        whole = self._batches.get(keys[0])
        if whole is not None and whole.keys == keys:
            if peer in whole.having:
                return False
            whole.having.add(peer)
            self._ready[whole] = None
            return True
        found = [(batch, group) for batch, group in self._grouped(keys) if peer not in batch.having]
        for batch, group in found:
            mine = batch if len(group) == len(batch.keys) else self._split(batch, group)
            mine.having.add(peer)
            self._ready[mine] = None
        return bool(found)

    def enough(self, replicas: int) -> Iterator[Sequence[str]]:
        """Takes out the messages that so many peers have."""
        ready, self._ready = self._ready, {}
        for batch in ready:
            if len(batch.having) >= replicas:
                self._take(batch)
                yield batch.keys

    def expired(self, now: float) -> Iterator[Sequence[str]]:
        """Takes out the messages whose producers waited long enough."""
        while self._batches:
            batch = next(iter(self._batches.values()))
            if batch.until > now:
                break
            self._take(batch)
            yield batch.keys

    def drop(self, keys: Iterable[str]) -> list[str]:
        """Takes out these messages; those that have waited."""
        dropped: list[str] = []
        if not self._batches:
            return dropped
        for batch, group in self._grouped(keys):
            self._take(batch if len(group) == len(batch.keys) else self._split(batch, group))
            dropped += group
        return dropped

    def _grouped(self, keys: Iterable[str]) -> list[tuple[_Batch, list[str]]]:
        groups: dict[_Batch, dict[str, None]] = {}
        for key in keys:
            if (batch := self._batches.get(key)) is not None:
                groups.setdefault(batch, {})[key] = None
        return [(batch, list(group)) for batch, group in groups.items()]

    def _split(self, batch: _Batch, keys: list[str]) -> _Batch:
        """Makes another batch of some messages of a batch."""
        mine = _Batch(keys, set(batch.having), batch.until)
        self._batches.update(dict.fromkeys(keys, mine))
        if batch in self._ready:
            self._ready[mine] = None
        batch.keys = [key for key in batch.keys if self._batches[key] is batch]
        return mine

    def _take(self, batch: _Batch) -> None:
        self._ready.pop(batch, None)
        for key in batch.keys:
            del self._batches[key]
