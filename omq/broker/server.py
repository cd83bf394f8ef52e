"""A broker inside a program, in an event loop or in a thread of its own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from omq.broker.config import TopicSpec, check_dead_letters, check_strong, topic_spec
from omq.broker.core.permissions import Permission, permission_of
from omq.broker.core.stats import BrokerStats, TopicStats
from omq.broker.core.user_limits import UserLimit, user_limit_of
from omq.broker.errors import BrokerError, NotLeader
from omq.broker.protocol import HEARTBEAT_INTERVAL_S, HEARTBEAT_TIMEOUT_S
from omq.errors import UsageError
from omq.serving.cluster import Cluster
from omq.serving.extras import missing_extra
from omq.serving.thread import ServerThread
from omq.types import Security

if TYPE_CHECKING:
    from omq.broker.core.broker_member import BrokerMember
    from omq.broker.reconcile import TopicPlan
    from omq.broker.sexp.server import SexpServer

__all__ = ["AsyncServer", "Server"]

log = logging.getLogger("omq.broker")


class AsyncServer:
    """A broker in the running event loop (`omq.asyncio.broker.Server`).

    async with Server("data", bind="tcp://127.0.0.1:*") as server:
        print(server.endpoints["zmtp"])

    Args:
        directory: The directory of the store, which is created if it does not exist; `None` with `memory`.
        bind: One or more endpoints of the ZMTP server; `None` for none.
        sexp: The endpoint of the S-expression server (`tcp://host:port`); `None` for none.
        http: The address of the status page (`host:port`); `None` for none.
        topics: Topics that are created if they do not exist, and otherwise get exactly these settings:
            `"prices:broadcast:strong"`, a mapping as in `broker.toml`, or a `TopicSpec`.
        security: A `PlainServer` or `CurveServer` for the ZMTP server; `None` admits every client.
        permissions: Permissions, or mappings as in `broker.toml`; empty allows every client everything.
        user_limits: The limits of users: mappings as a row of `[[user_limit]]`; empty for no limits.
        memory: Keeps everything in memory, without a `directory` and without `strong` topics.
        max_connections: The clients that the ZMTP server (at each endpoint) and the S-expression server admit. `None`
            derives it from the descriptor limit of the process, with a reserve for the store and the status page.
        heartbeat_interval: Seconds between two PINGs to a client.
        heartbeat_timeout: Seconds without an answer to a PING after which a client is dead: its connection is closed,
            and its messages in flight go to others. A client library answers in the background.
        cluster: Makes this broker a member of a cluster, whose leader has the `topics`; `None`: it is in none.

    Attributes:
        endpoints: The resolved endpoints, once it was started: `zmtp` (the first one), `sexp`, `http`.
        broker: The core. Another one takes its place when the role of this broker in the cluster changes.
        topics: The topics that are declared.
        on_role: Called with true or false when this broker has become, or is no longer, the leader of its cluster.
        configuring: Held while topics become what is declared.

    Raises:
        UsageError: An argument is not valid, or two do not go together.
    """

    def __init__(
        self,
        directory: str | Path | None = None,
        *,
        bind: str | Iterable[str] | None = "tcp://127.0.0.1:*",
        sexp: str | None = None,
        http: str | None = None,
        topics: Iterable[TopicSpec | str | Mapping[str, Any]] = (),
        security: Security | None = None,
        permissions: Iterable[Permission | Mapping[str, Any]] = (),
        user_limits: Iterable[UserLimit | Mapping[str, Any]] = (),
        memory: bool = False,
        max_connections: int | None = None,
        heartbeat_interval: float = HEARTBEAT_INTERVAL_S,
        heartbeat_timeout: float = HEARTBEAT_TIMEOUT_S,
        cluster: Cluster | None = None,
    ) -> None:
        if (directory is None) != memory:
            raise UsageError("a broker needs either a directory or memory=True")
        if cluster is not None and memory:
            raise UsageError("memory=True: a member of a cluster needs a directory").about("memory")
        if isinstance(topics, str):
            raise UsageError(f"topics must be a list of topics, not the string {topics!r}")
        # A client need not have the packages that only a broker needs.
        from omq.broker.core.broker import Broker
        from omq.broker.zmtp.server import ZmtpServer
        from omq.broker.zmtp.user_security import UserSecurity

        self._member: BrokerMember | None = None
        if cluster is not None and directory is not None:
            self._member = _member(cluster, Path(directory))
        self.broker = Broker(
            directory,
            permissions=[permission_of(one) for one in permissions],
            user_limits=[user_limit_of(one) for one in user_limits],
            member=self._member,
        )
        self.endpoints: dict[str, str] = {}
        self.configuring = asyncio.Lock()
        self.on_role: Callable[[bool], None] = lambda leads: None
        self.topics = tuple(topic_spec(topic) for topic in topics)
        check_dead_letters(self.topics)
        if cluster is not None:
            check_strong(self.topics, cluster)
        self._sexp = sexp
        self._http = http
        self._max_connections = max_connections
        wanted = (bind,) if isinstance(bind, str) else tuple(bind or ())
        if cluster is not None and not wanted:
            raise UsageError("bind: is empty; the clients of a cluster need an endpoint for ZeroMQ").about("bind")
        self._zmtp = (
            ZmtpServer(
                self.broker,
                wanted,
                None if security is None else UserSecurity(security, self.broker.user_limits),
                max_connections=max_connections,
                heartbeat_interval=heartbeat_interval,
                heartbeat_timeout=heartbeat_timeout,
            )
            if wanted
            else None
        )
        self._sexp_server: SexpServer | None = None
        self._others: list[Any] = []  # the other servers, once they are open
        self._leading: asyncio.Task[None] | None = None  # begins the core of the leader
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Opens the store and starts to serve; `async with` calls it.

        Raises:
            StoreLocked: Another process uses the directory.
            StoreError: The directory belongs to `omq pzq`.
            DamagedError: The store is damaged and cannot be opened.
            TopicError: A topic exists with another delivery or persistence, or would drop messages by its settings.
            EndpointError: An endpoint is not valid.
            BindError: An endpoint cannot be bound.
            ImportError: A package of the extra `broker` is missing.
        """
        try:
            if self._member is not None:
                self._bind()  # the other members of the cluster get the endpoints once the store is open
                self._member.prepare(self._member.cluster.endpoints(self.broker.endpoints["zmtp"]))
            async with self.configuring:
                await self.broker.start()
                if self._member is None:
                    await self.plan(self.topics).apply()
            if self._member is None:
                self._bind()
            if self._zmtp is not None:
                self._zmtp.serve()
            if self._sexp is not None:
                from omq.broker.sexp.server import SexpServer

                self._sexp_server = SexpServer(self.broker, max_connections=self._max_connections)
                await self._open("sexp", self._sexp_server, self._sexp)
            if self._http is not None:
                try:
                    from omq.broker.http.server import HttpServer
                except ModuleNotFoundError as missing:
                    raise missing_extra(f"http={self._http!r}", missing, "broker") from None

                await self._open("http", HttpServer(self._summary, self._topic_stats), self._http)
            if self._member is not None:
                self._watch(self._member)
        except BaseException:
            await self.close()
            raise

    def _bind(self) -> None:
        if self._zmtp is not None:
            bound = self._zmtp.bind()
            self.broker.endpoints["zmtp"] = bound
            self.endpoints["zmtp"] = bound[0]

    def _summary(self) -> BrokerStats:
        return self.broker.summary()

    def _topic_stats(self) -> Iterator[TopicStats]:
        return self.broker.topic_stats()

    # ------------------------------------------------------------------ the cluster

    @property
    def leader(self) -> bool | None:
        """True while this broker leads its cluster; `None`: it is in none."""
        return None if self._member is None else self.broker.leads and self.broker.current()

    def _watch(self, member: BrokerMember) -> None:
        """Follows the roles of this broker, and the topics of the cluster, from here on."""
        member.role_changed = self._change_role
        member.catalog_changed = lambda: self.broker.follow_catalog()
        member.loaded = self._change_core
        self.broker.follow_catalog()
        self._change_role()

    def _change_role(self) -> None:
        """Ends the core of a leader at once; begins one after the writes of earlier ones are answered."""
        if self.broker.leads and not self.broker.current():
            self._change_core()
        if not self.broker.leads and self._leading is None:
            self._leading = self._spawn(self._lead())

    def _change_core(self, epoch: int | None = None) -> None:
        """Begins another core, which leads in an epoch, or follows."""
        if self.broker.ended:
            return
        before, self.broker = self.broker, self.broker.successor(epoch)
        for server in (self._zmtp, self._sexp_server):
            if server is not None:
                server.change_core(self.broker)
        if before.leads is not self.broker.leads:
            self.on_role(self.broker.leads)

    async def _lead(self) -> None:
        """Begins the core of the leader, if this broker leads."""
        assert self._member is not None
        try:
            await self.broker.store.drained()
        finally:
            self._leading = None
        epoch = self._member.epoch  # read first: a later one has another core
        if self._member.leads and not self.broker.leads:
            self._change_core(epoch)
            self._spawn(self._make_topics())

    async def _make_topics(self) -> None:
        """Makes the declared topics, as the leader."""
        async with self.configuring:
            try:
                if self.broker.leads and not self.broker.ended:
                    await self.plan(self.topics).apply()
            except NotLeader:
                pass  # the next leader makes them
            except BrokerError as error:
                log.error(
                    "the declared topics cannot be made: %s",
                    error,
                    extra={"event": "topics_failed", "reason": str(error)},
                )

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def plan(self, topics: Iterable[TopicSpec]) -> TopicPlan:
        """Returns the checked changes by which topics become what is declared; raises as `TopicPlan`."""
        from omq.broker.reconcile import TopicPlan

        return TopicPlan(self.broker, topics)

    async def _open(self, name: str, server: Any, endpoint: str) -> None:
        self.endpoints[name] = await server.start(endpoint)
        self.broker.endpoints[name] = [self.endpoints[name]]
        self._others.append(server)

    async def close(self) -> None:
        """Answers the requests that were received, and stops. Idempotent."""
        others, self._others = self._others, []
        for task in self._tasks:
            task.cancel()
        try:
            if self._zmtp is not None:
                await self._zmtp.pause()
            for server in others:
                await server.close()
        finally:
            try:
                await self.broker.close()
            finally:
                if self._zmtp is not None:
                    await self._zmtp.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class Server(ServerThread):
    """A broker in a thread of its own; `AsyncServer` documents the arguments.

        with omq.broker.Server("data", bind="tcp://127.0.0.1:*") as server:
            print(server.endpoints["zmtp"])

    Attributes:
        endpoints: The resolved endpoints, once it was started: `zmtp` (the first one), `sexp`, `http`.
    """

    def __init__(
        self,
        directory: str | Path | None = None,
        *,
        bind: str | Iterable[str] | None = "tcp://127.0.0.1:*",
        sexp: str | None = None,
        http: str | None = None,
        topics: Iterable[TopicSpec | str | Mapping[str, Any]] = (),
        security: Security | None = None,
        permissions: Iterable[Permission | Mapping[str, Any]] = (),
        user_limits: Iterable[UserLimit | Mapping[str, Any]] = (),
        memory: bool = False,
        max_connections: int | None = None,
        heartbeat_interval: float = HEARTBEAT_INTERVAL_S,
        heartbeat_timeout: float = HEARTBEAT_TIMEOUT_S,
        cluster: Cluster | None = None,
    ) -> None:
        server = AsyncServer(
            directory,
            bind=bind,
            sexp=sexp,
            http=http,
            topics=topics,
            security=security,
            permissions=permissions,
            user_limits=user_limits,
            memory=memory,
            max_connections=max_connections,
            heartbeat_interval=heartbeat_interval,
            heartbeat_timeout=heartbeat_timeout,
            cluster=cluster,
        )
        super().__init__(server, "broker")


def _member(cluster: Cluster, directory: Path) -> BrokerMember:
    try:
        from omq.broker.core.broker_member import BrokerMember  # needs the package lmdb, which clients need not have
    except ModuleNotFoundError as missing:
        raise missing_extra("cluster", missing, "broker") from None
    return BrokerMember(cluster, directory)
