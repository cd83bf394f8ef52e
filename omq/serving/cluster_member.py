"""A server as a member of a cluster: its store, its role, and the leader."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import secrets
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from omq.errors import UsageError
from omq.serving.cluster import MAX_NAME, Cluster, is_name
from omq.serving.extras import missing_extra
from omq.store.interface import Appended, Notify
from omq.store.replication.codec import Lease
from omq.store.replication.journal import Journal
from omq.store.replication.replica import ReplicatedStore
from omq.store.replication.role_machine import ReplicaSettings, Role

if TYPE_CHECKING:
    from omq.store.replication.nats_connection import NatsOptions

#: The file in the directory of a server that has its id in the cluster.
NODE_FILE: Final = "node"
_NODE_BYTES: Final = 8
#: Seconds of the start in which a journal that cannot be used is an error.
MAX_FIRST_ATTEMPT_S: Final = 10.0

Connect = Callable[[bool], Awaitable[Journal]]


class ClusterMember:
    """A server as a member of a cluster. Lives in the server's loop, except for methods that are called elsewhere.

    Args:
        cluster: The cluster.
        directory: The directory of the server.
        kind: The program of the store: `broker` or `pzq`. Clusters of both may have the same name.
        log: The log for the roles of this server.

    Raises:
        UsageError: The name of the cluster is too long.
        ImportError: A package of the extra `replicated` is missing.

    Attributes:
        cluster: As the argument.
        node: The id of this server, once it was prepared.
        endpoints: The endpoints of this server for clients, once it was prepared.
        epoch: The number of times that this server has become or ceased to be the leader. The thread of the store
            changes it.
        role_changed: Called when this server has become or ceased to be the leader.
        catalog_changed: Called when topics were created, altered or deleted.
        loaded: Called when a snapshot has replaced all topics.
    """

    def __init__(self, cluster: Cluster, directory: Path, *, kind: str, log: logging.Logger) -> None:
        self.cluster = cluster
        self.node = cluster.node or ""
        self.endpoints: tuple[str, ...] = ()
        self.epoch = 0
        self.role_changed: Callable[[], None] = lambda: None
        self.catalog_changed: Callable[[], None] = lambda: None
        self.loaded: Callable[[], None] = lambda: None
        self._directory = directory
        self._kind = kind
        self._log = log
        self._journal = journal_of(cluster, kind)
        self._connect = _nats(cluster, self._journal, kind)
        self._role = Role.FOLLOWER
        self._store: ReplicatedStore | None = None
        self._loop: asyncio.AbstractEventLoop

    def prepare(self, endpoints: Iterable[str]) -> None:
        """Prepares the opening of the store.

        Args:
            endpoints: The endpoints of this server for clients.

        Raises:
            UsageError: The file with the id of this server is not valid.
        """
        self._loop = asyncio.get_running_loop()
        self.endpoints = tuple(endpoints)
        self.node = self.node or _stored_node(self._directory)

    def open(self, notify: Notify, appended: Appended) -> ReplicatedStore:
        """Opens the store of this server; in any thread.

        Raises:
            StoreError: The store cannot be opened, or the journal needs an operator.
        """
        store = ReplicatedStore(
            self._directory,
            self._connect,
            ReplicaSettings(
                self.node,
                self.endpoints,
                exclusive=self._kind == "broker",  # devices do not send clients to the leader
                snapshot_bytes=self.cluster.snapshot_bytes,
            ),
            notify=notify,
            appended=appended,
            role_changed=self._take_role,
            catalog_changed=lambda: self._call(self.catalog_changed),
            loaded=lambda: self._call(self.loaded),
            cluster_id=store_id(self._journal),
            cluster=self.cluster.name,
            servers_sync=self.cluster.servers_sync,
            kind=self._kind,
        )
        try:
            store.check_journal(MAX_FIRST_ATTEMPT_S)
        except BaseException:
            store.close()
            raise
        self._store = store
        return store

    # ------------------------------------------------------------------ the role

    @property
    def leads(self) -> bool:
        """Returns whether this server has the role of the leader. Its lease may be over: see `leads_since`."""
        return self._store is not None and self._store.leading

    def leads_since(self, epoch: int) -> bool:
        """Returns whether this server leads, and has done so without an interruption since an epoch."""
        return self.epoch == epoch and self._store is not None and self._store.is_leader_now()

    def leader(self) -> list[str]:
        """Returns the endpoints of the leader; empty if it is not known."""
        store = self._store
        if store is None:
            return []
        if store.leading:
            return list(self.endpoints) if store.is_leader_now() else []
        lease = store.lease
        if lease is None or self._role is not Role.FOLLOWER or store.trouble:
            return []
        return list(lease.endpoints) if self._is_other(lease) else []

    @property
    def leader_node(self) -> str:
        """The id of the server that has the lease, as far as it is known."""
        lease = None if self._store is None else self._store.lease
        return "" if lease is None else lease.node

    def _is_other(self, lease: Lease) -> bool:
        """Returns whether another server has a lease, and has not ended it itself."""
        return lease.node != self.node and lease.duration_us > 0

    @property
    def members(self) -> list[str]:
        """The first endpoint of each server of the cluster that is known."""
        members = self._store.members if self._store is not None else {}
        return [endpoints[0] for endpoints in members.values() if endpoints]

    @property
    def position(self) -> int:
        """The sequence of the last entry of the journal that this server has applied."""
        return 0 if self._store is None else self._store.position

    @property
    def trouble(self) -> str:
        """The reason for which this server takes no part in the cluster now, or clients do not find it; or empty."""
        return "" if self._store is None else self._store.trouble or self._store.conflict

    @property
    def stalled(self) -> bool:
        """Returns whether entries of the journal wait for space on the disk."""
        return self._store is not None and self._store.stalled

    def _take_role(self, role: Role, lease: Lease | None) -> None:
        """Takes a new role or lease; in the thread of the store."""
        before, self._role = self._role, role
        changed = Role.LEADER in (role, before) and role is not before
        if changed:
            self.epoch += 1
        self._call(lambda: self._report(role, before, lease))
        if changed:
            self._call(lambda: self.role_changed())

    def _call(self, call: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:
            pass  # the loop is closed

    def _report(self, role: Role, before: Role, lease: Lease | None) -> None:
        """Logs a new role or lease."""
        cluster, node = self.cluster.name, self.node
        endpoints = list(self.endpoints)
        if role is Role.LEADER:
            self._log.info(
                "node %s leads the cluster %r",
                node,
                cluster,
                extra={"event": "leader_elected", "cluster": cluster, "node": node, "endpoints": endpoints},
            )
        elif before is Role.LEADER:
            self._log.warning(
                "node %s no longer leads the cluster %r",
                node,
                cluster,
                extra={"event": "leader_lost", "cluster": cluster, "node": node, "endpoints": endpoints},
            )
        elif role is Role.FOLLOWER and lease is not None and self._is_other(lease):
            leader = list(lease.endpoints)
            self._log.info(
                "node %s of the cluster %r follows %s at %s",
                node,
                cluster,
                lease.node,
                ", ".join(leader),
                extra={"event": "following", "cluster": cluster, "node": lease.node, "endpoints": leader},
            )


def journal_of(cluster: Cluster, kind: str) -> str:
    """Returns the name of the journal of a cluster of brokers, or of another kind of server.

    Raises:
        UsageError: The name of the cluster is too long.
    """
    name = cluster.name if kind == "broker" else f"{kind}-{cluster.name}"
    if not is_name(name):
        raise UsageError(f"name={cluster.name!r}: must have {MAX_NAME - len(kind) - 1} characters at most").about(
            "name"
        )
    return name


def store_id(journal: str) -> str:
    """Returns the id of the stores of a cluster, by the name of its journal."""
    return hashlib.blake2b(f"omq cluster {journal}".encode(), digest_size=16).hexdigest()


def _stored_node(directory: Path) -> str:
    """Returns the id of a server that is kept in its directory, and makes one if there is none.

    Raises:
        UsageError: The file does not have an id.
    """
    path = directory / NODE_FILE
    if not path.exists():
        directory.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{NODE_FILE}.{os.getpid()}")
        temporary.write_text(secrets.token_hex(_NODE_BYTES) + "\n", "ascii")
        os.replace(temporary, path)
    node = path.read_text("utf-8", "replace").strip()
    if not is_name(node):
        raise UsageError(f"node: {path} has {node!r:.80}, which is not a valid id; give another one").about("node")
    return node


def _nats(cluster: Cluster, journal: str, kind: str) -> Connect:
    """Returns the function that connects to the journal of a cluster."""
    try:
        from omq.store.replication.nats_journal import NatsJournal
    except ModuleNotFoundError as missing:
        raise missing_extra("cluster", missing, "replicated") from None
    options = nats_options(cluster, kind)

    async def connect(create: bool) -> Journal:
        return await NatsJournal.connect(
            options,
            journal,
            replicas=cluster.replicas,
            sync_always=cluster.servers_sync,
            lease=cluster.lease,
            create=create,
        )

    return connect


def nats_options(cluster: Cluster, kind: str) -> NatsOptions:
    """Returns the servers of a cluster, and how to log in to them."""
    from omq.store.replication.nats_connection import NatsOptions

    return NatsOptions(
        servers=tuple(cluster.servers),
        user=cluster.user,
        password=cluster.password,
        token=cluster.token,
        credentials=cluster.credentials,
        tls=cluster.context(),
        domain=cluster.domain,
        name=f"omq {kind} of {cluster.name}",
    )
