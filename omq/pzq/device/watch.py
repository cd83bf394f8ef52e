"""A socket's connections, as a server's loop is told of them: in their order with the messages."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Final

import omq.asyncio as omq
from omq.errors import ClosedError
from omq.event import Event, EventKind

log = logging.getLogger("omq.pzq")

EVENTS: Final = 1 << 20  # that may wait


def log_connection(name: str, event: Event) -> None:
    """Logs why a peer was not let in, or why its connection has ended, where the peer did not just end it.

    Args:
        name: The purpose of the socket.
        event: The event.
    """
    if event.kind is EventKind.HANDSHAKE_FAILED:
        log.info("%s: %s is not let in: %s", name, event.remote_address, event.reason)
    elif event.kind is EventKind.DISCONNECTED and event.error is not None and event.peer is not None:
        log.info("%s: the connection of %s is over: %s", name, event.remote_address, event.reason)


class Watch:
    """Says in the log why connections end that a peer's bytes have ended, and who was not let in.

    Args:
        name: What the socket is for.
        socket: The socket.
    """

    def __init__(self, name: str, socket: omq.Socket) -> None:
        self._name = name
        self._monitor = socket.monitor(EVENTS)

    async def next(self) -> Event | None:
        """Waits for an event; `None`: the socket is closed."""
        try:
            return self._logged(await self._monitor.recv())
        except ClosedError:
            return None

    def take(self) -> Event | None:
        """An event that is there already."""
        with suppress(ClosedError):
            event = self._monitor.take()
            return None if event is None else self._logged(event)
        return None

    def close(self) -> None:
        """Ends it."""
        self._monitor.close()

    def _logged(self, event: Event) -> Event:
        log_connection(self._name, event)
        return event
