"""The nodes of a cluster, as they announce themselves. Information only: nothing that must be right depends on it."""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import aclosing
from typing import Final

from omq.store.replication.journal import Journal

log = logging.getLogger("omq.store")

#: The interval at which a node announces itself.
ANNOUNCE_INTERVAL_S: Final = 2.0
#: The intervals without an announcement after which a node is forgotten.
MAX_SILENT_INTERVALS: Final = 10
MAX_MEMBERS: Final = 100
MAX_ANNOUNCEMENT_BYTES: Final = 4096


class Members:
    """The nodes that have announced themselves lately.

    Args:
        node: The id of this node.
        endpoints: Its endpoints.
        exclusive: No other node may have one of them.

    Attributes:
        endpoints: The endpoints of each node, this one included. Any thread may read it.
        conflict: A sentence about other nodes with an endpoint of this one; empty without one. Any thread may read it.
    """

    def __init__(self, node: str, endpoints: tuple[str, ...], *, exclusive: bool = True) -> None:
        self.endpoints: dict[str, list[str]] = {node: list(endpoints)}
        self._node = node
        self._exclusive = exclusive
        self._payload = json.dumps({"node": node, "endpoints": endpoints}).encode()
        self._heard: dict[str, float] = {}  # the time of the last announcement of each other node
        self._news = asyncio.Event()
        self.conflict = ""
        self._namesake: list[str] = []  # the endpoints of another node with the id of this one

    async def run(self, journal: Journal) -> None:
        """Announces this node and takes what others announce, until it is cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._listen(journal))
                tasks.create_task(self._announce(journal))
        except Exception:
            log.exception("node %s does not announce itself any more", self._node)

    async def _announce(self, journal: Journal) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._news.clear()
            await journal.announce(self._payload)
            try:
                async with asyncio.timeout(ANNOUNCE_INTERVAL_S):
                    await self._news.wait()
            except TimeoutError:
                self._forget(loop.time() - MAX_SILENT_INTERVALS * ANNOUNCE_INTERVAL_S)

    async def _listen(self, journal: Journal) -> None:
        async with aclosing(journal.announcements()) as announcements:
            async for payload in announcements:
                self._learn(payload, asyncio.get_running_loop().time())

    def _learn(self, payload: bytes, now: float) -> None:
        """Takes an announcement; a new node gets an answer at once. Others than brokers may publish anything."""
        try:
            given = json.loads(payload) if len(payload) <= MAX_ANNOUNCEMENT_BYTES else {}
            node, endpoints = str(given["node"]), [str(endpoint) for endpoint in given["endpoints"]]
        except (ValueError, KeyError, TypeError, RecursionError):
            return
        if node == self._node:
            self._check_own(endpoints)
            return
        if node not in self._heard and len(self._heard) >= MAX_MEMBERS:
            return
        if node not in self._heard:
            self._news.set()
        self._heard[node] = now
        if self.endpoints.get(node) != endpoints:
            self.endpoints = {**self.endpoints, node: endpoints}
            self._check_conflict()

    def _check_own(self, endpoints: list[str]) -> None:
        """Reports another broker with the id of this one, once for each of its endpoints."""
        if endpoints != self.endpoints[self._node] and endpoints != self._namesake:
            self._namesake = endpoints
            log.error(
                "another broker of the cluster, at %s, has the id %s of this one: stop one of them, and give it "
                "another id (a copied directory has the file `node`)",
                ", ".join(endpoints),
                self._node,
                extra={"event": "node_id_in_use", "node": self._node, "endpoints": endpoints},
            )

    def _check_conflict(self) -> None:
        """Reports other nodes with an endpoint of this one: there, clients do not find the leader."""
        if not self._exclusive:
            return
        own = {*self.endpoints[self._node]}
        shared = {node: found for node in self._heard if (found := own.intersection(self.endpoints[node]))}
        nodes, endpoints = sorted(shared), sorted(set().union(*shared.values()))
        before, self.conflict = self.conflict, ""
        if nodes:
            self.conflict = (
                f"other brokers of the cluster ({', '.join(nodes)}) advertise {', '.join(endpoints)} too, so that "
                "clients do not find the leader: give each broker endpoints of its own (--advertise)"
            )
        if nodes and self.conflict != before:
            log.error(
                "node %s: %s",
                self._node,
                self.conflict,
                extra={"event": "endpoint_in_use", "node": self._node, "nodes": nodes, "endpoints": endpoints},
            )

    def _forget(self, before: float) -> None:
        """Forgets the nodes that have been silent since a time."""
        for node in [node for node, heard in self._heard.items() if heard < before]:
            del self._heard[node]
            self.endpoints = {name: found for name, found in self.endpoints.items() if name != node}
            self._check_conflict()
