"""A node of a cluster, without I/O: which messages are where, and what is sent about them."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from omq.pzq.cluster.acked_keys import AckedKeys, Checkpoints, parse_checkpoints
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
SCAN_LIMIT: Final = 16_384
#: Timeouts after which replicas are asked about again.
ROUND_TIMEOUTS: Final = 2.0

Stored = Iterable[tuple[Sequence[str], int]]  # keys, and where the first message is: the others follow it


class Node:
    """Decides for one node. Its methods take what has happened; `actions` is what is to be done, in this order.

    Args:
        leadership: Who possesses which queue.
        replicas: How many peers must have a message before its producer gets a positive answer.
        replication_timeout: Seconds that a producer waits for that.
        is_mine: Whether a message was stored in the store that this node has now.

    Attributes:
        own: The messages of this node that were stored by it and are not finished, by key; and where they are.
        held: Likewise the replicas, by owner; of this node itself, too, after it has lost its disk.
        remote_acks: What was acknowledged here in an owner's place, by key: the owner.
        done: What it has as finished.
    """

    def __init__(
        self,
        leadership: Leadership,
        *,
        replicas: int,
        replication_timeout: float,
        is_mine: Callable[[str], bool],
    ) -> None:
        self.leadership = leadership
        self.name = leadership.name
        self.actions: list[Action] = []
        self.own = PositionMap()
        self.held: dict[str, PositionMap] = {}
        self.remote_acks: dict[str, str] = {}
        self._replicas = replicas
        self._replication_timeout = replication_timeout
        self._is_mine = is_mine
        self.acked = AckedKeys()
        #: Messages that a peer is not known to have, by peer and owner: of this node all peers are to have them, of
        #: another one its leader.
        self._unconfirmed: dict[str, dict[str, KeyMap[None]]] = {
            peer: {self.name: KeyMap()} for peer in leadership.peers
        }
        #: The leader that replicas were compared with last, and when that began, by owner.
        self._compared: dict[str, tuple[tuple[str, int, str] | None, float]] = {}
        #: Replicas that this node delivers in their owner's place once others have answered what they have of them.
        self._takeover = TakeoverSync(leadership)
        #: Replicas that are to be looked for among what is finished before any of these are delivered, by owner.
        self._unscanned: dict[str, deque[KeyRange]] = {}
        #: What of its own it has stated last, and when it has sent all statements.
        self._sent_checkpoints: tuple[dict[str, Any], float] = {}, -1e9
        #: Own messages on their way to a peer as they were stored, by the first key; and since when.
        self._in_flight: dict[str, dict[str, tuple[Sequence[str], float]]] = {peer: {} for peer in leadership.peers}
        #: What of `remote_acks` a peer has not confirmed to know, by peer and owner.
        self._unconfirmed_acks: dict[str, dict[str, KeyMap[None]]] = {
            peer: defaultdict(KeyMap) for peer in leadership.peers
        }
        #: What a peer was asked or sent by itself, and when.
        self._asked: dict[str, dict[str, float]] = {peer: {} for peer in leadership.peers}
        #: What producers wait for.
        self._pending = PendingReplication()

    def load(self, own: Stored, held: Mapping[str, Stored], remote_acks: Iterable[tuple[str, str]]) -> None:
        """Takes what the store has."""
        for keys, position in own:
            self.own.add(keys, position)
        for owner, stored in held.items():
            maps = self.held[owner] = PositionMap()
            for keys, position in stored:
                maps.add(keys, position)
        for owner, key in remote_acks:
            self._add_remote_ack(owner, key, self._unconfirmed_acks)
        self.actions.clear()  # they are kept already
        for peer in self.leadership.peers:
            self._replicate_all(peer)

    def _replicate_all(self, peer: str) -> None:
        """Has a peer asked about all messages of this node, those that it has got back from others among them."""
        if self._replicas:
            self._unconfirmed[peer][self.name] = keys_in(self._position_maps(self.name))

    def _position_maps(self, owner: str) -> list[PositionMap]:
        """Returns where messages of an owner may be."""
        own = [self.own] if owner == self.name else []
        return [*own, *filter(None, [self.held.get(owner)])]

    def positions(self, origin: str, keys: Iterable[str]) -> list[int]:
        """Returns where messages are, as far as they are here."""
        keys = Keys.of(keys)
        return [place for maps in self._position_maps(origin) for place in maps.positions(keys)]

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
        return self._pending.until()

    def delivers(self, owner: str, now: float) -> bool:
        """Returns whether this node may give messages of a queue to consumers."""
        if owner in self._unscanned:
            return False
        return self.leadership.delivers(owner, now) and self._takeover.is_complete(owner, now)

    # ------------------------------------------------------------------ messages

    def produced(self, keys: Sequence[str], position: int, now: float) -> None:
        """Takes messages of producers that are stored, the first of them at *position*, the others after it."""
        keys = Keys.of(keys)
        self.own.add(keys, position)
        if not self._replicas:
            self.actions.append(Answer(keys, True))
            return
        self._pending.add(keys, now + self._replication_timeout)
        for peer, unconfirmed in self._unconfirmed.items():
            if self.leadership.alive(peer, now):
                self._in_flight[peer][keys[0]] = keys, now
                self.actions.append(Replica(peer, self.name, keys))
            else:
                unconfirmed[self.name].put(keys, None)

    def produced_again(self, key: str, now: float) -> None:
        """Takes the repetition of a message that is stored, and not finished."""
        if key not in self._pending:  # else the answer is on its way
            for peer in self._in_flight:
                self._requeue_in_flight(peer)
            having = {peer for peer, unconfirmed in self._unconfirmed.items() if key not in unconfirmed[self.name]}
            self._pending.add([key], now + self._replication_timeout, having)
        self._answer(now)

    def _requeue_in_flight(self, peer: str, before: float = 1e18) -> None:
        """Notes one by one the messages that are on their way to a peer since before a time."""
        in_flight, own = self._in_flight[peer], self.own
        for first, (keys, when) in [one for one in in_flight.items() if one[1][1] < before]:
            del in_flight[first]
            left = Keys([run for run, _ in own.find(keys)])
            self._unconfirmed[peer][self.name].put(left, None)
            self._asked[peer].update(dict.fromkeys(left, when))

    def unsent(self, peer: str, keys: Sequence[str]) -> None:
        """Takes messages that could not be sent to a peer as they were stored: it is asked about them soon."""
        del self._in_flight[peer][keys[0]]
        self._unconfirmed[peer][self.name].put(keys, None)

    def _send(self, peer: str, origin: str, keys: Sequence[str], now: float) -> None:
        self._asked[peer].update(dict.fromkeys(keys, now))
        self.actions.append(Replica(peer, origin, keys))

    def wanted(self, origin: str, keys: Sequence[str]) -> Sequence[str]:
        """Returns which of the replicas that have come are to be stored; the others are answered as if they were."""
        keys, held = Keys.of(keys), self.held.get(origin)
        if origin != self.name and not (
            self.remote_acks or self.acked.find(origin, keys) or (held and held.find(keys))
        ):
            return keys
        return Keys.of(self._classify(origin, keys)["want"])

    def stored(self, origin: str, keys: Sequence[str], position: int, now: float) -> None:
        """Takes replicas that are stored, the first of them at *position*, the others after it."""
        keys = Keys.of(keys)
        if origin not in self.held:
            self.held[origin] = PositionMap()
        self.held[origin].add(keys, position)
        self._takeover.add(origin, keys, now)
        if origin == self.name and self._replicas:
            for unconfirmed in self._unconfirmed.values():
                unconfirmed[self.name].put(keys, None)
        # Consumers may have finished some of them while the store was at it.
        if late := [key for run in self.acked.find(origin, keys) for key in run.texts()]:
            self._finish(late)
        if self.remote_acks and (late := [key for key in keys if key in self.remote_acks]):
            self._finish(late)

    def replicated(self, peer: str, keys: Sequence[str], now: float) -> None:
        """Takes a peer's acknowledgement of replicas."""
        keys = Keys.of(keys)
        in_flight, asked = self._in_flight[peer], self._asked[peer]
        first = keys[0]
        if first in in_flight and in_flight[first][0] == keys:
            del in_flight[first]
            new = keys
        else:
            mine = self._unconfirmed[peer][self.name]
            if in_flight and sum(run.end - run.first for run, _ in mine.find(keys)) < len(keys):
                self._requeue_in_flight(peer)
            for key in keys:
                asked.pop(key, None)
            new = Keys([run for run, _ in mine.find(keys)])
        for unconfirmed in self._unconfirmed[peer].values():
            unconfirmed.take(keys)
        if new and self._pending.has(peer, new):
            self._answer(now)
        if len(asked) <= MAX_BATCH_KEYS // 2:
            self._push(peer, now)

    def _answer(self, now: float) -> None:
        """Answers producers whose messages are replicated."""
        if self.leadership.sees_majority(now):
            self._answered(self._pending.enough(self._replicas), done=True)

    def expire(self, now: float) -> None:
        """Answers those producers whose time is up."""
        self._answered(self._pending.expired(now), done=False)

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
                    self._add_remote_ack(origin, key, self._unconfirmed_acks)
        self._drop(origin, keys)
        self.acked.add(keys)
        self._broadcast("REMOVES", keys=list(keys))

    def lost(self, origin: str, keys: Iterable[str]) -> None:
        """Takes messages that the store cannot read: others may have them."""
        keys = Keys.of(keys)
        for maps in self._position_maps(origin):
            maps.take(keys)
        self._stop_asking(origin, keys)
        for peer in self.leadership.peers if origin == self.name else [origin]:
            for begin in range(0, len(keys), MAX_BATCH_KEYS):
                self._send_to("TOLD", peer, origin, {"want": keys[begin : begin + MAX_BATCH_KEYS]})

    def _add_remote_ack(self, origin: str, key: str, uninformed: Iterable[str]) -> None:
        self.remote_acks[key] = origin
        for peer in uninformed:
            self._unconfirmed_acks[peer][origin].put([key], None)
        self.actions.append(RecordRemoteAck(origin, key))

    def _drop(self, owner: str, keys: Keys) -> None:
        """Has nothing wait for messages that are finished."""
        self._stop_asking(owner, keys)
        self._answered(self._pending.drop(keys), done=True)  # they need no replica any more

    def _stop_asking(self, owner: str, keys: Keys) -> None:
        for by_owner in self._unconfirmed.values():
            if unconfirmed := by_owner.get(owner):
                unconfirmed.take(keys)
        self._takeover.drop(keys)

    def _finish(self, keys: Sequence[str]) -> None:
        """Drops messages, and remembers that they are finished."""
        keys = Keys.of(keys)
        self._remove(keys)
        self.acked.add(keys)

    def _remove(self, keys: Keys) -> None:
        """Removes messages that are finished."""
        for owner, maps in [(self.name, self.own), *self.held.items()]:
            if gone := maps.take_positions(keys):
                self._drop(owner, Keys.of(gone))
                self.actions.append(RecordAcks(owner, gone))

    # ------------------------------------------------------------------ what comes

    def receive(self, kind: str, body: Any, now: float) -> None:
        """Takes a message of another node (see `omq.pzq.cluster` for all kinds).

        Raises:
            ValueError: It is malformed, or not from a node of this cluster.
            OlderCopy: The sender's directory, or that of this node, is an older copy.
        """
        if not isinstance(body, dict) or (sender := str(body.get("from"))) not in self.leadership.peers:
            raise ValueError(
                f"{kind} is not from one of nodes: the sender has another name for itself, or another port"
            )
        match kind:
            case "KALV":
                self._receive_keep_alive(sender, body, now)
            case "DONE":
                self.receive_checkpoints(parse_checkpoints(body.get("stated")))
            case "REMOVES":
                self._finish(_keys_of(body, "keys"))
            case "ASK" | "TOLD" | "GONE":
                self._receive_directed(kind, sender, body, now)
            case _:
                raise ValueError("the kind of message is unknown")

    def _receive_keep_alive(self, peer: str, state: dict[str, Any], now: float) -> None:
        if self.leadership.receive(peer, state, now):
            self.actions.append(Restarted(peer))
            self._requeue_in_flight(peer)
            self._asked[peer].clear()
            self._replicate_all(peer)  # its disk may be another one, or have lost something
            self._sent_checkpoints = {}, -1e9  # it has nothing yet
        self._update_leaders(now)

    def receive_checkpoints(self, statements: Checkpoints) -> None:
        """Takes owners' statements of their settled messages."""
        known = {owner: stated for owner, stated in statements.items() if owner in self.leadership.nodes}
        for owner in self.acked.merge(known, self.name):
            self._begin_scan(owner)

    def _receive_directed(self, kind: str, sender: str, body: dict[str, Any], now: float) -> None:
        lists = {name: _keys_of(body, name) for name in ("keys", "have", "want", "gone")}
        if body.get("to") != self.name:
            return
        if (origin := str(body.get("origin"))) not in self.leadership.nodes:
            raise ValueError(f"{kind} is of {origin!r}, which is not a node of this cluster")
        if body.get("incarnation") != self.leadership.peers[sender].incarnation:
            return  # one that is over may have sent what does not hold any more
        if kind == "ASK":
            self._send_to("TOLD", sender, origin, self._classify(origin, lists["keys"]))
        elif kind == "GONE":
            self._receive_gone(sender, origin, lists["keys"])
        else:
            self._receive_answer(sender, origin, lists, now)

    def _classify(self, origin: str, keys: Sequence[str]) -> dict[str, list[str]]:
        """Returns which messages this node has, which it wants, and which it has as finished."""
        views: dict[str, list[str]] = {"have": [], "want": [], "gone": []}
        runs, mine = Keys.of(keys), origin == self.name
        gone = {key for run in self.acked.find(origin, runs) for key in run.texts()}
        have = {key for maps in self._position_maps(origin) for run, _ in maps.find(runs) for key in run.texts()}
        for key in keys:
            if key in self.remote_acks or key in gone:
                views["gone"].append(key)
            elif key in have:
                views["have"].append(key)
            else:
                views["gone" if mine and self._is_mine(key) else "want"].append(key)
        return views

    def _receive_gone(self, sender: str, origin: str, keys: list[str]) -> None:
        """Takes messages of another node that consumers of the sender have finished."""
        self._finish(keys)
        if origin != self.name:
            # The owner may come back when the sender, which has it, does not.
            uninformed = [origin] if origin != sender else []
        else:
            # Where the owner has lost its disk, others may bring it these messages yet.
            uninformed = [peer for peer in self.leadership.peers if peer != sender]
        for key in keys if uninformed else ():
            if key not in self.remote_acks and not (origin == self.name and self._is_mine(key)):
                self._add_remote_ack(origin, key, uninformed)
        self._send_to("TOLD", sender, origin, {"gone": keys})

    def _receive_answer(self, sender: str, origin: str, lists: dict[str, list[str]], now: float) -> None:
        asked = self._asked[sender]
        told = [key for keys in lists.values() for key in keys]
        if compares := self._takeover.answered(origin, sender, told, now) and origin != self.name:
            for key in (*lists["have"], *lists["want"]):
                asked.pop(key, None)
        elif lists["have"]:
            self.replicated(sender, lists["have"], now)
        gone: list[str] = []
        for key in lists["gone"]:
            asked.pop(key, None)
            if key in self.remote_acks:
                self._confirm_remote_ack(sender, key)
            else:
                gone.append(key)
        if mine := [key for key in gone if key in self.own]:
            self._broadcast("REMOVES", keys=mine)
        self._finish(gone)
        here = self._position_maps(origin)
        if not compares and (wanted := [key for key in lists["want"] if any(key in maps for maps in here)]):
            self._send(sender, origin, wanted, now)
        self._push(sender, now)
        self._update_leaders(now)

    def _confirm_remote_ack(self, peer: str, key: str) -> None:
        """Notes that a peer has an acknowledgement in an owner's place."""
        owner = self.remote_acks[key]
        self._unconfirmed_acks[peer][owner].take([key])
        if not any(key in by_owner[owner] for by_owner in self._unconfirmed_acks.values()):
            del self.remote_acks[key]
            self.actions.append(ForgetRemoteAck(key))

    # ------------------------------------------------------------------ what is to be sent

    def tick(self, now: float) -> None:
        """To be called ten times a timeout."""
        self.expire(now)
        self._update_leaders(now)
        for peer in self._in_flight:
            self._requeue_in_flight(peer, now - self.leadership.timeout)
        for asked in self._asked.values():  # what was not answered is asked again
            for key in [key for key, when in asked.items() if now - when > self.leadership.timeout]:
                del asked[key]
        for owner in self.held:
            if owner != self.name:
                self._compare(owner, now)
        self._scan()
        for peer in self.leadership.alive_peers(now):
            self._push(peer, now)
        self._keep_alive(now)
        self._send_checkpoints(now)

    def _send_checkpoints(self, now: float) -> None:
        """Sends what is finished: its own soon, that of all after a while."""
        before, when = self._sent_checkpoints
        if now - when >= ROUND_TIMEOUTS * self.leadership.timeout:
            mine, told = self.acked.to_json([self.name]), self.acked.to_json()
            self._sent_checkpoints = mine, now
        else:
            mine = told = self.acked.to_json([self.name])
            if mine == before:
                return
            self._sent_checkpoints = mine, when
        if told:
            self._broadcast("DONE", stated=told)

    def _update_leaders(self, now: float) -> None:
        was = self.leadership.snapshot()
        if self.leadership.update_leaders(now, self.holds(), self._is_settled):
            self.actions.append(Persist(was))
            self._keep_alive(now)
        for owner in self.leadership.nodes:
            begun = self._takeover.update(owner, self._position_maps(owner), now)
            if begun:
                self._begin_scan(owner)
            for peer in begun:
                self._push(peer, now)

    def _begin_scan(self, owner: str) -> None:
        """Begins to drop those of an owner's messages here that are finished."""
        # A `REMOVES` that did not arrive, a node that was away: it has them still, and their sender may be gone. An
        # owner has them still where its disk is as it was before.
        if runs := [
            *self.acked.find_in_checkpoints(
                owner, (run for maps in self._position_maps(owner) for run, _ in maps.runs())
            )
        ]:
            self._unscanned[owner] = deque(runs)

    def _scan(self) -> None:
        """Drops some replicas that are finished, within `SCAN_LIMIT`."""
        left = SCAN_LIMIT
        for owner, runs in list(self._unscanned.items()):
            due: list[KeyRange] = []
            while runs and left > 0:
                left -= runs[0].end - runs[0].first
                due.append(runs.popleft())
            self._remove(Keys(due))
            if not runs:
                del self._unscanned[owner]

    def _is_settled(self, owner: str) -> bool:
        return not self._unconfirmed_acks[owner][owner]

    def _compare(self, owner: str, now: float) -> None:
        """Has the leader of an owner's queue asked about all its replicas; another one at once, the same again."""
        leader = self.leadership.leader_epoch(owner)[1]
        peer = self.leadership.peers.get(leader)
        it = None if peer is None else (leader, peer.incarnation, peer.store)
        before, when = self._compared.get(owner, (None, 0.0))
        if it == before and (
            peer is None
            or self._unconfirmed[leader].get(owner)
            or now - when < ROUND_TIMEOUTS * self.leadership.timeout
        ):
            return
        self._compared[owner] = it, now
        for unconfirmed in self._unconfirmed.values():
            unconfirmed.pop(owner, None)
        if peer is not None:
            self._unconfirmed[leader][owner] = keys_in([self.held[owner]])

    def _push(self, peer: str, now: float) -> None:
        """Asks a peer about what it may lack, and sends it what is finished; some of it at a time."""
        if not self.leadership.alive(peer, now):
            return
        asked = self._asked[peer]
        again = now - self.leadership.timeout / 4
        lists: list[tuple[str, str, Iterable[str]]] = [
            *(("ASK", *one) for one in (*self._unconfirmed[peer].items(), *self._takeover.keys_to_ask(peer))),
            *(("GONE", *one) for one in self._unconfirmed_acks[peer].items()),
        ]
        for kind, origin, keys in lists:
            if due := [key for key in islice(keys, MAX_BATCH_KEYS) if asked.get(key, -1e9) < again]:
                asked.update(dict.fromkeys(due, now))
                self._send_to(kind, peer, origin, {"keys": due})

    def _send_to(self, kind: str, to: str, origin: str, lists: dict[str, Any]) -> None:
        self._broadcast(kind, incarnation=self.leadership.incarnation, to=to, origin=origin, **lists)

    def _keep_alive(self, now: float) -> None:
        self._broadcast("KALV", **self.leadership.keep_alive(now, self.holds()))

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
