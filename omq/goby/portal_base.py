"""The part of a portal that both twins share: its calls, and its lifecycle from finding the manager to the release.

The waits are coroutines over the twin's sockets. `_result` completes a call on a socket: the asyncio twin awaits it. In
the blocking twin the call itself has waited, so a coroutine never suspends, and `run_blocking` (`omq.executor`) runs it
in the calling thread.

**When is a subscription in force?** Subscriptions of a socket travel in order: to the router's XPUB, through the proxy
to its XSUB, and from there to each publisher. `_barrier` subscribes to a prefix that is unique to the portal, and waits
until the portal's own publisher has received it. All earlier subscriptions are then in force at the router.

A portal uses the barrier three times. Before it reports that it is ready: its subscriptions are then on their way to
every publisher before any of them receives the release. After the release, before it publishes: the prefix reaches its
publisher after the subscriptions of others. After each later subscription, which holds its publications for about a
millisecond: a portal that subscribes to a reply, and then sends the request, receives the reply. The replying portal
gets the request and the subscription from two connections, so it processes the subscriptions that its publisher has
received before it dispatches publications.

**Whose hold is released?** Each router that is found gets a new connection for the manager's answers. So an unread
answer of an earlier gobyd cannot release the hold of the next one. A callback that takes long, or itself waits for the
release, does not delay the answers either.
"""

from __future__ import annotations

import inspect
import logging
import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import TracebackType
from typing import Any, ClassVar, Final, Generic, Self, TypeVar

from omq.context import Context
from omq.errors import ClosedError, ConnectError, OmqError, ReceiveTimeout, SendTimeout, StateError, Timeout, UsageError
from omq.event import Event, EventKind
from omq.goby.dispatch import Handler, Inbox, PublicationDispatcher, RegexHandler, TypeHandler
from omq.goby.errors import BufferFull, Malformed
from omq.goby.identifier import MAX_CACHED_IDENTIFIERS, checked_group, head_of, prefix_of, split_frame
from omq.goby.outbox import MAX_HELD_PUBLICATIONS, Outbox, OutboxOpening
from omq.goby.protobuf import PROVIDE_HOLD_STATE, PROVIDE_MISSING_CLIENTS, ManagerResponse
from omq.goby.scheme import Scheme, SchemeId, Schemes
from omq.goby.wire import (
    DEFAULT_HWM,
    DEFAULT_PLATFORM,
    DEFAULT_PORT,
    MANAGER_RESPONSE_PREFIX,
    Bus,
    Sockets,
    check_client_name,
    hold_request,
    missing_request,
    read_message,
    read_sockets,
    sockets_request,
)
from omq.unpatched import threading

log = logging.getLogger("omq.goby")

RECV_BATCH_PUBLICATIONS: Final = 1024
LINGER_S: Final = 1.0  # for publications to be sent when the portal closes
MISSING_TIMEOUT_S: Final = 0.2  # for the missing clients, to name them in a `Timeout`
CHECK_INTERVAL_S: Final = 1.0  # between two checks of the connections to the router
RECONNECT_INTERVAL_S: Final = 0.05
HEARTBEAT_INTERVAL_S: Final = 5.0  # between two PINGs over tcp, and the timeout of each (RFC 37)

HOLD_REQUEST_INTERVAL_S: Final = 0.1  # between two requests for the hold's state
MIN_HOLD_REQUEST_INTERVAL_S: Final = 0.02  # also after the release of other clients
MANAGER_IDLE_TIMEOUT_S: Final = 1.0  # until a manager that does not answer is looked for again
BARRIER_TIMEOUT_S: Final = 1.0
BARRIER_RETRY_DELAY_S: Final = 5.0  # after a router has not forwarded a subscription
RELEASE_DELAY_S: Final = 0.02  # for clients that report ready before their subscriptions are in force
RESTART_RELEASE_DELAY_S: Final = 0.5  # for other clients to find a restarted manager
SEND_BATCH_PUBLICATIONS: Final = 100  # of those that were held
SEND_BATCH_DELAY_S: Final = 0.002  # between two such batches, below the high-water marks on the way
MANAGER_WARNING_INTERVAL_S: Final = 5.0  # between two log lines about a manager that does not answer

_Subscription = TypeVar("_Subscription")


