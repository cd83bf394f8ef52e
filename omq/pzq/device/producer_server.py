"""The receive socket: stores the messages of producers, and acknowledges them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final, Protocol

import omq.asyncio as omq
from omq._core.blocks import encode
from omq.errors import ClosedError
from omq.event import Event, EventKind
from omq.pzq.errors import Malformed
from omq.pzq.wire import MAX_BODY_BYTES, MAX_PARTS, REFUSED, REPLICAS, STORED, check_body, pack, read_produced
from omq.serving.connection_events import ConnectionEvents, log_connection
from omq.serving.router import MESSAGE_MARGIN_BYTES, RECV_BATCH, TIME_SLICE_S, bind, unbind
from omq.store.async_store import AsyncStore
from omq.store.errors import InDoubt, NotLeader, StoreFailed
from omq.store.interface import Append
from omq.types import Security

log = logging.getLogger("omq.pzq")

#: Messages of one producer that wait in the socket before its connection is no longer read; each may have 64 MiB.
RECV_HWM: Final = 16
#: Answers that wait for a producer that does not read; later ones are dropped.
SEND_HWM: Final = 1_000_000
#: Bytes of one write to the store.
WRITE_BYTES: Final = 1 << 20
#: Bytes that wait for the store, beyond which the socket is no longer read.
MAX_WAITING_BYTES: Final = 64 << 20
#: The largest batch after which the loop waits for the store: such producers seem to wait for each answer.
MAX_INLINE_MESSAGES: Final = 4
#: Seconds of that wait.
MAX_INLINE_WAIT_S: Final = 0.0002
#: Seconds for which the loop polls for the next request before it sleeps, as long as requests come sooner than that:
#: a wake-up takes longer.
SPIN_TIMEOUT_S: Final = 0.00015
#: Seconds of a write in the loop, beyond which the store's thread writes for a while: a slow disk must not delay
#: consumers and other nodes.
SLOW_WRITE_S: Final = 0.03
#: Seconds of that while.
THREAD_WRITES_S: Final = 0.5
HEARTBEAT_INTERVAL_S: Final = 10.0
HEARTBEAT_TIMEOUT_S: Final = 30.0

ProducerRequest = tuple[bytes, bytes]  # the peer, and its message's id


class ClusterView(Protocol):
    """The view of a cluster that a device's producers need."""

    def admits(self, remote: str) -> bool:
        """Returns whether a node may connect from an address."""

    def take_replica(self, frames: list[bytes], answer: Callable[[str], None]) -> None:
        """Stores replicas of a node; *answer* is called with the reason of a refusal, or with an empty text."""

    def stored(self, write: Append, requests: list[ProducerRequest]) -> None:
        """Handles stored messages, which are answered once they are replicated."""


