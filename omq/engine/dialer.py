"""A connected endpoint: dials, waits until the connection ends, dials again."""

from __future__ import annotations

import asyncio
import errno
import math
import time
from collections import deque
from collections.abc import Coroutine, Sequence
from typing import Any, Final
from weakref import WeakSet

from omq._core.link.handshake_io import HeadStart
from omq.engine.dialer_base import Backoff, DialerBase, outcome_of
from omq.engine.lifecycle import ConnectionState, DialerState
from omq.engine.reconnect_scheduler import FORK_LOCK, REFUSED, PendingReconnect, reconnect_scheduler_of
from omq.engine.resolver import ANSWER_TTL_S, connected, reach, resolver_of
from omq.engine.views import Session, SocketView
from omq.errors import ConnectError
from omq.event import EventKind
from omq.options import Options
from omq.transport import Address, AddrInfo, Endpoint, Lookup, Opening, Route, StreamTransport, refusal
from omq.unpatched import socket

_ATTEMPT_DELAY_S: Final = 0.25  # before the next address is tried in parallel (RFC 8305, section 5)


class Dialer(DialerBase):
    """Keeps one connection to an endpoint.

    Args:
        engine: The socket.
        transport: The transport of the endpoint.
        endpoint: The endpoint to connect to.
        options: The options of the endpoint.
        given: The first connection, if the program has opened it; owned from here on.

    Attributes:
        holds_given: Whether the connection has the descriptor `use_fd`.
    """

    def __init__(
        self,
        engine: SocketView,
        transport: StreamTransport[Any],
        endpoint: Endpoint,
        options: Options,
        given: socket.socket | None = None,
    ) -> None:
        super().__init__(engine, str(endpoint), options)
        self.session: Session | None = None
        self._transport = transport
        self._target = endpoint
        self._task: asyncio.Task[None] | None = None
        self._backoff = Backoff(options)
        self._address: Address | None = None  # the address of the last attempt, if that has one and is simple
        self._until = 0.0  # when to resolve it again, in seconds of `time.monotonic()`
        self._answer: asyncio.Future[tuple[socket.socket | None, int]] | None = None  # the outcome of `_reconnect`
        # Open until a session owns them; one that is detached or closed may stay, because closing it does nothing.
        self._reaching: WeakSet[socket.socket] = WeakSet()
        self._given = given
        self.holds_given = given is not None
        if given is not None:
            self._reaching.add(given)

    def start(self, head_start: HeadStart | None = None) -> None:
        """Starts; *head_start* is a connection that the caller's thread has begun, or `None`."""
        session = self._use(head_start) if head_start is not None else None
        if session is None:
            self._spawn()
        else:
            session.ended.add_done_callback(self._outlived)  # nothing to do before that

    def _spawn(self) -> None:
        self._task = self.engine.spawn(self._run(), f"omq dial {self.endpoint}")

    def _outlived(self, _: object) -> None:
        if self.state is not DialerState.CLOSED and self.engine.in_loop:
            self._spawn()

    def _use(self, head_start: HeadStart) -> Session | None:
        """Makes a session in this step: a further one might have to wait for the GIL."""
        if not head_start.sent or not self.wanted:
            head_start.close()  # the usual attempt finds and reports the reason
            return None
        self.move(DialerState.CONNECTING)
        self.engine.emit(EventKind.CONNECT_DELAYED, self.endpoint)
        self.move(DialerState.CONNECTED)
        # The peer's address is known, because no name was resolved.
        session = self.session = self.engine.adopt(
            head_start.take(),
            self._transport,
            self.endpoint,
            self.endpoint,
            self.options,
            self,
            already_sent=head_start.sent,
        )
        return session

    def revive(self) -> None:
        if self._task is not None and self._task.cancelled():
            self._go_on()

    def leave_loop(self) -> None:
        super().leave_loop()
        self._task = None

    def enter_loop(self) -> None:
        self._go_on()

    def _go_on(self) -> None:
        """Restarts the task that dials, or that waits for the end of the connection, after it has ended."""
        if self.state is DialerState.CLOSED:
            return
        if self.session is not None and self.session.state is ConnectionState.OVER:
            self.session = None
        if self.session is None and self.state in (DialerState.CONNECTING, DialerState.CONNECTED):
            self.move(DialerState.WAITING)  # the attempt in progress has ended with the task
        if self.session is None or self.wanted:
            self._spawn()

    async def _run(self) -> None:
        self._backoff = Backoff(self.options)
        begun, self._given = self._given, None
        try:
            while self.wanted:
                # A session may exist already: from the former task, or from a head start.
                outcome = await (self._keep(begun) if self.session is None else self._outlast(self.session))
                begun = None
                self.holds_given = False
                pause = self._backoff.next(outcome) if self.wanted else None
                if pause is None:
                    break
                self.go_on(DialerState.WAITING)
                self.engine.emit(EventKind.CONNECT_RETRIED, self.endpoint, delay=pause)
                if outcome == "refused" and self._address is not None and self.is_quiet:
                    begun = await self._reconnect(self._address, pause)
                else:
                    await asyncio.sleep(pause)
        finally:
            if begun is not None:
                begun.close()  # detached if a session owns it
        self.give_up()

    async def _reconnect(self, address: Address, pause: float) -> socket.socket | None:
        """Leaves the next attempts to the loop's `ReconnectScheduler`; returns a connected or connecting socket."""
        pending = PendingReconnect(self, address, self._until)
        answer: asyncio.Future[tuple[socket.socket | None, int]] = self.engine.loop.create_future()
        self._answer = answer
        scheduler = reconnect_scheduler_of(self.engine.loop)
        scheduler.add(pending, pause)
        try:
            return (await answer)[0]
        except BaseException:
            if answer.done() and not answer.cancelled() and (sock := answer.result()[0]) is not None:
                sock.close()
            raise
        finally:
            scheduler.drop(pending)
            if self._answer is answer:
                self._answer = None

    @property
    def is_quiet(self) -> bool:
        return self.state is DialerState.WAITING and self.engine.dials_silently

    def next_delay(self) -> float:
        return self._backoff.next("refused") or 0.0

    def resume(self, fd: int, code: int) -> None:
        sock = None
        if fd >= 0:
            sock = socket.socket(fileno=fd)
            sock.setblocking(False)
            self._reaching.add(sock)
        if self._answer is None or self._answer.done():
            if sock is not None:
                sock.close()
        else:
            self._answer.set_result((sock, code))

    async def _keep(self, begun: socket.socket | None = None) -> str:
        """Connects, and waits until the connection has ended; returns the outcome, as `reconnect_stop` names it."""
        self.go_on(DialerState.CONNECTING)
        self.engine.emit(EventKind.CONNECT_DELAYED, self.endpoint)
        try:
            sock, remote = await self._connect(begun)
        except Exception as error:
            # Of any kind (a name that no codec takes raises a UnicodeError): the next attempt may succeed.
            self.engine.emit(EventKind.CONNECT_FAILED, self.endpoint, reason=error)
            return "refused" if isinstance(error, OSError) and error.errno in REFUSED else "failed"
        self.go_on(DialerState.CONNECTED)
        try:
            session = self.session = self.engine.adopt(
                sock.detach(), self._transport, self.endpoint, remote, self.options, self
            )
        except Exception as error:  # its transport lacks something else, such as descriptors
            self.engine.emit(EventKind.CONNECT_FAILED, self.endpoint, reason=error)
            return "failed"
        return await self._outlast(session)

    async def _outlast(self, session: Session) -> str:
        await asyncio.shield(session.ended)  # the session may outlive the dialer
        self.session = None
        return outcome_of(session)

    async def _connect(self, begun: socket.socket | None) -> tuple[socket.socket, str]:
        """Connects to the endpoint; returns the socket and the address of its peer."""
        timeout = self.options.connect_timeout
        try:
            async with asyncio.timeout(timeout):
                if begun is not None:
                    sock = await self._reach(begun, connected(self.engine.loop, begun))
                    return sock, self._transport.remote_address(sock)
                routes = await self._find_routes()
                if not routes:
                    raise ConnectError(f"{self.endpoint}: the name has no address")
                opening = self._transport.opening(self._target, self.options)
                sock = await (self._try(routes[0]) if len(routes) == 1 else self._race(routes))
                if opening is None:
                    return sock, self._transport.remote_address(sock)
                await self._open(sock, opening)
                return sock, opening.remote
        except TimeoutError:
            raise ConnectError(f"{self.endpoint}: no connection within connect_timeout={timeout} s") from None

    async def _open(self, sock: socket.socket, opening: Opening) -> None:
        """Talks to the proxy between a new connection and its endpoint; closes the connection if that fails."""
        timeout = self.options.handshake_timeout
        try:
            async with asyncio.timeout(timeout):
                try:
                    await _exchange(self.engine.loop, sock, opening)
                except OSError as error:
                    raise refusal(ConnectError, self.endpoint, error) from error
        except TimeoutError:
            sock.close()
            raise ConnectError(
                f"{self.endpoint}: the proxy did not answer within handshake_timeout={timeout} s"
            ) from None
        except BaseException:
            sock.close()
            raise

    async def _find_routes(self) -> Sequence[Route]:
        """Returns the addresses to try; resolves names each time, because they may have changed."""
        options = self.options
        self._address = None
        self._until = math.inf
        answers: list[Sequence[AddrInfo]] = []
        for lookup in self._transport.lookups(self._target, options):
            found = lookup.known
            if not found:
                found = await self._resolve(lookup)
                self._until = time.monotonic() + ANSWER_TTL_S
            answers.append(found)
        self._address = self._transport.address(self._target, options, answers)
        return self._transport.routes(self._target, options, answers)

    async def _race(self, routes: Sequence[Route]) -> socket.socket:
        """Tries the addresses in parallel ("happy eyeballs", RFC 8305, section 5).

        The next one starts after a quarter of a second, or when another has failed.

        The first connection wins; the other attempts end, and what they have connected is closed.
        """
        waiting = deque(routes)
        running: set[asyncio.Task[socket.socket]] = set()
        failures: list[BaseException] = []
        try:
            while waiting or running:
                if waiting:
                    running.add(self.engine.loop.create_task(self._try(waiting.popleft())))
                timeout = _ATTEMPT_DELAY_S if waiting else None
                done, _ = await asyncio.wait(running, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
                for attempt in done:
                    running.discard(attempt)
                    error = attempt.exception()
                    if error is None:
                        # Others that have connected at the same time end below.
                        running.update(done - {attempt})
                        return attempt.result()
                    failures.append(error)
        finally:
            for attempt in running:
                attempt.cancel()
                attempt.add_done_callback(_discard)
        # A refusal explains the least: prefer another failure.
        try:
            raise next((one for one in failures if getattr(one, "errno", 0) not in REFUSED), failures[-1])
        finally:
            del failures, error, attempt, done  # the traceback would keep them, and they the traceback

    async def _try(self, route: Route) -> socket.socket:
        with FORK_LOCK:
            sock, address = route()
            self._reaching.add(sock)
        return await self._reach(sock, reach(self.engine.loop, sock, address))

    async def _reach(self, sock: socket.socket, work: Coroutine[Any, Any, None]) -> socket.socket:
        try:
            await work
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
            return await resolver_of(self.engine.loop).resolve(self.engine.loop, lookup)
        except OSError as error:
            raise refusal(ConnectError, self.endpoint, error) from error

    def close_after_fork(self) -> None:
        for sock in self._reaching:
            sock.close()

    def close(self) -> None:
        task, self._task = self._task, None  # a task keeps its exception, which keeps this dialer
        if self.engine.in_loop:
            if task is not None:
                task.cancel()
            elif self.session is not None:
                self.session.ended.remove_done_callback(self._outlived)
        given, self._given = self._given, None
        if given is not None:
            given.close()
        super().close()


async def _exchange(loop: asyncio.AbstractEventLoop, sock: socket.socket, opening: Opening) -> None:
    message = opening.start()
    while True:
        if message:
            await loop.sock_sendall(sock, message)
        if not opening.needed:
            return
        answer = b""
        while len(answer) < opening.needed:
            more = await loop.sock_recv(sock, opening.needed - len(answer))
            if not more:
                raise ConnectionResetError(errno.ECONNRESET, "the proxy closed the connection")
            answer += more
        message = opening.receive(answer)


def _discard(attempt: asyncio.Task[socket.socket]) -> None:
    """Closes the socket of an attempt that has connected although it was cancelled."""
    if not attempt.cancelled() and attempt.exception() is None:
        attempt.result().close()
