"""A node of a cluster: which messages are where, and what is said of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from omq.pzq.cluster.actions import (
    Action,
    Answer,
    Broadcast,
    Entomb,
    Forget,
    Keep,
    Replica,
    Restarted,
    Settle,
)
from omq.pzq.cluster.done import Done, Stated, statements_of
from omq.pzq.cluster.doubts import Doubts
from omq.pzq.cluster.keys import KeyRun, Keys, Places
from omq.pzq.cluster.possession import Possession
from omq.pzq.cluster.waiting import Waiting

#: Keys that are asked about at once, and messages that are on their way to a peer again.
WINDOW: Final = 256
#: Replicas that are dropped at a tick, about.
SWEPT: Final = 16_384
#: Timeouts after which replicas are asked about again.
ROUND: Final = 2.0

Stored = Iterable[tuple[Sequence[str], int]]  # keys, and where the first message is: the others are behind it


class Node:
    """What one node decides. Its methods say what has happened; `actions` is what it wants done, in this order.

    Args:
        possession: Who possesses which queue.
        replicas: How many peers must have a message before its producer is told that it is replicated.
        patience: Seconds that a producer waits for that.
        is_mine: Whether a message was stored in the store that this node has now.

    Attributes:
        own: The messages of this node that were stored by it and are not done with, by key; and where they are.
        held: Likewise the replicas, by owner; of this node itself, too, after it has lost its disk.
        tombs: What was acknowledged here in an owner's place, by key: the owner.
        done: What it knows to be done with.
    """

    def __init__(
        self,
        possession: Possession,
        *,
        replicas: int,
        patience: float,
        is_mine: Callable[[str], bool],
    ) -> None:
        self.possession = possession
        self.name = possession.name
        self.actions: list[Action] = []
        self.own = Places()
        self.held: dict[str, Places] = {}
        self.tombs: dict[str, str] = {}
        self._replicas = replicas
        self._patience = patience
        self._is_mine = is_mine
        self.done = Done()
        #: Messages of this node that a peer is not known to have.
        self._missing: dict[str, dict[str, None]] = {peer: {} for peer in possession.peers}
        #: Replicas that the possessor is not known to have, by owner; and who that is.
        self._unsure: dict[str, dict[str, None]] = {}
        self._sure_of: dict[str, tuple[str, int, str]] = {}
        self._round: dict[str, float] = {}
        #: Replicas that this node delivers in their owner's place once others have said what they know of them.
        self._doubts = Doubts(possession)
        #: Replicas that are to be looked for among what is done with before any of these are delivered, by owner.
        self._unswept: dict[str, deque[KeyRun]] = {}
        #: What of its own it has stated last, and when it has told all statements.
        self._stated: tuple[dict[str, Any], float] = {}, -1e9
        #: Own messages on their way to a peer as they were stored, by the first key; and since when.
        self._flying: dict[str, dict[str, tuple[Sequence[str], float]]] = {peer: {} for peer in possession.peers}
        #: What of `tombs` a peer has not confirmed to know.
        self._unaware: dict[str, dict[str, None]] = {peer: {} for peer in possession.peers}
        #: What a peer was asked or sent by itself, and when.
        self._asked: dict[str, dict[str, float]] = {peer: {} for peer in possession.peers}
        #: What producers wait for.
        self._waiting = Waiting()

    def load(self, own: Stored, held: Mapping[str, Stored], tombs: Iterable[tuple[str, str]]) -> None:
        """Takes what the store has."""
        for keys, place in own:
            self.own.note(keys, place)
        for owner, stored in held.items():
            places = self.held[owner] = Places()
            for keys, place in stored:
                places.note(keys, place)
        peers = self.possession.peers
        self.tombs = {key: owner for owner, key in tombs}
        self._unaware = {peer: dict.fromkeys(self.tombs) for peer in peers}
        if self._replicas:
            self._missing = {peer: self._mine() for peer in peers}

    def _mine(self) -> dict[str, None]:
        """The messages of this node, those that it has got back from others among them."""
        return dict.fromkeys([*self.own, *self.held.get(self.name, ())])

    def places(self, origin: str, keys: Iterable[str]) -> list[int]:
        """Where messages are, as far as they are here."""
        keys = Keys.of(keys)
        found = self.own.places(keys) if origin == self.name else []
        if origin in self.held and len(found) < len(keys):
            found += self.held[origin].places(keys)
        return found

    def holds(self) -> dict[str, int]:
        """How many replicas it has, by owner."""
        return {owner: len(keys) for owner, keys in self.held.items() if keys}

    def replicas(self) -> int:
        """Returns the number of replicas of other nodes' messages."""
        return sum(len(keys) for owner, keys in self.held.items() if owner != self.name)

    def recovered(self) -> int:
        """Returns the number of its own messages that it has got back from others."""
        return len(self.held.get(self.name, ()))

    def waits(self) -> float | None:
        """When the time of the first waiting producer is up."""
        return self._waiting.until()

    def delivers(self, owner: str, now: float) -> bool:
        """Whether this node may give messages of a queue to consumers."""
        if owner in self._unswept:
            return False
        return self.possession.delivers(owner, now) and self._doubts.settled(owner, now)

    # ------------------------------------------------------------------ messages

    def produced(self, keys: Sequence[str], place: int, now: float) -> None:
        """Messages of producers are stored, the first of them at *place*, the others behind it."""
        keys = Keys.of(keys)
        self.own.note(keys, place)
        if not self._replicas:
            self.actions.append(Answer(keys, True))
            return
        self._waiting.add(keys, now + self._patience)
        for peer, missing in self._missing.items():
            if self.possession.alive(peer, now):
                self._flying[peer][keys[0]] = keys, now
                self.actions.append(Replica(peer, self.name, keys))
            else:
                missing.update(dict.fromkeys(keys))

    def produced_again(self, key: str, now: float) -> None:
        """A producer repeats a message that is stored, and not done with."""
        if key not in self._waiting:  # else the answer is on its way
            for peer in self._flying:
                self._ground(peer)
            having = {peer for peer, missing in self._missing.items() if key not in missing}
            self._waiting.add([key], now + self._patience, having)
        self._answer(now)

    def _ground(self, peer: str, before: float = 1e18) -> None:
        """Notes one by one the messages that are on their way to a peer since before a time."""
        flying, own = self._flying[peer], self.own
        for first, (keys, when) in [one for one in flying.items() if one[1][1] < before]:
            del flying[first]
            left = [key for key in keys if key in own]
            self._missing[peer].update(dict.fromkeys(left))
            self._asked[peer].update(dict.fromkeys(left, when))

    def unsent(self, peer: str, keys: Sequence[str]) -> None:
        """A peer could not be sent messages as they were stored: it is asked about them soon."""
        del self._flying[peer][keys[0]]
        self._missing[peer].update(dict.fromkeys(keys))

    def _send(self, peer: str, origin: str, keys: Sequence[str], now: float) -> None:
        self._asked[peer].update(dict.fromkeys(keys, now))
        self.actions.append(Replica(peer, origin, keys))

    def wanted(self, origin: str, keys: Sequence[str]) -> Sequence[str]:
        """Which replicas of those that have come are to be stored; the others are answered as if they were."""
        keys, held = Keys.of(keys), self.held.get(origin)
        if origin != self.name and not (self.tombs or self.done.find(origin, keys) or (held and held.find(keys))):
            return keys
        return Keys.of(self._views(origin, keys)["want"])

    def stored(self, origin: str, keys: Sequence[str], place: int, now: float) -> None:
        """Replicas are stored, the first of them at *place*, the others behind it."""
        keys = Keys.of(keys)
        if origin not in self.held:
            self.held[origin] = Places()
        self.held[origin].note(keys, place)
        self._doubts.add(origin, keys, now)
        if origin == self.name and self._replicas:
            for missing in self._missing.values():
                missing.update(dict.fromkeys(keys))
        # Consumers may have been done with some of them while the store was at it.
        if late := [key for run in self.done.find(origin, keys) for key in run.texts()]:
            self._done_with(late)
        if self.tombs and (late := [key for key in keys if key in self.tombs]):
            self._done_with(late)

    def replicated(self, peer: str, keys: Sequence[str], now: float) -> None:
        """A peer has acknowledged replicas."""
        flying, asked = self._flying[peer], self._asked[peer]
        first = keys[0]
        if first in flying and flying[first][0] == keys:
            del flying[first]
            new = keys
        else:
            missing = self._missing[peer]
            if flying and not all(key in missing for key in keys):
                self._ground(peer)
            for key in keys:
                asked.pop(key, None)
            # Replicas of other nodes' messages are never missing.
            new = [key for key in keys if missing.pop(key, 0) is None]
        if new and self._waiting.has(peer, new):
            self._answer(now)
        for owner, unsure in self._unsure.items():
            if unsure and self.possession.record(owner)[1] == peer:
                for key in keys:
                    unsure.pop(key, None)
        if len(asked) <= WINDOW // 2:
            self._push(peer, now)

    def _answer(self, now: float) -> None:
        """Answers producers whose messages are replicated."""
        if self.possession.sees_majority(now):
            self._answered(self._waiting.enough(self._replicas), done=True)

    def expire(self, now: float) -> None:
        """Answers those producers whose time is up."""
        self._answered(self._waiting.expired(now), done=False)

    def _answered(self, keys: Keys, *, done: bool) -> None:
        if keys:
            self.actions.append(Answer(keys, done))

    def consumed(self, origin: str, keys: Sequence[str]) -> None:
        """Consumers are done with messages: the store notes that by itself."""
        keys = Keys.of(keys)
        if origin == self.name:
            self.own.take(keys)
        if origin in self.held:
            for run, _ in self.held[origin].take(keys):
                for key in run.texts():
                    self._entomb(origin, key, self._unaware)
        if origin == self.name:
            self._drop_own(keys)
        self._doubts.drop(keys)
        self.done.add(keys)
        self._broadcast("REMOVES", keys=list(keys))

    def lost(self, origin: str, keys: Iterable[str]) -> None:
        """Messages that the store has cannot be read: others may have them."""
        keys = Keys.of(keys)
        if origin == self.name:
            self.own.take(keys)
            for missing in self._missing.values():
                for key in keys:
                    missing.pop(key, None)
        if origin in self.held:
            self.held[origin].take(keys)
        for key in keys:
            self._unsure.get(origin, {}).pop(key, None)
        self._doubts.drop(keys)
        for peer in self.possession.peers if origin == self.name else [origin]:
            for begin in range(0, len(keys), WINDOW):
                self._tell("TOLD", peer, origin, {"want": keys[begin : begin + WINDOW]})

    def _entomb(self, origin: str, key: str, unaware: Iterable[str]) -> None:
        self.tombs[key] = origin
        for peer in unaware:
            self._unaware[peer][key] = None
        self.actions.append(Entomb(origin, key))

    def _drop_own(self, keys: Sequence[str]) -> None:
        """Messages of this node are done with."""
        for missing in self._missing.values():
            if missing:
                for key in keys:
                    missing.pop(key, None)
        self._answered(self._waiting.drop(keys), done=True)  # they need no replica any more

    def _done_with(self, keys: Sequence[str]) -> None:
        """Somebody says that messages are done with."""
        keys = Keys.of(keys)
        self._settle(keys)
        self.done.add(keys)

    def _settle(self, keys: Keys) -> None:
        """Has messages that are done with not be here any more."""
        if mine := self.own.take_places(keys):
            self._drop_own(list(mine))
            self.actions.append(Settle(self.name, mine))
        for owner, held in self.held.items():
            if gone := held.take_places(keys):
                self.actions.append(Settle(owner, gone))
                if owner == self.name:
                    self._drop_own(list(gone))
            if unsure := self._unsure.get(owner):
                for key in keys:
                    unsure.pop(key, None)
        self._doubts.drop(keys)

    # ------------------------------------------------------------------ what comes

    def hear(self, kind: str, body: Any, now: float) -> None:
        """Takes a message of another node (see `omq.pzq.cluster` for all kinds).

        Raises:
            ValueError: It is malformed, or not from a node of this cluster.
            OlderCopy: The sender's directory, or that of this node, is an older copy.
        """
        if not isinstance(body, dict) or (sender := str(body.get("from"))) not in self.possession.peers:
            raise ValueError(
                f"{kind} is not from one of nodes: the sender has another name for itself, or another port"
            )
        match kind:
            case "KALV":
                self._hear_keep_alive(sender, body, now)
            case "DONE":
                self.hear_statements(statements_of(body.get("stated")))
            case "REMOVES":
                self._done_with(_keys_in(body, "keys"))
            case "ASK" | "TOLD" | "GONE":
                self._hear_directed(kind, sender, body, now)
            case _:
                raise ValueError("there is no such kind of message")

    def _hear_keep_alive(self, peer: str, state: dict[str, Any], now: float) -> None:
        if self.possession.hear(peer, state, now):
            self.actions.append(Restarted(peer))
            self._ground(peer)
            self._asked[peer].clear()
            if self._replicas:
                self._missing[peer] = self._mine()  # its disk may be another one, or have lost something
            self._stated = {}, -1e9  # it knows of nothing yet
        self._consider(now)

    def hear_statements(self, statements: Stated) -> None:
        """Owners have stated which of their messages are settled."""
        known = {owner: stated for owner, stated in statements.items() if owner in self.possession.nodes}
        for owner in self.done.hear(known, self.name):
            self._begin_sweep(owner)

    def _hear_directed(self, kind: str, sender: str, body: dict[str, Any], now: float) -> None:
        lists = {name: _keys_in(body, name) for name in ("keys", "have", "want", "gone")}
        if body.get("to") != self.name:
            return
        if (origin := str(body.get("origin"))) not in self.possession.nodes:
            raise ValueError(f"{kind} is of {origin!r}, which is not a node of this cluster")
        if body.get("incarnation") != self.possession.peers[sender].incarnation:
            return  # one that is over may have said what does not hold any more
        if kind == "ASK":
            self._tell("TOLD", sender, origin, self._views(origin, lists["keys"]))
        elif kind == "GONE":
            self._hear_gone(sender, origin, lists["keys"], last=body.get("last") is True)
        else:
            self._hear_told(sender, origin, lists, now)

    def _views(self, origin: str, keys: Sequence[str]) -> dict[str, list[str]]:
        """What this node makes of messages: whether it has them, wants them, or knows that they are done with."""
        views: dict[str, list[str]] = {"have": [], "want": [], "gone": []}
        runs, mine = Keys.of(keys), origin == self.name
        gone = {key for run in self.done.find(origin, runs) for key in run.texts()}
        places = [*filter(None, [self.held.get(origin)]), *([self.own] if mine else [])]
        have = {key for some in places for run, _ in some.find(runs) for key in run.texts()}
        for key in keys:
            if key in self.tombs or key in gone:
                views["gone"].append(key)
            elif key in have:
                views["have"].append(key)
            else:
                views["gone" if mine and self._is_mine(key) else "want"].append(key)
        return views

    def _hear_gone(self, sender: str, origin: str, keys: list[str], *, last: bool) -> None:
        """Consumers of the sender's are done with messages of another node; *last*: all others know that."""
        self._done_with(keys)
        if origin != self.name:
            # The owner may come back when the sender, who knows of it, does not.
            unaware = [origin] if origin != sender else []
        else:
            # Where the owner has lost its disk, others may bring it these messages yet.
            unaware = [peer for peer in self.possession.peers if peer != sender]
        for key in keys if unaware and not last else ():
            if key not in self.tombs and not (origin == self.name and self._is_mine(key)):
                self._entomb(origin, key, unaware)
        self._tell("TOLD", sender, origin, {"gone": keys})

    def _hear_told(self, sender: str, origin: str, lists: dict[str, list[str]], now: float) -> None:
        asked = self._asked[sender]
        told = [key for keys in lists.values() for key in keys]
        if compares := self._doubts.answered(origin, sender, told, now) and origin != self.name:
            for key in (*lists["have"], *lists["want"]):
                asked.pop(key, None)
        elif lists["have"]:
            self.replicated(sender, lists["have"], now)
        gone: list[str] = []
        for key in lists["gone"]:
            asked.pop(key, None)
            if key in self.tombs:
                self._aware(sender, key)
            else:
                gone.append(key)
        if mine := [key for key in gone if key in self.own]:
            self._broadcast("REMOVES", keys=mine)
        self._done_with(gone)
        held, own = self.held.get(origin, ()), self.own if origin == self.name else ()
        if not compares and (wanted := [key for key in lists["want"] if key in held or key in own]):
            self._send(sender, origin, wanted, now)
        self._push(sender, now)
        self._consider(now)

    def _aware(self, peer: str, key: str) -> None:
        """A peer knows that a message was acknowledged in its owner's place."""
        self._unaware[peer].pop(key, None)
        if not any(key in unaware for unaware in self._unaware.values()):
            del self.tombs[key]
            self.actions.append(Forget(key))

    # ------------------------------------------------------------------ what is to be said

    def tick(self, now: float) -> None:
        """To be called ten times a timeout."""
        self.expire(now)
        self._consider(now)
        for peer in self._flying:
            self._ground(peer, now - self.possession.timeout)
        for asked in self._asked.values():  # what was not answered is asked again
            for key in [key for key, when in asked.items() if now - when > self.possession.timeout]:
                del asked[key]
        for owner in self.held:
            self._look_for_possessor(owner, now)
        self._sweep()
        for peer in self.possession.living(now):
            self._push(peer, now)
        self._keep_alive(now)
        self._state(now)

    def _state(self, now: float) -> None:
        """Tells what is done with: its own soon, that of all after a while."""
        before, when = self._stated
        if now - when >= ROUND * self.possession.timeout:
            mine, told = self.done.told([self.name]), self.done.told()
            self._stated = mine, now
        else:
            mine = told = self.done.told([self.name])
            if mine == before:
                return
            self._stated = mine, when
        if told:
            self._broadcast("DONE", stated=told)

    def _consider(self, now: float) -> None:
        was = self.possession.statement()
        if self.possession.consider(now, self.holds(), self._is_settled):
            self.actions.append(Keep(was))
            self._keep_alive(now)
        for owner in self.possession.nodes:
            held = [self.own] if owner == self.name else []
            begun = self._doubts.look(owner, [*held, *filter(None, [self.held.get(owner)])], now)
            if begun:
                self._begin_sweep(owner)
            for peer in begun:
                self._push(peer, now)

    def _begin_sweep(self, owner: str) -> None:
        """Of this owner's messages that are here those are to be dropped that are done with."""
        # A `REMOVES` that did not arrive, a node that was away: it has them still, and who told of them may be gone. An
        # owner has them still where its disk is as it was before.
        places = [*filter(None, [self.held.get(owner)]), *([self.own] if owner == self.name else [])]
        if runs := [*self.done.stated(owner, (run for some in places for run, _ in some.runs()))]:
            self._unswept[owner] = deque(runs)

    def _sweep(self) -> None:
        """Drops replicas that are done with, so many that nobody waits long."""
        left = SWEPT
        for owner, runs in list(self._unswept.items()):
            due: list[KeyRun] = []
            while runs and left > 0:
                left -= runs[0].end - runs[0].first
                due.append(runs.popleft())
            self._settle(Keys(due))
            if not runs:
                del self._unswept[owner]

    def _is_settled(self, owner: str) -> bool:
        return not any(self.tombs[key] == owner for key in self._unaware[owner])

    def _look_for_possessor(self, owner: str, now: float) -> None:
        """Whom replicas are to be compared with; with another one, or after a while, all of them are."""
        possessor = self.possession.record(owner)[1]
        if possessor == self.name:
            self._unsure.pop(owner, None)
            self._sure_of.pop(owner, None)
            return
        peer = self.possession.peers.get(possessor)
        if peer is None:
            return
        it = (possessor, peer.incarnation, peer.store)
        timeout = self.possession.timeout
        if self._sure_of.get(owner) != it or (
            not self._unsure.get(owner) and now - self._round.get(owner, 0.0) >= ROUND * timeout
        ):
            self._sure_of[owner] = it
            self._round[owner] = now
            self._unsure[owner] = dict.fromkeys(self.held[owner])

    def _push(self, peer: str, now: float) -> None:
        """Asks a peer about what it may lack, and tells it what is done with; some of it at a time."""
        possession = self.possession
        if not possession.alive(peer, now):
            return
        asked = self._asked[peer]
        again = now - possession.timeout / 4
        lists: list[tuple[str, Iterable[str]]] = [(self.name, self._missing[peer])]
        for owner, unsure in self._unsure.items():
            if possession.record(owner)[1] == peer:
                lists.append((owner, unsure))
        lists += self._doubts.of(peer)
        for origin, keys in lists:
            due = [key for key in islice(keys, WINDOW) if asked.get(key, -1e9) < again]
            if due:
                asked.update(dict.fromkeys(due, now))
                self._tell("ASK", peer, origin, {"keys": due})
        if self._unaware[peer]:
            self._push_gone(peer, again, now)

    def _push_gone(self, peer: str, again: float, now: float) -> None:
        due: dict[tuple[str, bool], list[str]] = {}
        asked = self._asked[peer]
        for key in islice(self._unaware[peer], WINDOW):
            if asked.get(key, -1e9) < again:
                last = not any(key in unaware for other, unaware in self._unaware.items() if other != peer)
                due.setdefault((self.tombs[key], last), []).append(key)
                asked[key] = now
        for (origin, last), keys in due.items():
            self._tell("GONE", peer, origin, {"keys": keys, **({"last": True} if last else {})})

    def _tell(self, kind: str, to: str, origin: str, lists: dict[str, Any]) -> None:
        self._broadcast(kind, incarnation=self.possession.incarnation, to=to, origin=origin, **lists)

    def _keep_alive(self, now: float) -> None:
        self._broadcast("KALV", **self.possession.keep_alive(now, self.holds()))

    def _broadcast(self, kind: str, **body: Any) -> None:
        self.actions.append(Broadcast(kind, {"from": self.name, **body}))


def _keys_in(body: dict[str, Any], name: str) -> list[str]:
    """Returns a list of keys that a message has, or none.

    Raises:
        ValueError: It is not such a list.
    """
    try:
        return list(Keys.of(body.get(name, ())))
    except TypeError as wrong:
        raise ValueError(f"{name!r} is not a list of keys: {wrong}") from None
