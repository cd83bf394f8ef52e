"""The comparison with the other nodes before a new leader delivers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from omq.pzq.cluster.keys import KeyMap, keys_in
from omq.pzq.cluster.leadership import LeaderEpoch, Leadership


@dataclass(slots=True)
class _PeerSync:
    """Messages of one owner that one peer has not confirmed yet.

    Attributes:
        claim: The epoch in which this node leads the queue.
        incarnation: The incarnation of the peer that is asked.
        keys: The messages.
        since: The time of the first question or of the last answer.
    """

    claim: LeaderEpoch
    incarnation: int
    keys: KeyMap[None]
    since: float


class TakeoverSync:
    """The replicas of a new leader that other nodes may know as finished.

    A node that was away, or that missed a `REMOVES`, still has replicas of acknowledged messages. The owner cannot
    correct that: it is silent when another node leads its queue. So the new leader asks each peer that is alive about
    all replicas, and delivers once they have answered. It stops waiting for a peer that answers nothing for a timeout,
    and continues to ask it.

    Args:
        leadership: The leaders of the queues.
    """

    def __init__(self, leadership: Leadership) -> None:
        self._leadership = leadership
        self._syncs: dict[str, dict[str, _PeerSync]] = {}  # by owner and peer

    def update(self, owner: str, held: Sequence[KeyMap[int]], now: float) -> list[str]:
        """Starts the comparisons that are due and drops those not needed; returns the peers of those just started.

        Args:
            owner: The owner of the queue.
            held: The messages of the queue that this node has.
            now: The time.
        """
        leadership = self._leadership
        claim = leadership.leader_epoch(owner)
        if claim[1] != leadership.name or claim == (0, owner):
            self._syncs.pop(owner, None)
            return []
        syncs, started = self._syncs.setdefault(owner, {}), []
        for peer, known in leadership.peers.items():
            if not leadership.alive(peer, now):
                syncs.pop(peer, None)  # it may receive acks meanwhile, so it is asked again
                continue
            sync = syncs.get(peer)
            if sync is None or sync.claim != claim or sync.incarnation != known.incarnation:
                syncs[peer] = _PeerSync(claim, known.incarnation, keys_in(held), now)
                started.append(peer)
        return started

    def add(self, owner: str, keys: Iterable[str], now: float) -> None:
        """Adds replicas that were stored."""
        for sync in self._syncs.get(owner, {}).values():
            if not sync.keys:
                sync.since = now
            sync.keys.put(keys, None)

    def drop(self, keys: Iterable[str]) -> None:
        """Drops messages that are finished."""
        for syncs in self._syncs.values():
            for sync in syncs.values():
                sync.keys.take(keys)

    def answered(self, owner: str, peer: str, keys: Iterable[str], now: float) -> bool:
        """Records a peer's answer; returns whether this node compares the queue with that peer."""
        sync = self._syncs.get(owner, {}).get(peer)
        if sync is not None and sync.keys.take(keys):
            sync.since = now
        return sync is not None

    def keys_to_ask(self, peer: str) -> Iterator[tuple[str, KeyMap[None]]]:
        """Yields the messages that a peer must be asked about, by owner."""
        for owner, syncs in self._syncs.items():
            if (sync := syncs.get(peer)) is not None and sync.keys:
                yield owner, sync.keys

    def is_complete(self, owner: str, now: float) -> bool:
        """Returns whether the messages of an owner may be delivered here."""
        leadership, syncs = self._leadership, self._syncs.get(owner, {})
        if leadership.leader_epoch(owner) == (0, owner):
            return True  # the queue was never taken over
        for peer in leadership.alive_peers(now):
            sync = syncs.get(peer)
            if sync is None or (sync.keys and now - sync.since <= leadership.timeout):
                return False
        return True
