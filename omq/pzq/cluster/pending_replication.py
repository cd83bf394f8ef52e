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
            self._ready.update(dict.fromkeys(keys.ranges))

    def has(self, peer: str, keys: Sequence[str]) -> bool:
        """Adds a peer to the replicas of messages; returns whether that is new for any of them."""
        found = [(range_, having, until) for range_, (having, until) in self._messages.find(keys) if peer not in having]
        for range_, having, until in found:
            self._messages.put_range(range_, (having | {peer}, until))
            self._ready[range_] = None
        return bool(found)

    def enough(self, replicas: int) -> Keys:
        """Removes and returns the messages that *replicas* peers have."""
        ready, self._ready = self._ready, {}
        ranges: list[KeyRange] = []
        for one in ready:  # which may overlap
            found = self._messages.find(Keys([one]))
            ranges += self._take(Keys([range_ for range_, (having, _) in found if len(having) >= replicas])).ranges
        return Keys(ranges)

    def expired(self, now: float) -> Keys:
        """Removes and returns the messages whose deadline is over."""
        ranges: list[KeyRange] = []
        while self._ends and self._ends[0][0] <= now:
            ranges += self._take(self._first()).ranges
        return Keys(ranges)

    def drop(self, keys: Iterable[str]) -> Keys:
        """Removes messages; returns those that waited."""
        return self._take(Keys([range_ for range_, _ in self._messages.find(keys)]))

    def _take(self, keys: Keys) -> Keys:
        self._messages.take(keys)
        for range_ in keys.ranges:
            self._ready.pop(range_, None)
        if not self._messages:
            self._ready.clear()
            self._ends.clear()
        while self._ends and not self._first():
            self._ends.popleft()
        return keys

    def _first(self) -> Keys:
        """Returns the messages of the first deadline that still wait."""
        until, keys = self._ends[0]
        return Keys([range_ for range_, (_, end) in self._messages.find(keys) if end == until])
