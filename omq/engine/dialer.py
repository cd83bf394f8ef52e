"""A connected endpoint: dials, waits for the connection's end, dials again."""

from __future__ import annotations

import asyncio
import random
import socket
from typing import TYPE_CHECKING, Any

from omq.engine.lifecycle import DialerState, Living
from omq.errors import ConnectError
from omq.event import EventKind
from omq.transport import ipc, tcp
from omq.transport.endpoint import IpcEndpoint, TcpEndpoint, refusal

if TYPE_CHECKING:
    from omq.engine.connection import WireSession
    from omq.engine.socket import Engine


class Dialer(Living[DialerState]):
    """Keeps one connection to an endpoint.

    Attributes:
        session: The connection, while there is one.
    """

    def __init__(self, engine: Engine, endpoint: TcpEndpoint | IpcEndpoint) -> None:
        self.state = DialerState.NEW
        self.engine = engine
        self.endpoint = str(endpoint)
        self.session: WireSession | None = None
        self._target = endpoint
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = self.engine.spawn(self._run(), f"omq dial {self.endpoint}")

    async def _run(self) -> None:
        delay = self._first_delay()
        while True:
            self.move(DialerState.CONNECTING)
            self.engine.emit(EventKind.CONNECT_DELAYED, self.endpoint)
            try:
                sock = await self._connect()
            except Exception as error:
                # Whatever it is (a name that no codec takes raises a UnicodeError): the next attempt may succeed.
                self.engine.emit(EventKind.CONNECT_FAILED, self.endpoint, reason=error)
            else:
                self.move(DialerState.CONNECTED)
                self.session = self.engine.adopt(sock, self.endpoint, self)
                await self.session.ended
                if self.session.info is not None:
                    delay = self._first_delay()
                self.session = None
            if delay is None or not self.engine.wants_peers:
                self.move(DialerState.CLOSED)
                return
            self.move(DialerState.WAITING)
            # Jitter keeps the clients of a server that returns from coming all at once.
            pause = delay * random.uniform(0.75, 1.0)
            self.engine.emit(EventKind.CONNECT_RETRIED, self.endpoint, delay=pause)
            await asyncio.sleep(pause)
            delay = min(delay * 2, self._ceiling())

    def _first_delay(self) -> float | None:
        return self.engine.first_reconnect_interval

    def _ceiling(self) -> float:
        interval = self.engine.options.reconnect_interval
        assert interval is not None
        return interval[1] if isinstance(interval, tuple) else interval

    async def _connect(self) -> socket.socket:
        timeout = self.engine.options.connect_timeout
        try:
            async with asyncio.timeout(timeout):
                if isinstance(self._target, IpcEndpoint):
                    sock, address = ipc.prepare(self._target, self.engine.options)
                    return await self._reach(sock, address)
                return await self._connect_tcp(self._target)
        except TimeoutError:
            raise ConnectError(f"{self.endpoint}: no connection within connect_timeout={timeout} s") from None

    async def _connect_tcp(self, target: TcpEndpoint) -> socket.socket:
        """Tries every address of the name in turn; the name is resolved anew each time."""
        options = self.engine.options
        assert target.host is not None
        infos = await self._resolve(target.host, target.port)
        source: list[tcp.AddrInfo] = []
        if target.source is not None:
            source = tcp.known(*target.source, interfaces=True) or await self._resolve(*target.source)
        error: OSError = ConnectError(f"{self.endpoint}: the name has no address")
        for family, _, _, _, address in tcp.candidates(infos):
            try:
                sock = tcp.prepare(family, target, options, source)
                return await self._reach(sock, address)
            except OSError as failure:
                error = failure
        raise error

    async def _resolve(self, host: str, port: int) -> list[tcp.AddrInfo]:
        found = tcp.known(host, port)
        if found:
            return found
        hints = tcp.hints(host, self.engine.options)
        return list(await self.engine.loop.getaddrinfo(host, port, **hints))

    async def _reach(self, sock: socket.socket, address: Any) -> socket.socket:
        try:
            await self.engine.loop.sock_connect(sock, address)
        except OSError as error:
            sock.close()
            raise refusal(ConnectError, self.endpoint, error) from error
        except BaseException:
            sock.close()
            raise
        return sock

    def close(self) -> None:
        """Stops dialling and ends the connection."""
        if self.state is not DialerState.CLOSED:
            self.move(DialerState.CLOSED)
        if self._task is not None:
            self._task.cancel()
        if self.session is not None:
            self.session.end(None)
