"""The comparison with the other nodes before messages are delivered in their owner's place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from omq.pzq.cluster.keys import KeyMap, keys_in
from omq.pzq.cluster.leadership import Leadership, Record


@dataclass(slots=True)
class _Unconfirmed:
    """Messages of one owner that one peer has not answered about.

    Attributes:
        claim: By which record this node has the queue.
        incarnation: Which one of the peer is asked.
        keys: The messages.
        since: When the peer was asked, or has answered last.
    """

    claim: Record
    incarnation: int
    keys: KeyMap[None]
    since: float


class TakeoverSync:
    """The replicas that a peer may have as finished.

    A node that was away, or that a `REMOVES` missed, has replicas of what consumers have settled. The owner would
    send it that, but is silent where this node has its queue. So it asks all that live, each about all, and delivers
    once they have answered. One that sends nothing for a timeout is not waited for; it is asked on.

    Args:
        possession: Who possesses which queue.
    """

    def __init__(self, possession: Leadership) -> None:
        self._possession = possession
        self._doubts: dict[str, dict[str, _Unconfirmed]] = {}  # by owner and peer

    def look(self, owner: str, held: Sequence[KeyMap[int]], now: float) -> list[str]:
        """Begins what is to be compared, and ends what is not any more; the peers that are to be asked.

        Args:
            owner: Whose queue it is.
            held: What this node has of it.
            now: The time.
        """
        possession = self._possession
        claim = possession.record(owner)
        if claim[1] != possession.name or claim == (0, owner):
            self._doubts.pop(owner, None)
            return []
        doubts, begun = self._doubts.setdefault(owner, {}), []
        for peer, known in possession.peers.items():
            if not possession.alive(peer, now):
                doubts.pop(peer, None)  # meanwhile it may learn of something: it is asked again
                continue
            doubt = doubts.get(peer)
            if doubt is None or doubt.claim != claim or doubt.incarnation != known.incarnation:
                doubts[peer] = _Unconfirmed(claim, known.incarnation, keys_in(held), now)
                begun.append(peer)
        return begun

    def add(self, owner: str, keys: Iterable[str], now: float) -> None:
        """Adds replicas that have come."""
        for doubt in self._doubts.get(owner, {}).values():
            if not doubt.keys:
                doubt.since = now
            doubt.keys.put(keys, None)

    def drop(self, keys: Iterable[str]) -> None:
        """Drops messages that are finished."""
        for doubts in self._doubts.values():
            for doubt in doubts.values():
                doubt.keys.take(keys)

    def answered(self, owner: str, peer: str, keys: Iterable[str], now: float) -> bool:
        """Takes a peer's answer; returns whether this node has the queue, and so asks for itself."""
        doubt = self._doubts.get(owner, {}).get(peer)
        if doubt is not None and doubt.keys.take(keys):
            doubt.since = now
        return doubt is not None

    def of(self, peer: str) -> Iterator[tuple[str, KeyMap[None]]]:
        """Yields the messages that a peer is to be asked about, by owner."""
        for owner, doubts in self._doubts.items():
            if (doubt := doubts.get(peer)) is not None and doubt.keys:
                yield owner, doubt.keys

    def settled(self, owner: str, now: float) -> bool:
        """Returns whether the messages of an owner may be delivered here."""
        possession, doubts = self._possession, self._doubts.get(owner, {})
        if possession.record(owner) == (0, owner):
            return True  # no other node ever had it
        for peer in possession.living(now):
            doubt = doubts.get(peer)
            if doubt is None or (doubt.keys and now - doubt.since <= possession.timeout):
                return False
        return True
