"""A node of a cluster, without I/O: which messages are where, and what is sent about them."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from omq.pzq.cluster.acked_keys import AckedKeys, Stated, statements_of
from omq.pzq.cluster.actions import (
    Action,
    Answer,
    Broadcast,
    ForgetRemoteAck,
    Persist,
    RecordAcks,
    RecordRemoteAck,
    Replica,
    Restarted,
)
from omq.pzq.cluster.keys import KeyMap, KeyRange, Keys, PositionMap, keys_in
from omq.pzq.cluster.leadership import Leadership
from omq.pzq.cluster.pending_replication import PendingReplication
from omq.pzq.cluster.takeover_sync import TakeoverSync

#: Keys that are asked about at once, and messages that are on their way to a peer again.
MAX_BATCH_KEYS: Final = 256
#: Replicas that are dropped at a tick, about.
SWEEP_LIMIT: Final = 16_384
#: Timeouts after which replicas are asked about again.
ROUND_TIMEOUTS: Final = 2.0

Stored = Iterable[tuple[Sequence[str], int]]  # keys, and where the first message is: the others follow it


class Node:
    """Decides for one node. Its methods take what has happened; `actions` is what is to be done, in this order.

    Args:
        possession: Who possesses which queue.
        replicas: How many peers must have a message before its producer gets a positive answer.
        patience: Seconds that a producer waits for that.
        is_mine: Whether a message was stored in the store that this node has now.

    Attributes:
        own: The messages of this node that were stored by it and are not finished, by key; and where they are.
        held: Likewise the replicas, by owner; of this node itself, too, after it has lost its disk.
        tombs: What was acknowledged here in an owner's place, by key: the owner.
        done: What it has as finished.
    """

    def __init__(
        self,
        possession: Leadership,
        *,
        replicas: int,
        patience: float,
        is_mine: Callable[[str], bool],
    ) -> None:
        self.possession = possession
        self.name = possession.name
        self.actions: list[Action] = []
        self.own = PositionMap()
        self.held: dict[str, PositionMap] = {}
        self.tombs: dict[str, str] = {}
        self._replicas = replicas
        self._patience = patience
        self._is_mine = is_mine
        self.done = AckedKeys()
        #: Messages that a peer is not known to have, by peer and owner: of this node all peers are to have them, of
        #: another one its possessor.
        self._unconfirmed: dict[str, dict[str, KeyMap[None]]] = {
            peer: {self.name: KeyMap()} for peer in possession.peers
        }
        #: The possessor that replicas were compared with last, and when that began, by owner.
        self._compared: dict[str, tuple[tuple[str, int, str] | None, float]] = {}
        #: Replicas that this node delivers in their owner's place once others have answered what they have of them.
        self._doubts = TakeoverSync(possession)
        #: Replicas that are to be looked for among what is finished before any of these are delivered, by owner.
        self._unswept: dict[str, deque[KeyRange]] = {}
        #: What of its own it has stated last, and when it has sent all statements.
        self._stated: tuple[dict[str, Any], float] = {}, -1e9
        #: Own messages on their way to a peer as they were stored, by the first key; and since when.
        self._flying: dict[str, dict[str, tuple[Sequence[str], float]]] = {peer: {} for peer in possession.peers}
        #: What of `tombs` a peer has not confirmed to know, by peer and owner.
        self._unaware: dict[str, dict[str, KeyMap[None]]] = {peer: defaultdict(KeyMap) for peer in possession.peers}
        #: What a peer was asked or sent by itself, and when.
        self._asked: dict[str, dict[str, float]] = {peer: {} for peer in possession.peers}
        #: What producers wait for.
        self._waiting = PendingReplication()

    def load(self, own: Stored, held: Mapping[str, Stored], tombs: Iterable[tuple[str, str]]) -> None:
        """Takes what the store has."""
        for keys, place in own:
            self.own.note(keys, place)
        for owner, stored in held.items():
            places = self.held[owner] = PositionMap()
            for keys, place in stored:
                places.note(keys, place)
        for owner, key in tombs:
            self._entomb(owner, key, self._unaware)
        self.actions.clear()  # they are kept already
        for peer in self.possession.peers:
            self._replicate_all(peer)

    def _replicate_all(self, peer: str) -> None:
        """Has a peer asked about all messages of this node, those that it has got back from others among them."""
        if self._replicas:
            self._unconfirmed[peer][self.name] = keys_in(self._places(self.name))

    def _places(self, owner: str) -> list[PositionMap]:
        """Returns where messages of an owner may be."""
        own = [self.own] if owner == self.name else []
        return [*own, *filter(None, [self.held.get(owner)])]

    def places(self, origin: str, keys: Iterable[str]) -> list[int]:
        """Returns where messages are, as far as they are here."""
        keys = Keys.of(keys)
        return [place for places in self._places(origin) for place in places.places(keys)]

    def holds(self) -> dict[str, int]:
        """Returns the number of replicas by owner."""
        return {owner: len(keys) for owner, keys in self.held.items() if keys}

    def replicas(self) -> int:
        """Returns the number of replicas of other nodes' messages."""
        return sum(len(keys) for owner, keys in self.held.items() if owner != self.name)

    def recovered(self) -> int:
        """Returns the number of its own messages that it has got back from others."""
        return len(self.held.get(self.name, ()))

    def waits(self) -> float | None:
        """Returns when the time of the first waiting producer is up."""
        return self._waiting.until()

    def delivers(self, owner: str, now: float) -> bool:
        """Returns whether this node may give messages of a queue to consumers."""
        if owner in self._unswept:
            return False
        return self.possession.delivers(owner, now) and self._doubts.settled(owner, now)

    # ------------------------------------------------------------------ messages

    def produced(self, keys: Sequence[str], place: int, now: float) -> None:
        """Takes messages of producers that are stored, the first of them at *place*, the others after it."""
        keys = Keys.of(keys)
        self.own.note(keys, place)
        if not self._replicas:
            self.actions.append(Answer(keys, True))
            return
        self._waiting.add(keys, now + self._patience)
        for peer, unconfirmed in self._unconfirmed.items():
            if self.possession.alive(peer, now):
                self._flying[peer][keys[0]] = keys, now
                self.actions.append(Replica(peer, self.name, keys))
            else:
                unconfirmed[self.name].put(keys, None)

    def produced_again(self, key: str, now: float) -> None:
        """Takes the repetition of a message that is stored, and not finished."""
        if key not in self._waiting:  # else the answer is on its way
            for peer in self._flying:
                self._ground(peer)
            having = {peer for peer, unconfirmed in self._unconfirmed.items() if key not in unconfirmed[self.name]}
            self._waiting.add([key], now + self._patience, having)
        self._answer(now)

    def _ground(self, peer: str, before: float = 1e18) -> None:
        """Notes one by one the messages that are on their way to a peer since before a time."""
        flying, own = self._flying[peer], self.own
        for first, (keys, when) in [one for one in flying.items() if one[1][1] < before]:
            del flying[first]
            left = Keys([run for run, _ in own.find(keys)])
            self._unconfirmed[peer][self.name].put(left, None)
            self._asked[peer].update(dict.fromkeys(left, when))

    def unsent(self, peer: str, keys: Sequence[str]) -> None:
        """Takes messages that could not be sent to a peer as they were stored: it is asked about them soon."""
        del self._flying[peer][keys[0]]
        self._unconfirmed[peer][self.name].put(keys, None)

    def _send(self, peer: str, origin: str, keys: Sequence[str], now: float) -> None:
        self._asked[peer].update(dict.fromkeys(keys, now))
        self.actions.append(Replica(peer, origin, keys))

    def wanted(self, origin: str, keys: Sequence[str]) -> Sequence[str]:
        """Returns which of the replicas that have come are to be stored; the others are answered as if they were."""
        keys, held = Keys.of(keys), self.held.get(origin)
        if origin != self.name and not (self.tombs or self.done.find(origin, keys) or (held and held.find(keys))):
            return keys
        return Keys.of(self._views(origin, keys)["want"])

    def stored(self, origin: str, keys: Sequence[str], place: int, now: float) -> None:
        """Takes replicas that are stored, the first of them at *place*, the others after it."""
        keys = Keys.of(keys)
        if origin not in self.held:
            self.held[origin] = PositionMap()
        self.held[origin].note(keys, place)
        self._doubts.add(origin, keys, now)
        if origin == self.name and self._replicas:
            for unconfirmed in self._unconfirmed.values():
                unconfirmed[self.name].put(keys, None)
        # Consumers may have finished some of them while the store was at it.
        if late := [key for run in self.done.find(origin, keys) for key in run.texts()]:
            self._done_with(late)
        if self.tombs and (late := [key for key in keys if key in self.tombs]):
            self._done_with(late)

    def replicated(self, peer: str, keys: Sequence[str], now: float) -> None:
        """Takes a peer's acknowledgement of replicas."""
        keys = Keys.of(keys)
        flying, asked = self._flying[peer], self._asked[peer]
        first = keys[0]
        if first in flying and flying[first][0] == keys:
            del flying[first]
            new = keys
        else:
            mine = self._unconfirmed[peer][self.name]
            if flying and sum(run.end - run.first for run, _ in mine.find(keys)) < len(keys):
                self._ground(peer)
            for key in keys:
                asked.pop(key, None)
            new = Keys([run for run, _ in mine.find(keys)])
        for unconfirmed in self._unconfirmed[peer].values():
            unconfirmed.take(keys)
        if new and self._waiting.has(peer, new):
            self._answer(now)
        if len(asked) <= MAX_BATCH_KEYS // 2:
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
        """Takes messages that consumers have finished, which the queue has settled."""
        keys = Keys.of(keys)
        if origin == self.name:
            self.own.take(keys)
        if origin in self.held:
            for run, _ in self.held[origin].take(keys):
                for key in run.texts():
                    self._entomb(origin, key, self._unaware)
        self._drop(origin, keys)
        self.done.add(keys)
        self._broadcast("REMOVES", keys=list(keys))

    def lost(self, origin: str, keys: Iterable[str]) -> None:
        """Takes messages that the store cannot read: others may have them."""
        keys = Keys.of(keys)
        for places in self._places(origin):
            places.take(keys)
        self._ask_no_more(origin, keys)
        for peer in self.possession.peers if origin == self.name else [origin]:
            for begin in range(0, len(keys), MAX_BATCH_KEYS):
                self._tell("TOLD", peer, origin, {"want": keys[begin : begin + MAX_BATCH_KEYS]})

    def _entomb(self, origin: str, key: str, unaware: Iterable[str]) -> None:
        self.tombs[key] = origin
        for peer in unaware:
            self._unaware[peer][origin].put([key], None)
        self.actions.append(RecordRemoteAck(origin, key))

    def _drop(self, owner: str, keys: Keys) -> None:
        """Has nothing wait for messages that are finished."""
        self._ask_no_more(owner, keys)
        self._answered(self._waiting.drop(keys), done=True)  # they need no replica any more

    def _ask_no_more(self, owner: str, keys: Keys) -> None:
        for by_owner in self._unconfirmed.values():
            if unconfirmed := by_owner.get(owner):
                unconfirmed.take(keys)
        self._doubts.drop(keys)

    def _done_with(self, keys: Sequence[str]) -> None:
        """Drops messages, and remembers that they are finished."""
        keys = Keys.of(keys)
        self._settle(keys)
        self.done.add(keys)

    def _settle(self, keys: Keys) -> None:
        """Removes messages that are finished."""
        for owner, places in [(self.name, self.own), *self.held.items()]:
            if gone := places.take_places(keys):
                self._drop(owner, Keys.of(gone))
                self.actions.append(RecordAcks(owner, gone))

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
                self._done_with(_keys_of(body, "keys"))
            case "ASK" | "TOLD" | "GONE":
                self._hear_directed(kind, sender, body, now)
            case _:
                raise ValueError("the kind of message is unknown")

    def _hear_keep_alive(self, peer: str, state: dict[str, Any], now: float) -> None:
        if self.possession.hear(peer, state, now):
            self.actions.append(Restarted(peer))
            self._ground(peer)
            self._asked[peer].clear()
            self._replicate_all(peer)  # its disk may be another one, or have lost something
            self._stated = {}, -1e9  # it has nothing yet
        self._consider(now)

    def hear_statements(self, statements: Stated) -> None:
        """Takes owners' statements of their settled messages."""
        known = {owner: stated for owner, stated in statements.items() if owner in self.possession.nodes}
        for owner in self.done.hear(known, self.name):
            self._begin_sweep(owner)

    def _hear_directed(self, kind: str, sender: str, body: dict[str, Any], now: float) -> None:
        lists = {name: _keys_of(body, name) for name in ("keys", "have", "want", "gone")}
        if body.get("to") != self.name:
            return
        if (origin := str(body.get("origin"))) not in self.possession.nodes:
            raise ValueError(f"{kind} is of {origin!r}, which is not a node of this cluster")
        if body.get("incarnation") != self.possession.peers[sender].incarnation:
            return  # one that is over may have sent what does not hold any more
        if kind == "ASK":
            self._tell("TOLD", sender, origin, self._views(origin, lists["keys"]))
        elif kind == "GONE":
            self._hear_gone(sender, origin, lists["keys"])
        else:
            self._hear_told(sender, origin, lists, now)

    def _views(self, origin: str, keys: Sequence[str]) -> dict[str, list[str]]:
        """Returns which messages this node has, which it wants, and which it has as finished."""
        views: dict[str, list[str]] = {"have": [], "want": [], "gone": []}
        runs, mine = Keys.of(keys), origin == self.name
        gone = {key for run in self.done.find(origin, runs) for key in run.texts()}
        have = {key for places in self._places(origin) for run, _ in places.find(runs) for key in run.texts()}
        for key in keys:
            if key in self.tombs or key in gone:
                views["gone"].append(key)
            elif key in have:
                views["have"].append(key)
            else:
                views["gone" if mine and self._is_mine(key) else "want"].append(key)
        return views

    def _hear_gone(self, sender: str, origin: str, keys: list[str]) -> None:
        """Takes messages of another node that consumers of the sender have finished."""
        self._done_with(keys)
        if origin != self.name:
            # The owner may come back when the sender, which has it, does not.
            unaware = [origin] if origin != sender else []
        else:
            # Where the owner has lost its disk, others may bring it these messages yet.
            unaware = [peer for peer in self.possession.peers if peer != sender]
        for key in keys if unaware else ():
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
        here = self._places(origin)
        if not compares and (wanted := [key for key in lists["want"] if any(key in places for places in here)]):
            self._send(sender, origin, wanted, now)
        self._push(sender, now)
        self._consider(now)

    def _aware(self, peer: str, key: str) -> None:
        """Notes that a peer has an acknowledgement in an owner's place."""
        owner = self.tombs[key]
        self._unaware[peer][owner].take([key])
        if not any(key in by_owner[owner] for by_owner in self._unaware.values()):
            del self.tombs[key]
            self.actions.append(ForgetRemoteAck(key))

    # ------------------------------------------------------------------ what is to be sent

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
            if owner != self.name:
                self._compare(owner, now)
        self._sweep()
        for peer in self.possession.living(now):
            self._push(peer, now)
        self._keep_alive(now)
        self._state(now)

    def _state(self, now: float) -> None:
        """Sends what is finished: its own soon, that of all after a while."""
        before, when = self._stated
        if now - when >= ROUND_TIMEOUTS * self.possession.timeout:
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
            self.actions.append(Persist(was))
            self._keep_alive(now)
        for owner in self.possession.nodes:
            begun = self._doubts.look(owner, self._places(owner), now)
            if begun:
                self._begin_sweep(owner)
            for peer in begun:
                self._push(peer, now)

    def _begin_sweep(self, owner: str) -> None:
        """Begins to drop those of an owner's messages here that are finished."""
        # A `REMOVES` that did not arrive, a node that was away: it has them still, and their sender may be gone. An
        # owner has them still where its disk is as it was before.
        if runs := [*self.done.stated(owner, (run for places in self._places(owner) for run, _ in places.runs()))]:
            self._unswept[owner] = deque(runs)

    def _sweep(self) -> None:
        """Drops some replicas that are finished, within `SWEEP_LIMIT`."""
        left = SWEEP_LIMIT
        for owner, runs in list(self._unswept.items()):
            due: list[KeyRange] = []
            while runs and left > 0:
                left -= runs[0].end - runs[0].first
                due.append(runs.popleft())
            self._settle(Keys(due))
            if not runs:
                del self._unswept[owner]

    def _is_settled(self, owner: str) -> bool:
        return not self._unaware[owner][owner]

    def _compare(self, owner: str, now: float) -> None:
        """Has the possessor of an owner's queue asked about all its replicas; another one at once, the same again."""
        possessor = self.possession.record(owner)[1]
        peer = self.possession.peers.get(possessor)
        it = None if peer is None else (possessor, peer.incarnation, peer.store)
        before, when = self._compared.get(owner, (None, 0.0))
        if it == before and (
            peer is None
            or self._unconfirmed[possessor].get(owner)
            or now - when < ROUND_TIMEOUTS * self.possession.timeout
        ):
            return
        self._compared[owner] = it, now
        for unconfirmed in self._unconfirmed.values():
            unconfirmed.pop(owner, None)
        if peer is not None:
            self._unconfirmed[possessor][owner] = keys_in([self.held[owner]])

    def _push(self, peer: str, now: float) -> None:
        """Asks a peer about what it may lack, and sends it what is finished; some of it at a time."""
        if not self.possession.alive(peer, now):
            return
        asked = self._asked[peer]
        again = now - self.possession.timeout / 4
        lists: list[tuple[str, str, Iterable[str]]] = [
            *(("ASK", *one) for one in (*self._unconfirmed[peer].items(), *self._doubts.of(peer))),
            *(("GONE", *one) for one in self._unaware[peer].items()),
        ]
        for kind, origin, keys in lists:
            if due := [key for key in islice(keys, MAX_BATCH_KEYS) if asked.get(key, -1e9) < again]:
                asked.update(dict.fromkeys(due, now))
                self._tell(kind, peer, origin, {"keys": due})

    def _tell(self, kind: str, to: str, origin: str, lists: dict[str, Any]) -> None:
        self._broadcast(kind, incarnation=self.possession.incarnation, to=to, origin=origin, **lists)

    def _keep_alive(self, now: float) -> None:
        self._broadcast("KALV", **self.possession.keep_alive(now, self.holds()))

    def _broadcast(self, kind: str, **body: Any) -> None:
        self.actions.append(Broadcast(kind, {"from": self.name, **body}))


def _keys_of(body: dict[str, Any], name: str) -> list[str]:
    """Returns a list of keys that a message has, or none.

    Raises:
        ValueError: It is not such a list.
    """
    try:
        return list(Keys.of(body.get(name, ())))
    except TypeError as wrong:
        raise ValueError(f"{name!r} is not a list of keys: {wrong}") from None
