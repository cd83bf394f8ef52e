"""The core of a broker: its topics, independent of the servers that clients connect to."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
import os
import shutil
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar, get_args

from omq._core.blocks import Message
from omq._version import __version__
from omq.broker.core.broadcast import BroadcastTopic, TopicSubscription
from omq.broker.core.latency import LatencyHistogram
from omq.broker.core.permissions import ANY_CLIENT, Permission, Permissions
from omq.broker.core.requeue import RequeueBatch
from omq.broker.core.round_robin import FollowedQueue, RoundRobinTopic
from omq.broker.core.sink import ClientInfo, Sink, client_fields, client_text
from omq.broker.core.stats import BrokerStats, ClusterStats, EnvironmentStats, StoreStats, TopicStats
from omq.broker.core.topic import HeldBytes, Publication, Topic, TopicAdmission, check_waiting
from omq.broker.core.topic_consumer import TopicConsumer
from omq.broker.core.user_limits import UserLimit, UserLimits
from omq.broker.errors import BrokerError, Damaged, Overrun, TopicError, broker_error
from omq.broker.protocol import DEFAULT_ACK_TIMEOUT_S, DEFAULT_PREFETCH, check_name
from omq.broker.settings import (
    SETTINGS,
    InvalidSetting,
    alter_settings,
    check_topic,
    dead_letter_cycle,
    dead_letter_of,
    default_dead_letter,
    describe_cycle,
)
from omq.broker.start_time import StartTime
from omq.event import HandshakeFailure
from omq.serving.extras import missing_extra
from omq.store.async_store import AsyncStore
from omq.store.dead_letters import TOPIC_HEADER
from omq.store.errors import TopicFull, UnknownTopic
from omq.store.interface import (
    AlterTopic,
    Appended,
    CommitStages,
    DeleteTopic,
    MakeTopic,
    Notify,
    Persistence,
    Requeue,
    Stats,
    Store,
    TopicState,
    Write,
)
from omq.store.memory import MemoryStore

if TYPE_CHECKING:
    from omq.broker.core.broker_member import BrokerMember

log = logging.getLogger("omq.broker")

_Write = TypeVar("_Write", bound=Write)
AcceptFailure: TypeAlias = Literal["max_connections", "descriptors", "other"]

#: The approximate size of each stage of a commit that waits for room, without its name.
_STAGE_OVERHEAD_BYTES: Final = 64
#: Seconds after which a batch of dead letters ends that moves one at a time, between engines of the store.
_MOVE_SLICE_S: Final = 1.0
#: A follower compares its topics with those of the store after this many times as long as that took.
_FOLLOW_FACTOR: Final = 20.0
#: Seconds until a leader whose lease is over checks whether it may deliver again.
_LEASE_CHECK_INTERVAL_S: Final = 0.02
#: Seconds of delivering before the loop serves its connections.
_DELIVERY_SLICE_S: Final = 0.004


class Broker:
    """The topics and their readers. Lives in one event loop; all calls come from its thread.

    The servers check permissions before they call, and count connections, refusals and failed handshakes.

    Args:
        directory: The directory of the store; `None` keeps everything in memory.
        permissions: The grants; empty allows everything.
        user_limits: The limits of users; empty for no limits.
        flush_interval: Seconds between two flushes of weak topics.
        member: This broker as a member of a cluster; `None`: it is in none.

    Attributes:
        topics: All topics by name.
        permissions: The permissions in force.
        user_limits: The limits in force, and the usage of each user.
        refused: The number of requests that were answered with an error, by its code.
        handshake_failures: The number of clients whose handshake failed, by the kind of failure.
        accepts_failed: The number of connections that could not be accepted, by server and reason.
        connections: The number of connections by server.
        max_connections: The maximum number of connections by server.
        publish_latency: The durations from the arrival of publications to their answers, by persistence.
        endpoints: The endpoints by server.
        store: The store.
        listing_lock: Held while all topics are listed.
        held: The memory of the publications that wait for room in all topics.
        ended: The broker has stopped or is stopping, or another core has taken its place.
        member: As the argument.
        leads: True unless this is the core of a follower of a cluster, which only serves reads.
        loop: The event loop, once the broker was started.
    """

    def __init__(
        self,
        directory: str | Path | None,
        *,
        permissions: Iterable[Permission] = (),
        user_limits: Iterable[UserLimit] = (),
        flush_interval: float = 1.0,
        member: BrokerMember | None = None,
    ) -> None:
        self.permissions = Permissions(permissions)
        self.user_limits = UserLimits(user_limits)
        self.refused: dict[str, int] = {}
        self.handshake_failures = dict.fromkeys(HandshakeFailure, 0)
        self.accepts_failed: dict[str, dict[str, int]] = {}
        self.connections: dict[str, int] = {}
        self.max_connections: dict[str, int] = {}
        self.publish_latency = {persistence: LatencyHistogram() for persistence in get_args(Persistence)}
        self.endpoints: dict[str, list[str]] = {}
        self.store = AsyncStore(self._grown, log, "broker", broker_error)
        self.member = member
        self._directory = None if directory is None else Path(directory)
        self._flush_interval = flush_interval
        self._started = time.time()
        self._started_monotonic = time.monotonic()
        self.loop: asyncio.AbstractEventLoop
        self._begin(None)

    def _begin(self, epoch: int | None) -> None:
        """Sets the state that begins with each core; see `successor`."""
        self.topics: dict[str, Topic] = {}
        self.listing_lock = asyncio.Lock()
        self.held = HeldBytes()
        self.leads = self.member is None or epoch is not None
        self._epoch = epoch
        self._following = False  # a call of `_follow_catalog` is scheduled
        self._follow_at = 0.0
        self._by_id: dict[int, Topic] = {}
        #: Topics that are being created, altered or deleted.
        self._changing: dict[str, asyncio.Future[None]] = {}
        self._alter_lock = asyncio.Lock()  # topics are altered one after the other
        #: Set while a topic is altered to another dead-letter topic: until it is, either one may be in force.
        self._retargeting: asyncio.Future[None] | None = None
        self._requeue_lock = asyncio.Lock()
        #: The dead-letter topics of topics that are being created or deleted.
        self._pending_targets: dict[str, str | None] = {}
        self._ready: dict[Topic, None] = {}
        self._scheduled = False
        self.ended = False

    # ------------------------------------------------------------------ start and stop

    async def start(self) -> None:
        """Opens the store.

        Raises:
            StoreLocked: Another process uses the directory.
            StoreError: The directory belongs to `omq pzq`.
            ImportError: A package that a store on disk needs is missing.
        """
        self.loop = asyncio.get_running_loop()
        await self.store.open(self._open)
        for finding in self.store.store.findings:
            log.warning("store %s: %s", self._directory, finding, extra={"event": "store_finding", "finding": finding})
        self._load()

    def _load(self) -> None:
        """Adds the topics of the store. A follower does not serve durable subscriptions and groups."""
        store = self.store.store
        cursors, ack_floors = (store.all_cursors(), store.all_ack_floors()) if self.leads else ({}, {})
        for state in store.topics():
            self._add(state, cursors.get(state.id), ack_floors.get(state.id))

    def _open(self, notify: Notify, appended: Appended) -> Store:
        if self.member is not None:
            return self.member.open(notify, appended)
        if self._directory is None:
            return MemoryStore(notify=notify, appended=appended)
        try:
            from omq.store.lmdb.store import LmdbStore  # needs the package lmdb, which clients need not have
        except ModuleNotFoundError as missing:
            raise missing_extra("the broker", missing, "broker") from None
        return LmdbStore(
            self._directory, notify=notify, appended=appended, flush_interval=self._flush_interval, kind="broker"
        )

    async def close(self) -> None:
        """Answers the requests that were accepted, ends all readers, and closes the store. Idempotent."""
        if self.ended:
            return
        self.ended = True
        if not hasattr(self.store, "store"):
            return
        await self.store.drained(self._stalled)
        for topic in tuple(self.topics.values()):
            await topic.close()
        await self.store.close(self._stalled)

    def _stalled(self) -> bool:
        """Returns whether the store answers no writes of entries until there is space on the disk."""
        return self.member is not None and self.member.stalled

    def successor(self, epoch: int | None) -> Broker:
        """Ends this core, and returns one over the same store, for another role of this broker in its cluster.

        Subscriptions that are not durable continue in the new core. Other readers end, and so do publications that wait
        for room, with `NotLeader`. Writes that the store has are still answered, and later ones of this core fail.

        Args:
            epoch: The epoch of the member in which it leads; `None`: it follows. All writes of earlier cores must have
                been answered before it leads.
        """
        heir = copy.copy(self)
        self.ended = True
        heir._begin(epoch)
        heir._load()
        self.store.grown = heir._grown
        error = self.not_leader()
        for topic in self.topics.values():
            other = heir.topics.get(topic.name)
            same = other is not None and other.id == topic.id
            if same and isinstance(other, BroadcastTopic) and (heir.leads or topic.persistence != "transient"):
                assert isinstance(topic, BroadcastTopic)
                other.adopt_subscriptions(topic)
            _retire(topic, error if same else topic.gone())
        return heir

    # ------------------------------------------------------------------ the cluster

    def current(self) -> bool:
        """Returns whether answers from the state of this core are valid: not if it has led, and its lease is over."""
        return self.member is None or self._epoch is None or self.member.leads_since(self._epoch)

    def cluster_stats(self) -> ClusterStats | None:
        """Returns the cluster, as in `WELCOME`; `None` without one."""
        return None if self.member is None else self.member.stats(leads=self.leads and self.current())

    def not_leader(self) -> BrokerError:
        """Returns the error of a request that only the leader of the cluster executes."""
        assert self.member is not None
        return self.member.not_leader()

    def check_leads(self) -> None:
        """Raises `NotLeader` in the core of a follower."""
        if not self.leads:
            raise self.not_leader()

    def check_readable(self, topic: Topic) -> None:
        """Raises `NotLeader` for a topic whose messages only the leader has."""
        if topic.persistence == "transient":
            self.check_leads()

    def follow_catalog(self) -> None:
        """Adds, alters and removes the topics of a follower as the store has them, soon."""
        if not self.leads and not self._following:
            self._following = True
            self.later(max(self._follow_at - time.monotonic(), 0), self._follow_catalog)

    def _follow_catalog(self) -> None:
        began = time.monotonic()
        self._following = False
        stored = {state.id: state for state in self.store.store.topics()}
        for topic in [topic for topic in self._by_id.values() if topic.id not in stored]:
            del self._by_id[topic.id]
            if self.topics.get(topic.name) is topic:
                del self.topics[topic.name]
            _retire(topic, topic.gone())
        for id, state in stored.items():
            known = self._by_id.get(id)
            if known is None:
                self._add(state)
            elif known.settings != state.settings:
                known.set_settings(dict(state.settings))
        now = time.monotonic()
        self._follow_at = now + _FOLLOW_FACTOR * (now - began)

    # ------------------------------------------------------------------ the store

    @property
    def id(self) -> str:
        """The id of the store."""
        return self.store.store.id

    @property
    def persistent(self) -> bool:
        """Returns whether the store is on disk."""
        return self._directory is not None

    def add_listener(self, name: str, max_connections: int) -> None:
        """Adds a server to the statistics.

        Args:
            name: Its name.
            max_connections: The maximum number of connections that it accepts.
        """
        self.connections[name] = 0
        self.max_connections[name] = max_connections
        self.accepts_failed[name] = dict.fromkeys(get_args(AcceptFailure), 0)

    # ------------------------------------------------------------------ topics

    def _add(
        self, state: TopicState, cursors: dict[str, int] | None = None, ack_floors: dict[str, int] | None = None
    ) -> Topic:
        topic: Topic
        if state.delivery == "broadcast":
            topic = BroadcastTopic(state, self.store, self, cursors or {}, self, ack_floors or {})
        elif not self.leads:
            topic = FollowedQueue(state, self.store, self)
        else:
            topic = RoundRobinTopic(state, self.store, self, self)
        self.topics[state.name] = self._by_id[state.id] = topic
        if topic.usage is not None:
            topic.usage.add_topic(topic)
        return topic

    async def create(
        self,
        name: str,
        *,
        delivery: str = "broadcast",
        persistence: str = "strong",
        settings: Mapping[str, Any] | None = None,
        client: ClientInfo | None = None,
        owner: str = "",
    ) -> Topic:
        """Creates a topic, or returns the existing one if it has the same settings.

        Args:
            name: Its name.
            delivery: `broadcast` or `round-robin`.
            persistence: `strong`, `weak`, `async` or `transient`.
            settings: Its settings; `None` for none.
            client: The client that requests it, whose user owns the topic; `None`: the broker creates it.
            owner: The owner of a topic that the broker creates; empty for none.

        Raises:
            TopicError: The topic exists with other settings, or a name or a setting is not valid.
            StoreFull: The client's user has as many topics as it may have.
        """
        check_name(name)
        try:
            checked = check_topic(delivery, persistence, settings or {})
        except InvalidSetting as error:
            raise TopicError(str(error)) from None
        target = _checked_dead_letter(name, delivery, checked)
        if persistence == "strong" and not self.persistent:
            raise TopicError("this broker keeps everything in memory: persistence cannot be 'strong'")
        while change := self._changing.get(name) or (self._retargeting if target is not None else None):
            await change
        topic = self.topics.get(name)
        if topic is not None:
            _compare(topic, delivery, persistence, checked)
            return topic
        if persistence == "strong" and self.member is not None:
            self.member.check_strong(name)
        self._check_target(name, persistence, target)
        if client is not None:
            owner = ANY_CLIENT if client.user is None else client.user
            self.user_limits.of(owner).check_topics()
        usage = self.user_limits.of(owner) if owner else None
        if usage is not None:
            usage.creating += 1
        change = self._changing[name] = self.loop.create_future()
        self._pending_targets[name] = target
        try:
            kind: Any = "broadcast" if delivery == "broadcast" else "round_robin"
            write = await self._do(
                MakeTopic(name, kind, persistence, checked, owner=owner)  # type: ignore[arg-type]
            )
            topic = self._add(self.store.store.topic(write.topic_id))
        finally:
            if usage is not None:
                usage.creating -= 1
            del self._changing[name], self._pending_targets[name]
            change.set_result(None)
        log.info(
            "topic %r: created by %s, %s and %s, with %s",
            name,
            client_text(client),
            delivery,
            persistence,
            checked or "no settings",
            extra={
                "event": "topic_created",
                "topic": name,
                "delivery": delivery,
                "persistence": persistence,
                "settings": checked,
                **client_fields(client),
            },
        )
        return topic

    async def alter(
        self,
        name: str,
        changes: Mapping[str, Any],
        *,
        force: bool = False,
        check_target: Callable[[str], None] = lambda target: None,
        client: ClientInfo | None = None,
    ) -> Topic:
        """Changes settings of a topic; they apply at once and are durable.

        Args:
            name: The topic.
            changes: Values by setting; `None` removes a setting, which is at its default then.
            force: Also makes changes that drop messages at once.
            check_target: Called with another dead-letter topic; may raise `PermissionDenied`.
            client: The client that requests it, for the log; `None`: the broker alters it.

        Raises:
            TopicError: The topic does not exist, a setting is not valid or cannot change, or messages would be dropped.
            Damaged: The store could not open the topic.
        """
        async with self._alter_lock:
            while (change := self._changing.get(name)) is not None:
                await change
            topic = self.topic(name)
            before = topic.settings
            try:
                settings = alter_settings(topic.delivery, topic.persistence, before, changes)
            except InvalidSetting as error:
                raise TopicError(f"topic {name!r}: {error}") from None
            target = _checked_dead_letter(name, topic.delivery, settings)
            if settings == before:
                return topic
            losses = [] if force else topic.losses(settings)
            if losses:
                shown = "; ".join(f"{key}={settings.get(key)!r:.80}: {text}" for key, text in losses)
                raise TopicError(f"topic {name!r}: {shown}. Alter it with force to drop them")
            retargets = target != self.target_of(name)
            if retargets and target is not None:
                check_target(target)
                self._check_target(name, topic.persistence, target)
            change = self._changing[name] = self.loop.create_future()
            self._retargeting = change if retargets else None
            try:
                await self._do(AlterTopic(topic.id, settings))
                await topic.alter(settings)
            finally:
                del self._changing[name]
                self._retargeting = None
                change.set_result(None)
        altered = [key for key in SETTINGS if settings.get(key) != before.get(key)]
        log.info(
            "topic %r: altered by %s, %s",
            name,
            client_text(client),
            ", ".join(f"{key} from {before.get(key)!r} to {settings.get(key)!r}" for key in altered),
            extra={
                "event": "topic_altered",
                "topic": name,
                "settings": {key: settings.get(key) for key in altered},
                "before": {key: before.get(key) for key in altered},
                **client_fields(client),
            },
        )
        return topic

    async def delete(self, name: str, client: ClientInfo | None = None) -> None:
        """Deletes a topic and ends its readers. It also deletes a damaged topic that the store could not open.

        Args:
            name: Its name.
            client: The client that requests it, for the log; `None`: the broker deletes it.

        Raises:
            TopicError: The topic does not exist.
        """
        refused = self.store.store.refused.get(name)
        if refused is not None and name not in self.topics:
            await self._do(DeleteTopic(refused.topic_id))
            _log_deleted(name, client)
            return
        while name in self.topics and (change := self._changing.get(name)) is not None:
            await change  # until it is altered
        topic = self.topic(name)
        # A topic that is created meanwhile may not close a cycle with it: the deletion may fail.
        self._pending_targets[name] = self.target_of(name)
        del self.topics[name]
        topic.deleted = True
        topic.end(topic.gone())
        if topic.admission is not None:
            topic.admission.end(topic.gone())
        change = self._changing[name] = self.loop.create_future()
        try:
            await self._do(DeleteTopic(topic.id))
        except BrokerError:
            self.topics[name] = topic
            topic.reopen()
            raise
        finally:
            del self._changing[name], self._pending_targets[name]
            change.set_result(None)
        self._by_id.pop(topic.id, None)
        if topic.usage is not None:
            topic.usage.remove_topic(topic)
        _log_deleted(name, client)

    async def _do(self, write: _Write) -> _Write:
        """Submits a write of this core and waits for it; raises the error."""
        if self.ended and self.member is not None:
            raise self.not_leader()
        return await self.store.do(write)

    def topic(self, name: str) -> Topic:
        """Returns a topic by its name.

        Raises:
            TopicError: The topic does not exist.
            Damaged: The store could not open it.
        """
        topic = self.topics.get(name)
        if topic is None:
            if name in self.store.store.refused:
                raise Damaged(str(self.store.store.refused[name]))
            raise TopicError(f"there is no topic {name[:300]!r}")
        return topic

    def topic_of(self, id: int) -> Topic | None:
        """Returns a topic by its id; `None` if it does not exist."""
        return self._by_id.get(id)

    async def dead_letter(self, topic: Topic) -> int:
        """Returns the id of a topic's dead-letter topic, and creates that if it does not exist."""
        name = topic.dead_letter or default_dead_letter(topic.name)
        found = self.topics.get(name)
        if found is None:
            found = await self.create(name, persistence=topic.persistence, owner=topic.owner)
        return found.id

    def target_of(self, name: str) -> str | None:
        """Returns the dead-letter topic of a topic that exists or is being created or deleted."""
        topic = self.topics.get(name)
        return self._pending_targets.get(name) if topic is None else topic.dead_letter

    def _check_target(self, name: str, persistence: str, target: str | None) -> None:
        """Checks the dead-letter topic of a topic.

        Raises:
            TopicError: Its dead letters would return to it, or be moved between a replicated topic and another one.
        """
        found = None if target is None else self.topics.get(target)
        if self.member is not None and found is not None:
            replicated = [kind != "transient" for kind in (persistence, found.persistence)]
            if replicated[0] is not replicated[1]:
                raise TopicError(
                    f"topic {name!r}: dead_letter={target!r} has persistence={found.persistence!r}: in a cluster the "
                    "dead letters of a transient topic need a transient topic, and those of others one that is not"
                )
        cycle = dead_letter_cycle(name, lambda one: target if one == name else self.target_of(one))
        if cycle is not None:
            raise TopicError(f"topic {name!r}: {describe_cycle(cycle)}")

    def set_permissions(self, permissions: Iterable[Permission]) -> None:
        """Replaces the permissions, and ends the readers that the new ones do not allow."""
        self.permissions = Permissions(permissions)
        for topic in tuple(self.topics.values()):
            topic.revoke_access(self.permissions)

    def set_user_limits(self, limits: Iterable[UserLimit]) -> None:
        """Replaces the limits of users; connections, topics and bytes above them stay."""
        self.user_limits.replace(limits)

    # ------------------------------------------------------------------ publishing

    def commit(
        self,
        commit: bytes,
        stages: list[bytes],
        may: Callable[[int], bool],
        done: Callable[[CommitStages], None],
        alive: Callable[[], bool] = lambda: True,
    ) -> None:
        """Publishes stages atomically; see `CommitStages`.

        Args:
            commit: The name of the commit.
            stages: The names of the stages.
            may: Returns whether the client may publish to the topic with this id; called in the store's thread.
            done: Called in the loop with the write, which has the result or the error.
            alive: Returns whether a client still waits for the answer.

        Raises:
            Busy: Too many bytes wait for the store.
            BrokerFailed: The broker is stopping.
        """
        check_waiting(self, self.store, 0)
        CommitPublication(self, CommitStages(commit, stages, may=may), done, alive).submit()

    def count_published(self, id: int, count: int, size: int) -> None:
        """Counts messages that were moved to a dead-letter topic."""
        topic = self._by_id.get(id)
        if topic is not None:
            topic.count_moved(count, size)
            if topic.usage is not None:
                topic.usage.add_bytes(size)

    # ------------------------------------------------------------------ dropping and moving messages

    async def purge(self, topic: Topic, up_to: int | None, client: ClientInfo | None = None) -> int:
        """Drops messages. Those of a round-robin topic that are in flight stay with their consumers.

        Args:
            topic: The topic.
            up_to: The last id; `None` for the newest.
            client: The client that requests it, for the log; `None`: the broker purges it.

        Returns:
            The number of dropped messages.

        Raises:
            TopicError: The id is above the newest one, or the topic has `retention` or `retain_for`.
        """
        last = topic.last_to_drop(up_to)
        dropped = await topic.purge(last)
        log.info(
            "topic %r: purged by %s up to id %d: %d messages",
            topic.name,
            client_text(client),
            last,
            dropped,
            extra={
                "event": "topic_purged",
                "topic": topic.name,
                "up_to": last,
                "count": dropped,
                **client_fields(client),
            },
        )
        return dropped

    async def requeue(
        self,
        dead: Topic,
        up_to: int | None,
        to: str | None,
        check: Callable[[str], None],
        client: ClientInfo | None = None,
    ) -> tuple[int, int]:
        """Moves a batch of dead letters, the oldest first, back to the topics that they came from.

        It ends early before a dead letter that cannot be moved.

        Args:
            dead: Their topic.
            up_to: The last id; `None` for the newest.
            to: The topic to move them to; `None`: the topic that each came from.
            check: Called with the name of each of these topics; raises `PermissionDenied` if it is not allowed.
            client: The client that requests it, for the log; `None`: the broker moves them.

        Returns:
            The number of moved dead letters, and the id of the next one; 0 if none is left.

        Raises:
            TopicError: The dead letters are in a round-robin topic or in one with `retention` or `retain_for`, the id
                is above the newest one, or the first one's topic does not exist.
            StoreFull: The first one's topic or the disk is full.
        """
        if not isinstance(dead, BroadcastTopic):
            raise TopicError(f"{dead.name!r} is a round-robin topic: consume its messages and publish them again")
        dead.check_not_retained()
        if to == dead.name:
            raise TopicError(f"to={to!r}: must be another topic than the one of the dead letters")
        if to is not None:
            check(to)
            self.topic(to)
        async with self._requeue_lock:  # between engines, a second batch could move the same dead letters elsewhere
            check_waiting(self, self.store, 0)
            batch = RequeueBatch(dead, dead.last_to_drop(up_to), lambda message: self._origin(dead, message, to, check))
            try:
                batch.read(self.store.store)
                moved, following = await self._move(dead, batch)
            finally:
                batch.release()
        if moved:
            log.info(
                "topic %r: %d dead letters requeued by %s",
                dead.name,
                moved,
                client_text(client),
                extra={
                    "event": "dead_letters_requeued",
                    "topic": dead.name,
                    "to": to,
                    "count": moved,
                    **client_fields(client),
                },
            )
        return moved, following

    def _origin(self, dead: Topic, message: Message, to: str | None, check: Callable[[str], None]) -> Topic:
        """Returns the topic that a dead letter came from, or the topic *to*."""
        if to is not None:
            return self.topic(to)
        header = message.headers.get(TOPIC_HEADER)
        if header is None:
            raise TopicError(f"dead letter {message.id} of {dead.name!r} has no header {TOPIC_HEADER}: set `to`")
        name = header.decode(errors="replace")
        check(name)
        topic = self.topics.get(name)
        if topic is None or topic is dead:
            problem = "does not exist" if topic is None else "has the dead letters"
            raise TopicError(f"dead letter {message.id} came from topic {name[:255]!r}, which {problem}: set `to`")
        return topic

    async def _move(self, dead: BroadcastTopic, batch: RequeueBatch) -> tuple[int, int]:
        moved, end = 0, self.loop.time() + _MOVE_SLICE_S
        while moved < len(batch.moves):
            if moved and self.loop.time() >= end:
                return moved, batch.moves[moved][0]
            try:
                with dead.purging(batch.moves[-1][0]):
                    write = await self._do(Requeue(dead.id, batch.moves[moved:]))
                    moved += write.moved
                    dead.shrunk(batch.moves[moved - 1][0])
            except Overrun as error:  # retention or a purge has dropped it
                return moved, error.first
            except BrokerError as error:
                if moved:
                    return moved, batch.moves[moved][0]  # the next batch reports the error
                if isinstance(error, TopicError):
                    raise TopicError(f"topic {dead.name!r}, or one of its dead letters', was deleted") from None
                raise
            for id, (count, size) in write.grown.items():
                if (target := self.topic_of(id)) is not None:
                    target.count_moved(count, size)
        return moved, batch.next

    # ------------------------------------------------------------------ reading

    def subscribe(
        self,
        topic: Topic,
        replay: str | int | StartTime,
        sink: Sink,
        *,
        name: str | None = None,
        reset: bool = False,
        take_over: bool = False,
        resume: bool = False,
        client: Hashable = None,
    ) -> TopicSubscription:
        """Opens a subscription to a broadcast topic.

        Args:
            topic: The topic.
            replay: `"latest"`, `"earliest"`, the id after which the subscription starts, or the time at which it does.
            sink: Receives the messages.
            name: Makes the subscription durable: the broker stores its position, and the next subscription with this
                name resumes there. Only one subscription with a name can be open.
            reset: Starts over at *replay* if messages after the stored position were dropped, or it is damaged.
            take_over: Ends the open subscription with this name, which gets `TakenOver`.
            resume: The client had this subscription open before its connection was lost.
            client: Identifies the client in its later connections, too.

        Raises:
            TakenOver: Another client has opened the subscription that should be resumed.
            TopicError: It is a round-robin topic, the name is in use, the id is above the newest one, or the time is in
                the future.
            Overrun: Messages that the subscription starts with were dropped.
            Damaged: The stored position is damaged, and *reset* is false.
        """
        if not isinstance(topic, BroadcastTopic):
            raise TopicError(f"{topic.name!r} is a round-robin topic: consume it")
        if name is not None:
            check_name(name, "a subscription's name")
        elif take_over:
            raise TopicError("take_over=True: only a durable subscription can be taken over; give its name")
        return topic.subscribe(replay, sink, name, reset, take_over, resume, client)

    def consume(
        self,
        topic: Topic,
        sink: Sink,
        *,
        ack_timeout: float = DEFAULT_ACK_TIMEOUT_S,
        credit: int = DEFAULT_PREFETCH,
        group: str | None = None,
    ) -> TopicConsumer:
        """Adds a consumer to a round-robin topic, or to a consumer group of a broadcast topic.

        Args:
            topic: The topic.
            sink: Receives the messages.
            ack_timeout: Seconds until an unacknowledged message is delivered again.
            credit: The messages that may be in flight.
            group: The name of the group, which exists (`BroadcastTopic.make_group`); `None` in a round-robin topic.

        Raises:
            TopicError: It is a broadcast topic and *group* is `None`, or a round-robin topic and *group* is given, or
                there is no such group.
            Damaged: The acks of the group are damaged.
        """
        if isinstance(topic, BroadcastTopic):
            if group is None:
                raise TopicError(f"{topic.name!r} is a broadcast topic: subscribe to it, or consume it with a group")
            return topic.group(group).consume(sink, ack_timeout, credit)
        if group is not None:
            raise TopicError(f"group={group!r:.80}: {topic.name!r} is a round-robin topic, which has no groups")
        assert isinstance(topic, RoundRobinTopic)
        return topic.consume(sink, ack_timeout, credit)

    # ------------------------------------------------------------------ turns

    def _grown(self, grown: dict[int, int]) -> None:
        for id, last in grown.items():
            topic = self._by_id.get(id)
            if topic is not None:
                topic.grown(last)
            elif not self.leads:
                self._add_new(id)

    def _add_new(self, id: int) -> None:
        """Adds a topic of a follower, unless it is deleted already."""
        with contextlib.suppress(UnknownTopic):
            self._add(self.store.store.topic(id))

    def ready(self, topic: Topic) -> None:
        """Schedules a turn for a topic that has something to deliver."""
        self._ready[topic] = None
        if not self._scheduled:
            self._scheduled = True
            self.loop.call_soon(self._pump_ready)

    def _pump_ready(self) -> None:
        """Gives each ready topic a turn, for one time slice; the loop serves its connections between two slices."""
        self._scheduled = False
        if not self.current():
            self._scheduled = True
            self.later(_LEASE_CHECK_INTERVAL_S, self._pump_ready)
            return
        until = time.perf_counter() + _DELIVERY_SLICE_S
        for topic in tuple(self._ready):
            del self._ready[topic]
            if topic.deleted or self.ended:
                continue
            try:
                more = topic.pump()
            except Exception:
                log.exception("topic %r cannot deliver", topic.name)
                more = False
            if more:
                self._ready[topic] = None
            if time.perf_counter() > until:
                break
        if self._ready and not self._scheduled:
            self._scheduled = True
            self.loop.call_soon(self._pump_ready)

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Makes a call later, unless the broker has stopped by then."""

        def due() -> None:
            if not self.ended:
                call()

        self.loop.call_later(seconds, due)

    # ------------------------------------------------------------------ statistics

    def count_refusal(self, error: BrokerError) -> None:
        """Counts a request that is answered with an error."""
        self.refused[error.code] = self.refused.get(error.code, 0) + 1

    def stats(self) -> BrokerStats:
        """Returns the statistics of the broker."""
        return {**self.summary(), "topics": [*self.topic_stats()]}

    def topic_stats(self) -> Iterator[TopicStats]:
        """Yields the statistics of each topic; topics may be created and deleted meanwhile."""
        for topic in tuple(self.topics.values()):
            if not topic.deleted:
                yield topic.stats()

    def summary(self) -> BrokerStats:
        """Returns the statistics of the broker, without its topics."""
        return {
            "version": __version__,
            "broker": self.id,
            "started": self._started,
            "uptime": time.monotonic() - self._started_monotonic,
            "endpoints": dict(self.endpoints),
            "connections": dict(self.connections),
            "refused": dict(self.refused),
            "max_connections": dict(self.max_connections),
            "accepts_failed": {listener: {**counts} for listener, counts in self.accepts_failed.items()},
            "handshake_failures": {str(kind): number for kind, number in self.handshake_failures.items()},
            "publish": {
                persistence: {"seconds": latency.seconds, "buckets": latency.buckets()}
                for persistence, latency in self.publish_latency.items()
            },
            "store": self._store_stats(),
            "topics": [],
            "cluster": self.cluster_stats(),
            "journal_position": 0 if self.member is None else self.member.position,
        }

    def _store_stats(self) -> StoreStats:
        log_store = self.store.store
        stats = log_store.stats()
        damaged = [
            f"topic {getattr(self.topic_of(id), 'name', id)!r}: messages {first} to {last} are damaged and quarantined"
            for id, first, last in stats.damaged
        ]
        broken = log_store.broken
        return {
            "directory": None if self._directory is None else os.fspath(self._directory),
            "free": None if self._directory is None else _free(self._directory),
            "full": self.store.full,
            "failed": None if broken is None else str(broken) or type(broken).__name__,
            "findings": [*log_store.findings, *damaged],
            "environments": {name: _environment(one) for name, one in stats.engines.items()},
        }


class CommitPublication(Publication):
    """A commit; it waits for room if the store finds a topic full. See `Broker.commit`."""

    __slots__ = ("_broker", "_done", "_reserved", "_write")

    def __init__(
        self, broker: Broker, write: CommitStages, done: Callable[[CommitStages], None], alive: Callable[[], bool]
    ) -> None:
        memory = sum(len(stage) + _STAGE_OVERHEAD_BYTES for stage in write.stages)
        super().__init__(0, 0, memory, alive, write.commit)
        self._broker = broker
        self._write = write
        self._done = done
        #: The messages and bytes for which it has reserved room.
        self._reserved: dict[TopicAdmission, tuple[int, int]] = {}

    def submit(self, admission: TopicAdmission | None = None) -> None:
        if admission is not None:
            self._reserved[admission] = self.count, self.size
        first = self._write
        write = CommitStages(first.commit, first.stages, may=first.may, has_room=self._has_room)
        self._broker.store.submit(write, self._committed)

    def _has_room(self, topic_id: int, count: int, size: int) -> bool:
        """Reserves room for messages of a topic; returns whether there is room; in the store's thread.

        The store may ask again, and other commits may follow before this one is answered.
        """
        topic = self._broker.topic_of(topic_id)
        admission = None if topic is None else topic.admission
        if admission is None or self._reserved.get(admission) == (count, size):
            return True
        if admission in self._reserved:
            admission.take_back(*self._reserved.pop(admission))
        if not admission.reserve(count, size):
            return False
        self._reserved[admission] = count, size
        return True

    def _committed(self, write: CommitStages) -> None:
        full = write.error
        for id, (count, size) in write.grown.items() if full is None else ():
            if (grown := self._broker.topic_of(id)) is not None:
                grown.count_moved(count, size)
        reserved, self._reserved = self._reserved, {}
        for admission, room in reserved.items():
            admission.release(*room)
        if isinstance(full, TopicFull) and (topic := self._broker.topic_of(full.topic_id)) is not None:
            self.count, self.size = full.count, full.size
            if topic.admission is None:  # it was altered meanwhile
                self.submit()
            else:
                topic.admission.hold_or_reject(self)
            return
        self._done(write)
        for id in write.grown if full is None else ():
            if (grown := self._broker.topic_of(id)) is not None:
                grown.published_as(self.key)

    def refuse(self, error: BrokerError) -> None:
        self._write.error = error
        self._done(self._write)


def _retire(topic: Topic, error: BrokerError) -> None:
    """Ends a topic, which submits nothing from here on."""
    topic.deleted, topic.retired = True, error
    topic.end(error)
    if topic.admission is not None:
        topic.admission.end(error)
    if topic.usage is not None:
        topic.usage.remove_topic(topic)


def _free(directory: Path) -> int | None:
    try:
        return shutil.disk_usage(directory).free
    except OSError:
        return None


def _environment(stats: Stats) -> EnvironmentStats:
    buckets: list[tuple[float, int]] = []
    before = 0
    for bound, count in sorted(stats.sync_buckets.items()):
        buckets.append((bound, count - before))
        before = count
    return {
        "bytes": stats.file_bytes,
        "used": stats.used_bytes,
        "commits": stats.commits,
        "syncs": stats.syncs,
        "sync_seconds": stats.sync_seconds,
        "sync_buckets": buckets,
    }


def _checked_dead_letter(name: str, delivery: str, settings: Mapping[str, Any]) -> str | None:
    """Returns the dead-letter topic of a topic with these settings; `None` for none.

    Raises:
        TopicError: It is the topic itself, or its name is not valid.
    """
    target = dead_letter_of(name, delivery, settings)
    if target == name:
        raise TopicError(f"topic {name!r} cannot be its own dead-letter topic")
    return None if target is None else check_name(target, "the name of a dead-letter topic")


def _log_deleted(name: str, client: ClientInfo | None) -> None:
    log.info(
        "topic %r: deleted by %s",
        name,
        client_text(client),
        extra={"event": "topic_deleted", "topic": name, **client_fields(client)},
    )


def _compare(topic: Topic, delivery: str, persistence: str, settings: dict[str, Any]) -> None:
    """Raises `TopicError` if an existing topic differs from the requested one."""
    for key, has, wanted in (
        ("delivery", topic.delivery, delivery),
        ("persistence", topic.persistence, persistence),
        *((name, topic.settings.get(name), settings.get(name)) for name in {**topic.settings, **settings}),
    ):
        if has != wanted:
            fixed = key in ("delivery", "persistence")
            advice = "it cannot change: choose another name, or delete the topic first" if fixed else "alter changes it"
            raise TopicError(f"topic {topic.name!r} exists with {key} {has!r}, not {wanted!r}; {advice}")
