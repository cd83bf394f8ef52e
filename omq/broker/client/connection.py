"""The connection of a client: the base class of both twins, and the blocking one.

In the blocking twin the calling threads do the work: one waiting thread reads the socket, and the others sleep until
their answers have arrived, or until it is their turn to read. Two things run in the background: the heartbeats of the
socket and, while acknowledgements are frequent, a thread that sends the last of them if no call follows.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Final, Literal, Protocol, Self, TypeVar
from weakref import WeakSet

import omq
from omq.broker import protocol
from omq.broker.client.client_protocol import ClientProtocol, LeaderElsewhere, PendingRequest, State
from omq.broker.client.endpoint_pool import NO_ANSWER, EndpointPool
from omq.broker.client.stream_state import ConsumerState, StreamState
from omq.broker.errors import BrokerTimeout, NotLeader, PermissionDenied, SyntaxFault
from omq.errors import (
    ClosedError,
    ContextTerminated,
    OmqError,
    ReceiveTimeout,
    SendTimeout,
    StateError,
    Timeout,
    UsageError,
)
from omq.event import Event, EventKind, HandshakeFailure
from omq.executor import run_blocking
from omq.socket_base import check_timeout
from omq.types import UNSET, Unset
from omq.unpatched import get_ident, sleep, threading

log = logging.getLogger("omq")

#: The brokers of a cluster that serve a client.
Role = Literal["leader", "any"]

_Asked = TypeVar("_Asked")

#: Options of a client's socket: it dials until it is connected, and not again after a lost connection, because the next
#: connection is another session, with a socket of its own.
SESSION_OPTIONS: Final[dict[str, Any]] = {
    "reconnect_interval": (0.02, 1.0),
    "reconnect_stop": "after disconnect",
    "heartbeat_interval": 2.0,
    "heartbeat_timeout": 10.0,
    "linger": 0,
}

RECV_BATCH: Final = 64  #: The maximum number of messages received in one call.
FULL_RETRY_DELAY_S: Final = 0.005  #: The delay before the next attempt to send to a full socket.
ACK_BATCH_INTERVAL_S: Final = 0.001  #: Acknowledgements that follow one another faster are batched.
#: The first and the longest wait for a message, between which the client looks for a lost connection.
_MIN_POLL_INTERVAL_S: Final = 0.02
_MAX_POLL_INTERVAL_S: Final = 0.25
_MAX_ACK_DELAY_S: Final = 0.02  # after which the ack thread sends acknowledgements in any case
_MAX_IDLE_POLLS: Final = 25  # after which the ack thread ends
_EXIT_TIMEOUT_S: Final = 1.0  # for the flush of all clients at the exit of the process


class Events(Protocol):
    """A monitor of either twin."""

    def take(self) -> Event | None:
        """Returns the next event; `None` without one."""


class ConnectionMonitor:
    """The state of a socket's one connection, from the events of its monitor.

    Attributes:
        failure_reason: The reason of the last failed attempt to connect; empty after a success.
        refused: True once the broker has rejected this client's key, user or password; there is no further attempt.
        handshake_failed: True if the last attempt has reached a peer, and its handshake failed.
    """

    def __init__(self, monitor: Events) -> None:
        self.failure_reason = ""
        self.refused = False
        self.handshake_failed = False
        self._monitor = monitor
        self._connected = False
        self._over = False

    def is_over(self) -> bool:
        """Returns whether the connection has been made and has ended."""
        while not self._over:
            try:
                event = self._monitor.take()
            except ClosedError:
                self._over = True
            else:
                if event is None:
                    break
                self._over = self.handle(event)
        return self._over

    def refusal(self, endpoint: str) -> PermissionDenied | None:
        """Returns the error of a rejected key, user or password, which ends the attempts; `None` without one."""
        if not self.refused:
            return None
        return PermissionDenied(
            f"{endpoint}: the broker has rejected this client: its key, user or password is not valid"
        )

    def failure(self, endpoint: str) -> str:
        """Returns the text of the error that there is no connection in time."""
        if self.handshake_failed:
            return f"{endpoint}: no handshake has succeeded in time: {self.failure_reason}"
        if self._connected and not self._over:
            return f"{endpoint}: connected, but no broker has answered in time; is this the endpoint of an omq broker?"
        detail = f"; last failure: {self.failure_reason}" if self.failure_reason else ""
        return f"{endpoint}: not connected to a broker in time{detail}"

    def handle(self, event: Event) -> bool:
        """Handles an event. Returns whether it ends the connection."""
        if event.kind is EventKind.HANDSHAKE_SUCCEEDED:
            self._connected, self.failure_reason, self.handshake_failed = True, "", False
        elif event.kind is EventKind.DISCONNECTED and self._connected:
            return True
        elif event.kind in (EventKind.CONNECT_FAILED, EventKind.HANDSHAKE_FAILED):
            self.failure_reason = event.detail
            self.handshake_failed = event.kind is EventKind.HANDSHAKE_FAILED
            # An ERROR with this status (RFC 27); 300 and 500 may pass.
            if event.category is HandshakeFailure.AUTHENTICATION and self.failure_reason.endswith("'400'"):
                self.refused = True
        return event.kind is EventKind.MONITOR_STOPPED


class ClosesAtExit:
    """A base class that calls `close` at the end of a `with` block; an error of the block precedes one of `close`."""

    def close(self) -> None:
        """Closes the object."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except BrokerTimeout as failure:
            if error is None:
                raise
            log.warning("%s", failure)


