"""The server of the protocol of S-expressions: its tcp port, and the connections."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Final

from omq.broker.core.broker import Broker
from omq.broker.core.rate_limit import RateLimit
from omq.broker.sexp.connection import FrameCache, Limits, SexpConnection
from omq.broker.sexp.protocol import parse_endpoint
from omq.broker.sexp.transport import set_up
from omq.errors import BindError
from omq.serving.descriptors import room_for_connections
from omq.unpatched import socket

log = logging.getLogger("omq.broker")

_BACKLOG: Final = 1024
_ACCEPT_BATCH: Final = 64  # connections let in before others have their turn
_ACCEPT_RETRY_DELAY_S: Final = 0.2  # when the process has no descriptors left


class SexpServer:
    """Lets clients in at a tcp port. All of it runs in the broker's loop.

    Args:
        broker: The core.
        limits: See there.
        max_connections: How many clients it serves; `None`: as many as there are descriptors for, less some for the
            store and the status page, together with the clients of the other listener.

    Attributes:
        endpoint: Where it listens, once it does.
        clients: Who is connected, by client id.
        connections: All of them, also those that have not sent `Connect`.
    """

    def __init__(self, broker: Broker, *, limits: Limits | None = None, max_connections: int | None = None) -> None:
        self.broker = broker
        self.limits = limits or Limits()
        self.endpoint = ""
        self.clients: dict[bytes, SexpConnection] = {}
        self.connections: set[SexpConnection] = set()
        self._max_connections = max_connections
        self._refusal_log = RateLimit()
        self._listeners: list[socket.socket] = []
        self._closed = asyncio.Event()  # a connection is over

    async def start(self, endpoint: str) -> str:
        """Listens; gives the endpoint with its port.

        Raises:
            EndpointError: It is not a `tcp://host:port`.
            BindError: It cannot be listened on.
        """
        self.loop = asyncio.get_running_loop()
        self._frames = FrameCache(self.loop)
        host, port = parse_endpoint(endpoint)
        try:
            found = await self.loop.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_ADDRCONFIG
            )
            family, _, _, _, address = found[0]
            listener = socket.create_server(address[:2], family=family, backlog=_BACKLOG)
        except OSError as error:
            raise BindError(error.errno, f"{endpoint}: {error.strerror or error}") from error
        listener.setblocking(False)
        self._listeners.append(listener)
        self.loop.add_reader(listener, self._accept, listener)
        name, port = listener.getsockname()[:2]
        self.endpoint = f"tcp://[{name}]:{port}" if ":" in name else f"tcp://{name}:{port}"
        return self.endpoint

    async def close(self) -> None:
        """Accepts no more connections; answers what was published, says good-bye, and closes what is open."""
        for listener in self._listeners:
            self.loop.remove_reader(listener)
            listener.close()
        self._listeners.clear()
        for connection in list(self.connections):
            connection.shut_down("the broker ends")
        with suppress(TimeoutError):
            async with asyncio.timeout(self.limits.closing):
                while self.connections:
                    self._closed.clear()
                    await self._closed.wait()
        for connection in list(self.connections):
            connection.transport.close()

    def _remove(self, connection: SexpConnection) -> None:
        self.connections.discard(connection)
        self.broker.connections["sexp"] = len(self.connections)
        self._closed.set()

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_ACCEPT_BATCH):
            try:
                sock, address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:
                # Without descriptors the listener stays readable: to look again at once would be all that is done.
                self.loop.remove_reader(listener)
                self.loop.call_later(_ACCEPT_RETRY_DELAY_S, self._accept_again, listener)
                return
            if not self._has_room():
                self._log_refusal(address)
                sock.close()
                continue
            set_up(sock)
            connection = SexpConnection(
                sock,
                f"tcp://{address[0]}:{address[1]}",
                loop=self.loop,
                broker=self.broker,
                limits=self.limits,
                frames=self._frames,
                clients=self.clients,
                on_close=self._remove,
            )
            self.connections.add(connection)
            self.broker.connections["sexp"] = len(self.connections)

    def _has_room(self) -> bool:
        """Returns whether one client more is served."""
        if self._max_connections is not None:
            return len(self.connections) < self._max_connections
        return sum(self.broker.connections.values()) < room_for_connections()

    def _log_refusal(self, address: tuple[str, int]) -> None:
        if not self._refusal_log.passes():
            return
        if self._max_connections is not None:
            reason = f"max_connections is {self._max_connections}"
        else:
            reason = (
                f"{sum(self.broker.connections.values())} are connected, and descriptors are kept back for the store"
            )
        log.warning(
            "%s: a client of tcp://%s:%d is turned away (%d others were before it): %s",
            self.endpoint,
            *address[:2],
            self._refusal_log.suppressed,
            reason,
        )

    def _accept_again(self, listener: socket.socket) -> None:
        if listener in self._listeners:
            self.loop.add_reader(listener, self._accept, listener)
