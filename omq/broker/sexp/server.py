"""The server of the S-expression protocol over TCP."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Final

from omq.broker.core.broker import AcceptFailure, Broker
from omq.broker.sexp.connection import FrameCache, Limits, SexpConnection
from omq.broker.sexp.protocol import parse_endpoint
from omq.broker.sexp.transport import set_socket_options
from omq.errors import BindError
from omq.serving.descriptors import connection_limit, is_shortage, room_for_connections
from omq.serving.rate_limit import RateLimit
from omq.unpatched import socket

log = logging.getLogger("omq.broker")

_LISTEN_BACKLOG: Final = 1024
_ACCEPT_BATCH: Final = 64  # connections accepted in one turn of the loop
_ACCEPT_RETRY_DELAY_S: Final = 0.2  # after accept has failed without a free descriptor


class SexpServer:
    """Serves S-expression clients at a TCP port. All of it runs in the broker's loop.

    Args:
        broker: The core.
        limits: The limits of each connection.
        max_connections: The largest number of clients. `None` derives it from the descriptor limit of the process, with
            a reserve for the store and the status page; the clients of the ZMTP server count, too.

    Attributes:
        endpoint: The resolved endpoint, once it listens.
        clients: The connections that have sent `Connect`, by client id.
        connections: All connections.
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
        self._closed = asyncio.Event()  # set when a connection is closed

    async def start(self, endpoint: str) -> str:
        """Starts to listen; returns the endpoint with the resolved port.

        Raises:
            EndpointError: The endpoint is not a `tcp://host:port`.
            BindError: The endpoint cannot be bound.
        """
        self.loop = asyncio.get_running_loop()
        self._frames = FrameCache(self.loop)
        host, port = parse_endpoint(endpoint)
        try:
            found = await self.loop.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_ADDRCONFIG
            )
            family, _, _, _, address = found[0]
            listener = socket.create_server(address[:2], family=family, backlog=_LISTEN_BACKLOG)
        except OSError as error:
            raise BindError(error.errno, f"{endpoint}: {error.strerror or error}") from error
        listener.setblocking(False)
        self._listeners.append(listener)
        self.broker.add_listener("sexp", connection_limit(self._max_connections, 1, log))
        self.loop.add_reader(listener, self._accept, listener)
        name, port = listener.getsockname()[:2]
        self.endpoint = f"tcp://[{name}]:{port}" if ":" in name else f"tcp://{name}:{port}"
        return self.endpoint

    def change_core(self, broker: Broker) -> None:
        """Continues with another core over the same store."""
        self.broker = broker
        for connection in self.connections:
            connection.broker = broker

    async def close(self) -> None:
        """Stops accepting, sends the answers to publications and a last error, and closes all connections."""
        for listener in self._listeners:
            self.loop.remove_reader(listener)
            listener.close()
        self._listeners.clear()
        for connection in list(self.connections):
            connection.shut_down("the broker is stopping")
        with suppress(TimeoutError):
            async with asyncio.timeout(self.limits.close_timeout):
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
            except OSError as error:
                kind: AcceptFailure = "descriptors" if is_shortage(error) else "other"
                self._accept_failed(kind, "a client", f"{error.strerror}")
                # Without descriptors the listener stays readable, and the loop would call this again at once.
                self.loop.remove_reader(listener)
                self.loop.call_later(_ACCEPT_RETRY_DELAY_S, self._accept_again, listener)
                return
            if reason := self._refusal():
                self._accept_failed("max_connections", f"a client of tcp://{address[0]}:{address[1]}", reason)
                sock.close()
                continue
            set_socket_options(sock)
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

    def _refusal(self) -> str:
        """Returns the reason why no further client can be served; empty if one can."""
        if self._max_connections is not None and len(self.connections) >= self._max_connections:
            return f"max_connections is {self._max_connections}"
        connected = sum(self.broker.connections.values())
        if connected >= room_for_connections():
            return f"{connected} are connected, and the other descriptors are for the store"
        return ""

    def _accept_failed(self, kind: AcceptFailure, client: str, reason: str) -> None:
        self.broker.accepts_failed["sexp"][kind] += 1
        if self._refusal_log.passes():
            log.warning(
                "%s: %s is turned away (%d earlier ones were not logged): %s",
                self.endpoint,
                client,
                self._refusal_log.suppressed,
                reason,
                extra={
                    "event": "accept_failed",
                    "listener": "sexp",
                    "kind": kind,
                    "reason": reason,
                    "suppressed": self._refusal_log.suppressed,
                },
            )

    def _accept_again(self, listener: socket.socket) -> None:
        if listener in self._listeners:
            self.loop.add_reader(listener, self._accept, listener)
