"""The device: its store and its sockets, in an event loop or in a thread."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from omq import check_endpoint
from omq.errors import EndpointError, UsageError
from omq.pzq.cluster.cluster_driver import ClusterDriver
from omq.pzq.cluster.settings import NODE_TIMEOUT_US, REPLICATION_TIMEOUT_US, read_settings
from omq.pzq.device.consumer_server import ConsumerServer
from omq.pzq.device.monitor_server import MonitorServer
from omq.pzq.device.producer_server import ProducerServer
from omq.pzq.device.queue import DeviceQueue
from omq.pzq.device.stats import DeviceStats
from omq.serving.address import parse_http_address
from omq.serving.cluster import Cluster
from omq.serving.extras import missing_extra
from omq.serving.thread import ServerThread
from omq.store.async_store import AsyncStore
from omq.store.errors import DamagedError
from omq.store.interface import Appended, MakeTopic, Notify, Persistence, Store, TopicState
from omq.types import Security, SocketType

if TYPE_CHECKING:
    from omq.serving.cluster_member import ClusterMember

__all__ = ["AsyncDevice", "Device"]

log = logging.getLogger("omq.pzq")

ACK_TIMEOUT_US: Final = 5_000_000
REAPER_INTERVAL_US: Final = 2_500_000
MAX_IN_FLIGHT_BYTES: Final = 31_457_280
#: Seconds after which a leader that could not serve tries again.
SERVE_RETRY_DELAY_S: Final = 1.0

#: Topics by persistence. Dead letters have the persistence of their messages.
_TOPICS: Final[dict[Persistence, str]] = {"strong": "messages", "weak": "messages.unsynced"}
_DEAD_LETTERS: Final[dict[Persistence, str]] = {"strong": "dead-letters", "weak": "dead-letters.unsynced"}


class AsyncDevice:
    """A store-and-forward device in the running event loop (`omq.asyncio.pzq.Device`).

    async with Device("data") as device:
        print(device.endpoints["receive"], device.endpoints["send"])

    Args:
        database: The directory of the store; created if it is missing.
        receive: The endpoint for producers.
        send: The endpoint for consumers.
        monitor: The endpoint for requests of statistics; `None`: none.
        dead_letter: The endpoint for consumers of dead letters; `None`: none.
        http: The address of `/metrics` and `/healthz` (`host:port`); `None`: none.
        hard_sync: True syncs a message before it is acknowledged; false within a second.
        ack_timeout: Microseconds after which an unacknowledged message is redelivered.
        reaper_frequency: Microseconds between two checks of the ack deadlines.
        inflight_size: Bytes of bodies in flight; a larger body is delivered alone.
        max_deliveries: Failed deliveries after which a message becomes a dead letter; `None`: never.
        security: A `PlainServer` or `CurveServer` for all of the device's sockets.
        nodes: The receive endpoints of the other nodes of a cluster.
        broadcast: The endpoint for messages of the other nodes, with the host by which they know this node and
            with the port that all nodes use.
        replicas: The number of other nodes that must have a message before its producer gets a positive answer.
        timeout_nodes: Microseconds after which a node is silent, and others may deliver its messages.
        timeout_replication: Microseconds that a producer's answer waits for the replicas.
        allow_replicas_from: More addresses or networks that nodes may connect from; the hosts of `nodes` always may.
        peer_security: A `CurveClient` or `PlainClient` for connections to the other nodes.
        cluster: Makes this device a member of a cluster over servers of NATS, in place of `nodes`. All devices have
            all messages; the leader alone binds `receive`, `send` and `dead_letter`, which need fixed ports.

    Attributes:
        endpoints: The bound endpoints after the start: `receive`, `send`, and those of `monitor`, `broadcast`,
            `dead_letter` and `http` that are configured. With `cluster`, those of clients are there while it leads.
        on_role: Called with true or false when this device has begun, or ended, to serve as the leader of its cluster.

    Raises:
        UsageError: An argument is not valid.
        EndpointError: An endpoint is not valid.
    """

    def __init__(
        self,
        database: str | Path,
        *,
        receive: str = "tcp://127.0.0.1:*",
        send: str = "tcp://127.0.0.1:*",
        monitor: str | None = None,
        dead_letter: str | None = None,
        http: str | None = None,
        hard_sync: bool = False,
        ack_timeout: int = ACK_TIMEOUT_US,
        reaper_frequency: int = REAPER_INTERVAL_US,
        inflight_size: int = MAX_IN_FLIGHT_BYTES,
        max_deliveries: int | None = None,
        security: Security | None = None,
        nodes: Sequence[str] = (),
        broadcast: str | None = None,
        replicas: int = 0,
        timeout_nodes: int = NODE_TIMEOUT_US,
        timeout_replication: int = REPLICATION_TIMEOUT_US,
        allow_replicas_from: Sequence[str] = (),
        peer_security: Security | None = None,
        cluster: Cluster | None = None,
    ) -> None:
        for name, value in (
            ("ack_timeout", ack_timeout),
            ("reaper_frequency", reaper_frequency),
            ("inflight_size", inflight_size),
            ("max_deliveries", 1 if max_deliveries is None else max_deliveries),
        ):
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < 2**53:
                raise UsageError(f"{name}={value!r}: must be a whole number, 1 or more").about(name)
        if not isinstance(hard_sync, bool):
            raise UsageError(f"hard_sync={hard_sync!r}: must be True or False").about("hard_sync")
        _check("receive", receive)
        _check("send", send)
        if monitor is not None:
            _check("monitor", monitor)
        if dead_letter is not None:
            _check("dead_letter", dead_letter)
        if http is not None:
            parse_http_address(http)
        self._member: ClusterMember | None = None
        if cluster is not None:
            if nodes or broadcast is not None or replicas:
                raise UsageError("nodes: a device has either nodes or a cluster").about("nodes")
            if hard_sync and not cluster.servers_sync:
                text = (
                    "hard_sync: needs servers with `sync_interval: always`; state it by servers_sync (--servers-sync)"
                )
                raise UsageError(text).about("hard_sync")
            for name, endpoint in (("receive", receive), ("send", send), ("dead_letter", dead_letter)):
                if endpoint is not None and endpoint.endswith((":*", ":0")):
                    text = f"{name}={endpoint!r}: needs a fixed port, since only the leader binds it"
                    raise UsageError(text).about(name)
            self._member = _member(cluster, Path(database))
        self._cluster = read_settings(
            receive=receive,
            broadcast=broadcast,
            nodes=nodes,
            replicas=replicas,
            timeout_nodes=timeout_nodes,
            timeout_replication=timeout_replication,
            allow_replicas_from=allow_replicas_from,
        )
        self.endpoints: dict[str, str] = {}
        self._database = Path(database)
        self._receive, self._send, self._dead_letter = receive, send, dead_letter
        self._monitor_at = monitor
        self._http_at = http
        self._kind: Persistence = "strong" if hard_sync else "weak"
        self._limits = ack_timeout, reaper_frequency, inflight_size
        self._max_deliveries = max_deliveries
        self._security = security
        self._peer_security = peer_security
        self._cluster_driver: ClusterDriver | None = None
        self._store = AsyncStore(self._grown, log, "device")
        self._queues: list[DeviceQueue] = []  # of messages
        self._dead_letters: list[DeviceQueue] = []  # of dead letters
        self._by_id: dict[int, tuple[DeviceQueue, ConsumerServer | None]] = {}
        self._consumer_servers: list[ConsumerServer] = []
        self._producer_server: ProducerServer | None = None
        self._listeners: list[Any] = []  # monitor and HTTP
        self._timers: set[asyncio.TimerHandle] = set()
        self._started = self._closed = False
        self.on_role: Callable[[bool], None] = lambda leads: None
        self._role_changed = asyncio.Event()
        self._following: asyncio.Task[None] | None = None  # follows the roles of this device

    # ------------------------------------------------------------------ lifecycle

    async def start(self) -> None:
        """Opens the store and serves; `async with` calls it.

        Raises:
            UsageError: The device was started or closed already.
            StoreLocked: Another process uses the directory.
            StoreError: The directory is the store of a broker.
            DamagedError: The store is damaged.
            BindError: An endpoint cannot be bound.
            ImportError: A package of the extra `broker` is missing.
        """
        if self._started or self._closed:
            raise UsageError("this device was started or closed already: make another one")
        self._started = True
        try:
            if (member := self._member) is not None:
                member.prepare(member.cluster.advertise or (self._receive, self._send))
            await self._store.open(self._open if member is None else member.open)
            store = self._store.store
            for finding in store.findings:
                log.warning("store %s: %s", self._database, finding)
            for why in store.refused.values():
                raise DamagedError(f"{self._database}: {why}")
            if member is not None:
                await self._serve_stats()
                member.role_changed = self._role_changed.set
                self._role_changed.set()
                self._following = asyncio.create_task(self._follow_roles(member), name="omq pzq: roles")
                return
            await self._prepare()
            if self._cluster is not None:
                driver = ClusterDriver(self._cluster, self._database, self._store, self._kind, self._later)
                await driver.open(self._queues[:], self._queues[-1])
                self._queues[:0] = driver.queues  # the last one is that of the producers
                self._cluster_driver = driver
            await self._serve()
            await self._serve_stats()
        except BaseException:
            await self.close()
            raise

    def _open(self, notify: Notify, appended: Appended) -> Store:
        try:
            from omq.store.lmdb.store import LmdbStore  # clients do not need the package lmdb
        except ModuleNotFoundError as missing:
            raise missing_extra("the device", missing, "broker") from None
        return LmdbStore(self._database, notify=notify, appended=appended, kind="pzq")

    async def _prepare(self) -> None:
        """Creates the topics that are needed, and the queues of all topics."""
        await self._topic(_TOPICS[self._kind], self._kind)
        found = {state.name: state for state in self._store.store.topics()}
        # Messages that were stored with the other `hard_sync` are delivered, too.
        kinds = sorted(_TOPICS, key=lambda kind: kind == self._kind)
        for kind in kinds:
            if self._max_deliveries is not None and _TOPICS[kind] in found:
                found[_DEAD_LETTERS[kind]] = await self._topic(_DEAD_LETTERS[kind], kind)
        for kind in kinds:
            if (dead_letters := found.get(_DEAD_LETTERS[kind])) is not None:
                self._dead_letters.append(DeviceQueue(self._store, dead_letters, self._later))
            if (state := found.get(_TOPICS[kind])) is not None:
                dead_letter_topic = dead_letters.id if dead_letters is not None else 0
                queue = DeviceQueue(self._store, state, self._later, self._max_deliveries, dead_letter_topic)
                self._queues.append(queue)

    async def _topic(self, name: str, kind: Persistence) -> TopicState:
        write = await self._store.do(MakeTopic(name, "round_robin", kind))
        return self._store.store.topic(write.topic_id)

    async def _serve(self) -> None:
        server = self._make_consumer_server("send", self._queues)
        self._by_id = {queue.id: (queue, server) for queue in self._queues}
        dead_letter_server = (
            self._make_consumer_server("dead_letter", self._dead_letters) if self._dead_letter is not None else None
        )
        if dead_letter_server is not None and not self._dead_letters:
            log.warning(
                "dead_letter=%r: the topic has no dead letters, and without max_deliveries none comes",
                self._dead_letter,
            )
        self._by_id.update({queue.id: (queue, dead_letter_server) for queue in self._dead_letters})
        self._producer_server = ProducerServer(
            self._store,
            self._queues[-1].id,
            unsynced=self._kind == "weak" and self._member is None,
            has_consumers=lambda: bool(server.consumers),
            cluster=self._cluster_driver,
        )
        self.endpoints["receive"] = self._producer_server.start(self._receive, self._security)
        self.endpoints["send"] = server.start(self._send, self._security)
        if dead_letter_server is not None and self._dead_letter is not None:
            self.endpoints["dead_letter"] = dead_letter_server.start(self._dead_letter, self._security)
        if self._cluster_driver is not None and self._cluster is not None:
            self._cluster_driver.start(self._producer_server, server.wake, self._security, self._peer_security)
            self.endpoints["broadcast"] = self._cluster.name

    async def _serve_stats(self) -> None:
        if self._monitor_at is not None:
            monitor = MonitorServer(self.stats)
            self._listeners.append(monitor)
            self.endpoints["monitor"] = monitor.start(self._monitor_at, self._security)
        if self._http_at is not None:
            try:
                from omq.pzq.device.http import http_listener
            except ModuleNotFoundError as missing:
                raise missing_extra(f"http={self._http_at!r}", missing, "broker") from None
            listener = http_listener(self.stats)
            self._listeners.append(listener)
            self.endpoints["http"] = await listener.start(self._http_at)

    def _make_consumer_server(self, name: str, queues: list[DeviceQueue]) -> ConsumerServer:
        server = ConsumerServer(name, self._store, queues, *self._limits)
        self._consumer_servers.append(server)
        return server

    def _grown(self, topics: dict[int, int]) -> None:
        for id, last in topics.items():
            if id in self._by_id:
                queue, server = self._by_id[id]
                queue.work.grown(last)
                if server is not None:
                    server.messages_arrived()

    def _later(self, seconds: float, call: Callable[[], None]) -> None:
        """Schedules a call in some seconds, unless the device is closed by then."""

        def due() -> None:
            self._timers.discard(timer)
            call()
            for server in self._consumer_servers:
                server.wake()

        timer = asyncio.get_running_loop().call_later(seconds, due)
        self._timers.add(timer)

    # ------------------------------------------------------------------ the roles of a member of a cluster

    async def _follow_roles(self, member: ClusterMember) -> None:
        """Serves clients while this device leads."""
        epoch: int | None = None  # in which it serves
        while True:
            await self._role_changed.wait()
            self._role_changed.clear()
            if epoch is not None and epoch != member.epoch:
                epoch = None
                self.on_role(False)
                await self._end_serving(self._store.drained)
                for name in ("receive", "send", "dead_letter"):
                    self.endpoints.pop(name, None)
            if epoch is None and member.leads:
                epoch = member.epoch
                try:
                    await self._store.drained()  # of the writes of an earlier role
                    await self._prepare()
                    for queue in (*self._queues, *self._dead_letters):
                        queue.may_deliver = partial(member.leads_since, epoch)
                    await self._serve()
                    log.info("serves producers at %s and consumers at %s", self._receive, self._send)
                    self.on_role(True)
                except Exception as error:
                    await self._end_serving(self._store.drained)
                    if epoch == member.epoch:
                        log.error("cannot serve as the leader; tries again in %g s: %s", SERVE_RETRY_DELAY_S, error)
                        asyncio.get_running_loop().call_later(SERVE_RETRY_DELAY_S, self._role_changed.set)
                    epoch = None

    async def _end_serving(self, answered: Callable[[], Awaitable[None]]) -> None:
        """Answers received messages, stores acknowledgements, and closes the sockets of clients.

        Args:
            answered: Waits until the submitted writes are answered.
        """
        timers, self._timers = self._timers, set()
        for timer in timers:
            timer.cancel()
        serving: list[ProducerServer | ConsumerServer] = [*self._consumer_servers]
        if self._producer_server is not None:
            serving.insert(0, self._producer_server)
        queues = (*self._queues, *self._dead_letters)
        try:
            for one in serving:
                await one.pause()
            for queue in queues:
                await queue.work.close()
            if self._cluster_driver is not None:
                await self._cluster_driver.close()
        finally:
            try:
                await answered()
            finally:
                for one in serving:
                    await one.close()
        self._by_id.clear()
        for kept in (self._consumer_servers, self._queues, self._dead_letters):
            kept.clear()
        self._producer_server = None

    async def close(self) -> None:
        """Answers received messages, stores acknowledgements, and closes store and sockets. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        try:
            for listener in self._listeners:
                await listener.close()
        finally:
            await self._end_serving(self._store.close)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # ------------------------------------------------------------------ statistics

    def stats(self) -> DeviceStats:
        """Returns its statistics now."""
        store, producer_server, consumer_servers = self._store.store, self._producer_server, self._consumer_servers
        counts_in = Counter[str]() if producer_server is None else producer_server.counts
        self._store.catch_up()  # completes finished writes, so that the counts agree
        store_stats = store.stats()
        queues = (*self._queues, *self._dead_letters)
        driver = self._cluster_driver
        counts = [queue.count() for queue in self._queues]
        alone = {"replicas": 0, "recovered": 0, "nodes": 1, "nodes_alive": 1, "aside": None}
        return {
            "messages": sum(counts),
            "own_messages": sum(
                count
                for queue, count in zip(self._queues, counts, strict=True)
                if driver is None or driver.is_own(queue)
            ),
            "messages_inflight": sum(len(server.in_flight) for server in consumer_servers),
            "db_size": store_stats.file_bytes,
            "inflight_db_size": sum(server.bytes for server in consumer_servers),
            "syncs": store_stats.syncs,
            "expired_messages": sum(server.counts["expired"] for server in consumer_servers),
            "dead_letters": sum(queue.count() for queue in self._dead_letters),
            "producers": 0 if producer_server is None else producer_server.producers,
            "consumers": sum(len(server.consumers) for server in consumer_servers),
            "stored": counts_in["stored"],
            "stored_bytes": counts_in["stored_bytes"],
            "repeated": counts_in["repeated"],
            "refused": counts_in["refused"],
            "refused_acks": sum(server.counts["refused"] for server in consumer_servers),
            "delivered": sum(server.counts["delivered"] for server in consumer_servers),
            "redelivered": sum(server.counts["redelivered"] for server in consumer_servers),
            "acknowledged": sum(server.counts["acknowledged"] for server in consumer_servers),
            "returned": sum(server.counts["returned"] for server in consumer_servers),
            "dead_lettered": sum(queue.dead_lettered for queue in queues),
            "damaged": sum(queue.damaged_count for queue in queues),
            **(alone if driver is None else driver.stats()),
            "full": self._store.full,
            "leader": producer_server is not None,
            "failed": None if store.broken is None else str(store.broken),
            "trouble": None if self._member is None else self._member.trouble or None,
            "findings": [*store.findings],
        }


def _member(cluster: Cluster, directory: Path) -> ClusterMember:
    try:
        from omq.serving.cluster_member import ClusterMember  # needs the package lmdb, which clients need not have
    except ModuleNotFoundError as missing:
        raise missing_extra("cluster", missing, "broker") from None
    return ClusterMember(cluster, directory, kind="pzq", log=log)


def _check(name: str, endpoint: str) -> None:
    try:
        check_endpoint(endpoint, bind=True, socket_type=SocketType.ROUTER)
    except EndpointError as error:
        raise EndpointError(f"{name}: {error}").about(name) from None


class Device(ServerThread):
    """A store-and-forward device in a thread of its own; see `AsyncDevice` for the arguments.

        with omq.pzq.Device("data") as device:
            print(device.endpoints["receive"], device.endpoints["send"])

    Attributes:
        endpoints: The bound endpoints; see `AsyncDevice`.
    """

    def __init__(self, database: str | Path, **options: Any) -> None:
        super().__init__(AsyncDevice(database, **options), "pzq")
