"""The common part of servers that receive at a ROUTER socket: those of the broker and of pzq."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Final

import omq.asyncio as omq
from omq.errors import OmqError
from omq.serving.connection_events import ConnectionEvents

RECV_BATCH: Final = 256  #: Messages that are received in one call.
TIME_SLICE_S: Final = 0.002  #: Of work, after which other tasks of the loop get a turn.
#: Bytes by which a message may exceed the limit of its content, and is then answered with an error. A larger one closes
#: its connection.
MESSAGE_MARGIN_BYTES: Final = 16 << 20


def bind(socket: omq.Socket, events: ConnectionEvents, endpoints: Iterable[str]) -> list[str]:
    """Binds a socket; returns the resolved endpoints. After an error it closes the socket and its events.

    Raises:
        EndpointError: An endpoint is not valid.
        BindError: An endpoint cannot be bound.
    """
    try:
        return [socket.bind(endpoint) for endpoint in endpoints]
    except BaseException:
        events.close()
        socket.stop()
        raise


def unbind(socket: omq.Socket) -> None:
    """Stops accepting connections; those that exist stay."""
    for endpoint in socket.endpoints:
        with suppress(OmqError):
            socket.unbind(endpoint)
