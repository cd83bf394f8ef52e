"""The comparison with the other nodes before messages are delivered in their owner's place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from omq.pzq.cluster.keys import KeyMap, keys_in
from omq.pzq.cluster.leadership import LeaderEpoch, Leadership


@dataclass(slots=True)
class _PeerSync:
    """Messages of one owner that one peer has not answered about.

    Attributes:
        claim: By which record this node has the queue.
        incarnation: Which one of the peer is asked.
        keys: The messages.
        since: When the peer was asked, or has answered last.
    """

    claim: LeaderEpoch
    incarnation: int
    keys: KeyMap[None]
    since: float


class TakeoverSync:
    """The replicas that a peer may have as finished.

    A node that was away, or that a `REMOVES` missed, has replicas of what consumers have settled. The owner would
    send it that, but is silent where this node has its queue. So it asks all that live, each about all, and delivers
    once they have answered. One that sends nothing for a timeout is not waited for; it is asked on.

    Args:
        leadership: Who possesses which queue.
    """

    def __init__(self, leadership: Leadership) -> None:
        self._leadership = leadership
        self._syncs: dict[str, dict[str, _PeerSync]] = {}  # by owner and peer

    def update(self, owner: str, held: Sequence[KeyMap[int]], now: float) -> list[str]:
        """Begins what is to be compared, and ends what is not any more; the peers that are to be asked.

        Args:
            owner: Whose queue it is.
            held: What this node has of it.
            now: The time.
        """
        leadership = self._leadership
        claim = leadership.leader_epoch(owner)
        if claim[1] != leadership.name or claim == (0, owner):
            self._syncs.pop(owner, None)
            return []
        syncs, begun = self._syncs.setdefault(owner, {}), []
        for peer, known in leadership.peers.items():
            if not leadership.alive(peer, now):
                syncs.pop(peer, None)  # meanwhile it may learn of something: it is asked again
                continue
            sync = syncs.get(peer)
            if sync is None or sync.claim != claim or sync.incarnation != known.incarnation:
                syncs[peer] = _PeerSync(claim, known.incarnation, keys_in(held), now)
                begun.append(peer)
        return begun

    def add(self, owner: str, keys: Iterable[str], now: float) -> None:
        """Adds replicas that have come."""
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
        """Takes a peer's answer; returns whether this node has the queue, and so asks for itself."""
        sync = self._syncs.get(owner, {}).get(peer)
        if sync is not None and sync.keys.take(keys):
            sync.since = now
        return sync is not None

    def keys_to_ask(self, peer: str) -> Iterator[tuple[str, KeyMap[None]]]:
        """Yields the messages that a peer is to be asked about, by owner."""
        for owner, syncs in self._syncs.items():
            if (sync := syncs.get(peer)) is not None and sync.keys:
                yield owner, sync.keys

    def is_complete(self, owner: str, now: float) -> bool:
        """Returns whether the messages of an owner may be delivered here."""
        leadership, syncs = self._leadership, self._syncs.get(owner, {})
        if leadership.leader_epoch(owner) == (0, owner):
            return True  # no other node ever had it
        for peer in leadership.alive_peers(now):
            sync = syncs.get(peer)
            if sync is None or (sync.keys and now - sync.since <= leadership.timeout):
                return False
        return True
