"""A connected endpoint: dials, waits for the connection's end, dials again."""

from __future__ import annotations

import asyncio
import errno
import os
from collections import deque
from collections.abc import Sequence
from typing import Any, Final
from weakref import WeakSet

from omq.engine.dialer_base import Backoff, DialerBase
from omq.engine.lifecycle import ConnectionState, DialerState
from omq.engine.resolver import Resolver, reach
from omq.engine.views import DiallingSocket, Session
from omq.errors import ConnectError
from omq.event import EventKind
from omq.options import Options
from omq.transport import AddrInfo, Endpoint, Lookup, Route, StreamTransport, refusal
from omq.unpatched import socket, threading

_STAGGER: Final = 0.25  # seconds before the next address is tried beside the last one (RFC 8305, section 5)

#: The errors that say that nobody listens: where endpoints are files, one may be missing.
_REFUSED: Final = frozenset({errno.ECONNREFUSED, errno.ENOENT})

#: No other thread forks while a descriptor is made and noted: a child would keep what it does not know of. A signal
#: handler may fork amid it in this thread.
_UNFORKED: Final = threading.RLock()
os.register_at_fork(before=_UNFORKED.acquire, after_in_parent=_UNFORKED.release, after_in_child=_UNFORKED.release)


class Dialer(DialerBase):
    """Keeps one connection to an endpoint."""

    def __init__(
        self, engine: DiallingSocket, transport: StreamTransport[Any], endpoint: Endpoint, options: Options
    ) -> None:
        super().__init__(engine, str(endpoint), options)
        self.session: Session | None = None
        self._transport = transport
        self._target = endpoint
        self._task: asyncio.Task[None] | None = None
        self._resolver = Resolver()
        # Until they are adopted; one that is detached or closed may stay, to close it does nothing.
        self._reaching: WeakSet[socket.socket] = WeakSet()

    def start(self) -> None:
        self._task = self.engine.spawn(self._run(), f"omq dial {self.endpoint}")

    def revive(self) -> None:
        if self._task is not None and self._task.cancelled():
            self._go_on()

    def leave_loop(self) -> None:
        super().leave_loop()
        self._task = None

    def enter_loop(self) -> None:
        self._resolver = Resolver()
        self._go_on()

    def _go_on(self) -> None:
        """Dials on, or waits for the end of the connection: the task that did so has ended."""
        if self.state is DialerState.CLOSED:
            return
        if self.session is not None and self.session.state is ConnectionState.OVER:
            self.session = None
        if self.session is None and self.state in (DialerState.CONNECTING, DialerState.CONNECTED):
            self.move(DialerState.WAITING)  # what the task was in the midst of has ended with it
        if self.session is None or self.wanted:
            self.start()

    async def _run(self) -> None:
        backoff = Backoff(self.options)
        while self.wanted:
            outcome = await self._keep()
            pause = backoff.next(outcome) if self.wanted else None
            if pause is None:
                break
            self.go_on(DialerState.WAITING)
            self.engine.emit(EventKind.CONNECT_RETRIED, self.endpoint, delay=pause)
            await asyncio.sleep(pause)
        self.give_up()

    async def _keep(self) -> str:
        """Connects, and waits until the connection is over; gives what became of it, as `reconnect_stop` names it."""
        session = self.session  # the one that the task before has made
        if session is None:
            self.go_on(DialerState.CONNECTING)
            self.engine.emit(EventKind.CONNECT_DELAYED, self.endpoint)
            try:
                sock = await self._connect()
            except Exception as error:
                # Of any kind (a name that no codec takes raises a UnicodeError): the next attempt may succeed.
                self.engine.emit(EventKind.CONNECT_FAILED, self.endpoint, reason=error)
                return "refused" if isinstance(error, OSError) and error.errno in _REFUSED else "failed"
            self.go_on(DialerState.CONNECTED)
            remote = self._transport.remote_address(sock)
            session = self.session = self.engine.adopt(
                sock.detach(), self._transport, self.endpoint, remote, self.options, self
            )
        await asyncio.shield(session.ended)  # it may outlive the dialer
        self.session = None
        return "handshake failed" if session.info is None else "after disconnect"

    async def _connect(self) -> socket.socket:
        timeout = self.options.connect_timeout
        try:
            async with asyncio.timeout(timeout):
                routes = await self._find_routes()
                if not routes:
                    raise ConnectError(f"{self.endpoint}: the name has no address")
                return await (self._try(routes[0]) if len(routes) == 1 else self._race(routes))
        except TimeoutError:
            raise ConnectError(f"{self.endpoint}: no connection within connect_timeout={timeout} s") from None

    async def _find_routes(self) -> Sequence[Route]:
        """The ways to the endpoint; names are resolved anew each time, for an address may have moved."""
        options = self.options
        answers: list[Sequence[AddrInfo]] = []
        for lookup in self._transport.lookups(self._target, options):
            found = lookup.known or await self._resolve(lookup)
            answers.append(found)
        return self._transport.routes(self._target, options, answers)

    async def _race(self, routes: Sequence[Route]) -> socket.socket:
        """Happy eyeballs (RFC 8305, section 5): an address a quarter of a second, or when another has failed.

        The first connection wins; the other attempts end, and what they have connected is closed.
        """
        waiting = deque(routes)
        running: set[asyncio.Task[socket.socket]] = set()
        failures: list[BaseException] = []
        try:
            while waiting or running:
                if waiting:
                    running.add(self.engine.loop.create_task(self._try(waiting.popleft())))
                patience = _STAGGER if waiting else None
                done, _ = await asyncio.wait(running, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
                for attempt in done:
                    running.discard(attempt)
                    error = attempt.exception()
                    if error is None:
                        # Other attempts that have just connected, too, end below.
                        running.update(done - {attempt})
                        return attempt.result()
                    failures.append(error)
        finally:
            for attempt in running:
                attempt.cancel()
                attempt.add_done_callback(_discard)
        # Refusals say the least: another failure tells more.
        try:
            raise next((one for one in failures if getattr(one, "errno", 0) not in _REFUSED), failures[-1])
        finally:
            del failures, error, attempt, done  # which the traceback would keep, and they the traceback

    async def _try(self, route: Route) -> socket.socket:
        with _UNFORKED:
            sock, address = route()
            self._reaching.add(sock)
        try:
            await reach(self.engine.loop, sock, address)
            self._transport.verify(sock)
        except OSError as error:
            sock.close()
            raise refusal(ConnectError, self.endpoint, error) from error
        except BaseException:
            sock.close()
            raise
        return sock

    async def _resolve(self, lookup: Lookup) -> list[AddrInfo]:
        try:
            return await self._resolver.resolve(self.engine.loop, lookup)
        except OSError as error:
            raise refusal(ConnectError, self.endpoint, error) from error

    def close_after_fork(self) -> None:
        for sock in self._reaching:
            sock.close()

    def close(self) -> None:
        task, self._task = self._task, None  # which keeps its exception, and that this dialer
        if task is not None and self.engine.in_loop:
            task.cancel()
        super().close()


def _discard(attempt: asyncio.Task[socket.socket]) -> None:
    """Closes the socket of an attempt that has connected although it was cancelled."""
    if not attempt.cancelled() and attempt.exception() is None:
        attempt.result().close()