class ProducerServer:
    """Receives messages from producers. Lives in one event loop.

    Args:
        store: The store.
        topic: The topic of the messages.
        unsynced: True if writes to the topic are acknowledged before they are synced.
        has_consumers: Returns whether a consumer is connected.
        cluster: The cluster that replicates the messages; `None`: no cluster.

    Attributes:
        counts: Counters of messages: `stored`, `repeated`, `refused`; and `stored_bytes` of bodies.
    """

    def __init__(
        self,
        store: AsyncStore,
        topic: int,
        *,
        unsynced: bool,
        has_consumers: Callable[[], bool],
        cluster: ClusterView | None = None,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._store = store
        self._topic = topic
        self._unsynced = unsynced
        self._has_consumers = has_consumers
        self._cluster = cluster
        self._nodes: set[bytes] = set()  # connections of nodes
        self._bodies: list[bytes] = []  # of one part each, which are encoded together
        self._records: list[bytes] = []
        self._requests: list[ProducerRequest] = []
        self._size = 0
        self._room: asyncio.Future[None] | None = None

    # ------------------------------------------------------------------ lifecycle

    def start(self, endpoint: str, security: Security | None) -> str:
        """Binds the socket; returns the resolved endpoint. Raises as `omq.serving.router.bind`."""
        self._socket = omq.ROUTER(
            router_rename=True,
            send_hwm=SEND_HWM,
            recv_hwm=RECV_HWM,
            max_message_size=MAX_BODY_BYTES + MESSAGE_MARGIN_BYTES,
            max_parts=MAX_PARTS,
            heartbeat_interval=HEARTBEAT_INTERVAL_S,
            heartbeat_timeout=HEARTBEAT_TIMEOUT_S,
            security=security,
            linger=1.0,
        )
        self._events = ConnectionEvents(self._socket, self._on_event, log)
        (bound,) = bind(self._socket, self._events, [endpoint])
        self._serving = asyncio.create_task(self._serve(), name="omq pzq: receive")
        self._events.start("omq pzq: connections of receive")
        return bound

    @property
    def producers(self) -> int:
        """The number of connected producers; in a cluster, connections of other nodes count, too."""
        return len(self._socket.peers)

    async def pause(self) -> None:
        """Stops receiving. Messages that were received are still answered."""
        if not hasattr(self, "_serving"):
            return
        unbind(self._socket)
        self._serving.cancel()
        await asyncio.gather(self._serving, return_exceptions=True)
        self._flush()
        self._store.flush()

    async def close(self) -> None:
        """Closes the socket after sending the answers. Idempotent."""
        if not hasattr(self, "_serving"):
            return
        await self.pause()
        await self._events.stop()
        await self._socket.close()
        self._events.close()

    def _on_event(self, event: Event) -> None:
        """Logs an event, and tracks the connections of nodes."""
        log_connection(log, "receive", event)
        if self._cluster is None or event.peer is None:
            return
        if event.kind is EventKind.DISCONNECTED:
            self._nodes.discard(event.peer.identity)
        elif event.kind is EventKind.HANDSHAKE_SUCCEEDED and self._cluster.admits(event.remote_address):
            self._nodes.add(event.peer.identity)

    # ------------------------------------------------------------------ receiving

    async def _serve(self) -> None:
        socket = self._socket
        slice_began = answered = time.monotonic()
        spins, inline_again_at = False, 0.0
        while True:
            if time.monotonic() - slice_began > TIME_SLICE_S:
                await asyncio.sleep(0)
                slice_began = time.monotonic()
            if spins:
                await asyncio.sleep(0)
                slice_began = time.monotonic()
                if not self._spin(slice_began + SPIN_TIMEOUT_S):
                    self._store.catch_up()
            try:
                batch: list[Any] = await socket.recv_many(RECV_BATCH)
            except ClosedError:
                return
            few = len(batch) <= MAX_INLINE_MESSAGES
            spins = few and self._unsynced and time.monotonic() - answered < SPIN_TIMEOUT_S
            if self._cluster is not None:
                self._events.handle()
            if not self._take_plain(batch):
                batch.reverse()
                while batch:
                    self._take(batch.pop())
                    if self._store.waiting > MAX_WAITING_BYTES:
                        await self._make_room()
            del batch
            self._flush()
            if self._store.waiting > MAX_WAITING_BYTES:
                await self._make_room()
            # In a cluster replicas are sent after the write, so it is not left to the store's thread.
            flush_began = time.monotonic()
            if self._unsynced and (few or self._cluster is not None) and flush_began >= inline_again_at:
                self._store.flush_at_once(MAX_INLINE_WAIT_S, allow_wal=self._cluster is None)
                if not spins or self._has_consumers():
                    self._store.catch_up()
                answered = time.monotonic()
                if answered - flush_began > SLOW_WRITE_S:
                    inline_again_at = answered + THREAD_WRITES_S
            else:
                self._store.flush()
                answered = time.monotonic()

    async def _make_room(self) -> None:
        """Waits until the store has taken enough of the waiting bytes."""
        self._store.flush()
        self._room = asyncio.get_running_loop().create_future()
        await self._room

    def _spin(self, until: float) -> bool:
        """Polls for a request without sleeping; returns whether one has come."""
        with suppress(ClosedError):
            while not self._socket.poll_nowait():
                if time.monotonic() >= until:
                    return False
        return True

    def _take_plain(self, batch: list[Any]) -> bool:
        """Takes a batch if each message is an id, an empty frame and a body of one part; returns whether it did."""
        requests: list[ProducerRequest] = []
        bodies: list[bytes] = []
        try:
            for peer, id, empty, body in batch:
                if empty:
                    return False
                requests.append((peer, id))
                bodies.append(body)
        except ValueError:
            return False
        size = sum(map(len, bodies))
        if size > WRITE_BYTES:
            return False
        self._requests, self._bodies, self._size = requests, bodies, size
        return True

    def _take(self, frames: list[bytes]) -> None:
        """Takes one message of a producer."""
        if self._cluster is not None and len(frames) > 2 and frames[2].startswith(REPLICAS):
            self._take_replica(self._cluster, frames)
            return
        try:
            parts, producer, sequence = read_produced(frames)
            size = len(parts[0]) if len(parts) == 1 else sum(map(len, parts))
            check_body(size)
        except Malformed as error:
            self.counts["refused"] += 1
            self._answer((frames[0], frames[1]), str(error))
            return
        if self._size + size > WRITE_BYTES or producer:
            self._flush()
        self._requests.append((frames[0], frames[1]))
        self._size += size
        if len(parts) == 1:
            self._bodies.append(parts[0])
        else:
            self._encode()
            self._records.append(pack(parts))
        if producer:
            self._flush(producer, sequence)

    def _take_replica(self, cluster: ClusterView, frames: list[bytes]) -> None:
        request = frames[0], frames[1]

        def answer(why: str) -> None:
            if why:
                self.counts["refused"] += 1
                self._answer(request, why)
            else:
                self.accept([request])

        if frames[0] in self._nodes:
            cluster.take_replica(frames, answer)
        else:
            answer("replicas are accepted only from nodes of this cluster, and this peer is not one")

    def _encode(self) -> None:
        if self._bodies:
            self._records.append(encode(self._bodies))
            self._bodies = []

    def _flush(self, producer: bytes = b"", sequence: int = 0) -> None:
        """Passes the collected messages to the store, which is flushed before the loop runs other tasks."""
        if not self._requests:
            return
        self._encode()
        records = self._records[0] if len(self._records) == 1 else b"".join(self._records)
        requests, size = self._requests, self._size
        self._records, self._requests, self._size = [], [], 0
        self._store.waiting += len(records)
        write = Append(self._topic, records, len(requests), producer, sequence)
        self._store.add(write, partial(self._stored, requests, size))

    def resume(self) -> None:
        """Resumes receiving if few enough bytes wait for the store."""
        if self._room is not None and self._store.waiting <= MAX_WAITING_BYTES:
            if not self._room.done():
                self._room.set_result(None)
            self._room = None

    # ------------------------------------------------------------------ answers

    def _stored(self, requests: list[ProducerRequest], size: int, write: Append) -> None:
        self._store.waiting -= len(write.records)
        self.resume()
        if isinstance(write.error, NotLeader | InDoubt):
            return  # its producer sends it again, to the next leader
        if write.error is not None:
            self.counts["refused"] += len(requests)
            why = _reason_of(write.error)
            for request in requests:
                self._answer(request, why)
            return
        if write.duplicate:
            self.counts["repeated"] += 1
        else:
            self.counts["stored"] += len(requests)
            self.counts["stored_bytes"] += size
        if self._cluster is None:
            self.accept(requests)
        else:
            self._cluster.stored(write, requests)

    def accept(self, requests: list[ProducerRequest], text: bytes | None = None) -> None:
        """Acknowledges messages to their producers, with a text if given."""
        answers: list[tuple[bytes, ...]]
        if text is None:
            answers = [(peer, id, STORED, b"") for peer, id in requests]
        else:
            answers = [(peer, id, STORED, b"", text) for peer, id in requests]
        try:
            self._socket.send_many_nowait(answers)
        except ClosedError:
            pass

    def _answer(self, request: ProducerRequest, why: str) -> None:
        """Refuses a message."""
        with suppress(ClosedError):
            self._socket.send_multipart_nowait((*request, REFUSED, b"", why.encode()))


def _reason_of(error: BaseException) -> str:
    """Returns the text for a producer whose message was not stored."""
    if isinstance(error, StoreFailed):
        return f"not stored: the store has failed: {error}"
    return f"not stored: {error}"
