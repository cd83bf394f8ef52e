"""The sockets between the nodes of a cluster."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final

import omq.asyncio as omq
from omq.errors import ClosedError
from omq.event import Event, EventKind
from omq.pzq.cluster.keys import Keys
from omq.pzq.cluster.replica_batch import ReplicaBatch
from omq.pzq.cluster.settings import ClusterSettings
from omq.pzq.wire import REPLICAS, STORED, shown
from omq.serving.connection_events import ConnectionEvents, log_connection
from omq.serving.rate_limit import WARNING_INTERVAL_S, RateLimit
from omq.types import Security

log = logging.getLogger("omq.pzq")

CLUSTER: Final = b"CLUSTER"
MAX_BROADCAST_BYTES: Final = 1 << 24
BATCH_BYTES: Final = 1 << 20  # of replicas that are sent as one message, about
#: Unanswered messages with replicas, beyond which further replicas of a peer are collected into one message.
MAX_UNANSWERED: Final = 2
#: Seconds for which replicas are collected at most, as an answer may be lost.
GATHER_TIMEOUT_S: Final = 0.02
MAX_WAITING_BYTES: Final = 64 << 20  # of replicas for a peer; later ones are dropped, and asked about again

Warn = Callable[[str], None]
Acked = Callable[[str, Sequence[str]], None]


class PeerTransport:
    """Broadcasts to the other nodes, receives from them, and sends them replicas. Lives in one event loop.

    Args:
        settings: The cluster.
        on_broadcast: Called with each broadcast, without its first frame.
        acked: Called with a peer, and the keys of the replicas that it has acknowledged.
    """

    def __init__(self, settings: ClusterSettings, on_broadcast: Callable[[list[bytes]], None], acked: Acked) -> None:
        self._settings = settings
        self._on_broadcast = on_broadcast
        self._acked = acked
        self._tasks: list[asyncio.Task[None]] = []
        self._sockets: list[Any] = []
        self._streams = {peer: _ReplicaStream(peer, settings.timeout) for peer in settings.peers}
        self._nodes: set[float] = set()  # connections of nodes, by the time of the connect
        self._warning_log = RateLimit(WARNING_INTERVAL_S)

    # ------------------------------------------------------------------ lifecycle

    def start(self, security: Security | None, as_client: Security | None) -> None:
        """Binds, and connects to the others.

        Args:
            security: The security of the listening socket.
            as_client: The security of the connecting sockets.

        Raises:
            EndpointError: An endpoint is not valid.
            BindError: The endpoint cannot be bound.
        """
        options: dict[str, Any] = {
            "heartbeat_interval": self._settings.timeout / 4,
            "heartbeat_timeout": self._settings.timeout,
            "reconnect_interval": min(0.1, self._settings.timeout / 10),
            "connect_timeout": max(1.0, self._settings.timeout / 2),
        }
        self._sub = omq.SUB(
            max_message_size=MAX_BROADCAST_BYTES, max_parts=64, recv_hwm=10_000, security=security, linger=0
        )
        self._sockets.append(self._sub)
        self._events = ConnectionEvents(self._sub, self._on_event, log)
        self._sub.subscribe(CLUSTER)
        self._sub.bind(self._settings.name)
        self._pub = omq.PUB(send_hwm=100_000, security=as_client, linger=0.2, **options)
        self._sockets.append(self._pub)
        self._events.start("omq pzq: connections of broadcast")
        self._run(self._listen(), "broadcast")
        for peer, receive in self._settings.peers.items():
            self._pub.connect(peer)
            dealer = omq.DEALER(security=as_client, linger=0, send_hwm=16, **options)
            self._sockets.append(dealer)
            dealer.connect(receive)
            self._run(self._streams[peer].send(dealer), f"replicas to {peer}")
            self._run(self._streams[peer].receive_answers(dealer, self._acked, self._warn), f"answers of {peer}")

    def _run(self, loop: Coroutine[Any, Any, None], name: str) -> None:
        self._tasks.append(asyncio.create_task(loop, name=f"omq pzq: {name}"))

    def stop(self) -> None:
        """Stops receiving, and sending replicas."""
        for task in self._tasks:
            task.cancel()

    async def close(self) -> None:
        """Closes the sockets. Idempotent."""
        self.stop()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if hasattr(self, "_events"):
            await self._events.stop()
            self._events.close()
        for socket in self._sockets:
            await socket.close()

    # ------------------------------------------------------------------ sending

    def broadcast(self, kind: str, body: dict[str, Any]) -> None:
        """Sends a message to all nodes (see `omq.pzq.cluster` for all kinds)."""
        with suppress(ClosedError):
            self._pub.send_multipart_nowait((CLUSTER, kind.encode(), json.dumps(body, separators=(",", ":")).encode()))

    def has_room(self, peer: str) -> bool:
        """Returns whether a replica may be sent to a peer now. A slow peer must not fill the memory."""
        return self._streams[peer].bytes < MAX_WAITING_BYTES

    def replicate(self, peer: str, origin: str, batch: ReplicaBatch) -> None:
        """Sends messages of an owner to a peer."""
        self._streams[peer].put(origin, batch)

    def forget(self, peer: str) -> None:
        """Drops the replicas for a peer that is silent or has restarted, and ignores its later answers."""
        self._streams[peer].clear()

    # ------------------------------------------------------------------ receiving

    def _on_event(self, event: Event) -> None:
        log_connection(log, "broadcast", event)
        if event.peer is None:
            return
        if event.kind is EventKind.DISCONNECTED:
            self._nodes.discard(event.peer.since)
        elif event.kind is EventKind.HANDSHAKE_SUCCEEDED:
            if self._settings.admits(event.remote_address):
                self._nodes.add(event.peer.since)
            else:
                self._warn(f"{event.remote_address} is not a node of this cluster: its broadcasts are ignored")

    async def _listen(self) -> None:
        while True:
            try:
                message = await self._sub.recv_message()
            except ClosedError:
                return
            self._events.handle()
            if message.peer.since not in self._nodes:
                continue
            try:
                self._on_broadcast(message.parts[1:])
            except (ValueError, TypeError, KeyError, IndexError) as wrong:
                self._warn(f"ignoring an invalid broadcast: {', '.join(map(shown, message.parts[:4]))}: {wrong}")
            except Exception:
                log.exception("cannot handle a broadcast")

    def _warn(self, text: str) -> None:
        if self._warning_log.passes():
            log.warning("cluster: %s", text)


class _ReplicaStream:
    """The outgoing replicas of one peer.

    Args:
        peer: The name of the peer.
        timeout: Seconds after which an answer counts as lost.

    Attributes:
        bytes: Bytes of replicas that wait to be sent.
    """

    def __init__(self, peer: str, timeout: float) -> None:
        self.bytes = 0
        self._peer = peer
        self._timeout = timeout
        self._waiting: deque[tuple[str, ReplicaBatch]] = deque()  # with the owner of the messages
        self._unanswered: dict[bytes, tuple[float, list[Keys]]] = {}  # when sent, and the messages, by id
        self._number = 0  # of the last message
        self._added = asyncio.Event()
        self._answered = asyncio.Event()

    def put(self, origin: str, batch: ReplicaBatch) -> None:
        """Adds messages of an owner."""
        self._waiting.append((origin, batch))
        self.bytes += len(batch.records)
        self._added.set()

    def clear(self) -> None:
        """Drops all of them."""
        self._waiting.clear()
        self._unanswered.clear()
        self.bytes = 0

    async def send(self, dealer: Any) -> None:
        """Sends the replicas that were added."""
        while True:
            await self._added.wait()
            self._added.clear()
            while self._waiting:
                if len(self._unanswered) >= MAX_UNANSWERED:
                    await self._gather()
                if self._waiting:  # else `clear` was called
                    await dealer.send_multipart(self._next())

    async def _gather(self) -> None:
        """Waits for an answer. Replicas that arrive meanwhile go out as one message, which costs less."""
        lost = time.monotonic() - self._timeout
        for id in [id for id, (when, _) in self._unanswered.items() if when < lost]:
            del self._unanswered[id]
        self._answered.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(GATHER_TIMEOUT_S):
                await self._answered.wait()

    def _next(self) -> list[bytes]:
        """Takes the next replicas of one owner that fit into one message."""
        waiting, origin, size = self._waiting, self._waiting[0][0], 0
        keys: list[Keys] = []
        frames: list[bytes] = []
        while waiting and waiting[0][0] == origin:
            batch = waiting[0][1]
            if frames and size + len(batch.records) > BATCH_BYTES:
                break
            waiting.popleft()
            size += len(batch.records)
            keys.append(batch.keys)
            frames += batch.head(), bytes(batch.records)
        self.bytes -= size
        self._number += 1
        id = b"%d" % self._number
        self._unanswered[id] = time.monotonic(), keys
        return [id, REPLICAS + origin.encode(), b"", *frames]

    async def receive_answers(self, dealer: Any, acked: Acked, warn: Warn) -> None:
        """Reports the messages that the peer has acknowledged."""
        while True:
            frames = await dealer.recv_multipart()
            if len(frames) < 2:
                continue
            _, sent = self._unanswered.pop(frames[0], (0.0, []))
            self._answered.set()
            if frames[1] != STORED:
                warn(f"{self._peer} refuses replicas: {frames[-1].decode(errors='backslashreplace')[:200]}")
            else:
                for keys in sent:
                    acked(self._peer, keys)