class ConnectionBase:
    """The connection of a client of either twin, and the calls that wait for an answer.

    Such calls are coroutines. In the blocking twin they block and never suspend; `run_blocking` returns the result.

    Args:
        endpoint: The endpoint of the broker, or several of a cluster.
        timeout: Seconds that a call waits; `None` for ever.
        context: The context of the sockets; `None` for the default context.
        options: Options of the sockets.
        role: `"leader"`, or `"any"` for every member of a cluster.

    Attributes:
        endpoints: The known endpoints, and the current one.
        core: The state of the protocol, guarded by the lock.
        lock: A lock that is never held during a wait.
        closed: True once `close` was called.

    Raises:
        ValueError: *timeout* is negative or NaN, there is no endpoint, or *role* is not valid.
        TypeError: *timeout* is not a number.
    """

    def __init__(
        self,
        endpoint: str | Iterable[str],
        timeout: float | None,
        context: omq.Context | None,
        options: dict[str, Any],
        role: Role = "leader",
    ) -> None:
        if role not in ("leader", "any"):
            raise ValueError(f'role={role!r:.80}: must be "leader" or "any"')
        self.endpoints = EndpointPool(endpoint)
        self.timeout = check_timeout(timeout)
        self.core = ClientProtocol(os.urandom(16), role == "leader")
        self.lock = threading.RLock()  # no call takes it twice: a signal handler sees from it that its thread has it
        self.closed = False
        self._context = context
        self._options = {**SESSION_OPTIONS, **options}
        self._pid = os.getpid()
        self._dropped: deque[StreamState | PendingRequest] = deque()  # whose holders are gone
        self._acks_due = False  # `send_acks` will be called
        self._acks_sent = 0.0  # when an acknowledgement left, by the monotonic clock
        self._connection_monitor: ConnectionMonitor

    @property
    def endpoint(self) -> str:
        """The endpoint of the present connection, or of the next attempt."""
        return self.endpoints.current

    @property
    def inherited(self) -> bool:
        """Returns whether this is a forked child, where the lock may be held for ever."""
        return os.getpid() != self._pid

    @property
    def state(self) -> str:
        """The state of the connection, for `repr`."""
        return "closed" if self.closed else "connected" if self.core.state is State.UP else "not connected"

    # ------------------------------------------------------------------ for each twin

    def check_usable(self) -> None:
        """Raises if the client cannot be used.

        Raises:
            StateError: This is a forked child, another event loop, or a signal handler amid a call.
            ClosedError: The client is closed.
        """
        raise NotImplementedError

    def check_can_wait(self) -> None:
        """Raises `StateError` if no call can wait."""

    def deadline(self, timeout: float | Unset | None = UNSET) -> float | None:
        """Returns the deadline of a call by the twin's clock, in seconds; `None` for no deadline.

        Args:
            timeout: Seconds from now; `None` for ever; by default the client's timeout.
        """
        raise NotImplementedError

    async def wait_ready(self, ready: Callable[[], bool], deadline: float | None) -> bool:
        """Waits until *ready* returns true. Returns false after the deadline."""
        raise NotImplementedError

    async def answer(self, request: PendingRequest, deadline: float | None) -> bool:
        """Waits for the answer to a request. Returns false after the deadline."""
        raise NotImplementedError

    def send_out(self) -> None:
        """Sends queued messages, as far as the socket takes them. Under the lock."""
        raise NotImplementedError

    def wake_ready(self) -> None:
        """Wakes the calls whose condition holds. Under the lock."""
        raise NotImplementedError

    def _open(self) -> None:
        """Opens a socket to the current endpoint. Under the lock."""
        raise NotImplementedError

    def send_acks_later(self) -> None:
        """Schedules `send_acks`. Under the lock."""
        raise NotImplementedError

    def open_next(self, now: float) -> None:
        """Opens the socket of the next attempt. If its endpoint does not fit the options, another one follows."""
        try:
            self._open()
        except UsageError as error:
            if not self.endpoints.has_others:
                raise
            self.endpoints.lost(now, False, str(error))

    def attempt_has_failed(self) -> bool:
        """Returns whether to try another endpoint, as this one could not be reached."""
        return self.attempt_timeout is not None and bool(self._connection_monitor.failure_reason)

    @property
    def attempt_timeout(self) -> float | None:
        """The seconds after which to try another endpoint; `None` for not at all."""
        return None if self.core.fault is not None else self.endpoints.attempt_timeout

    def end_session(self, now: float, refusal: str = "") -> None:
        """Ends the session of a lost connection, and chooses the endpoint of the next one. Under the lock.

        Args:
            now: The time of the clock of `EndpointPool`.
            refusal: Why the broker does not serve this client; empty if the connection is lost, or was not made.
        """
        core = self.core
        failure = refusal or self._connection_monitor.failure_reason or NO_ANSWER
        self.endpoints.lost(now, core.state is State.UP, failure, core.cluster, bool(refusal))
        core.lost()

    # ------------------------------------------------------------------ requests

    def check_open(self) -> None:
        """Raises `ClosedError` once the client is closed."""
        if self.closed:
            raise ClosedError(f"the client of {self.endpoint} is closed")

    def run_locked(self, ask: Callable[[], _Asked]) -> _Asked:
        """Calls a function that makes requests, under the lock, and sends them. If it raises, they are given up.

        This is not a context manager: a signal handler may raise before `__exit__` begins, which then never runs.
        """
        self.check_usable()
        self.end_dropped()
        with self.lock:
            self.check_open()
            mark = self.core.mark()
            try:
                asked = ask()
                self.send_out()
                return asked
            except BaseException:
                self.core.give_up_since(mark)
                self.wake_ready()
                raise

    async def ask(self, command: bytes, *parts: bytes | None) -> list[bytes]:
        """Makes a request, and returns the parts of its answer.

        Callers pass the parts one by one, never as `*parts`: Python handles signals after such a call, before the
        coroutine is awaited.

        Args:
            command: The command.
            *parts: The arguments of the command; `None` omits an optional one.

        Raises:
            BrokerError: The broker has refused the request.
            BrokerTimeout: The broker has not answered in time.
            ClosedError: The client is closed.
        """
        given = [part for part in parts if part is not None]
        (request,) = await self.submit(lambda: [self.core.request(command, *given)], self.deadline())
        return request.result()

    async def submit(self, ask: Callable[[], Sequence[PendingRequest]], deadline: float | None) -> list[PendingRequest]:
        """Calls a function that makes requests, and waits for the answer to the first one.

        If anything raises, also a signal handler, the requests are given up. Otherwise the next connection would send
        them again, after later requests.

        Raises:
            BrokerError: See `ask`.
        """
        self.check_can_wait()
        asked: list[PendingRequest] = []
        try:
            self.run_locked(lambda: asked.extend(ask()))
            await self.finish(asked[0], deadline)
        except BaseException:
            self.give_up(asked)
            raise
        return asked

    async def finish(self, request: PendingRequest, deadline: float | None) -> list[bytes]:
        """Waits for the answer to a request, and returns its parts; raises as `ask`."""
        try:
            if not request.done and not await self.answer(request, deadline):
                raise self._timeout_error(f"an answer to {request.command.decode()}")
        except BaseException:
            self.give_up([request])
            raise
        return request.result()

    async def wait_for(self, ready: Callable[[], bool], deadline: float | None, what: str) -> None:
        """Waits until *ready* returns true.

        Raises:
            BrokerTimeout: The deadline has passed. *what* is the subject of the text.
        """
        if not await self.wait_ready(ready, deadline):
            raise self._timeout_error(what)

    def _timeout_error(self, what: str) -> BrokerTimeout:
        if self.core.state is State.UP:
            busy = self.core.is_busy or self.core.busy_backoff.active  # a repeated request may be in flight
            return BrokerTimeout(
                f"{self.endpoint}: {'the broker is busy: ' if busy else ''}{what} has not arrived in time"
            )
        if failures := self.endpoints.failures(self._connection_monitor.failure_reason):
            return BrokerTimeout(f"not connected to a broker in time: {failures}")
        return BrokerTimeout(self._connection_monitor.failure(self.endpoint))

    def give_up(self, requests: Sequence[PendingRequest]) -> None:
        """Gives up requests for which no call waits."""
        if requests:
            with self.lock:
                for request in requests:
                    self.core.give_up(request)
                self.send_out()
                self.wake_ready()  # another call may wait for one of them

    async def flush(self, deadline: float | None, flush: PendingRequest | None = None) -> None:
        """Waits until earlier acknowledgements are durable; raises as `ask`.

        Args:
            deadline: The deadline of the call; see the method `deadline`.
            flush: A flush that was already requested; `None` requests one if it is needed.
        """
        while flush is not None or self.core.dirty:
            if flush is None:
                (flush,) = await self.submit(lambda: [self.core.flush()], deadline)
            else:
                await self.finish(flush, deadline)
            # After a lost connection, acknowledgements and cursors are sent again.
            await self.wait_for(lambda: not self.core.resuming, deadline, "an answer to a repeated acknowledgement")
            if flush.session == self.core.session:
                return
            flush = None
        other = self.core.flushing
        if other is not None and not other.done:  # it covers earlier acknowledgements
            await self.wait_for(lambda: other.done, deadline, "an answer to FLUSH")
            await self.flush(deadline)  # it may have failed

    async def send_bye(self) -> None:
        """Flushes acknowledgements, returns unread deliveries to the broker, and sends BYE."""
        await self.flush(self.deadline())
        with self.lock:
            if self.core.state is not State.UP:
                return
            self.core.return_undelivered()
            bye = self.core.request(protocol.BYE)
            self.send_out()
        with contextlib.suppress(BrokerTimeout, NotLeader):  # nothing is lost: `flush` has succeeded
            await self.finish(bye, self.deadline())

    def drop(self, one: StreamState | PendingRequest) -> None:
        """Queues a stream or a request without references, which the next call ends. Takes no lock.

        The garbage collector may call it in any thread, at any point.
        """
        self._dropped.append(one)

    def end_dropped(self) -> None:
        """Ends the streams and requests that `drop` has queued."""
        while self._dropped:
            with self.lock, contextlib.suppress(IndexError):  # another thread was faster
                one = self._dropped.popleft()
                if isinstance(one, PendingRequest):
                    self.core.give_up(one)
                elif not one.ended:
                    self.core.cancel(one)
                    self.wake_ready()
                self.send_out()

    # ------------------------------------------------------------------ acknowledgements

    def acknowledge(self, stream: ConsumerState, session: int, message_id: int) -> None:
        """Acknowledges a message: at once if such calls are rare, else batched with later ones. Under the lock."""
        ack_batch = self.core.add_ack(stream, session, message_id)
        if not self.core.unsent_consumers:
            self.send_out()
        elif ack_batch or time.monotonic() - self._acks_sent > ACK_BATCH_INTERVAL_S:
            self.send_acks()
        elif not self._acks_due:
            self._acks_due = True
            self.send_acks_later()

    def send_acks(self) -> None:
        """Sends the queued acknowledgements. Under the lock."""
        self.core.queue_acks()
        self._acks_sent = time.monotonic()
        self.send_out()


