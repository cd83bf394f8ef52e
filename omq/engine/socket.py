"""The engine of one socket: its loop, its sessions and their end. It owns everything that it starts."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, cast

from omq._core.link.handshake_io import HandshakePoller
from omq._core.queues.traffic import Traffic
from omq.engine.connect_attempts import ConnectAttempts
from omq.engine.driver import Driver
from omq.engine.endpoints import Endpoints
from omq.engine.heartbeat import Heartbeat
from omq.engine.lifecycle import ConnectionState, SocketState, StateMachine
from omq.engine.linger import NOTICE_DELAY_S, Linger
from omq.engine.report import Reporter, failure
from omq.engine.views import ContextView, DialerView, LimiterView, Session
from omq.engine.weak_callback import weak_callback
from omq.engine.wire_session import WireSession
from omq.engine.zap import Authenticator
from omq.errors import StateError
from omq.event import EventKind
from omq.message import SocketStats
from omq.options import Options
from omq.routing import PATTERNS
from omq.transport import StreamTransport
from omq.types import SENDS_IDENTITY, SocketType
from omq.unpatched import threading

log = logging.getLogger("omq")

# Looking up a member of an enumeration calls a Python function each time.
_HANDSHAKING, _READY = ConnectionState.HANDSHAKING, ConnectionState.READY
_ACCEPTED, _CONNECTED, _SUCCEEDED = EventKind.ACCEPTED, EventKind.CONNECTED, EventKind.HANDSHAKE_SUCCEEDED

_CANCEL_TIMEOUT_S = 1.0  # that cancelled tasks may take to end


class Parent(Protocol):
    """An owner of tasks, such as an `asyncio.TaskGroup` or a loop."""

    def create_task(self, coro: Coroutine[Any, Any, Any], *, name: str | None = None) -> Any: ...


class Engine(StateMachine[SocketState]):
    """One socket, without its calls.

    Args:
        socket_type: The socket's type.
        options: The options in force.
        context: The state that it shares with other sockets.
        driver: Drives its descriptors.
        parent: Owns the socket's tasks; `None` leaves them to the loop.

    Attributes:
        on_stop: Called first, and once: when everything ends, for any reason, or when the loop ends before that.
        notice: Seconds after which `close` reports that it waits.
        futile_reason: The reason why waiting is useless; empty if it is not.
        reconnects: The number of connections that dialers have got after their first one.
    """

    def __init__(
        self,
        socket_type: SocketType,
        options: Options,
        context: ContextView,
        driver: Driver,
        parent: Parent | None = None,
    ) -> None:
        self.socket_type = socket_type
        self.options = options
        self.context = context
        self.fork_guard = context.fork_guard
        self.driver = driver
        self.lock = driver.lock
        self._create_queues()
        whole = weakref.proxy(self)  # the parts do not outlive the engine, and must not keep it alive
        self.connect_attempts: set[ConnectAttempts] = set()
        self.reporter = Reporter(whole)
        self.heartbeat = Heartbeat(whole)
        self.on_stop: Callable[[], None] = _nothing
        self.state = SocketState.NEW
        self.authenticator = Authenticator(whole)
        self.has_loop = False
        self._parent = parent
        self._thread = 0
        self.endpoints = Endpoints(self)
        self._sessions: dict[Session, None] = {}
        self._traffic = Traffic()
        self.reconnects = 0
        self._handshake_failures = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._linger = Linger(whole)
        self.notice = NOTICE_DELAY_S
        self.futile_reason = ""
        self._closers = 0  # the number of waiting calls of `close`
        self._stopping = threading.Lock()  # held by the thread that begins to stop it
        self._watchers: set[asyncio.Future[None]] = set()

    def _create_queues(self) -> None:
        """Creates the queues for the current options."""
        driver = self.driver
        self.pattern = PATTERNS[self.socket_type](self.socket_type, self.options, driver.readable, driver.writable)
        driver.assemble(self.pattern.send_queue)
        if self.pattern.send_queue is not None:
            self.pattern.send_queue.single_part = self.pattern.traits.single_part
        self.pattern.share(driver.pipe_lock)
        self._listen()

    def _listen(self) -> None:
        self.pattern.listen(weak_callback(self.changed), weak_callback(self._subscribed))

    def _loop_calls(self) -> tuple[Callable[..., None], Callable[..., None], Callable[..., None]]:
        """Returns the functions for the poller of handshakes."""
        return (
            weak_callback(self._watch_descriptor),
            weak_callback(self._forget_descriptor),
            weak_callback(self._report_handshake),
        )

    @property
    def closing(self) -> bool:
        """Returns whether `close` or `stop` has been called."""
        return self.state is SocketState.CLOSING or self.state is SocketState.CLOSED

    @property
    def closed(self) -> bool:
        """Returns whether everything has ended."""
        return self.state is SocketState.CLOSED

    # ------------------------------------------------------------------ the loop

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Starts to run in this loop."""
        handshakes = HandshakePoller(*self._loop_calls())
        if self.has_loop or self.closed:
            return  # a finalizer has attached or closed it meanwhile
        self.move(SocketState.RUNNING)
        self.handshakes = handshakes
        self.loop = loop
        self.has_loop = True
        self._thread = threading.get_ident()
        self.driver.start(loop)
        if self._parent is not None:
            self._over: asyncio.Future[None] = loop.create_future()
            supervision = self._supervise()
            try:
                task = self._parent.create_task(supervision, name=f"omq {self.socket_type.value}")
            except BaseException:
                supervision.close()
                raise
            # A task that is cancelled before its first step never runs, so `_supervise` would not end the socket.
            if hasattr(task, "add_done_callback"):
                task.add_done_callback(lambda _: self._parent_over())
        self.reporter.start()
        self.endpoints.start()

    def leave_loop(self) -> None:
        """Leaves its loop, which ends or has ended: no calls from now on. `enter_loop` gives it another one.

        Runs in the loop's thread or, if no thread runs the loop, in any.
        """
        self._refresh_references()
        self.on_stop()
        self.on_stop = lambda: None  # the user's socket stays in its own thread
        self.begin_closing()
        self.driver.leave_loop()
        if self.handshakes.fd >= 0:
            self._forget_descriptor(self.handshakes.fd)
        for session in tuple(self._sessions):
            session.leave_loop()
        self.endpoints.leave_loop()
        self.heartbeat.leave_loop()
        self.authenticator.leave_loop()
        self.reporter.stop()
        self.changed()
        self._cancel_tasks()
        self._tasks = set()
        parent, self._parent = self._parent, None
        if parent is not None and self.in_loop and not self._over.done():
            self._over.set_result(None)

    def enter_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Continues in another loop, which runs in this thread: accepted messages are sent and `close` waits there."""
        if self.closed:
            return
        self.loop = loop
        self._thread = threading.get_ident()
        self._closers = 0
        self._linger = Linger(self)
        self._watchers = set()
        self.driver.start(loop)
        if self.handshakes.fd >= 0:
            self._watch_descriptor(self.handshakes.fd, self.handshakes.serve)
        for session in tuple(self._sessions):
            session.enter_loop()
        self.endpoints.enter_loop()
        self.heartbeat.enter_loop()
        self.authenticator.watch_cookies()

    @property
    def in_loop(self) -> bool:
        """Returns whether there is a loop that still takes calls."""
        return self.has_loop and not self.loop.is_closed()

    async def _supervise(self) -> None:
        """Runs in the user's task group: the group waits for the socket, and ends it."""
        try:
            await self._over
        finally:
            self._parent_over()

    def _parent_over(self) -> None:
        """Ends the socket with its parent, unless another loop has it by now."""
        if self._parent is not None and not self.closed:
            if self.options.linger != 0:
                self._linger.report_lost("its parent has ended")
            self.stop()

    def post(self, function: Callable[..., None], *arguments: Any) -> None:
        """Calls a function in this socket's loop, from any thread."""
        try:
            self.loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            log.debug("%s: the loop is closed; %r is not called", self.socket_type.value, function)

    @property
    def on_loop_thread(self) -> bool:
        """Returns whether this is the thread of the socket's loop; a user's loop may move to another thread."""
        if self.driver.has_thread:
            return threading.get_ident() == self._thread
        return self.has_loop and (asyncio._get_running_loop() is self.loop or not self.loop.is_running())

    @property
    def runs_elsewhere(self) -> bool:
        """Returns whether the socket's loop runs in another thread right now."""
        return self.has_loop and self.loop.is_running() and asyncio._get_running_loop() is not self.loop

    def call(self, function: Callable[..., None], *arguments: Any) -> None:
        """Calls a function in this socket's thread: at once, if that is this one."""
        if self.on_loop_thread:
            function(*arguments)
        else:
            self.post(function, *arguments)

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Starts a task that ends with the socket."""
        task = self.loop.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def sibling(self, socket_type: SocketType, options: Options, driver: Driver) -> Engine:
        """Makes another socket of the same context."""
        return Engine(socket_type, options, self.context, driver)

    # ------------------------------------------------------------------ what it has and needs

    @property
    def in_use(self) -> bool:
        """Returns whether it has endpoints, or has had a loop, and must be closed."""
        return self.has_loop or self.endpoints.in_use

    @property
    def wants_peers(self) -> bool:
        """Returns whether a new connection is needed: always, until closing has nothing left to deliver."""
        return not self.closed and not (self.closing and self.pattern.idle)

    @property
    def dials_silently(self) -> bool:
        """Returns whether it runs, and attempts to connect are neither monitored nor logged."""
        return self.state is SocketState.RUNNING and not self.reporter.is_read

    def is_last(self, session: Session | None) -> bool:
        """Returns whether only this session, or its dialer, could take the messages that are for any peer."""
        return not self.endpoints.may_bring_peers and all(one is session for one in self.pattern.sessions)

    @property
    def drained(self) -> bool:
        """Returns whether the kernel has all accepted messages."""
        leaving = any(session.state is ConnectionState.LEAVING for session in self._sessions)
        return self.pattern.idle and not leaving and self.endpoints.drained

    @property
    def unsent(self) -> int:
        """The number of accepted messages that the kernel does not have, as far as they are counted one by one."""
        leaving = [session for session in self._sessions if session.state is ConnectionState.LEAVING]
        return self.pattern.unsent + self.endpoints.unsent + sum(session.peer.unsent for session in leaving)

    def stats(self) -> SocketStats:
        """Returns the statistics; on any thread."""
        pattern = self.pattern
        counts = self._traffic.counts(pattern.send_queue, pattern.recv_queue)
        return SocketStats(*counts, self.reconnects, self._handshake_failures, self.peer_count)

    @property
    def may_have_peers(self) -> bool:
        """Returns whether it has a connection, or may get one."""
        return bool(self._sessions or self.endpoints.leaving) or self.endpoints.may_bring_peers

    def properties(self, options: Options) -> dict[bytes, bytes]:
        """Our metadata for the handshakes of an endpoint with these options."""
        # RFC 37, The NULL Mechanism: Identity is for REQ, DEALER and ROUTER.
        own = {b"Identity": options.identity} if self.socket_type in SENDS_IDENTITY else {}
        return own | dict(self.options.metadata)

    # ------------------------------------------------------------------ sessions

    @property
    def sessions(self) -> list[Session]:
        """The peers that have finished their handshake and take part in routing."""
        # Other threads read this too; the tuple is made in one step.
        found = cast("tuple[Session, ...]", tuple(self.pattern.sessions))
        return [session for session in found if session.is_ready]

    @property
    def peer_count(self) -> int:
        """The number of peers that take part in routing."""
        return len(self.pattern.sessions)

    def adopt(
        self,
        fd: int,
        transport: StreamTransport[Any],
        endpoint: str,
        remote_address: str,
        options: Options,
        dialer: DialerView | None,
        limiter: LimiterView | None = None,
        *,
        already_sent: bytes = b"",
    ) -> Session:
        """Takes over a connected descriptor, of a dialer or of a listener, whose limiter may refuse it.

        *already_sent*: the part of our side of the handshake that was sent already.
        """
        try:
            session = WireSession(self, fd, transport, endpoint, remote_address, options, dialer, limiter)
            session.already_sent = already_sent
        except BaseException:
            os.close(fd)
            raise
        if limiter is not None:
            limiter.enter(session)
        self._sessions[session] = None
        try:
            session.start()
        except OSError as error:  # the loop cannot watch more descriptors
            session.end(error)
        return session

    def session_connected(self, session: Session, *, dialled: bool) -> None:
        """Reports a new connection, whose handshake begins."""
        session.move(_HANDSHAKING)
        self.emit(_CONNECTED if dialled else _ACCEPTED, session=session)

    def session_ready(self, session: Session, *, routed: bool = True) -> None:
        """Handles the end of a handshake; *routed*: the session takes part in routing."""
        session.move(_READY)
        self._sessions[session] = None
        self._traffic.add(session.peer)
        self.reporter.tune()
        if routed:
            with self.lock:
                self.pattern.connected(session)
        self.emit(_SUCCEEDED, session=session)
        self.changed()

    def session_ended(self, session: Session, before: ConnectionState, reason: Exception | None) -> None:
        """Handles the end of a session; *before*: its state until then."""
        self._sessions.pop(session, None)
        why = reason or "closed by this side"
        if before is ConnectionState.HANDSHAKING:
            self._handshake_failures += reason is not None
            self.emit(EventKind.HANDSHAKE_FAILED, session=session, reason=why, category=failure(reason))
        elif before is not ConnectionState.CONNECTING:
            self._traffic.remove(session.peer)
            self.reporter.report_dropped(session)
        if before is not ConnectionState.CONNECTING:
            self.emit(EventKind.DISCONNECTED, session=session, reason=why)
        self.changed()

    def session_drained(self) -> None:
        """Wakes `close`, because a leaving session has handed everything to the kernel."""
        self.changed()

    def emit(
        self,
        kind: EventKind,
        endpoint: str = "",
        *,
        session: Session | None = None,
        reason: str | BaseException | None = None,
        **details: Any,
    ) -> None:
        """Reports an event of the socket or of a connection, to the log and to monitors. Never for each message.

        Args:
            kind: The kind of the event.
            endpoint: The endpoint; that of the session, if one is given.
            session: The connection of the event, whose peer, address and mechanism are reported.
            reason: The reason, as a text or as the exception that caused the event.
            **details: Further attributes of `omq.Event`.
        """
        self.reporter.emit(kind, endpoint or (session.endpoint if session else ""), session, reason, details)

    def _subscribed(self, session: Any, prefix: bytes, subscribe: bool) -> None:
        """Reports a subscription of a peer, or its end."""
        self.emit(EventKind.SUBSCRIBED if subscribe else EventKind.UNSUBSCRIBED, session=session, prefix=prefix)

    def changed(self) -> None:
        """Wakes the calls that wait for a state: peers, dialers or subscriptions have changed."""
        if not self.on_loop_thread:
            if self.has_loop:
                self.post(self.changed)
            return
        for watcher in self._watchers:
            if not watcher.done() and self.in_loop:
                watcher.set_result(None)
        self._watchers.clear()
        self._linger.look()

    async def wait_until(self, reached: Callable[[], bool], timeout: float | None) -> bool:
        """Waits until a condition on peers or subscriptions holds; false if the time was up, or it closes, first."""
        deadline = None if timeout is None else self.loop.time() + timeout
        while True:
            # Before the check, so that each later change wakes this call.
            self.pattern.watch()
            if reached():
                return True
            if self.closing:
                return False
            left = None if deadline is None else deadline - self.loop.time()
            if left is not None and left <= 0:
                return False
            watcher: asyncio.Future[None] = self.loop.create_future()
            self._watchers.add(watcher)
            try:
                async with asyncio.timeout(left):
                    await watcher
            except TimeoutError:
                return reached()
            finally:
                self._watchers.discard(watcher)

    def report_at_once(self) -> None:
        """Makes `close` report at once what it waits for."""
        self.notice = 0.0
        self._linger.reset_report()

    def report_lost(self, why: str) -> None:
        """Logs the accepted messages that are about to be dropped, if there are any."""
        self._linger.report_lost(why)

    def has_unsent(self) -> bool:
        """Returns whether accepted messages have not left."""
        with self.lock:
            return not self.drained

    @property
    def accepted(self) -> list[str]:
        """The endpoints of the accepted peers, one for each; on any thread."""
        dialled = {id(dialer.session) for dialer in self.endpoints.open_dialers()}
        return [session.endpoint for session in tuple(self._sessions) if id(session) not in dialled]

    def give_up(self, why: str) -> None:
        """Makes `close` wait for nothing from now on, and report what it drops; on any thread."""
        self.futile_reason = why
        self.notice = 0.0

    def reconfigure(self, options: Options) -> None:
        """Applies changed options, which are all live."""
        with self.lock:
            self.options = options
            self.pattern.reconfigure(options)

    def remake(self, options: Options) -> None:
        """Applies changed options before the first use: creates the queues again; subscriptions stay.

        Raises:
            StateError: Messages are queued to be sent.
        """
        with self.lock:
            before = self.pattern
            if not before.idle:
                raise StateError("messages are queued to be sent: only live options can be changed now")
            self.options = options
            self._create_queues()
            self.pattern.inherit(before)

    # ------------------------------------------------------------------ the end

    def begin_closing(self) -> None:
        """Takes no calls from now on."""
        if self.state is SocketState.RUNNING:
            self.move(SocketState.CLOSING)

    def close_at_once(self) -> bool:
        """Ends everything if there is nothing to wait for: the peers' kernels have all, and no task runs."""
        if self.closing or not self.has_loop or self._tasks or self.has_unsent():
            return False
        self.begin_closing()
        if not self.half_close():
            return False
        self.stop()
        return True

    async def close(self, linger: float | None, *, keeps: bool = False) -> None:
        """Lets accepted messages leave, for at most *linger* seconds, then ends everything.

        Args:
            linger: Seconds; `None` waits for ever.
            keeps: Whether a call that is cancelled ends nothing, because its caller handles the rest.
        """
        if self.closed:
            return
        self._refresh_references()
        home = self.loop if self.has_loop else None
        self.begin_closing()
        self.changed()
        if self.futile_reason:
            linger = 0.0
        self._closers += 1
        try:
            if self.has_loop and linger != 0:
                self.endpoints.revive()
                await self._linger.wait(linger, self.notice)
            elif self.has_loop and not self.notice and self.options.linger != 0:
                self._linger.report_lost(self.futile_reason or "there is no time left")
        except BaseException:
            if home is None or self.loop is home:  # otherwise another loop has the socket, and waits for it
                self._closers -= 1
                if not self._closers and not keeps:
                    self._linger.report_lost("the wait was interrupted")
                    self.stop()
            raise
        self._closers -= 1
        tasks = tuple(self._tasks)
        self.stop()
        if tasks and self.in_loop:
            # They are cancelled, but an `authorize` or `authenticate` of the user may ignore that.
            _, left = await asyncio.wait(tasks, timeout=_CANCEL_TIMEOUT_S)
            for task in left:
                log.warning("%s: %s still runs, although it was cancelled", self.socket_type.value, task.get_name())

    async def flush(self, timeout: float | None) -> bool:
        """Waits until all accepted messages have left; false if the time was up, or the socket closed, first."""
        return await self._linger.flush(timeout)

    def stop_unless_awaited(self) -> None:
        """Ends everything after a call of `close` was interrupted, unless another call still waits in `close`."""
        if not self._closers:
            self.stop()

    @property
    def half_closed_bytes_in(self) -> int:
        """The number of bytes received from the peers of half-closed connections."""
        return sum(session.peer.bytes_in for session in self.half_closed)

    @property
    def half_closed(self) -> list[Session]:
        """The connections that are half closed: this side of the stream has ended."""
        return [session for session in tuple(self._sessions) if session.state is ConnectionState.CLOSING]

    def drain(self) -> None:
        """Makes every peer stop sending."""
        for session in tuple(self._sessions):
            session.cease()

    def half_close(self) -> bool:
        """Ends this side of every connection; returns whether the peers' kernels have everything, or all is over."""
        if self.closed:
            return True
        # All connections are asked, so no short circuit.
        with self.lock:
            gone = [session.half_close() for session in tuple(self._sessions)]
        return all(gone)

    def _refresh_references(self) -> None:
        """Gives its parts weak references to itself: they do not outlive it, and must not keep it alive.

        Repeated where a finalizer may have called: the garbage collector clears weak references before that.
        """
        whole = weakref.proxy(self)
        for part in (self.reporter, self.heartbeat, self.authenticator, self._linger):
            part._engine = whole
        self.endpoints._found = weakref.ref(self)
        self._listen()
        if self.has_loop:
            self.handshakes.call(*self._loop_calls())

    def stop(self) -> None:
        """Ends everything at once, in one order, once."""
        # Threads may close a socket while another one terminates its context. A finalizer may not wait for a lock.
        if not self._stopping.acquire(blocking=False):
            return
        try:
            if self.closed:
                return
            self._refresh_references()
            self.move(SocketState.CLOSED)
        finally:
            self._stopping.release()
        # The stack runs the last callback first, and all of them even if some raise.
        with contextlib.ExitStack() as steps:
            for step in reversed(self._last_steps()):
                steps.callback(step)

    def _last_steps(self) -> list[Callable[[], object]]:
        on_stop, self.on_stop = self.on_stop, _nothing
        steps: list[Callable[[], object]] = [on_stop, *self.endpoints.last_steps()]
        steps += [session.end for session in self._sessions]
        steps += [
            self._close_handshakes,
            self._cancel_tasks,
            self.authenticator.stop,
            self.heartbeat.stop,
            self.driver.stop,
            self._close_queues,
        ]
        return [*steps, self._leave_parent, self.changed, self.reporter.stop]

    def _watch_descriptor(self, fd: int, reader: Callable[[], object]) -> None:
        self.loop.add_reader(fd, reader)

    def _forget_descriptor(self, fd: int) -> None:
        if self.in_loop:
            self.loop.remove_reader(fd)

    def _report_handshake(self, error: Exception) -> None:
        self.loop.call_exception_handler({"message": "a handshake raised", "exception": error})

    def _close_handshakes(self) -> None:
        if self.has_loop:
            self.handshakes.close()

    def _cancel_tasks(self) -> None:
        for task in tuple(self._tasks):
            # If the loop has no more turns to end them in, asyncio would log an error for each.
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            if self.in_loop:
                task.cancel()
            else:
                with contextlib.suppress(Exception):
                    task.get_coro().close()

    def _close_queues(self) -> None:
        with self.lock:
            self.pattern.close()

    def _leave_parent(self) -> None:
        if self.in_loop and self._parent is not None and not self._over.done():
            self._over.set_result(None)

    def close_after_fork(self) -> None:
        """Closes the inherited descriptors in a forked child, and changes nothing else."""
        self.endpoints.close_after_fork()
        for session in self._sessions:
            session.close_after_fork()
        if self.has_loop:
            self.handshakes.close_after_fork()

    def require_type(self, *types: SocketType) -> None:
        """Raises `StateError` unless the socket has one of these types."""
        if self.socket_type not in types:
            names = ", ".join(one.value for one in types)
            raise StateError(f"a {self.socket_type.value} socket has no such call; it is for {names}")


def _nothing() -> None:
    pass