def check_callback(callback: Callable[[Any], object]) -> None:
    """Raises `UsageError` for a callback that cannot be called, or whose call would do nothing."""
    if not callable(callback):
        raise UsageError(f"callback={callback!r}: cannot be called")
    for called in callback, type(callback).__call__:
        if inspect.iscoroutinefunction(called):
            kind, use = "coroutine function, which would not be awaited", "iterate over the subscription"
        elif inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
            kind, use = "generator function, which would not be iterated over", "give a function that returns"
        else:
            continue
        raise UsageError(f"callback={getattr(callback, '__name__', repr(callback))}: is a {kind}: {use}")


#: The head of a publication and the encoder of its payload.
Route = tuple[bytes, Callable[[Any], bytes]]


class ConnectionLossMonitor:
    """Wakes the portal when a connection of its sockets ends."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def put(self, event: Event) -> None:
        """Handles an event; never waits."""
        if event.kind in (EventKind.DISCONNECTED, EventKind.MONITOR_STOPPED):
            self._wake()


class PortalSubscriptionBase:
    """A subscription of a portal; see `omq.goby.Subscription`."""

    def __init__(self, portal: PortalBase[Any], handler: Handler) -> None:
        self._portal = portal
        self._handler = handler
        self._inbox: Any = handler.inbox if handler.callback is None else None

    @property
    def dropped(self) -> int:
        """The number of messages that were dropped, because they were not read in time."""
        return 0 if self._inbox is None else int(self._inbox.dropped)

    def _no_message(self, timeout: float | None) -> OmqError:
        """Returns the error of a call that gets no message."""
        if self._inbox is None:
            return UsageError("this subscription has a callback: there is nothing to wait for")
        if self._inbox.ended:
            return ClosedError("the subscription is closed")
        return ReceiveTimeout(f"no message within {timeout} s")

    def close(self) -> None:
        """Ends the subscription. Idempotent."""
        self._portal._remove(self._handler)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class PortalBase(Generic[_Subscription]):
    """A client of a Goby bus; see `omq.goby.Portal`."""

    _socket_module: ClassVar[Any]  # the twin's module of sockets
    _inbox_type: ClassVar[type[Inbox]]
    _subscription_type: ClassVar[Any]

    def __init__(
        self,
        name: str,
        *,
        platform: str = DEFAULT_PLATFORM,
        transport: str = "ipc",
        socket_name: str | os.PathLike[str] | None = None,
        address: str = "127.0.0.1",
        port: int = DEFAULT_PORT,
        manager_timeout: float = 5.0,
        buffer: int | None = None,
        schemes: Iterable[Scheme] = (),
        context: Context | None = None,
    ) -> None:
        self._bus = Bus(platform, transport, None if socket_name is None else os.fspath(socket_name), address, port)
        check_client_name("name", name)
        if (
            isinstance(manager_timeout, bool)
            or not isinstance(manager_timeout, int | float)
            or not 0 < manager_timeout <= threading.TIMEOUT_MAX
        ):
            reason = f"must be seconds above 0, at most {threading.TIMEOUT_MAX:g}"
            raise UsageError(f"manager_timeout={manager_timeout!r}: {reason}").about("manager_timeout")
        if transport == "tcp" and port == 0:
            raise UsageError("port=0 is not a valid port of a manager").about("port")
        self._name = name
        self._pid = os.getpid()
        self._manager_timeout = manager_timeout
        self._schemes = Schemes(schemes)
        self._routes: dict[tuple[str | int, type, type, int], Route] = {}
        self._dispatcher = PublicationDispatcher()
        self._outbox = Outbox(MAX_HELD_PUBLICATIONS if buffer is None else buffer)
        self._context = context
        self._options: dict[str, Any] = {"reconnect_interval": RECONNECT_INTERVAL_S}
        if transport == "tcp":
            # A host that has lost its power sends nothing, and a portal that only listens would wait for ever.
            self._options |= {"ipv6": True, "heartbeat_interval": HEARTBEAT_INTERVAL_S}
        self._socket_lock = threading.RLock()  # guards the sockets' subscriptions and connections, and `_closed`
        self._closed = False
        self._is_closing = False  # nothing more is kept
        self._callback_inbox = self._inbox_type(DEFAULT_HWM, shared=True)  # the messages of callbacks

        self._router: Sockets | None = None  # the sockets that the portal is connected to
        self._pub: Any
        self._sub: Any
        self._loss_monitor: ConnectionLossMonitor
        self._requesting: set[Any] = set()  # sockets of requests to the manager
        self._answer_socket: Any = None  # receives the manager's answers
        self._answer_socket_number = 0  # the ordinal of that socket
        self._last_answer_at = 0.0

        self._woken = False  # ends `_wait_woken`
        self._ready = False
        self._hold = True
        self._other_released = False  # the manager has released another client: ask at once
        self._released = False
        self._release_count = 0  # releases whose held publications are all sent
        self._barrier_count = 0
        self._no_barrier_until = float("-inf")  # until then the router does not forward subscriptions
        self._set_up()

    # ------------------------------------------------------------------ hooks of the twins

    def _set_up(self) -> None:
        """Finishes the construction."""
        raise NotImplementedError

    def _check_usable(self) -> None:
        """Raises `StateError` in a forked child, and in another event loop."""
        raise NotImplementedError

    async def _ensure_started(self) -> None:
        """Checks as `_check_usable` before a call that waits, and connects if the portal is not connected."""
        raise NotImplementedError

    def _start_background(self, handler: Handler | None = None) -> None:
        """Starts the background work of a call that does not wait."""

    async def _result(self, call: Any) -> Any:
        """Returns the result of a call on a socket or an inbox, once it is complete."""
        raise NotImplementedError

    async def _wait_until(self, condition: Callable[[], bool], timeout: float | None) -> bool:
        """Waits until a condition is true or the portal is closed; returns whether that was in time."""
        raise NotImplementedError

    def _notify(self) -> None:
        """Wakes all calls of `_wait_until`, which then check their conditions again."""
        raise NotImplementedError

    def _start_answer_reader(self, socket: Any, number: int) -> None:
        """Starts `_read_answers` in the background."""
        raise NotImplementedError

    async def _join_answer_reader(self) -> None:
        """Waits until the reader has ended, after its socket was closed."""
        raise NotImplementedError

    def close(self) -> Any:
        """Closes the portal."""
        raise NotImplementedError

    # ------------------------------------------------------------------ state

    @property
    def name(self) -> str:
        """The client's name."""
        return self._name

    @property
    def released(self) -> bool:
        """Returns whether the hold is released. It is `False` again while the portal looks for a lost gobyd."""
        return self._released

    @property
    def waiting(self) -> int:
        """The number of publications that wait for the release, or until earlier subscriptions are in force."""
        return len(self._outbox)

    @property
    def malformed(self) -> int:
        """The number of received publications that could not be parsed: they are logged and skipped."""
        return self._dispatcher.parse_errors.count

    @property
    def closed(self) -> bool:
        """Returns whether the portal is closed."""
        return self._closed

    def __repr__(self) -> str:
        return f"<{type(self).__module__}.Portal {self._name} at {self._bus.manager_endpoint}>"

    @property
    def _recv_hwm(self) -> int:
        """The number of publications that may wait for an iterator."""
        return DEFAULT_HWM if self._router is None else self._router.recv_hwm

    def _check_process(self) -> None:
        """Raises `StateError` in a forked child: no thread of the portal runs there, and locks may be held for ever."""
        if os.getpid() != self._pid:
            raise StateError(f"the portal {self._name} belongs to process {self._pid}: create another one after a fork")

    def _closed_error(self) -> ClosedError:
        return ClosedError(f"{self!r} is closed")

    def _check_open(self) -> None:
        if self._closed:
            raise self._closed_error()

    # ------------------------------------------------------------------ subscriptions

    def subscribe(
        self,
        group: str | int,
        type: type,
        callback: Callable[[Any], object] | None = None,
        *,
        scheme: SchemeId | None = None,
        type_name: str | None = None,
    ) -> _Subscription:
        """Subscribes to a type in a group.

        Args:
            group: The group: a `str`, not empty, without `/` and NUL; a number; or a `Group`, which may have both.
            type: The type of the messages: a protobuf class, `str` (CSTR), `dict` (JSON, as BSON), `bytes`, or a type
                that a custom scheme handles.
            callback: A function, called with each message: in a thread of a blocking portal, in the event loop of an
                asyncio portal. `None`: the subscription is an iterator.
            scheme: The name or number of a marshalling scheme; `None`: the scheme that handles *type*. Required for
                `bytes`.
            type_name: The name of the type on the wire; `None`: the name that the scheme uses. Required for `bytes`.

        Returns:
            The subscription: an iterator of the messages, unless it has a callback. Its `close` ends it.

        Raises:
            UsageError: The group, *scheme*, *type_name* or the callback is not valid, or no scheme handles the type.
            TypeError: The group is neither a `str` nor an `int`, *type* is not a type, or *type_name* is not a `str`.
            ImportError: The scheme is JSON, and pymongo is not installed.
            StateError: The portal belongs to a parent process, or to another event loop.
            ClosedError: The portal is closed.
        """
        codec = self._schemes.codec(type, scheme, type_name)
        return self._add(TypeHandler(checked_group(group), codec, self._inbox_for(callback), callback))

    def subscribe_regex(
        self,
        group: str = ".*",
        type: str = ".*",
        schemes: SchemeId | Iterable[SchemeId] | None = None,
        callback: Callable[[Any], object] | None = None,
    ) -> _Subscription:
        """Subscribes to publications whose group and type match regular expressions.

        Messages between managers and portals match only if *group* contains `_internal`.

        Args:
            group: A regular expression for the whole group (`re.fullmatch`); the default matches all.
            type: A regular expression for the whole name of the type on the wire; the default matches all.
            schemes: The name or number of a marshalling scheme, or several; `None`: all schemes.
            callback: A function, called with each publication, as with `subscribe`; `None`: the subscription is an
                iterator.

        Returns:
            The subscription. Its messages are `Received`: `group`, `scheme`, `type`, and the payload as `data`.

        Raises:
            UsageError: An expression or the callback is not valid, or a scheme is unknown.
            StateError: The portal belongs to a parent process, or to another event loop.
            ClosedError: The portal is closed.
        """
        # `wire_name` rejects bytes; their items would be numbers of schemes.
        is_single = isinstance(schemes, str | bytes) or not isinstance(schemes, Iterable | None)
        given: Iterable[Any] | None = [schemes] if is_single else schemes  # type: ignore[assignment]
        wire = None if given is None else {self._schemes.wire_name(scheme) for scheme in given}
        return self._add(RegexHandler(group, type, wire, self._inbox_for(callback), callback))

    def unsubscribe(
        self, group: str | int, type: type, *, scheme: SchemeId | None = None, type_name: str | None = None
    ) -> None:
        """Ends all subscriptions of the portal to a type in a group. Without one, does nothing.

        Args:
            group: The group; this and the other arguments are those of `subscribe`.
            type: The type of the messages.
            scheme: The scheme; `None`: the scheme that handles *type*.
            type_name: The name of the type on the wire; `None`: the name that the scheme uses.

        Raises:
            UsageError: The group, *scheme* or *type_name* is not valid, or no scheme handles the type.
            TypeError: The group is neither a `str` nor an `int`, *type* is not a type, or *type_name* is not a `str`.
            ImportError: The scheme is JSON, and pymongo is not installed.
        """
        codec = self._schemes.codec(type, scheme, type_name)
        for handler in self._dispatcher.handlers_of(prefix_of(checked_group(group), codec.scheme, codec.type)):
            self._remove(handler)

    def register(self, scheme: Scheme) -> None:
        """Adds a custom marshalling scheme.

        Raises:
            UsageError: Another scheme has the name or the number, or Goby has the name for another number.
            TypeError: *scheme* is not a `Scheme`.
        """
        self._schemes.register(scheme)
        self._routes = {}

    def _inbox_for(self, callback: Callable[[Any], object] | None) -> Inbox:
        if callback is None:
            return self._inbox_type(self._recv_hwm)
        check_callback(callback)
        return self._callback_inbox

    def _inboxes(self) -> set[Inbox]:
        """Returns the inboxes of all subscriptions, and that of the callbacks."""
        return {self._callback_inbox, *(handler.inbox for handler in self._dispatcher.handlers)}

    def _add(self, handler: Handler) -> _Subscription:
        self._check_usable()
        with self._socket_lock:
            self._check_open()
            prefix = self._dispatcher.add(handler)
            if prefix is not None and self._router is not None:
                self._sub.subscribe(prefix)
                self._hold_publications()
        self._start_background(handler)
        subscription: _Subscription = self._subscription_type(self, handler)
        return subscription

    def _hold_publications(self) -> None:
        """Holds the publications from now on, until the last subscription is in force."""
        self._outbox.hold()
        if self._released:
            self._wake()

    def _remove(self, handler: Handler) -> None:
        self._check_process()
        handler.ended = True
        with self._socket_lock:
            prefix = self._dispatcher.remove(handler)
            if prefix is not None and self._router is not None and not self._closed:
                with suppress(ClosedError):
                    self._sub.unsubscribe(prefix)
        if not handler.inbox.shared:
            handler.inbox.end()

    # ------------------------------------------------------------------ publications

    def _compose(
        self, group: str | int, message: Any, scheme: SchemeId | None = None, type_name: str | None = None
    ) -> bytes:
        """Returns the frame of a publication."""
        head, encode = self._route(group, message.__class__, threading.get_ident(), scheme, type_name)
        return head + encode(message)

    def _route(
        self, group: str | int, kind: type, thread: int, scheme: SchemeId | None = None, type_name: str | None = None
    ) -> Route:
        plain = scheme is None and type_name is None
        # The group's type is in the key, as `True` and `1.0` equal 1, and are not valid groups.
        if plain and (route := self._routes.get((group, group.__class__, kind, thread))) is not None:
            return route
        codec = self._schemes.codec(kind, scheme, type_name)
        route = head_of(checked_group(group), codec.scheme, codec.type, self._pid, thread), codec.encode
        if plain and type(group) in (str, int):
            if len(self._routes) >= MAX_CACHED_IDENTIFIERS:
                self._routes = {}
            self._routes[group, type(group), kind, thread] = route
        return route

    async def _keep(self, frame: bytes) -> None:
        """Keeps a publication while the hold lasts, or sends it."""
        await self._ensure_started()
        while True:
            if self._closed or self._is_closing:
                raise self._closed_error()
            released = self._release_count
            try:
                if not self._outbox.put(frame):
                    await self._result(self._pub.send(frame))
                return
            except OutboxOpening:
                await self._wait_until(lambda: not self._outbox.opening, None)
            except BufferFull:
                if not self._released:
                    raise
                # The publications wait only until a new subscription is in force.
                await self._wait_until(lambda: self._release_count != released or not self._released, None)  # noqa: B023

    async def _flush(self, timeout: float | None) -> None:
        await self._ensure_started()
        end = None if timeout is None else time.monotonic() + timeout
        kept = self._outbox.kept
        if not await self._wait_until(lambda: self._outbox.sent >= kept or not self._release_count, timeout):
            raise self._not_sent_error(timeout)
        await self._result(self._pub.flush(end and max(end - time.monotonic(), 0)))

    def _not_sent_error(self, timeout: float | None) -> SendTimeout:
        reason = "earlier subscriptions are in force" if self._released else "the router is found again"
        count = self._outbox.kept - self._outbox.sent
        return SendTimeout(f"{count} publications were not sent within {timeout:g} s: they wait until {reason}")

    # ------------------------------------------------------------------ the hold

    def ready(self) -> None:
        """Reports to the manager that this client is ready, once all its subscriptions are in force.

        A gobyd that requires this client holds all publications until then. Never waits.
        """
        self._check_process()
        self._ready = True
        self._wake()
        self._start_background()

    async def _wait_released(self, timeout: float | None) -> None:
        await self._ensure_started()
        if not await self._wait_until(lambda: self._released, timeout):
            missing = await self._missing(MISSING_TIMEOUT_S)
            names = f": it waits for {', '.join(missing)}" if missing else ""
            raise Timeout(f"{self._bus.manager_endpoint}: the hold was not released within {timeout:g} s{names}")
        self._check_open()

    async def _missing(self, timeout: float) -> list[str]:
        self._check_process()
        reply = await self._request(missing_request(self._name, self._pid), timeout)
        try:
            response = ManagerResponse() if reply is None else read_message(ManagerResponse, reply)
        except Malformed:
            return []
        return list(response.missing_client) if response.request == PROVIDE_MISSING_CLIENTS else []

    # ------------------------------------------------------------------ closing

    async def _drain(self, timeout: float) -> None:
        """Keeps nothing more, and waits until the kept publications are sent."""
        self._is_closing = True
        kept = self._outbox.kept
        await self._wait_until(lambda: self._outbox.sent >= kept, timeout)

    def _warn_dropped(self) -> None:
        if self._outbox:
            log.warning("%s: %d publications that were held are dropped", self._name, len(self._outbox))

    def _end(self) -> bool:
        """Marks the portal as closed, and ends all calls; returns whether it was open."""
        with self._socket_lock:
            if self._closed:
                return False
            self._closed = True
        self._warn_dropped()
        self._outbox.hold()
        self._notify()
        for inbox in self._inboxes():
            inbox.end()
        return True

    def _open_sockets(self) -> list[Any]:
        sockets = *self._requesting, self._answer_socket, getattr(self, "_sub", None), getattr(self, "_pub", None)
        return [socket for socket in sockets if socket is not None]

    # ------------------------------------------------------------------ lifecycle

    def _wake(self) -> None:
        """Ends `_wait_woken`, or else its next call."""
        self._woken = True
        self._notify()

    async def _wait_woken(self, timeout: float) -> None:
        await self._wait_until(lambda: self._woken, timeout)
        self._woken = False
        self._check_open()

    async def _pause(self, seconds: float) -> None:
        await self._wait_until(lambda: False, seconds)
        self._check_open()

    async def _find_manager(self) -> None:
        """Finds the manager for the first time.

        Raises:
            ConnectError: No manager answers in time, or the answer is not valid.
        """
        manager = self._bus.manager_endpoint
        reply = await self._request(sockets_request(self._name, self._pid), self._manager_timeout)
        if reply is None:
            raise self._not_found(f"no manager (gobyd) has answered at {manager} within {self._manager_timeout:g} s")
        try:
            router = read_sockets(reply, self._bus)
        except Malformed as fault:
            raise self._not_found(f"the process that answers at {manager} is not a manager: {fault}") from None
        self._connect(router)

    def _not_found(self, reason: str) -> ConnectError:
        name, value = self._bus.argument
        return ConnectError(f"{name}={value!r}: {reason}").about(name)

    async def _run(self) -> None:
        """Runs the lifecycle until the portal is closed."""
        try:
            await self._run_lifecycle()
        except ClosedError:
            pass
        except Exception:
            log.exception("%s: the portal has failed", self._name)
            await self._result(self.close())

    async def _run_lifecycle(self) -> None:
        """Waits for the release, sends the held publications, and starts over whenever the router is lost."""
        delay = RELEASE_DELAY_S
        while True:
            connections = await self._wait_for_release(delay)
            while await self._open_outbox(connections) and not await self._wait_lost(connections):
                pass
            self._outbox.hold()
            self._hold = True
            self._released = False
            log.info("%s: the router at %s is lost: publications wait", self._name, self._bus.manager_endpoint)
            self._notify()
            await self._find_manager_again()
            delay = RESTART_RELEASE_DELAY_S

    async def _wait_for_release(self, delay: float) -> object:
        """Asks the manager until the hold is released, and waits a delay for the subscriptions of others.

        Args:
            delay: The delay, in seconds, if no connection was lost meanwhile.

        Returns:
            The connections to the router that was released.
        """
        first = connections = None
        reported = False  # whether the barrier before the report of readiness has passed
        self._last_answer_at = requested_early_at = time.monotonic()
        while self._hold:
            ready = self._ready
            if connections is None or self._connections() != connections:
                reported = ready
                connections = await self._reopen_answers()
                first = first or connections
                if connections is not None:
                    self._last_answer_at = time.monotonic()
            if ready and not reported:
                await self._barrier()
                reported = True
            await self._transmit([hold_request(self._name, self._pid, threading.get_ident(), ready)])
            end = time.monotonic() + HOLD_REQUEST_INTERVAL_S
            while self._hold and self._ready == ready and (remaining := end - time.monotonic()) > 0:
                await self._wait_woken(remaining)
                if self._other_released and time.monotonic() - requested_early_at >= MIN_HOLD_REQUEST_INTERVAL_S:
                    self._other_released, requested_early_at = False, time.monotonic()
                    break
            if self._hold and time.monotonic() - self._last_answer_at > MANAGER_IDLE_TIMEOUT_S:
                await self._find_manager_again()
                self._last_answer_at = time.monotonic()
            if not self._hold and (connections is None or self._connections() != connections):
                self._hold = True  # the manager that sent the release may be gone
        await self._close_answer_socket()
        await self._pause(delay if connections == first else RESTART_RELEASE_DELAY_S)
        return connections

    async def _reopen_answers(self) -> object:
        """Receives the manager's answers by a new connection, so that an earlier gobyd's answers do not count.

        Returns:
            The connections to the router. That of the answers was made after them.
        """
        await self._barrier()
        connections = self._connections()
        await self._open_answer_socket()
        self._hold = True
        await self._barrier(by_answers=True)
        return connections

    async def _open_outbox(self, connections: object) -> bool:
        """Sends the waiting publications, once all earlier subscriptions are in force, until the queue is empty.

        Args:
            connections: The connections by which the release was received. Others may lead to another router, so
                nothing is sent by them.

        Returns:
            Whether the connections still exist.
        """
        while not self._outbox.open:
            kept = self._outbox.release()
            if not await self._barrier() and self._connections() == connections:
                log.warning("%s: the router does not forward subscriptions: publications may be lost", self._name)
                self._no_barrier_until = time.monotonic() + BARRIER_RETRY_DELAY_S
            while self._connections() == connections:
                frames = self._outbox.take(SEND_BATCH_PUBLICATIONS)
                if self._outbox.sent >= kept:
                    self._released = True
                    self._release_count += 1
                    self._notify()
                if not frames:
                    break
                sent = await self._transmit(frames)
                while not sent and self._connections() == connections:
                    # The router stalls: with more, the publisher would drop at its high-water mark.
                    self._outbox.stall()
                    self._notify()
                    sent = await self._transmit([])
                if len(frames) == SEND_BATCH_PUBLICATIONS:
                    await self._pause(SEND_BATCH_DELAY_S)
            else:
                return False
        return True

    async def _wait_lost(self, connections: object) -> bool:
        """Waits until one of the connections is lost, or publications are held.

        Returns:
            Whether the connections are lost.
        """
        while self._connections() == connections:
            if not self._outbox.open:
                return False
            await self._wait_woken(CHECK_INTERVAL_S)
        return True

    async def _find_manager_again(self) -> None:
        """Requests the sockets again: a restarted manager may have other ports."""
        warned = float("-inf")
        self._no_barrier_until = float("-inf")
        while True:
            reply = await self._request(sockets_request(self._name, self._pid), MANAGER_IDLE_TIMEOUT_S)
            try:
                if reply is not None:
                    router = read_sockets(reply, self._bus)
                    break
                fault = "does not answer"
            except Malformed as malformed:
                fault = str(malformed)
                await self._pause(HOLD_REQUEST_INTERVAL_S)
            if time.monotonic() - warned > MANAGER_WARNING_INTERVAL_S:
                warned = time.monotonic()
                log.warning("%s: the manager at %s: %s", self._name, self._bus.manager_endpoint, fault)
        if router != self._router:
            self._connect(router)

    async def _barrier(self, *, by_answers: bool = False) -> bool:
        """Waits until all earlier subscriptions are in force; see the module.

        Args:
            by_answers: Subscribes by the connection of the answers.

        Returns:
            Whether they are.
        """
        if time.monotonic() < self._no_barrier_until:
            return True
        self._barrier_count += 1
        name = self._name.replace("/", "_")
        prefix = f"/omq::goby::_barrier/{name}/{self._pid}/{id(self):x}/{self._barrier_count}/".encode()
        self._subscribe(prefix, by_answers=by_answers)
        passed = await self._wait_subscribed(prefix, BARRIER_TIMEOUT_S / 2)
        if not passed and await self._wait_subscribed(b"", 0):
            # Not a proxy: it subscribes to everything, and does not forward subscriptions.
            self._no_barrier_until, passed = time.monotonic() + BARRIER_RETRY_DELAY_S, True
        passed = passed or await self._wait_subscribed(prefix, BARRIER_TIMEOUT_S / 2)
        self._subscribe(prefix, wanted=False, by_answers=by_answers)
        return passed

    def _handle_answer(self, response: ManagerResponse, number: int) -> None:
        """Handles an answer of the manager to any client.

        Args:
            response: The answer.
            number: The ordinal of the socket that received it; see `_reopen_answers`.
        """
        if response.request != PROVIDE_HOLD_STATE or number != self._answer_socket_number:
            return
        self._last_answer_at = time.monotonic()
        if response.client_name == self._name and response.client_pid == self._pid:
            self._hold = response.hold
        elif not response.hold:
            self._other_released = True
        else:
            return
        self._wake()

    # ------------------------------------------------------------------ sockets

    def _connect(self, router: Sockets) -> None:
        """Connects the sockets to a router, and disconnects them from the one before."""
        with self._socket_lock:
            self._check_open()
            before, self._router = self._router, router
            if before is None:
                self._pub = self._socket_module.PUB(
                    self._context, linger=LINGER_S, send_hwm=router.send_hwm, **self._options
                )
                self._sub = self._socket_module.SUB(
                    self._context,
                    linger=0,
                    recv_hwm=router.recv_hwm,
                    subscribe=self._dispatcher.prefixes,
                    **self._options,
                )
                self._loss_monitor = ConnectionLossMonitor(self._wake)
                for socket in (self._pub, self._sub):
                    socket._may_monitor().reporter.add(self._loss_monitor)
                for inbox in self._inboxes():
                    inbox.limit = router.recv_hwm
            else:
                self._pub.set_options(send_hwm=router.send_hwm)
                self._sub.set_options(recv_hwm=router.recv_hwm)
                self._pub.disconnect(before.publish)
                self._sub.disconnect(before.subscribe)
            self._pub.connect(router.publish)
            self._sub.connect(router.subscribe)

    def _connections(self) -> object:
        """Returns a value that identifies the connections to the router; `None` if one is missing."""
        peers_by_socket = self._pub.peers, self._sub.peers
        return tuple(peer.since for peers in peers_by_socket for peer in peers) if all(peers_by_socket) else None

    def _subscribe(self, prefix: bytes, *, wanted: bool = True, by_answers: bool) -> None:
        sub = self._sub if not by_answers or self._answer_socket is None else self._answer_socket
        (sub.subscribe if wanted else sub.unsubscribe)(prefix)

    async def _wait_subscribed(self, prefix: bytes, timeout: float) -> bool:
        """Waits until the publisher has received a subscription to a prefix; returns whether it came in time."""
        try:
            await self._result(self._pub.wait_subscribed(prefix, timeout=timeout))
        except Timeout:
            return False
        return True

    async def _transmit(self, frames: list[bytes]) -> bool:
        """Publishes frames; returns whether all earlier publications are sent in time, too."""
        for frame in frames:
            await self._result(self._pub.send(frame))
        try:
            await self._result(self._pub.flush(LINGER_S))
        except Timeout:
            return False
        return True

    async def _request(self, request: bytes, timeout: float) -> bytes | None:
        """Sends a request to the manager; returns its reply, or `None` if it does not come in time."""
        with self._socket_lock:
            self._check_open()
            endpoint = self._bus.manager_endpoint
            socket = self._socket_module.REQ(self._context, connect=endpoint, linger=0, **self._options)
            self._requesting.add(socket)
        try:
            await self._result(socket.send(request, timeout=timeout))
            parts: list[bytes] = await self._result(socket.recv_multipart(timeout=timeout))
            return parts[0]
        except Timeout:
            return None
        finally:
            self._requesting.discard(socket)
            await self._result(socket.close())

    async def _open_answer_socket(self) -> None:
        """Receives the manager's answers by a new connection, and closes the one before."""
        await self._close_answer_socket()
        with self._socket_lock:
            self._check_open()
            assert self._router is not None
            self._answer_socket_number += 1
            self._answer_socket = self._socket_module.SUB(
                self._context,
                connect=self._router.subscribe,
                subscribe=[MANAGER_RESPONSE_PREFIX],
                linger=0,
                **self._options,
            )
            self._start_answer_reader(self._answer_socket, self._answer_socket_number)

    async def _close_answer_socket(self) -> None:
        if self._answer_socket is not None:
            await self._result(self._answer_socket.close())
            await self._join_answer_reader()
            self._answer_socket = None

    async def _read(self, sub: Any, handle: Callable[[list[Any]], Any]) -> None:
        """Receives from a socket until it is closed."""
        while not self._closed:
            try:
                await handle(await self._result(sub.recv_many(RECV_BATCH_PUBLICATIONS)))
            except ClosedError:
                return
            except Exception:
                log.exception("%s: a batch of messages was not handled, and reading continues", self._name)

    async def _read_publications(self) -> None:
        dispatch = self._dispatcher.dispatch

        async def handle(publications: list[bytes | list[bytes]]) -> None:
            self._pub._look()  # see the module: a request comes after the subscription to its reply
            for inbox, items in dispatch(publications).items():
                await self._result(inbox.put(items))

        await self._read(self._sub, handle)

    async def _read_answers(self, socket: Any, number: int) -> None:
        async def handle(frames: list[bytes | list[bytes]]) -> None:
            for frame in frames:
                try:
                    if isinstance(frame, bytes):
                        self._handle_answer(read_message(ManagerResponse, split_frame(frame)[1]), number)
                except Malformed as fault:
                    self._dispatcher.parse_errors.note(str(fault))

        await self._read(socket, handle)
