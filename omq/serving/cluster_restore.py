"""A new journal for a cluster, which begins with the store of one of its members, or with a snapshot."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

from omq.serving.cluster import Cluster
from omq.serving.cluster_member import journal_of, nats_options, store_id
from omq.store.errors import StoreError
from omq.store.lmdb.layout import Applied
from omq.store.lmdb.replica import LmdbReplica
from omq.store.lmdb.snapshot import StoreCopy, restore_snapshot, take_snapshot
from omq.store.lmdb.store_directory import REPLICA, StoreDirectory
from omq.store.replication.codec import Entry, Kind, Lease, encode
from omq.store.replication.copying import applied_of
from omq.store.replication.role_machine import SNAPSHOT_PREFIX

#: The node in the lease that begins the new journal. The lease is over at once, so that any node may lead.
NODE: Final = "restore"

#: Returns a context that shows the progress of a step, by the name of the step. It yields a function to call with the
#: finished bytes and all.
Progress = Callable[[str], AbstractContextManager[Callable[[int, int], None]]]


class RestoredCluster(NamedTuple):
    """A cluster that was restored.

    Attributes:
        copy: The copy of the store.
        position: The last entry that it contains, after which the journal begins.
    """

    copy: StoreCopy
    position: int


def restore_cluster(cluster: Cluster, source: Path, progress: Progress) -> RestoredCluster:
    """Begins a new journal with the state of a store. Members with an earlier state load it when they start.

    Args:
        cluster: The cluster, whose journal must not exist.
        source: The directory of a member that does not run, or a snapshot of it; for a snapshot, the cluster has
            another name. A member's store is opened and closed, as at a start of the member.
        progress: Shows the progress of the steps `copy` and `send`.

    Raises:
        StoreError: The source is not of a cluster, is empty, or is a snapshot of this cluster; or the journal exists,
            or the servers cannot keep it.
        StoreLocked: A process has the store open.
    """
    from omq.store.replication.nats_journal import NatsJournal

    source = source / REPLICA if (source / REPLICA / "format").exists() else source
    found = StoreDirectory(source, readonly=True, locked=False).format
    if not found.replica:
        raise StoreError(
            f"{source} is of a broker without a cluster, and cannot become a cluster: start a new cluster, and publish "
            "there what you read from this broker"
        )
    kind = found.kind or "broker"
    journal, options = journal_of(cluster, kind), nats_options(cluster, kind)
    if found.snapshot and found.id == store_id(journal):
        raise StoreError(
            f"{source} is a snapshot of the cluster {cluster.name!r}. With the same name, clients would not notice "
            "that ids after it are assigned again, and durable subscriptions would skip messages: give another name, "
            "and start the brokers with it; or give the directory of a member"
        )
    asyncio.run(NatsJournal.check_missing(options, journal))
    with TemporaryDirectory(dir=source.parent, prefix=SNAPSHOT_PREFIX) as folder:
        target = Path(folder) / "snapshot"
        if not found.snapshot:
            LmdbReplica(source, notify=lambda writes: None, kind=kind).close()
        with progress("copy") as copied:
            make = restore_snapshot if found.snapshot else take_snapshot
            copy = make(source, target, kind=kind, progress=copied)
        applied = applied_of(target)
        if not applied.position:
            raise StoreError(f"{source} has no state: it has applied no entry of a journal; give another directory")
        taken = found.snapshot or copy.format.snapshot
        replace(copy.format, id=store_id(journal), cluster=cluster.name, snapshot=taken, origin={}).write(target)
        with progress("send") as sent:
            asyncio.run(
                NatsJournal.restore(
                    options,
                    journal,
                    applied.position,
                    target,
                    _first_entry(applied),
                    replicas=cluster.replicas,
                    lease=cluster.lease,
                    progress=sent,
                )
            )
    return RestoredCluster(copy, applied.position)


def _first_entry(applied: Applied) -> bytes:
    """Returns an entry that no node with another state than this accepts."""
    lease = Lease(NODE, (), 0)
    return encode(Entry(Kind.LEASE, applied.term + 1, applied.time, lease=lease, previous=applied.time))