class _Waiter:
    """A waiting call, which sleeps while another one reads the socket."""

    def __init__(self, ready: Callable[[], bool]) -> None:
        self.ready = ready
        self._asleep: threading.Lock  # held while nothing has woken it; most calls read, and never need one

    def prepare(self) -> None:
        """Prepares the call to sleep. Under the client's lock."""
        self._asleep = threading.Lock()
        self._asleep.acquire()

    def wake(self) -> None:
        """Ends the sleep of the call, or its next one. Under the client's lock."""
        with contextlib.suppress(RuntimeError):  # it was woken already
            self._asleep.release()

    def sleep(self, seconds: float | None) -> None:
        """Sleeps until `wake`, or for a number of seconds; `None` for no bound."""
        self._asleep.acquire(timeout=-1 if seconds is None else min(seconds, threading.TIMEOUT_MAX))


class BlockingConnection(ConnectionBase):
    """The connection of a blocking client, which the calling threads share."""

    def __init__(
        self,
        endpoint: str | Iterable[str],
        timeout: float | None,
        context: omq.Context | None,
        options: dict[str, Any],
        role: Role = "leader",
    ) -> None:
        super().__init__(endpoint, timeout, context, options, role)
        self._waiting: set[int] = set()  # threads in which a call waits
        self._close_requested = False  # a signal handler lets the call that it interrupts close this
        self._closing = False
        self._leader: _Waiter | None = None  # whose thread reads the socket
        self._waiters: list[_Waiter] = []
        self._busy_retry_at: float | None = None  # when the requests are repeated that a busy broker refused
        self._hello_sent = False  # in this connection
        self._attempt_deadline: float | None = None  # of the present step of an attempt, which another one follows
        self._socket: omq.DEALER | None = None
        self._open()
        _connections.add(self)

    # ------------------------------------------------------------------ life

    def close(self) -> None:
        """Flushes acknowledgements, returns unread deliveries to the broker, and closes.

        Raises:
            BrokerTimeout: The broker has not confirmed the acknowledgements in time.
        """
        if self.in_wait:
            self._close_requested = not self._closing
            self.wake_all()
            return
        if self.in_lock:
            # The call that was interrupted ends first; the program's end waits for the thread.
            threading.Thread(target=self._close_later, name="omq-broker-close").start()
            return
        self._close_requested, self._closing = False, True
        try:
            run_blocking(self.send_bye)
        finally:
            with self.lock:
                self.closed = True
                self.core.close()
                socket, self._socket = self._socket, None
                self.wake_all()
            if socket is not None:
                socket.stop()

    def _close_later(self) -> None:
        if not self.closed:
            try:
                self.close()
            except OmqError as error:
                log.warning("%s", error)

    @property
    def in_wait(self) -> bool:
        """Returns whether this is a signal handler that has interrupted a waiting call: it cannot wait."""
        return get_ident() in self._waiting

    @property
    def in_lock(self) -> bool:
        """Returns whether this is a signal handler whose thread has the lock."""
        return self.lock._is_owned()  # type: ignore[attr-defined, no-any-return]

    def flush_at_exit(self, deadline: float) -> None:
        """Flushes acknowledgements at the exit of the process, if the client is connected and was not closed."""
        if not self.closed and not self.inherited and self.core.state is State.UP:
            with contextlib.suppress(OmqError):
                run_blocking(lambda: self.flush(deadline))

    def wake_all(self) -> None:
        """Makes every waiting call check its condition. Under the lock."""
        for waiter in self._waiters:
            waiter.wake()

    def wake_ready(self) -> None:
        """Wakes the calls whose condition holds. Under the lock."""
        for waiter in self._waiters:
            if waiter.ready():
                waiter.wake()

    # ------------------------------------------------------------------ requests

    def check_usable(self) -> None:
        # Each acknowledgement comes through here, so the usual case has one test.
        if os.getpid() == self._pid and not self.lock._is_owned() and not self.closed:  # type: ignore[attr-defined]
            return
        if self.inherited:
            raise StateError("this client belongs to the parent process: make a new one after fork()")
        if self.in_lock:
            raise StateError("a signal handler cannot use the client during a call of its thread, except for close()")
        self.check_open()

    def check_can_wait(self) -> None:
        if self.in_wait:
            raise StateError("a signal handler cannot wait for the broker while a call of its thread does")

    def deadline(self, timeout: float | Unset | None = UNSET) -> float | None:
        seconds = self.timeout if isinstance(timeout, Unset) else timeout
        return None if seconds is None else time.monotonic() + seconds

    async def wait_ready(self, ready: Callable[[], bool], deadline: float | None) -> bool:
        return self.wait(ready, deadline)

    async def answer(self, request: PendingRequest, deadline: float | None) -> bool:
        return self.wait(lambda: request.done, deadline)

    # ------------------------------------------------------------------ acknowledgements

    def send_acks_later(self) -> None:
        threading.Thread(target=self._run_ack_sender, name="omq-broker-acks", daemon=True).start()

    def _run_ack_sender(self) -> None:
        """Sends acknowledgements that no call sends; runs in a background thread until there are no more."""
        idle = 0
        while idle < _MAX_IDLE_POLLS:
            sleep(_MAX_ACK_DELAY_S)
            self.end_dropped()
            with self.lock:
                idle = 0 if self.core.unsent_consumers else idle + 1
                if self.closed:
                    idle = _MAX_IDLE_POLLS
                elif self.core.unsent_consumers:
                    with contextlib.suppress(OmqError):  # the reading thread handles it
                        self.send_acks()
                self._acks_due = idle < _MAX_IDLE_POLLS

    # ------------------------------------------------------------------ the socket

    def wait(self, ready: Callable[[], bool], deadline: float | None) -> bool:
        """Waits until *ready* returns true, and reads the socket if no other thread does.

        Returns:
            False after the deadline.
        """
        self.check_can_wait()
        thread = get_ident()
        try:
            self._waiting.add(thread)
            is_ready = self._wait(ready, deadline)
        finally:
            self._waiting.discard(thread)
        if self._close_requested:
            self.close()
            self.check_open()
        return is_ready

    def _wait(self, ready: Callable[[], bool], deadline: float | None) -> bool:
        me = _Waiter(ready)
        poll_timeout = _MIN_POLL_INTERVAL_S
        try:
            while True:
                with self.lock:
                    self.check_open()
                    if ready():
                        return True
                    if self._close_requested:
                        return False
                    if self._leader is None:
                        self._leader = me
                    elif self._leader is not me and me not in self._waiters:
                        me.prepare()
                        self._waiters.append(me)
                remaining = None if deadline is None else max(deadline - time.monotonic(), 0)
                if self._leader is me:
                    moved = self._poll(poll_timeout if remaining is None else min(poll_timeout, remaining))
                    poll_timeout = _MIN_POLL_INTERVAL_S if moved else min(2 * poll_timeout, _MAX_POLL_INTERVAL_S)
                else:
                    me.sleep(remaining)
                if remaining == 0:
                    with self.lock:
                        return ready()
        finally:
            with self.lock:
                if me in self._waiters:
                    self._waiters.remove(me)
                if self._leader is me:
                    self._leader = None
                # A waiter that was woken to read, and leaves, wakes the next one.
                if self._leader is None:
                    for waiter in self._waiters[:1]:
                        waiter.wake()

    def _poll(self, poll_timeout: float) -> bool:
        """Polls the socket once, and handles the received messages. Returns false if nothing has happened."""
        if self._dropped:
            self.end_dropped()
        try:
            if self._socket is None and not self._reopen(poll_timeout):
                return False
            socket = self._socket
            if socket is None:
                return False
            if not self._hello_sent:
                try:
                    socket.wait_connected(timeout=poll_timeout)
                except Timeout:
                    return self._check_connection()
                with self.lock:
                    self._hello_sent, self._attempt_deadline = True, None
                    self.core.connected()
                    self.send_out()
            if self.core.is_busy:
                poll_timeout = self._repeat(poll_timeout)
            if self.core.out:
                poll_timeout = min(poll_timeout, FULL_RETRY_DELAY_S)
            try:
                messages = socket.recv_many(RECV_BATCH, timeout=poll_timeout)
            except ReceiveTimeout:
                with self.lock:
                    self.send_out()
                return self._check_connection()
            with self.lock:
                for message in messages:
                    self.core.receive(message)
                self.send_out()
                self.wake_ready()
            return True
        except ContextTerminated:
            raise
        except ClosedError:
            self._drop_connection()  # unless the client is closed
            return True
        except SyntaxFault as error:
            log.warning("%s: %s", self.endpoint, error)
            self._drop_connection()
            return True
        except LeaderElsewhere as refusal:
            self._drop_connection(str(refusal))
            return True
        except BaseException:
            # Interrupted, perhaps after messages were received: the next connection brings them again.
            self._drop_connection()
            raise

    def _repeat(self, poll_timeout: float) -> float:
        """Repeats the requests that a busy broker refused, once their delay is over. Returns the poll timeout."""
        now = time.monotonic()
        with self.lock:
            if self._busy_retry_at is None:
                self._busy_retry_at = now + self.core.busy_backoff.next()
            if now < self._busy_retry_at:
                return min(poll_timeout, self._busy_retry_at - now)
            self._busy_retry_at = None
            self.core.repeat()
            self.send_out()
        return poll_timeout

    def send_out(self) -> None:
        out, socket = self.core.out, self._socket
        if socket is None:
            return
        try:
            while out:
                socket.send_multipart(out[0], timeout=0)
                out.popleft()
        except (SendTimeout, ClosedError):
            pass  # the reading thread sends the rest, or handles it

    def _check_connection(self) -> bool:
        """Drops the connection if it is lost, or fails the client if it was rejected. Returns whether it did."""
        if self._connection_monitor.is_over():
            self._drop_connection()
            return True
        if (refusal := self._connection_monitor.refusal(self.endpoint)) is not None and self.core.fault is None:
            with self.lock:
                self.core.fail(refusal)
                self.wake_ready()
            return True
        if self.core.state is not State.UP and (self.attempt_has_failed() or self._attempt_is_late()):
            self._drop_connection()
            return True
        return False

    def _attempt_is_late(self) -> bool:
        """Returns whether to try another endpoint, as this one does not answer in time."""
        timeout, now = self.attempt_timeout, time.monotonic()
        if timeout is None:
            return False
        if self._attempt_deadline is None:  # no thread has looked before
            self._attempt_deadline = now + timeout
        return now >= self._attempt_deadline

    def _open(self) -> None:
        self._hello_sent, self._attempt_deadline = False, None
        socket = omq.DEALER(self._context, **self._options)
        self._connection_monitor = ConnectionMonitor(socket.monitor())
        try:
            socket.connect(self.endpoint)
        except BaseException:
            socket.stop()
            raise
        self._socket = socket

    def _reopen(self, poll_timeout: float) -> bool:
        """Connects again once the delay is over. Returns whether there is a socket."""
        pause = self.endpoints.remaining(time.monotonic())
        if pause > 0:
            sleep(min(pause, poll_timeout))
            if pause > poll_timeout:
                return False
        with self.lock:
            if not self.closed:
                self.open_next(time.monotonic())
        return self._socket is not None

    def _drop_connection(self, refusal: str = "") -> None:
        """Drops the connection; see `end_session`."""
        with self.lock:
            if self.closed:
                return
            self.end_session(time.monotonic(), refusal)
            socket, self._socket = self._socket, None
            self.wake_ready()
        if socket is not None:
            socket.stop()


_connections: WeakSet[BlockingConnection] = WeakSet()


def _flush_all_at_exit() -> None:
    deadline = time.monotonic() + _EXIT_TIMEOUT_S
    for connection in list(_connections):
        connection.flush_at_exit(deadline)


# The contexts end after this, for theirs was registered before.
atexit.register(_flush_all_at_exit)
