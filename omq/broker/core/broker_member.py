"""A broker as a member of a cluster, as its core and its clients see it."""

from __future__ import annotations

import logging
from pathlib import Path

from omq.broker.core.stats import ClusterStats
from omq.broker.errors import NotLeader, TopicError
from omq.serving.cluster import Cluster
from omq.serving.cluster_member import ClusterMember
from omq.store.replication.replica import UNSYNCED


class BrokerMember(ClusterMember):
    """A broker as a member of a cluster.

    Args:
        cluster: The cluster.
        directory: The directory of the broker.
    """

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        super().__init__(cluster, directory, kind="broker", log=logging.getLogger("omq.broker"))

    def not_leader(self) -> NotLeader:
        """Returns the error of a request that only the leader executes."""
        leader, name = ", ".join(self.leader()), self.cluster.name
        if leader:
            return NotLeader(f"this broker is a follower; the leader of the cluster {name!r} is {leader}")
        trouble = f": {self.trouble}" if self.trouble else ""
        return NotLeader(f"this broker is a follower; no leader of {name!r} is known now{trouble}")

    def sexp_advice(self) -> str:
        """Returns what a client of S-expressions does after `NotLeader`; empty if the leader is not known.

        The brokers know only each other's endpoints for ZeroMQ clients.
        """
        leader = ", ".join(self.leader())
        return leader and f"; connect to the --sexp endpoint of the broker {self.leader_node!r} ({leader})"

    def stats(self, *, leads: bool) -> ClusterStats:
        """Returns the cluster, as in `WELCOME`.

        Args:
            leads: The core that is asked leads.
        """
        return {
            "name": self.cluster.name,
            "node": self.node,
            "role": "leader" if leads else "follower",
            "leader": list(self.endpoints) if leads else self.leader(),
            "members": self.members,
            "trouble": self.trouble,
        }

    def check_strong(self, topic: str) -> None:
        """Checks that a topic can be strong.

        Raises:
            TopicError: The servers of the journal do not sync.
        """
        if not self.cluster.servers_sync:
            raise TopicError(UNSYNCED.format(topic))
