"""A node of a cluster as a sans-I/O state machine."""

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

#: Keys of one question, and messages that are sent to a peer again at once.
MAX_BATCH_KEYS: Final = 256
#: Finished replicas that are dropped at a tick, about.
SCAN_LIMIT: Final = 16_384
#: Timeouts after which all checkpoints are sent, and replicas compared, again.
ROUND_TIMEOUTS: Final = 2.0

Stored = Iterable[tuple[Sequence[str], int]]  # keys, and the position of the first message; the others follow it


class Node:
    """The state machine of one node. Its methods take events; `actions` collects the actions to carry out, in order.

    Args:
        leadership: The leaders of the queues.
        replicas: The peers that must have a message before its producer gets a positive answer.
        replication_timeout: Seconds that a producer waits for replicas.
        is_mine: Returns whether a message was stored in the store that this node has now.

    Attributes:
        own: The positions of this node's own unfinished messages, by key.
        held: The positions of replicas, by owner and key; after a lost disk those of this node's messages, too.
        remote_acks: The owners of messages that were acknowledged here, by key.
        acked: The messages that it knows as finished.
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
        #: Messages that a peer has not confirmed, by peer and owner: all peers confirm this node's messages, and
        #: the leader of a queue those of another owner.
        self._unconfirmed: dict[str, dict[str, KeyMap[None]]] = {
            peer: {self.name: KeyMap()} for peer in leadership.peers
        }
        #: The leader that replicas were last compared with, and the time of the start, by owner.
        self._compared: dict[str, tuple[tuple[str, int, str] | None, float]] = {}
        #: The comparisons before this node delivers the queue of another owner.
        self._takeover = TakeoverSync(leadership)
        #: Finished replicas that must be dropped before the queue is delivered, by owner.
        self._unscanned: dict[str, deque[KeyRange]] = {}
        #: Its own checkpoints as it last sent them, and the time at which it last sent all checkpoints.
        self._sent_checkpoints: tuple[dict[str, Any], float] = {}, -1e9
        #: Own messages that were sent to a peer when they were stored, by the first key, with the time.
        self._in_flight: dict[str, dict[str, tuple[Sequence[str], float]]] = {peer: {} for peer in leadership.peers}
        #: Remote acks that a peer has not confirmed, by peer and owner.
        self._unconfirmed_acks: dict[str, dict[str, KeyMap[None]]] = {
            peer: defaultdict(KeyMap) for peer in leadership.peers
        }
        #: The time of the last question or replica for a key, by peer.
        self._asked: dict[str, dict[str, float]] = {peer: {} for peer in leadership.peers}
        #: Messages whose producers wait for replicas.
        self._pending = PendingReplication()

    def load(self, own: Stored, held: Mapping[str, Stored], remote_acks: Iterable[tuple[str, str]]) -> None:
        """Loads the content of the store."""
        for keys, position in own:
            self.own.add(keys, position)
        for owner, stored in held.items():
            positions = self.held[owner] = PositionMap()
            for keys, position in stored:
                positions.add(keys, position)
        for owner, key in remote_acks:
            self._add_remote_ack(owner, key, self._unconfirmed_acks)
        self.actions.clear()  # the remote acks are stored already
        for peer in self.leadership.peers:
            self._replicate_all(peer)

    def _replicate_all(self, peer: str) -> None:
        """Marks all messages of this node as unconfirmed by a peer, including those that came back from others."""
        if self._replicas:
            self._unconfirmed[peer][self.name] = keys_in(self._position_maps(self.name))

    def _position_maps(self, owner: str) -> list[PositionMap]:
        """Returns the maps that may have messages of an owner."""
        own = [self.own] if owner == self.name else []
        return [*own, *filter(None, [self.held.get(owner)])]

    def positions(self, origin: str, keys: Iterable[str]) -> list[int]:
        """Returns the positions of those messages that are stored here."""
        keys = Keys.of(keys)
        return [position for positions in self._position_maps(origin) for position in positions.positions(keys)]

    def holds(self) -> dict[str, int]:
        """Returns the number of replicas by owner."""
        return {owner: len(keys) for owner, keys in self.held.items() if keys}

    def replicas(self) -> int:
        """Returns the number of replicas of other nodes' messages."""
        return sum(len(keys) for owner, keys in self.held.items() if owner != self.name)

    def recovered(self) -> int:
        """Returns the number of its own messages that came back from others."""
        return len(self.held.get(self.name, ()))

    def waits(self) -> float | None:
        """Returns the first deadline of a waiting producer; `None` without one."""
        return self._pending.until()

    def delivers(self, owner: str, now: float) -> bool:
        """Returns whether this node may deliver messages of a queue."""
        if owner in self._unscanned:
            return False
        return self.leadership.delivers(owner, now) and self._takeover.is_complete(owner, now)

    # ------------------------------------------------------------------ messages

    def produced(self, keys: Sequence[str], position: int, now: float) -> None:
        """Records stored messages of producers, the first of them at *position*, the others after it."""
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
        """Handles a repeated message that is stored and not finished."""
        if key not in self._pending:  # else its answer is still pending
            for peer in self._in_flight:
                self._requeue_in_flight(peer)
            having = {peer for peer, unconfirmed in self._unconfirmed.items() if key not in unconfirmed[self.name]}
            self._pending.add([key], now + self._replication_timeout, having)
        self._answer(now)

    def _requeue_in_flight(self, peer: str, before: float = 1e18) -> None:
        """Marks messages that were sent to a peer before a time as unconfirmed."""
        in_flight, own = self._in_flight[peer], self.own
        for first, (keys, when) in [one for one in in_flight.items() if one[1][1] < before]:
            del in_flight[first]
            left = Keys([range_ for range_, _ in own.find(keys)])
            self._unconfirmed[peer][self.name].put(left, None)
            self._asked[peer].update(dict.fromkeys(left, when))

    def unsent(self, peer: str, keys: Sequence[str]) -> None:
        """Handles messages that could not be sent to a peer when they were stored: it will be asked about them."""
        del self._in_flight[peer][keys[0]]
        self._unconfirmed[peer][self.name].put(keys, None)

    def _send(self, peer: str, origin: str, keys: Sequence[str], now: float) -> None:
        self._asked[peer].update(dict.fromkeys(keys, now))
        self.actions.append(Replica(peer, origin, keys))

    def wanted(self, origin: str, keys: Sequence[str]) -> Sequence[str]:
        """Returns those of the received replicas that must be stored. The others are acknowledged and dropped."""
        keys, held = Keys.of(keys), self.held.get(origin)
        if origin != self.name and not (
            self.remote_acks or self.acked.find(origin, keys) or (held and held.find(keys))
        ):
            return keys
        return Keys.of(self._classify(origin, keys)["want"])

    def stored(self, origin: str, keys: Sequence[str], position: int, now: float) -> None:
        """Records stored replicas, the first of them at *position*, the others after it."""
        keys = Keys.of(keys)
        if origin not in self.held:
            self.held[origin] = PositionMap()
        self.held[origin].add(keys, position)
        self._takeover.add(origin, keys, now)
        if origin == self.name and self._replicas:
            for unconfirmed in self._unconfirmed.values():
                unconfirmed[self.name].put(keys, None)
        # Consumers may have finished some of them during the write.
        if late := [key for range_ in self.acked.find(origin, keys) for key in range_.texts()]:
            self._finish(late)
        if self.remote_acks and (late := [key for key in keys if key in self.remote_acks]):
            self._finish(late)

    def replicated(self, peer: str, keys: Sequence[str], now: float) -> None:
        """Handles a peer's acknowledgement of replicas."""
        keys = Keys.of(keys)
        in_flight, asked = self._in_flight[peer], self._asked[peer]
        first = keys[0]
        if first in in_flight and in_flight[first][0] == keys:
            del in_flight[first]
            new = keys
        else:
            mine = self._unconfirmed[peer][self.name]
            if in_flight and sum(range_.end - range_.first for range_, _ in mine.find(keys)) < len(keys):
                self._requeue_in_flight(peer)
            for key in keys:
                asked.pop(key, None)
            new = Keys([range_ for range_, _ in mine.find(keys)])
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
        """Answers the producers whose deadline is over."""
        self._answered(self._pending.expired(now), done=False)

    def _answered(self, keys: Keys, *, done: bool) -> None:
        if keys:
            self.actions.append(Answer(keys, done))

    def consumed(self, origin: str, keys: Sequence[str]) -> None:
        """Handles messages that consumers have finished here."""
        keys = Keys.of(keys)
        if origin == self.name:
            self.own.take(keys)
        if origin in self.held:
            for range_, _ in self.held[origin].take(keys):
                for key in range_.texts():
                    self._add_remote_ack(origin, key, self._unconfirmed_acks)
        self._drop(origin, keys)
        self.acked.add(keys)
        self._broadcast("REMOVES", keys=list(keys))

    def lost(self, origin: str, keys: Iterable[str]) -> None:
        """Handles messages that the store cannot read, and requests them from others."""
        keys = Keys.of(keys)
        for positions in self._position_maps(origin):
            positions.take(keys)
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
        """Ends all waiting for messages that are finished."""
        self._stop_asking(owner, keys)
        self._answered(self._pending.drop(keys), done=True)  # they need no replica any more

    def _stop_asking(self, owner: str, keys: Keys) -> None:
        for by_owner in self._unconfirmed.values():
            if unconfirmed := by_owner.get(owner):
                unconfirmed.take(keys)
        self._takeover.drop(keys)

    def _finish(self, keys: Sequence[str]) -> None:
        """Marks messages as finished, and removes them."""
        keys = Keys.of(keys)
        self._remove(keys)
        self.acked.add(keys)

    def _remove(self, keys: Keys) -> None:
        """Removes messages that are finished."""
        for owner, positions in [(self.name, self.own), *self.held.items()]:
            if gone := positions.take_positions(keys):
                self._drop(owner, Keys.of(gone))
                self.actions.append(RecordAcks(owner, gone))

    # ------------------------------------------------------------------ messages of other nodes

    def receive(self, kind: str, body: Any, now: float) -> None:
        """Handles a message of another node (see `omq.pzq.cluster` for all kinds).

        Raises:
            ValueError: The message is malformed, or its sender is not a node of this cluster.
            StaleDirectory: The directory of the sender, or of this node, is an older copy.
        """
        if not isinstance(body, dict) or (sender := str(body.get("from"))) not in self.leadership.peers:
            raise ValueError(f"{kind} is not from one of the nodes: the sender uses another name or port for itself")
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
            self._replicate_all(peer)  # its disk may be new, or have lost messages
            self._sent_checkpoints = {}, -1e9  # it has no checkpoints yet
        self._update_leaders(now)

    def receive_checkpoints(self, checkpoints: Checkpoints) -> None:
        """Handles ack checkpoints of owners."""
        known = {owner: own for owner, own in checkpoints.items() if owner in self.leadership.nodes}
        for owner in self.acked.merge(known, self.name):
            self._begin_scan(owner)

    def _receive_directed(self, kind: str, sender: str, body: dict[str, Any], now: float) -> None:
        lists = {name: _keys_of(body, name) for name in ("keys", "have", "want", "gone")}
        if body.get("to") != self.name:
            return
        if (origin := str(body.get("origin"))) not in self.leadership.nodes:
            raise ValueError(f"{kind} is of {origin!r}, which is not a node of this cluster")
        if body.get("incarnation") != self.leadership.peers[sender].incarnation:
            return  # the answer is for an earlier incarnation
        if kind == "ASK":
            self._send_to("TOLD", sender, origin, self._classify(origin, lists["keys"]))
        elif kind == "GONE":
            self._receive_gone(sender, origin, lists["keys"])
        else:
            self._receive_answer(sender, origin, lists, now)

    def _classify(self, origin: str, keys: Sequence[str]) -> dict[str, list[str]]:
        """Returns the messages that this node has, wants, and knows as finished."""
        views: dict[str, list[str]] = {"have": [], "want": [], "gone": []}
        asked, mine = Keys.of(keys), origin == self.name
        gone = {key for range_ in self.acked.find(origin, asked) for key in range_.texts()}
        have = {
            key
            for positions in self._position_maps(origin)
            for range_, _ in positions.find(asked)
            for key in range_.texts()
        }
        for key in keys:
            if key in self.remote_acks or key in gone:
                views["gone"].append(key)
            elif key in have:
                views["have"].append(key)
            else:
                views["gone" if mine and self._is_mine(key) else "want"].append(key)
        return views

    def _receive_gone(self, sender: str, origin: str, keys: list[str]) -> None:
        """Handles messages that consumers of the sender have finished."""
        self._finish(keys)
        if origin != self.name:
            # The owner may come back while the sender, which has the remote ack, is away.
            uninformed = [origin] if origin != sender else []
        else:
            # If this owner has lost its disk, others may still send it these messages.
            uninformed = [peer for peer in self.leadership.peers if peer != sender]
        for key in keys if uninformed else ():
            if key not in self.remote_acks and not (origin == self.name and self._is_mine(key)):
                self._add_remote_ack(origin, key, uninformed)
        self._send_to("TOLD", sender, origin, {"gone": keys})

    def _receive_answer(self, sender: str, origin: str, lists: dict[str, list[str]], now: float) -> None:
        asked = self._asked[sender]
        answered = [key for keys in lists.values() for key in keys]
        if compares := self._takeover.answered(origin, sender, answered, now) and origin != self.name:
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
        if not compares and (wanted := [key for key in lists["want"] if any(key in positions for positions in here)]):
            self._send(sender, origin, wanted, now)
        self._push(sender, now)
        self._update_leaders(now)

    def _confirm_remote_ack(self, peer: str, key: str) -> None:
        """Handles a peer's confirmation of a remote ack."""
        owner = self.remote_acks[key]
        self._unconfirmed_acks[peer][owner].take([key])
        if not any(key in by_owner[owner] for by_owner in self._unconfirmed_acks.values()):
            del self.remote_acks[key]
            self.actions.append(ForgetRemoteAck(key))

    # ------------------------------------------------------------------ messages to other nodes

    def tick(self, now: float) -> None:
        """Does the periodic work; the driver calls it ten times a timeout."""
        self.expire(now)
        self._update_leaders(now)
        for peer in self._in_flight:
            self._requeue_in_flight(peer, now - self.leadership.timeout)
        for asked in self._asked.values():  # unanswered questions are asked again
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
        """Sends the ack checkpoints: its own when they change, those of all owners every `ROUND_TIMEOUTS`."""
        before, when = self._sent_checkpoints
        if now - when >= ROUND_TIMEOUTS * self.leadership.timeout:
            mine, checkpoints = self.acked.to_json([self.name]), self.acked.to_json()
            self._sent_checkpoints = mine, now
        else:
            mine = checkpoints = self.acked.to_json([self.name])
            if mine == before:
                return
            self._sent_checkpoints = mine, when
        if checkpoints:
            self._broadcast("DONE", stated=checkpoints)

    def _update_leaders(self, now: float) -> None:
        was = self.leadership.snapshot()
        if self.leadership.update_leaders(now, self.holds(), self._has_confirmed):
            self.actions.append(Persist(was))
            self._keep_alive(now)
        for owner in self.leadership.nodes:
            started = self._takeover.update(owner, self._position_maps(owner), now)
            if started:
                self._begin_scan(owner)
            for peer in started:
                self._push(peer, now)

    def _begin_scan(self, owner: str) -> None:
        """Starts dropping an owner's messages that its checkpoints cover."""
        # A node that missed a `REMOVES` still has them, and its sender may be gone. An owner has them after its disk
        # was restored.
        if ranges := [
            *self.acked.find_in_checkpoints(
                owner, (range_ for positions in self._position_maps(owner) for range_, _ in positions.ranges())
            )
        ]:
            self._unscanned[owner] = deque(ranges)

    def _scan(self) -> None:
        """Drops some replicas that are finished, within `SCAN_LIMIT`."""
        left = SCAN_LIMIT
        for owner, ranges in list(self._unscanned.items()):
            due: list[KeyRange] = []
            while ranges and left > 0:
                left -= ranges[0].end - ranges[0].first
                due.append(ranges.popleft())
            self._remove(Keys(due))
            if not ranges:
                del self._unscanned[owner]

    def _has_confirmed(self, owner: str) -> bool:
        return not self._unconfirmed_acks[owner][owner]

    def _compare(self, owner: str, now: float) -> None:
        """Asks the leader of an owner's queue about all replicas: a new leader at once, the same one periodically."""
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
        """Asks a peer about unconfirmed messages, and sends it remote acks, up to `MAX_BATCH_KEYS` at a time."""
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
    """Returns a list of keys from a message; empty if it has none.

    Raises:
        ValueError: The field is not a list of keys.
    """
    try:
        return list(Keys.of(body.get(name, ())))
    except TypeError as wrong:
        raise ValueError(f"{name!r} is not a list of keys: {wrong}") from None
