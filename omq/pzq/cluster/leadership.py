"""The leaders of queues: epochs, votes and leases."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

#: The part of the timeout that a lease lasts. It ends before another node may take over.
LEASE_SHARE: Final = 0.8

LeaderEpoch = tuple[int, str]  # epoch, leader
LeaderSnapshot = dict[str, LeaderEpoch] | None  # by owner; `None`: the node is unattached
Known = tuple[str, int]  # the store and the incarnation of a node

#: The upper bound of numbers in messages.
MAX_NUMBER: Final = 1 << 62
#: Incarnations of a directory that are kept. An older copy is detected until it has been started this often itself.
MAX_INCARNATIONS: Final = 64


class StaleDirectory(ValueError):
    """Raised when a node's directory is an older copy of one that was seen before.

    Args:
        node: Its name.
        known: The incarnation that the directory does not have.
    """

    def __init__(self, node: str, known: int) -> None:
        super().__init__(
            f"the directory of {node} is an older copy: it lacks the incarnation {known}. Start the node with an empty "
            "directory, which the other nodes fill, or under a new name (--broadcast-dsn)"
        )
        self.node = node


@dataclass(slots=True)
class Peer:
    """The last known state of another node.

    Attributes:
        last_seen: The time of its last keep-alive; before the first one, the start of this node.
        incarnation: The incarnation that sent it; 0: none was received.
        number: The number of its last keep-alive.
        store: The id of its store.
        unattached: True if it votes for no leaders yet.
        knows_us: True if it has received from this incarnation of this node.
        confirmed: The time at which this node sent the last keep-alive that the peer has received.
        leaders: The leaders that it votes for, by owner.
        receives_from: The nodes that it receives from.
        holds: The number of its replicas by owner.
        timeout: The seconds without a keep-alive after which it considers another node silent.
    """

    last_seen: float
    incarnation: int = 0
    number: int = 0
    store: str = ""
    unattached: bool = True
    knows_us: bool = False
    confirmed: float = -1e9
    leaders: dict[str, LeaderEpoch] = field(default_factory=dict)
    receives_from: frozenset[str] = frozenset()
    holds: dict[str, int] = field(default_factory=dict)
    timeout: float = float("inf")


class Leadership:
    """One node's view of the leaders, from the keep-alives that it has received.

    Args:
        name: The node's broadcast endpoint.
        peers: The broadcast endpoints of the others.
        timeout: Seconds after which a node is silent.
        incarnations: The times at which its directory was started, ascending; the last one is this start.
        now: The time.
        store: The id of this node's store.
        leaders: Its last votes; `None`: its disk is empty.
        known: The last known store and incarnation of each peer, which an earlier incarnation may have received.
        fenced: True if others may take over its queue, so that it needs a lease to deliver.

    Attributes:
        leaders: Its votes by owner, except those for `(0, owner)`.
        peers: The last known states of the others.
    """

    def __init__(
        self,
        name: str,
        peers: Iterable[str],
        *,
        timeout: float,
        incarnations: Sequence[int],
        now: float,
        store: str,
        leaders: dict[str, LeaderEpoch] | None,
        fenced: bool,
        known: Mapping[str, Known] | None = None,
    ) -> None:
        self.name = name
        self.incarnations = list(incarnations)
        self.incarnation = self.incarnations[-1]
        self.store = store
        self.timeout = timeout
        self.fenced = fenced
        self.leaders: dict[str, LeaderEpoch] = dict(leaders or {})
        self.peers = {peer: Peer(now) for peer in peers}
        self.known = {peer: it for peer, it in (known or {}).items() if peer in self.peers}
        self.nodes = sorted([name, *self.peers])
        self.majority = len(self.nodes) // 2 + 1
        self._started = now
        self._unattached = leaders is None
        self._number = 0
        self._sent: dict[int, float] = {}  # times of keep-alives, by number

    # ------------------------------------------------------------------ state

    def leader_epoch(self, owner: str) -> LeaderEpoch:
        """Returns the epoch and the leader that this node votes for."""
        return self.leaders.get(owner, (0, owner))

    def is_unattached(self) -> bool:
        """Returns whether it votes for no leaders yet."""
        return self._unattached

    def alive(self, peer: str, now: float) -> bool:
        """Returns whether a peer has sent a keep-alive within the timeout."""
        known = self.peers[peer]
        return known.incarnation > 0 and now - known.last_seen <= self.timeout

    def silent(self, peer: str, now: float) -> bool:
        """Returns whether a peer has sent nothing for a timeout.

        Right after the start a peer may be neither alive nor silent.
        """
        return now - self.peers[peer].last_seen > self.timeout

    def alive_peers(self, now: float) -> list[str]:
        """Returns the peers that have sent a keep-alive within the timeout."""
        return [peer for peer in self.peers if self.alive(peer, now)]

    def sees_majority(self, now: float) -> bool:
        """Returns whether more than half of all nodes are alive, this one included."""
        return len(self.alive_peers(now)) + 1 >= self.majority

    def leased(self, owner: str, now: float) -> bool:
        """Returns whether this node holds the lease of a queue."""
        mine = self.leader_epoch(owner)
        if mine[1] != self.name or self._unattached:
            return False
        support = 1
        for peer in self.peers.values():
            if not peer.unattached and peer.leaders.get(owner, (0, owner)) == mine:
                support += now < peer.confirmed + LEASE_SHARE * min(self.timeout, peer.timeout)
        return support >= self.majority

    def delivers(self, owner: str, now: float) -> bool:
        """Returns whether this node may deliver messages of a queue."""
        if owner == self.name and not self.fenced:
            return True
        return self.leased(owner, now) and not self.hands_over(owner)

    def hands_over(self, owner: str) -> bool:
        """Returns whether the owner claims a queue that this node leads."""
        mine = self.leader_epoch(owner)
        if owner == self.name or mine[1] != self.name:
            return False
        theirs = self.peers[owner].leaders.get(owner, (0, owner))
        return theirs[1] == owner and theirs[0] > mine[0]

    # ------------------------------------------------------------------ keep-alives

    def snapshot(self) -> LeaderSnapshot:
        """Returns its votes now."""
        return None if self._unattached else dict(self.leaders)

    def restore(self, before: LeaderSnapshot) -> None:
        """Restores earlier votes: the later ones are not on the disk, so no other node may receive them."""
        self._unattached, self.leaders = before is None, dict(before or {})

    def keep_alive_interval(self) -> float:
        """Returns the seconds between two keep-alives: a tenth of the shortest timeout of all nodes."""
        return max(0.001, min(self.timeout, *(peer.timeout for peer in self.peers.values())) / 10)

    def keep_alive(self, now: float, holds: dict[str, int]) -> dict[str, Any]:
        """Returns the next keep-alive."""
        self._number += 1
        self._sent[self._number] = now
        for number in [number for number, when in self._sent.items() if now - when > self.timeout]:
            del self._sent[number]
        return {
            "incarnations": self.incarnations,
            "number": self._number,
            "store": self.store,
            "records": None if self._unattached else {owner: list(vote) for owner, vote in self.leaders.items()},
            "heard": {peer: [it.incarnation, it.number] for peer, it in self.peers.items() if self.alive(peer, now)},
            "holds": holds,
            "timeout": self.timeout,
            "known": self.known,
        }

    def receive(self, peer: str, state: dict[str, Any], now: float) -> bool:
        """Records a keep-alive; returns whether the peer has another incarnation or store than before.

        Raises:
            ValueError: The state is not valid.
            StaleDirectory: The directory of the peer, or of this node, is an older copy.
        """
        known = self.peers[peer]
        try:
            incarnations = [checked_number("incarnations", one) for one in state["incarnations"]]
            number = checked_number("number", state["number"])
            store = str(state["store"])
            incarnation = incarnations[-1]
            votes = state["records"]
            leaders = {
                str(owner): (checked_number("records", epoch), str(name))
                for owner, (epoch, name) in (votes or {}).items()
            }
            heard = {
                str(name): (checked_number("heard", incarnation), checked_number("heard", last))
                for name, (incarnation, last) in state["heard"].items()
            }
            holds = {str(owner): checked_number("holds", count) for owner, count in state["holds"].items()}
            timeout = float(state.get("timeout", self.timeout))
            known_store, known_incarnation = state["known"].get(self.name, ("", 0))
            if not timeout > 0:
                raise ValueError(f"timeout={timeout!r}: must be a number above 0")
        except (KeyError, IndexError, TypeError, AttributeError, OverflowError) as wrong:
            raise ValueError(f"not a valid state of a node: {wrong}") from None
        known_incarnation = checked_number("known", known_incarnation)
        _check_copy(self.name, (known_store, known_incarnation), self.store, self.incarnations)
        _check_copy(peer, self.known.get(peer, ("", 0)), store, incarnations)
        if store == known.store and (incarnation, number) <= (known.incarnation, known.number):
            return False  # late, or a duplicate
        is_new = incarnation != known.incarnation or store != known.store
        self.known[peer] = store, incarnation
        known.last_seen = now
        known.incarnation, known.number, known.store = incarnation, number, store
        known.unattached, known.leaders = votes is None, leaders
        known.receives_from, known.holds, known.timeout = frozenset(heard), holds, timeout
        mine, last = heard.get(self.name, (0, 0))
        known.knows_us = mine == self.incarnation
        if known.knows_us and last in self._sent:
            known.confirmed = max(known.confirmed, self._sent[last])
        return is_new

    # ------------------------------------------------------------------ elections

    def update_leaders(self, now: float, holds: dict[str, int], has_confirmed: Callable[[str], bool]) -> bool:
        """Updates its votes; returns whether one has changed, which must be synced and sent.

        Args:
            now: The time.
            holds: The number of its replicas by owner.
            has_confirmed: Returns whether an owner has confirmed all remote acks of this node.
        """
        if self._unattached:
            return self._attach(now)
        moved = False
        for owner in self.nodes:
            mine = self.leader_epoch(owner)
            wanted = self._highest_claim(owner, mine, now)
            if wanted is not None and self._may_follow(owner, mine, wanted, now, has_confirmed):
                self.leaders[owner] = mine = wanted
                moved = True
            if self._should_claim(owner, mine, now, holds):
                highest = self._highest(owner)
                if mine[1] != self.name or highest > mine[0]:
                    self.leaders[owner] = (highest + 1, self.name)
                    moved = True
        return moved

    def _attach(self, now: float) -> bool:
        """Votes again once no lease can rest on a vote from before the disk was lost."""
        # While no queue was ever taken over, the lost votes were all for the owners.
        harmless = all(peer.knows_us and not peer.leaders for peer in self.peers.values())
        if not harmless and now - self._started <= self.timeout:
            return False
        self._unattached = False
        for owner in self.nodes:
            stated = [peer.leaders[owner] for peer in self.peers.values() if owner in peer.leaders]
            if stated:
                self.leaders[owner] = max(stated)
        return True

    def _highest_claim(self, owner: str, mine: LeaderEpoch, now: float) -> LeaderEpoch | None:
        """Returns the highest claim with a later epoch than this node's vote, of a peer that is alive."""
        claims = [
            vote
            for name, peer in self.peers.items()
            if (vote := peer.leaders.get(owner)) and vote[1] == name and vote[0] > mine[0]
            if self.alive(name, now)
        ]
        return max(claims, default=None)

    def _may_follow(
        self, owner: str, mine: LeaderEpoch, to: LeaderEpoch, now: float, has_confirmed: Callable[[str], bool]
    ) -> bool:
        leader = mine[1]
        if leader == to[1]:
            return True
        if leader == self.name:
            if to[1] == owner:
                return has_confirmed(owner)
            return not self.leased(owner, now)
        if self.silent(leader, now):
            return True
        stated = self.peers[leader].leaders.get(owner, (0, owner))
        return stated[0] > mine[0] and stated[1] != leader

    def _highest(self, owner: str) -> int:
        """Returns the highest epoch in any node's votes."""
        stated = [peer.leaders[owner][0] for peer in self.peers.values() if owner in peer.leaders]
        return max([self.leader_epoch(owner)[0], *stated])

    def _should_claim(self, owner: str, mine: LeaderEpoch, now: float, holds: dict[str, int]) -> bool:
        """Returns whether this node should become the leader of a queue."""
        if not self.sees_majority(now):
            return False
        if owner == self.name:
            # Overrule a failed claim only once its node receives from this node: before, that would claim again.
            return not self.leased(owner, now) or any(
                self.alive(name, now) and self.name in peer.receives_from and peer.leaders.get(owner, mine)[0] > mine[0]
                for name, peer in self.peers.items()
            )
        if self.leased(owner, now):
            return False
        if not holds.get(owner) or not self.silent(owner, now):
            return False
        leader = mine[1]
        if leader != self.name and not self.silent(leader, now):
            return False
        alive = self.alive_peers(now)
        cut_off = [peer for peer in alive if not self.peers[peer].receives_from & {owner, leader} - {self.name}]
        if len(cut_off) + 1 < self.majority:
            return False  # a majority does not miss it
        return all(self.name < peer for peer in alive if self.peers[peer].holds.get(owner))


def _check_copy(node: str, known: Known, store: str, incarnations: Sequence[int]) -> None:
    """Raises `StaleDirectory` if a directory lacks the last known incarnation of its store."""
    if known[0] == store and known[1] > incarnations[0] and known[1] not in incarnations:
        raise StaleDirectory(node, known[1])


def checked_number(name: str, value: Any) -> int:
    """Returns a number from a message.

    Raises:
        ValueError: The value is not a valid number; the text has the name of its field.
    """
    if not isinstance(value, int) or not 0 <= value < MAX_NUMBER:
        raise ValueError(f"{name}={value!r:.40}: must be a whole number, 0 to {MAX_NUMBER - 1}")
    return value
