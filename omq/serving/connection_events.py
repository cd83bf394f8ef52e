"""The events of the connections of a server's socket, in order with its messages."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Final

import omq.asyncio as omq
from omq.errors import ClosedError
from omq.event import Event, EventKind
from omq.message import PeerInfo

__all__ = ["ConnectionEvents", "log_connection"]

MAX_EVENTS: Final = 1 << 20  # events that are queued
#: Batches in which the last messages of a peer may arrive while other peers continue to send.
MAX_LAST_BATCHES: Final = 64


class ConnectionEvents:
    """Handles the events of a socket's connections, each before the messages that come after it.

    The loop that reads the socket receives a batch, calls `handle` and then processes the messages: so a peer is known
    before its first message. While no messages come, a task handles the events. A peer whose connection has ended is
    leaving until its last messages have been processed.

    Args:
        socket: The socket, before it is bound.
        on_event: Called with each event.
        log: The log for errors of the two callbacks.
        on_idle: Called after events that were handled while no messages came; `None` for no call.

    Attributes:
        held: True while the reading loop yields in the middle of a batch: events wait for the rest of it.
    """

    def __init__(
        self,
        socket: omq.Socket,
        on_event: Callable[[Event], None],
        log: logging.Logger,
        on_idle: Callable[[], None] | None = None,
    ) -> None:
        self.held = False
        self._socket = socket
        self._monitor = socket.monitor(MAX_EVENTS)
        self._on_event = on_event
        self._on_idle = on_idle
        self._log = log
        self._waiting: deque[Event] = deque()
        self._batches: dict[bytes, int] = {}  # since the connection ended, by identity
        self._task: asyncio.Task[None] | None = None

    # ------------------------------------------------------------------ life

    def start(self, name: str) -> None:
        """Starts to handle events while no messages come.

        Args:
            name: The name of the task.
        """
        self._task = asyncio.get_running_loop().create_task(self._run(), name=name)

    async def stop(self) -> None:
        """Ends the task. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def close(self) -> None:
        """Ends the monitor, which outlives the socket otherwise. Idempotent."""
        self._monitor.close()

    async def _run(self) -> None:
        with suppress(ClosedError):
            while True:
                self._waiting.append(await self._monitor.recv())
                if self.held:
                    continue
                try:
                    self.handle()
                    if self._on_idle is not None:
                        self._on_idle()
                except Exception:
                    self._log.exception("an event of a connection could not be handled")

    # ------------------------------------------------------------------ events

    def handle(self) -> None:
        """Handles the queued events."""
        while self._waiting:
            self._on_event(self._waiting.popleft())
        with suppress(ClosedError):
            while (event := self._monitor.take()) is not None:
                self._on_event(event)

    def recount(self, known: Collection[bytes]) -> list[PeerInfo]:
        """Compares the socket's peers with the known ones, after events were missed.

        Args:
            known: The identities of the known peers; those without a connection are leaving from now on.

        Returns:
            The peers that are not in *known*.
        """
        connected = {peer.identity: peer for peer in self._socket.peers}
        for identity in known:
            if identity not in connected:
                self.leave(identity)
        return [peer for identity, peer in connected.items() if identity not in known]

    # ------------------------------------------------------------------ peers that leave

    def leave(self, identity: bytes) -> None:
        """Records that a connection has ended, whose last messages may still be queued in the socket."""
        self._batches[identity] = 0

    def is_leaving(self, identity: bytes) -> bool:
        """Returns whether the last messages of a connection that has ended may still come."""
        return identity in self._batches

    def stay(self, identity: bytes) -> None:
        """Removes a peer from the leaving ones, because another connection has its identity."""
        self._batches.pop(identity, None)

    def take_gone(self) -> list[bytes]:
        """Returns the peers whose last messages were processed, each once; to be called after each batch."""
        if not self._batches:
            return []
        limit = MAX_LAST_BATCHES if self.messages_wait() else 0
        gone = [identity for identity, batches in self._batches.items() if batches >= limit]
        for identity in gone:
            del self._batches[identity]
        for identity in self._batches:
            self._batches[identity] += 1
        return gone

    def messages_wait(self) -> bool:
        """Returns whether a message can be received without waiting."""
        try:
            return bool(self._socket.poll_nowait())
        except ClosedError:
            return False


def log_connection(log: logging.Logger, name: str, event: Event) -> None:
    """Logs refused peers, and connections that ended with an error.

    Args:
        log: The log.
        name: The purpose of the socket.
        event: The event.
    """
    if event.kind is EventKind.HANDSHAKE_FAILED:
        log.info("%s: %s was refused: %s", name, event.remote_address, event.reason)
    elif event.kind is EventKind.DISCONNECTED and event.error is not None and event.peer is not None:
        log.info("%s: the connection of %s is over: %s", name, event.remote_address, event.reason)
