"""The sockets by which the nodes of a cluster speak with each other."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import omq.asyncio as omq
from omq.errors import ClosedError
from omq.event import Event, EventKind
from omq.pzq.cluster.keys import Keys
from omq.pzq.cluster.run import Run
from omq.pzq.cluster.settings import Settings
from omq.pzq.device.watch import Watch
from omq.pzq.wire import REPLICAS, STORED, shown
from omq.types import Security

log = logging.getLogger("omq.pzq")

CLUSTER: Final = b"CLUSTER"
MAX_TALK: Final = 1 << 24  # bytes of what one node says at once
TOGETHER: Final = 1 << 20  # bytes of replicas that are sent as one message, about
#: Messages with replicas that a peer has not answered, beyond which what is to be sent gathers; and seconds that this
#: lasts at most, as an answer may be lost.
AHEAD: Final = 2
PATIENCE: Final = 0.02
MOST: Final = 64 << 20  # bytes of replicas that wait for a peer; what goes beyond is not sent, and asked about later
QUIET: Final = 1.0  # seconds between two lines about strangers


class Talk:
    """Speaks with the other nodes. Lives in one event loop.

    Args:
        settings: Who they are.
        heard: Told what was broadcast, without its first frame.
        acked: Told that a peer has taken replicas: the peer, and their keys.
    """

    def __init__(
        self, settings: Settings, heard: Callable[[list[bytes]], None], acked: Callable[[str, Sequence[str]], None]
    ) -> None:
        self._settings = settings
        self._heard = heard
        self._acked = acked
        self._tasks: list[asyncio.Task[None]] = []
        self._sockets: list[Any] = []
        #: What waits to be sent, with the owner of the messages.
        self._replicas: dict[str, deque[tuple[str, Run]]] = {peer: deque() for peer in settings.peers}
        self._number = 0  # of the last message with replicas
        #: What was sent together and when, by the id of the message.
        self._unanswered: dict[str, dict[bytes, tuple[float, list[Keys]]]] = {peer: {} for peer in settings.peers}
        self._answered: dict[str, asyncio.Event] = {}
        self._waiting = dict.fromkeys(settings.peers, 0)  # bytes of them
        self._wanted: dict[str, asyncio.Event] = {}
        self._nodes: set[float] = set()  # connections of nodes, by when they began
        self._next_line = 0.0

    # ------------------------------------------------------------------ life

    def start(self, security: Security | None, as_client: Security | None) -> None:
        """Listens, and dials the others.

        Args:
            security: What is asked of those that come.
            as_client: How this node shows who it is.

        Raises:
            EndpointError: An endpoint cannot be understood.
            BindError: It cannot be listened on.
        """
        beats: dict[str, Any] = {
            "heartbeat_interval": self._settings.timeout / 4,
            "heartbeat_timeout": self._settings.timeout,
            "reconnect_interval": min(0.1, self._settings.timeout / 10),
            "connect_timeout": max(1.0, self._settings.timeout / 2),
        }
        self._in = omq.SUB(max_message_size=MAX_TALK, max_parts=64, recv_hwm=10_000, security=security, linger=0)
        self._sockets.append(self._in)
        self._watch = Watch("broadcast", self._in)
        self._in.subscribe(CLUSTER)
        self._in.bind(self._settings.name)
        self._out = omq.PUB(send_hwm=100_000, security=as_client, linger=0.2, **beats)
        self._sockets.append(self._out)
        self._tasks.append(asyncio.create_task(self._listen(), name="omq pzq: broadcast"))
        self._tasks.append(asyncio.create_task(self._meet(), name="omq pzq: connections of broadcast"))
        for peer, receive in self._settings.peers.items():
            self._out.connect(peer)
            dealer = omq.DEALER(security=as_client, linger=0, send_hwm=16, **beats)
            self._sockets.append(dealer)
            dealer.connect(receive)
            self._wanted[peer], self._answered[peer] = asyncio.Event(), asyncio.Event()
            self._tasks.append(asyncio.create_task(self._send(peer, dealer), name=f"omq pzq: replicas to {peer}"))
            self._tasks.append(asyncio.create_task(self._answers(peer, dealer), name=f"omq pzq: answers of {peer}"))

    def stop(self) -> None:
        """Reads nothing, and sends no replicas any more."""
        for task in self._tasks:
            task.cancel()

    async def close(self) -> None:
        """Ends. Idempotent."""
        self.stop()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for socket in self._sockets:
            await socket.close()
        if hasattr(self, "_watch"):
            self._watch.close()

    # ------------------------------------------------------------------ out

    def say(self, *frames: bytes) -> None:
        """Broadcasts."""
        with suppress(ClosedError):
            self._out.send_multipart_nowait((CLUSTER, *frames))

    def say_json(self, kind: str, body: Any) -> None:
        """Broadcasts what is told as JSON."""
        self.say(kind.encode(), json.dumps(body, separators=(",", ":")).encode())

    def has_room(self, peer: str) -> bool:
        """Whether a replica is sent to a peer now: one that is slow must not fill the memory."""
        return self._waiting[peer] < MOST

    def replicate(self, peer: str, origin: str, run: Run) -> None:
        """Sends messages of an owner to a peer."""
        self._replicas[peer].append((origin, run))
        self._waiting[peer] += len(run.records)
        self._wanted[peer].set()

    def forget(self, peer: str) -> None:
        """A peer is silent, or is another run: what waits is not sent, answers to what was sent count no more."""
        self._replicas[peer].clear()
        self._unanswered[peer].clear()
        self._waiting[peer] = 0

    async def _send(self, peer: str, dealer: Any) -> None:
        waiting, wanted = self._replicas[peer], self._wanted[peer]
        while True:
            await wanted.wait()
            wanted.clear()
            while waiting:
                if len(self._unanswered[peer]) >= AHEAD:
                    await self._gather(peer)
                if waiting:  # else the peer is silent, and nothing is sent to it
                    await dealer.send_multipart(self._next(peer, waiting))

    async def _gather(self, peer: str) -> None:
        """Waits for an answer: what comes meanwhile costs less than by itself."""
        unanswered = self._unanswered[peer]
        lost = time.monotonic() - self._settings.timeout
        for id in [id for id, (when, _) in unanswered.items() if when < lost]:
            del unanswered[id]
        answered = self._answered[peer]
        answered.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                await answered.wait()

    def _next(self, peer: str, waiting: deque[tuple[str, Run]]) -> list[bytes]:
        """The next message with replicas: as many of one origin as go together."""
        origin, size = waiting[0][0], 0
        keys: list[Keys] = []
        frames: list[bytes] = []
        while waiting and waiting[0][0] == origin:
            run = waiting[0][1]
            if frames and size + len(run.records) > TOGETHER:
                break
            waiting.popleft()
            size += len(run.records)
            keys.append(run.keys)
            frames += run.head(), bytes(run.records)
        self._waiting[peer] -= size
        self._number += 1
        id = b"%d" % self._number
        self._unanswered[peer][id] = time.monotonic(), keys
        return [id, REPLICAS + origin.encode(), b"", *frames]

    # ------------------------------------------------------------------ in

    async def _answers(self, peer: str, dealer: Any) -> None:
        while True:
            frames = await dealer.recv_multipart()
            if len(frames) < 2:
                continue
            done = frames[1] == STORED
            _, runs = self._unanswered[peer].pop(frames[0], (0.0, []))
            self._answered[peer].set()
            if not done:
                self._complain(f"{peer} refuses replicas: {frames[-1].decode(errors='backslashreplace')[:200]}")
            else:
                for keys in runs:
                    self._acked(peer, keys)

    async def _meet(self) -> None:
        while (event := await self._watch.next()) is not None:
            self._happened(event)

    def _happened(self, event: Event) -> None:
        if event.peer is None:
            return
        if event.kind is EventKind.DISCONNECTED:
            self._nodes.discard(event.peer.since)
        elif event.kind is EventKind.HANDSHAKE_SUCCEEDED:
            if self._settings.admits(event.remote_address):
                self._nodes.add(event.peer.since)
            else:
                self._complain(f"{event.remote_address} is no node of this cluster: what it broadcasts is passed over")

    async def _listen(self) -> None:
        while True:
            try:
                message = await self._in.recv_message()
            except ClosedError:
                return
            while (event := self._watch.take()) is not None:
                self._happened(event)
            if message.peer.since not in self._nodes:
                continue
            try:
                self._heard(message.parts[1:])
            except (ValueError, TypeError, KeyError, IndexError) as wrong:
                self._complain(f"a broadcast counts for nothing: {', '.join(map(shown, message.parts[:4]))}: {wrong}")
            except Exception:
                log.exception("a broadcast could not be understood")

    def _complain(self, text: str) -> None:
        if time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + QUIET
            log.warning("cluster: %s", text)
