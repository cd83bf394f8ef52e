"""Runs a device as a node of its cluster."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from omq.pzq.cluster.ack_checkpoints import AckCheckpoints
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
from omq.pzq.cluster.answers import PendingAnswers
from omq.pzq.cluster.keys import Keys, KeysById, StoredAt
from omq.pzq.cluster.leadership import MAX_INCARNATIONS, Known, Leadership, LeaderSnapshot, StaleDirectory
from omq.pzq.cluster.node import Node
from omq.pzq.cluster.node_state import NodeState, NodeStateFile
from omq.pzq.cluster.own_ids import OwnIds
from omq.pzq.cluster.remote_acks import TOPIC as REMOTE_ACKS_TOPIC
from omq.pzq.cluster.remote_acks import Later, RemoteAcks
from omq.pzq.cluster.replica_batch import ReplicaBatch, consecutive_keys, read_replicas
from omq.pzq.cluster.replicas import ReplicaWriter
from omq.pzq.cluster.settings import ClusterSettings
from omq.pzq.cluster.transport import PeerTransport
from omq.pzq.device.producer_server import ProducerRequest, ProducerServer
from omq.pzq.device.queue import DeviceQueue, ReplicaQueue
from omq.pzq.device.stats import DeviceStats
from omq.pzq.errors import Malformed
from omq.pzq.wire import NOT_REPLICATED, REPLICAS
from omq.store.async_store import AsyncStore
from omq.store.interface import Append, MakeTopic, Persistence, TopicState
from omq.types import Security

log = logging.getLogger("omq.pzq")

_SUFFIX: Final[dict[Persistence, str]] = {"strong": "", "weak": ".unsynced"}
_ID_BITS: Final = 64  # of an id in a position
_ID_MASK: Final = (1 << _ID_BITS) - 1


def clock() -> float:
    """Returns monotonic seconds. They include the sleep of the host, during which leases expire."""
    return time.clock_gettime(_CLOCK)


_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class ClusterDriver:
    """Drives a device's `Node`: feeds it events and carries out its actions. Lives in one event loop.

    Args:
        settings: The cluster.
        database: The directory of the store.
        store: The store.
        kind: The persistence of the topics.
        later: Schedules a call in some seconds, unless the device is closed by then.

    Attributes:
        queues: The queues of replicas.
    """

    def __init__(
        self, settings: ClusterSettings, database: Path, store: AsyncStore, kind: Persistence, later: Later
    ) -> None:
        self.queues: list[ReplicaQueue] = []
        self._settings = settings
        self._database = database
        self._file = NodeStateFile(database)
        self._store = store
        self._kind = kind
        self._later = later
        self._transport = PeerTransport(settings, self._receive, self._acked)
        self._keys: dict[int, KeysById] = {}  # by topic
        self._queues: dict[int, DeviceQueue] = {}  # by topic
        self._targets: dict[str, ReplicaQueue] = {}  # by owner, the queue that takes its replicas
        self._just_stored: ReplicaBatch | None = None  # the messages that `_act` may replicate without reading them
        self._finished: dict[str, list[str]] = {}  # by owner, keys of finished messages that the node does not know yet
        self._timer: asyncio.TimerHandle | None = None
        self._replicated = settings.replicas > 0
        self._former: tuple[str, ...] = ()  # earlier names of this node
        self._aside = ""  # the reason why it takes no part in the cluster: its directory is an older copy
        self._acting = False
        self._silent: set[str] = set()  # the silent peers that were logged
        self._refused: set[str] = set()  # peers with an older copy of their directory that were logged
        self._save_failed = False  # and that was logged
        self._taken_back = False  # votes were restored, which later actions of this turn rest on
        self._expiring = False

    # ------------------------------------------------------------------ lifecycle

    async def open(self, own: list[DeviceQueue], delivering: DeviceQueue) -> None:
        """Loads the state of the cluster from the store.

        Args:
            own: The queues of this node's messages.
            delivering: The queue that takes messages of producers.
        """
        store = self._store.store
        self._own = own
        self._producer_queue = delivering
        incarnations, records, known = self._load()
        names = [self._settings.name, *self._settings.peers]
        found = {state.name: state for state in store.topics()}
        for kind, suffix in _SUFFIX.items():
            for name in (*self._former, *names):
                topic = f"replicas{suffix}:{name}"
                if kind == self._kind and name in names:
                    found[topic] = await self._topic(topic, kind)
                if topic in found:
                    queue = ReplicaQueue(self._store, found.pop(topic), self._later)
                    queue.owner = name if name in names else self._settings.name
                    queue.dead_letter_like(delivering)
                    self.queues.append(queue)
                    if kind == self._kind and name in names:
                        self._targets[name] = queue
        for topic, state in found.items():
            if topic.startswith("replicas") and (count := ReplicaQueue(self._store, state, self._later).count()):
                log.warning(
                    "cluster: %d messages of %s are kept, not delivered: it has left this cluster. A node "
                    "under a new name delivers them if it has the directory of the old one",
                    *(count, topic.partition(":")[2]),
                )
        self._remote_acks = RemoteAcks(
            self._store, (await self._topic(REMOTE_ACKS_TOPIC + _SUFFIX[self._kind], self._kind)).id, self._later
        )
        leadership = Leadership(
            self._settings.name,
            self._settings.peers,
            timeout=self._settings.timeout,
            incarnations=incarnations,
            now=clock(),
            store=store.id,
            leaders=records,
            fenced=self._replicated and len(names) > 2,
            known=known,
        )
        self._newest = 0  # the time at which this node's newest message was stored
        self._ids = OwnIds(store, own)
        # Messages that were found damaged in an earlier incarnation are acknowledged in the store.
        for id, first, last in store.stats().damaged:
            for mine in own:
                if mine.id == id and first:
                    mine.lost.add(first, last)
        self._node = Node(
            leadership,
            replicas=self._settings.replicas,
            replication_timeout=self._settings.replication_timeout,
            is_mine=self._is_mine,
        )
        self._writer = ReplicaWriter(self._store, self._node.wanted, self._replicas_stored)
        self._checkpoints = AckCheckpoints(self._database, self._store, self._settings.name, own, self._node.acked)
        stated = self._checkpoints.load()
        for stem, it in stated.get(self._settings.name, {}).items():
            self._ids.discard(stem, it.ranges)  # these came back and were finished
        self._index()
        self._node.receive_checkpoints(stated)
        self._save()

    def _index(self) -> None:
        """Indexes all messages, and subscribes to the events of the queues."""
        store = self._store.store
        held: dict[str, list[tuple[Keys, int]]] = {}
        mine: list[tuple[Keys, int]] = []
        for queue in (*self._own, *self.queues):
            owner = queue.owner if isinstance(queue, ReplicaQueue) else self._settings.name
            self._queues[queue.id] = queue
            numbered = self._keys[queue.id] = KeysById()
            positions = held.setdefault(owner, []) if isinstance(queue, ReplicaQueue) else mine
            for id, keys in queue.live():
                numbered.add(id, keys)
                positions.append((keys, _position_of(queue, id)))
                if positions is mine:
                    self._newest = max([self._newest, *(StoredAt.of(range_.head).stored for range_ in keys.ranges)])
                elif owner == self._settings.name:
                    self._ids.came_back(keys)
            queue.report_to(self._on_finished(queue, owner), self._on_lost(queue, owner))
            queue.save()  # `live` may have found damaged messages
            queue.may_deliver = self._delivery_check(owner)
        remote_acks: list[tuple[str, str]] = []
        for state in store.topics():
            if state.name.startswith(REMOTE_ACKS_TOPIC):
                remote_acks += self._remote_acks.load(state)
        self._node.load(mine, held, remote_acks)

    def start(
        self,
        producer_server: ProducerServer,
        wake: Callable[[], None],
        security: Security | None,
        peer: Security | None,
    ) -> None:
        """Starts the transport and the ticks; raises as `PeerTransport.start`.

        Args:
            producer_server: The server that answers producers.
            wake: Called when messages may have become ready.
            security: The security of the listening socket.
            peer: The security of the connecting sockets.
        """
        self._producer_server = producer_server
        self._answers = PendingAnswers(producer_server.accept)
        self._wake = wake
        self._transport.start(security, peer)
        self._tick()

    def pause(self) -> None:
        """Stops the ticks."""
        if self._timer is not None:
            self._timer.cancel()

    async def close(self) -> None:
        """Waits for the answers of accepted messages, and closes the transport. Idempotent."""
        if hasattr(self, "_producer_server"):
            await self._store.drained()
            while self._node.waits() is not None:
                self._node.expire(clock())
                self._act()
                await asyncio.sleep(0.01)
        self.pause()
        self._pass_on_finished()
        await self._transport.close()
        await self._checkpoints.close()

    def _load(self) -> tuple[list[int], LeaderSnapshot, dict[str, Known]]:
        """Returns the incarnations of the directory, this one last, its votes, and the known peers."""
        now = time.time_ns() // 1000
        kept = self._file.load()
        if kept is None:
            return [now], None, {}
        self._replicated = self._replicated or kept.replicated
        self._former = tuple({*kept.former, kept.name} - {self._settings.name, *self._settings.peers})
        is_same = kept.store == self._store.store.id
        before = kept.incarnations[1 - MAX_INCARNATIONS :] if is_same else ()
        # Votes under an earlier name are for other owners.
        records = kept.records if is_same and kept.name == self._settings.name else None
        return [*before, max(now, kept.incarnations[-1] + 1)], records, kept.known

    def _save(self) -> None:
        """Writes the state file."""
        it = self._node.leadership
        kept = NodeState(
            it.store, it.name, (*it.incarnations,), self._replicated, it.snapshot(), self._former, it.known
        )
        self._file.save(kept)

    async def _topic(self, name: str, kind: Persistence) -> TopicState:
        write = await self._store.do(MakeTopic(name, "round_robin", kind))
        return self._store.store.topic(write.topic_id)

    # ------------------------------------------------------------------ statistics

    def stats(self) -> DeviceStats:
        """Returns the statistics of the cluster."""
        return {
            "replicas": self._node.replicas(),
            "recovered": self._node.recovered(),
            "nodes": len(self._settings.peers) + 1,
            "nodes_alive": len(self._node.leadership.alive_peers(clock())) + 1,
            "aside": self._aside or None,
        }

    def is_own(self, queue: DeviceQueue) -> bool:
        """Returns whether a queue has this node's messages, from its producers or back from replicas."""
        return not isinstance(queue, ReplicaQueue) or queue.owner == self._settings.name

    def _delivery_check(self, owner: str) -> Callable[[], bool]:
        return lambda: not self._aside and self._node.delivers(owner, clock())

    def _is_mine(self, key: str) -> bool:
        if self._ids.is_beyond(key):
            self._stand_aside(f"others have the message {key}, which this directory is too old to have stored")
            return False
        return self._ids.is_mine(key)

    def _stand_aside(self, why: str) -> None:
        """Leaves the cluster: with an older directory this node would reuse ids and break its votes."""
        if not self._aside:
            self._aside = why
            self._transport.stop()
            log.error("cluster: this node delivers and replicates nothing: %s", why)

    # ------------------------------------------------------------------ messages

    def _on_finished(self, queue: DeviceQueue, owner: str) -> Callable[[int], None]:
        keys, came_back = self._keys[queue.id], isinstance(queue, ReplicaQueue) and owner == self._settings.name

        def finished(id: int) -> None:
            key = keys.take(id)
            if key is not None:
                if came_back:
                    self._ids.found(key)
                if not self._finished:
                    asyncio.get_running_loop().call_soon(self._pass_on_finished)
                self._finished.setdefault(owner, []).append(key)

        return finished

    def _on_lost(self, queue: DeviceQueue, owner: str) -> Callable[[int, int], None]:
        numbered = self._keys[queue.id]

        def lost(first: int, last: int) -> None:
            if keys := [key for id in range(first, last + 1) if (key := numbered.take(id)) is not None]:
                self._node.lost(owner, keys)
            queue.save()

        return lost

    def _pass_on_finished(self) -> None:
        """Passes the messages that consumers have finished in this turn to the node."""
        finished, self._finished = self._finished, {}
        for owner, keys in finished.items():
            self._node.consumed(owner, keys)
        self._act()

    def admits(self, remote: str) -> bool:
        """Returns whether a node may connect from an address."""
        return self._settings.admits(remote)

    def stored(self, write: Append, asked: list[ProducerRequest]) -> None:
        """Handles stored messages of producers, which are answered once they are replicated."""
        if self._aside:
            self._producer_server.accept(asked, NOT_REPLICATED.encode())
            return
        queue, now = self._producer_queue, clock()
        if write.duplicate:
            key = self._keys[queue.id].get(write.first)
            if key is None:
                self._producer_server.accept(asked)  # a consumer has finished it
                return
            self._answers.add_repeated(key, asked)
            self._node.produced_again(key, now)
            self._act()
        else:
            keys = consecutive_keys(queue.keys, write.timestamp, write.first, write.count)
            self._keys[queue.id].add(write.first, keys)
            self._newest = max(self._newest, write.timestamp)
            self._answers.add(keys, asked)
            self._just_stored = ReplicaBatch(keys, write.records, False)
            self._node.produced(keys, _position_of(queue, write.first), now)
            self._act()
            self._just_stored = None
        self._await_expiry(now)

    def _await_expiry(self, now: float) -> None:
        if not self._expiring and (until := self._node.waits()) is not None:
            self._expiring = True
            self._later(max(until - now, 0.0) + 0.001, self._expire)

    def _expire(self) -> None:
        self._expiring = False
        now = clock()
        self._node.expire(now)
        self._act()
        self._await_expiry(now)

    def take_replica(self, frames: list[bytes], answer: Callable[[str], None]) -> None:
        """Stores replicas of a node; *answer* is called with the reason of a refusal, or with an empty text."""
        try:
            batches = read_replicas(frames)
            origin = frames[2].removeprefix(REPLICAS).decode()
        except (Malformed, UnicodeDecodeError) as wrong:
            answer(str(wrong))
            return
        if origin not in self._targets or self._aside:
            aside = "this node has no part in the cluster: its directory is an older copy"
            answer(aside if self._aside else f"{origin!r} is not a node of this cluster")
            return
        self._writer.take(origin, self._targets[origin].id, batches, answer)

    def _replicas_stored(self, origin: str, keys: Keys, write: Append) -> None:
        self._producer_server.resume()
        if write.error is None:
            queue = self._targets[origin]
            self._keys[queue.id].add(write.first, keys)
            if origin == self._settings.name:
                self._ids.came_back(keys)
            self._node.stored(origin, keys, _position_of(queue, write.first), clock())
            self._act()

    # ------------------------------------------------------------------ messages of other nodes

    def _receive(self, frames: list[bytes]) -> None:
        kind, body = frames[0].decode(), _read_json(frames[1])
        try:
            if kind == "ASIDE":
                self._refuse(str(body["from"]), str(body["why"]))
            else:
                self._node.receive(kind, body, clock())
        except StaleDirectory as error:
            if error.node == self._settings.name:
                self._stand_aside(str(error))
            else:
                self._refuse(error.node, str(error))
        self._act()
        self._wake()

    def _refuse(self, peer: str, why: str) -> None:
        if peer not in self._refused:
            self._refused.add(peer)
            log.error("cluster: %s has no part in the cluster: %s", peer, why)

    def _restarted(self, peer: str) -> None:
        self._transport.forget(peer)
        self._refused.discard(peer)
        with suppress(OSError):  # on a full disk, an older copy of the peer is not detected later
            self._save()
        leadership = self._node.leadership
        stores = {self._settings.name: leadership.store, **{name: it.store for name, it in leadership.peers.items()}}
        for name, store in stores.items():
            if name != peer and store == stores[peer]:
                log.error(
                    "cluster: %s has a copy of the directory of %s: start each node with its own, empty directory",
                    peer,
                    name,
                )
        timeout = self._node.leadership.peers[peer].timeout
        if timeout != self._settings.timeout:
            log.warning(
                "cluster: %s has --timeout-nodes %.0f, and this node %.0f; set the same on all: the shorter one counts",
                *(peer, timeout * 1e6, self._settings.timeout * 1e6),
            )

    def _acked(self, peer: str, keys: Sequence[str]) -> None:
        self._node.replicated(peer, keys, clock())
        self._act()

    def _tick(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._node.leadership.keep_alive_interval(), self._tick)
        if self._aside:
            self._transport.broadcast("ASIDE", {"from": self._settings.name, "why": self._aside})
            return
        now = clock()
        for peer in self._settings.peers:
            if not self._node.leadership.alive(peer, now):
                self._transport.forget(peer)
            self._log_liveness(peer, now)
        self._checkpoints.tick(self._newest)
        self._node.tick(now)
        self._act()
        self._wake()

    # ------------------------------------------------------------------ actions

    def _act(self) -> None:
        """Carries out the actions of the node."""
        if self._acting:
            return  # called by an action: the loop below carries on
        self._acting = True
        try:
            while self._node.actions:
                actions, self._node.actions = self._node.actions, []
                acked_queues: set[DeviceQueue] = set()
                for action in actions:
                    self._do(action, acked_queues)
                for queue in acked_queues:
                    queue.save()
        finally:
            self._acting = self._taken_back = False

    def _do(self, action: Action, acked_queues: set[DeviceQueue]) -> None:
        match action:
            case Persist(before):
                if not self._taken_back:
                    self._persist(before)
            case Broadcast("TOLD", body):
                self._send_answer(body, acked_queues)
            case Broadcast("KALV", body) if self._taken_back:
                now_stated = self._node.leadership.keep_alive(clock(), self._node.holds())
                self._transport.broadcast("KALV", {**body, **now_stated})
            case Broadcast(kind, body):
                self._transport.broadcast(kind, body)
            case Restarted(peer):
                self._restarted(peer)
            case Replica(peer, origin, keys):
                self._replicate(peer, origin, keys)
            case RecordAcks(_, positions):
                for position in positions.values():
                    queue = self._queues[position >> _ID_BITS]
                    id = position & _ID_MASK
                    # Without a key, a consumer has finished it in this turn.
                    if (found := self._keys[queue.id].take(id)) is not None:
                        queue.discard(id)
                        acked_queues.add(queue)
                        if isinstance(queue, ReplicaQueue) and queue.owner == self._settings.name:
                            self._ids.found(found)
            case RecordRemoteAck(origin, key):
                self._remote_acks.add(origin, key)
            case ForgetRemoteAck(key):
                self._remote_acks.forget(key)
            case Answer(keys, done):
                self._answers.answer(keys, None if done else NOT_REPLICATED.encode())

    def _log_liveness(self, peer: str, now: float) -> None:
        leadership = self._node.leadership
        if peer in self._silent:
            if leadership.alive(peer, now):
                self._silent.discard(peer)
                log.info("cluster: %s is alive", peer)
        elif leadership.silent(peer, now):
            self._silent.add(peer)
            if leadership.peers[peer].incarnation:
                log.info("cluster: %s is silent", peer)
            else:
                log.warning(
                    "cluster: %s has sent nothing yet: is it its --broadcast-dsn, and this node among its --nodes?",
                    peer,
                )

    def _persist(self, before: LeaderSnapshot) -> None:
        leadership = self._node.leadership
        try:
            self._save()
        except OSError as error:
            if not self._save_failed:
                log.error("cluster: cannot write the state of this node, so its votes stay as they were: %s", error)
            self._save_failed = self._taken_back = True
            leadership.restore(before)
        else:
            self._save_failed = False
            log.info("cluster: this node votes for %s", leadership.leaders)

    def _send_answer(self, body: dict[str, Any], acked_queues: set[DeviceQueue]) -> None:
        """Answers a node once the content of the answer is stored."""
        unsaved = [*acked_queues]

        def saved() -> None:
            if unsaved:
                unsaved.pop().when_saved(saved)
            else:
                self._remote_acks.when_stored(lambda: self._transport.broadcast("TOLD", body))

        saved()

    def _replicate(self, peer: str, origin: str, keys: Sequence[str]) -> None:
        """Sends replicas, unless too many wait for the peer already."""
        if (batch := self._just_stored) is not None and batch.keys is keys:
            if self._transport.has_room(peer):
                self._transport.replicate(peer, origin, batch)
            else:
                self._node.unsent(peer, keys)
            return
        ids: dict[int, list[int]] = defaultdict(list)
        for position in self._node.positions(origin, keys):
            ids[position >> _ID_BITS].append(position & _ID_MASK)
        for topic, numbers in ids.items():
            for batch in self._queues[topic].batches(numbers):
                if not self._transport.has_room(peer):
                    return
                self._transport.replicate(peer, origin, batch)


def _position_of(queue: DeviceQueue, id: int) -> int:
    """Returns the position of a message: topic and id in one number. Consecutive ids have consecutive positions."""
    return queue.id << _ID_BITS | id


def _read_json(frame: bytes) -> Any:
    try:
        return json.loads(frame)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None
