"""Messages whose producers wait for replicas."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from omq.pzq.cluster.keys import KeyMap, KeyRange, Keys


class PendingReplication:
    """The replicas and the deadline of each waiting message.

    Messages that were stored together cost as much as one while the same peers have all of them (see `KeyMap`).
    """

    def __init__(self) -> None:
        self._messages: KeyMap[tuple[frozenset[str], float]] = KeyMap()  # the peers that have them, and the deadline
        self._ready: dict[KeyRange, None] = {}  # messages with new replicas since the last call of `enough`
        self._ends: deque[tuple[float, Keys]] = deque()  # ascending; some of the first ones wait

    def __contains__(self, key: str) -> bool:
        return key in self._messages

    def until(self) -> float | None:
        """Returns the first deadline; `None`: no message waits."""
        return self._ends[0][0] if self._ends else None

    def add(self, keys: Sequence[str], until: float, having: Iterable[str] = ()) -> None:
        """Adds messages.

        Args:
            keys: The messages, none of which waits already.
            until: Their deadline, not before the deadlines of earlier messages.
            having: The peers that have them already.
        """
        keys = Keys.of(keys)
        self._messages.put(keys, (frozenset(having), until))
        self._ends.append((until, keys))
        if having:
            self._ready.update(dict.fromkeys(keys.runs))

    def has(self, peer: str, keys: Sequence[str]) -> bool:
        """Adds a peer to the replicas of messages; returns whether that is new for any of them."""
        found = [(run, having, until) for run, (having, until) in self._messages.find(keys) if peer not in having]
        for run, having, until in found:
            self._messages.put_run(run, (having | {peer}, until))
            self._ready[run] = None
        return bool(found)

    def enough(self, replicas: int) -> Keys:
        """Removes and returns the messages that *replicas* peers have."""
        ready, self._ready = self._ready, {}
        runs: list[KeyRange] = []
        for one in ready:  # which may overlap
            found = self._messages.find(Keys([one]))
            runs += self._take(Keys([run for run, (having, _) in found if len(having) >= replicas])).runs
        return Keys(runs)

    def expired(self, now: float) -> Keys:
        """Removes and returns the messages whose deadline is over."""
        runs: list[KeyRange] = []
        while self._ends and self._ends[0][0] <= now:
            runs += self._take(self._first()).runs
        return Keys(runs)

    def drop(self, keys: Iterable[str]) -> Keys:
        """Removes messages; returns those that waited."""
        return self._take(Keys([run for run, _ in self._messages.find(keys)]))

    def _take(self, keys: Keys) -> Keys:
        self._messages.take(keys)
        for run in keys.runs:
            self._ready.pop(run, None)
        if not self._messages:
            self._ready.clear()
            self._ends.clear()
        while self._ends and not self._first():
            self._ends.popleft()
        return keys

    def _first(self) -> Keys:
        """Returns the messages of the first deadline that still wait."""
        until, keys = self._ends[0]
        return Keys([run for run, (_, end) in self._messages.find(keys) if end == until])
