"""The part of a portal that both twins share: what its user calls, and its life from the manager to the release.

The waits are coroutines over the twin's sockets: `_got` returns what a call on a socket has returned. The asyncio twin
awaits that. In the blocking twin the call has waited itself, so that a coroutine there never suspends, and
`run_blocking` (`omq.executor`) runs it in the calling thread.

When is a subscription in force? A socket's subscriptions travel in their order: to the router's XPUB, from there
through the proxy to its XSUB, and from that to each publisher. A portal subscribes to a prefix of its own, and waits
until its own publisher has received that (`_barrier`): then whatever was subscribed before is in force at the router.
The portal does so once before it reports that it is ready: what it has subscribed to is then on its way to every
publisher, before any of them learns of the release. And it does so once more after the release, before it publishes:
the prefix reaches its publisher after all that others have subscribed to. Whatever it subscribes to later holds its
publications up for the same time, about a millisecond: a portal that subscribes to an answer, and then asks, gets it.
The router has sent the subscription on before it gets the question; and where the question has arrived, so has the
subscription, on one host, but by another connection: so a portal reads what its publisher has received before it gives
away publications.

Whose hold is released? The manager's answers come by a connection of their own, a new one whenever another router is
found: an answer of a gobyd that is gone by now, and that was not read yet, releases no other's hold. And a callback
that takes long, or itself waits for the release, does not delay the answers.
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
from omq.goby.identifier import checked_group, head_of, prefix_of, split_frame
from omq.goby.outbox import MAX_PUBLICATIONS, Outbox, OutboxOpening
from omq.goby.protobuf import PROVIDE_HOLD_STATE, PROVIDE_MISSING_CLIENTS, ManagerResponse
from omq.goby.scheme import Scheme, SchemeId, Schemes
from omq.goby.wire import (
    HWM,
    PLATFORM,
    PORT,
    RESPONSES,
    Bus,
    Sockets,
    ask_hold,
    ask_missing,
    ask_sockets,
    read_message,
    read_sockets,
)
from omq.unpatched import threading

log = logging.getLogger("omq.goby")

BATCH: Final = 1024  # publications that are taken at once
LINGER_S: Final = 1.0  # for publications to leave when the portal closes
MISSING_TIMEOUT_S: Final = 0.2  # for the manager to name the missing clients after another timeout
CHECK_INTERVAL_S: Final = 1.0  # between two checks of the connections to the router
RECONNECT_INTERVAL_S: Final = 0.05
HEARTBEAT_INTERVAL_S: Final = 5.0  # between two PINGs over tcp, and after one until something has to come (RFC 37)

HOLD_INTERVAL_S: Final = 0.1  # between two requests for the hold's state
PROMPT_INTERVAL_S: Final = 0.02  # between two such requests out of turn
MANAGER_IDLE_TIMEOUT_S: Final = 1.0  # without an answer, after which the manager is looked for again
BARRIER_TIMEOUT_S: Final = 1.0
NO_BARRIER_S: Final = 5.0  # after which a router that passes no subscriptions on is tried again
SETTLE_S: Final = 0.02  # for subscriptions of clients that do not wait until theirs are in force
RETURN_S: Final = 0.5  # for others to find a manager that was started again
CHUNK: Final = 100  # publications that were held and leave at once
CHUNK_PAUSE_S: Final = 0.002  # between them: no bound of ZeroMQ's on the way is to be reached
WARNING_INTERVAL_S: Final = 5.0  # between two lines about a manager that does not answer
MAX_ROUTES: Final = 4096  # identifiers that are remembered

_Subscription = TypeVar("_Subscription")


def check_callback(callback: Callable[[Any], object]) -> None:
    """Raises `UsageError` for a callback that cannot be called, or of which a call does nothing."""
    if not callable(callback):
        raise UsageError(f"callback={callback!r}: cannot be called")
    for called in callback, type(callback).__call__:
        if inspect.iscoroutinefunction(called):
            kind, use = "coroutine function, which would not be awaited", "iterate over what subscribe() returns"
        elif inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
            kind, use = "generator function, which would not be iterated over", "give a function that returns"
        else:
            continue
        raise UsageError(f"callback={getattr(callback, '__name__', repr(callback))}: is a {kind}: {use}")


#: The first bytes of a publication to a group, and the encoder of its payload.
Route = tuple[bytes, Callable[[Any], bytes]]


class ConnectionLossMonitor:
    """A monitor of both sockets that wakes the portal when a connection has ended."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def put(self, event: Event) -> None:
        """Takes an event in; never waits."""
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
        """Messages that were not taken in time, so that they were dropped."""
        return 0 if self._inbox is None else int(self._inbox.dropped)

    def _no_message(self, timeout: float | None) -> OmqError:
        """Returns the error of a call that gets no message."""
        if self._inbox is None:
            return UsageError("this subscription has a callback: there is nothing to wait for")
        if self._inbox.ended:
            return ClosedError("the subscription is closed")
        return ReceiveTimeout(f"no message within {timeout} s")

    def close(self) -> None:
        """Ends it. Idempotent."""
        self._portal._remove(self._handler)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class PortalBase(Generic[_Subscription]):
    """A client of a Goby bus; see `omq.goby.Portal`."""

    _sockets: ClassVar[Any]  # the twin's module of sockets
    _inbox_type: ClassVar[type[Inbox]]
    _subscription_type: ClassVar[Any]

    def __init__(
        self,
        name: str,
        *,
        platform: str = PLATFORM,
        transport: str = "ipc",
        socket_name: str | os.PathLike[str] | None = None,
        address: str = "127.0.0.1",
        port: int = PORT,
        manager_timeout: float = 5.0,
        buffer: int | None = None,
        schemes: Iterable[Scheme] = (),
        context: Context | None = None,
    ) -> None:
        self._bus = Bus(platform, transport, None if socket_name is None else os.fspath(socket_name), address, port)
        if not isinstance(name, str) or not name:
            raise UsageError(f"name={name!r}: a client's name is a text that is not empty").about("name")
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise UsageError(f"name={name!r}: cannot be encoded in UTF-8: {error.reason}").about("name") from None
        if (
            isinstance(manager_timeout, bool)
            or not isinstance(manager_timeout, int | float)
            or not 0 < manager_timeout <= threading.TIMEOUT_MAX
        ):
            reason = f"must be seconds, more than 0, at most {threading.TIMEOUT_MAX:g}"
            raise UsageError(f"manager_timeout={manager_timeout!r}: {reason}").about("manager_timeout")
        if transport == "tcp" and port == 0:
            raise UsageError("port=0: is not a valid port of a manager").about("port")
        self._name = name
        self._pid = os.getpid()
        self._manager_timeout = manager_timeout
        self._schemes = Schemes(schemes)
        self._routes: dict[tuple[str | int, type, type, int], Route] = {}
        self._dispatcher = PublicationDispatcher()
        self._outbox = Outbox(MAX_PUBLICATIONS if buffer is None else buffer)
        self._context = context
        self._options: dict[str, Any] = {"reconnect_interval": RECONNECT_INTERVAL_S}
        if transport == "tcp":
            # A host that has lost its power sends nothing, and a portal that only listens would wait for ever.
            self._options |= {"ipv6": True, "heartbeat_interval": HEARTBEAT_INTERVAL_S}
        self._changing = threading.RLock()  # the subscriptions and connections of the sockets, and `_closed`
        self._closed = False
        self._ends = False  # it is being closed: nothing more is kept
        self._calls = self._inbox_type(HWM, shared=True)  # the messages of callbacks

        self._at: Sockets | None = None  # where the sockets are connected
        self._pub: Any
        self._sub: Any
        self._losses: ConnectionLossMonitor
        self._asking: set[Any] = set()  # sockets that ask the manager
        self._answers: Any = None  # the socket that reads the manager's answers
        self._answers_number = 0  # the ordinal of that socket
        self._answered_at = 0.0

        self._news = False  # something has changed that `_wait_news` waits for
        self._ready = False
        self._hold = True
        self._prompted = False  # the manager has released another client
        self._released = False
        self._rounds = 0  # how often all has left that had waited when it was let go
        self._barriers = 0
        self._no_barrier_until = float("-inf")  # the router does not pass subscriptions on
        self._set_up()

    # ------------------------------------------------------------------ the twin's

    def _set_up(self) -> None:
        """Finishes the construction."""
        raise NotImplementedError

    def _check_usable(self) -> None:
        """Raises `StateError` where the portal cannot be used: in a forked child, or another event loop."""
        raise NotImplementedError

    async def _begin(self) -> None:
        """Begins a call that waits: checks as `_check_usable`, and connects where that was left to it."""
        raise NotImplementedError

    def _was_called(self, handler: Handler | None = None) -> None:
        """Begins the work in the background that a call has asked for which does not wait."""

    async def _got(self, found: Any) -> Any:
        """Returns the result of a call on a socket or an inbox."""
        raise NotImplementedError

    async def _await(self, true: Callable[[], bool], timeout: float | None) -> bool:
        """Waits until something is true, or the portal is closed; returns whether that is so in time."""
        raise NotImplementedError

    def _notify(self) -> None:
        """Has all calls of `_await` look again."""
        raise NotImplementedError

    def _begin_reading(self, answers: Any, number: int) -> None:
        """Begins `_read_answers` in the background."""
        raise NotImplementedError

    async def _end_reading(self) -> None:
        """Waits until that has come to its end, after its socket was closed."""
        raise NotImplementedError

    def close(self) -> Any:
        """Ends."""
        raise NotImplementedError

    # ------------------------------------------------------------------ what it is

    @property
    def name(self) -> str:
        """The client's name."""
        return self._name

    @property
    def released(self) -> bool:
        """Returns whether publications leave; else they wait for the hold's release."""
        return self._released

    @property
    def waiting(self) -> int:
        """Publications that wait for the release, or until what was subscribed to before them is in force."""
        return len(self._outbox)

    @property
    def malformed(self) -> int:
        """Publications that have come and could not be read: they are logged and passed over."""
        return self._dispatcher.malformations.count

    @property
    def closed(self) -> bool:
        """Returns whether it is closed."""
        return self._closed

    def __repr__(self) -> str:
        return f"<{type(self).__module__}.Portal {self._name} at {self._bus.manager}>"

    @property
    def _recv_hwm(self) -> int:
        """Publications that may wait for an iterator."""
        return HWM if self._at is None else self._at.recv_hwm

    def _check_process(self) -> None:
        """Raises `StateError` in a forked child, where no thread of the portal runs, and locks may be held for ever."""
        if os.getpid() != self._pid:
            raise StateError(f"the portal {self._name} belongs to process {self._pid}: make another one after a fork")

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
            group: The group, not empty, without `/` and NUL.
            type: A protobuf class, `str`, `dict`, `bytes`, or what a scheme of one's own handles.
            callback: Called with each message, in a thread of the portal's; `None`: iterate over what is returned.
            scheme: A marshalling scheme's name or number; `None`: what fits the type. `bytes` need it.
            type_name: What the type is called; `None`: as its scheme names it. `bytes` need it.

        Returns:
            An iterator of the messages.

        Raises:
            UsageError: The group does not fit, no scheme handles the type, or the callback does not fit.
            ClosedError: The portal is closed.
        """
        codec = self._schemes.codec(type, scheme, type_name)
        return self._add(TypeHandler(checked_group(group), codec, self._inbox_for(callback), callback))

    def subscribe_regex(
        self,
        group: str = ".*",
        type: str = ".*",
        schemes: Iterable[SchemeId] | None = None,
        callback: Callable[[Any], object] | None = None,
    ) -> _Subscription:
        """Subscribes to all that fits, except for what managers and portals exchange.

        Args:
            group: A regular expression that fits the whole of a group.
            type: One that fits the whole of a type's name.
            schemes: Names or numbers of marshalling schemes; `None`: all.
            callback: Called with each publication, in a thread of the portal's; `None`: iterate over what is returned.

        Returns:
            An iterator of `Received`: `group`, `scheme`, `type` and `data`, the payload.

        Raises:
            UsageError: An expression is not valid, there is no such scheme, or the callback does not fit.
            ClosedError: The portal is closed.
        """
        if isinstance(schemes, str | int):
            schemes = [schemes]
        wire = None if schemes is None else {self._schemes.wire_of(scheme) for scheme in schemes}
        return self._add(RegexHandler(group, type, wire, self._inbox_for(callback), callback))

    def unsubscribe(
        self, group: str | int, type: type, *, scheme: SchemeId | None = None, type_name: str | None = None
    ) -> None:
        """Ends all of the portal's subscriptions to a type in a group, if there are any; see `subscribe`.

        Raises:
            UsageError: The group does not fit, or no scheme handles the type.
        """
        codec = self._schemes.codec(type, scheme, type_name)
        for handler in self._dispatcher.of(prefix_of(checked_group(group), codec.scheme, codec.type)):
            self._remove(handler)

    def register(self, scheme: Scheme) -> None:
        """Adds a marshalling scheme of one's own.

        Raises:
            UsageError: Another one has its name or number.
        """
        self._schemes.register(scheme)
        self._routes = {}

    def _inbox_for(self, callback: Callable[[Any], object] | None) -> Inbox:
        if callback is None:
            return self._inbox_type(self._recv_hwm)
        check_callback(callback)
        return self._calls

    def _inboxes(self) -> set[Inbox]:
        """All inboxes of the portal's user."""
        return {self._calls, *(one.inbox for one in self._dispatcher.handlers)}

    def _add(self, handler: Handler) -> _Subscription:
        self._check_usable()
        with self._changing:
            self._check_open()
            prefix = self._dispatcher.add(handler)
            if prefix is not None and self._at is not None:
                self._sub.subscribe(prefix)
                self._subscribed()
        self._was_called(handler)
        subscription: _Subscription = self._subscription_type(self, handler)
        return subscription

    def _subscribed(self) -> None:
        """Has what is published from now on wait until the last subscription is in force."""
        self._outbox.hold()
        if self._released:
            self._wake()

    def _remove(self, handler: Handler) -> None:
        self._check_process()
        handler.ended = True
        with self._changing:
            prefix = self._dispatcher.remove(handler)
            if prefix is not None and self._at is not None and not self._closed:
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
            if len(self._routes) >= MAX_ROUTES:
                self._routes = {}
            self._routes[group, type(group), kind, thread] = route
        return route

    async def _keep(self, frame: bytes) -> None:
        """Keeps a publication while the hold lasts, or sends it."""
        await self._begin()
        while True:
            if self._closed or self._ends:
                raise self._closed_error()
            rounds = self._rounds
            try:
                if not self._outbox.put(frame):
                    await self._got(self._pub.send(frame))
                return
            except OutboxOpening:
                await self._await(lambda: not self._outbox.closing, None)
            except BufferFull:
                if not self._released:
                    raise
                # What waits does so for a moment, since something was subscribed to.
                await self._await(lambda: self._rounds != rounds or not self._released, None)  # noqa: B023

    async def _flush(self, timeout: float | None) -> None:
        await self._begin()
        end = None if timeout is None else time.monotonic() + timeout
        mark = self._outbox.kept
        if not await self._await(lambda: self._outbox.left >= mark or not self._rounds, timeout):
            raise self._not_left(timeout)
        await self._got(self._pub.flush(end and max(end - time.monotonic(), 0)))

    def _not_left(self, timeout: float | None) -> SendTimeout:
        what = "what was subscribed to before them is in force" if self._released else "the router is found again"
        count = self._outbox.kept - self._outbox.left
        return SendTimeout(f"{count} publications have not left within {timeout:g} s: they wait until {what}")

    # ------------------------------------------------------------------ the hold

    def ready(self) -> None:
        """Reports to the manager that this client is ready, once all that it has subscribed to is in force.

        A gobyd that requires it holds all publications until then.
        """
        self._check_process()
        self._ready = True
        self._wake()
        self._was_called()

    async def _wait_released(self, timeout: float | None) -> None:
        await self._begin()
        if not await self._await(lambda: self._released, timeout):
            missing = await self._missing(MISSING_TIMEOUT_S)
            names = f": it waits for {', '.join(missing)}" if missing else ""
            raise Timeout(f"{self._bus.manager}: the hold was not released within {timeout:g} s{names}")
        self._check_open()

    async def _missing(self, timeout: float) -> list[str]:
        self._check_process()
        reply = await self._ask(ask_missing(self._name, self._pid), timeout)
        try:
            response = ManagerResponse() if reply is None else read_message(ManagerResponse, reply)
        except Malformed:
            return []
        return list(response.missing_client) if response.request == PROVIDE_MISSING_CLIENTS else []

    # ------------------------------------------------------------------ its end

    async def _drain(self, timeout: float) -> None:
        """Keeps nothing more, and gives what was kept a moment to leave."""
        self._ends = True
        mark = self._outbox.kept
        await self._await(lambda: self._outbox.left >= mark, timeout)

    def _warn_dropped(self) -> None:
        if self._outbox:
            log.warning("%s: %d publications that were held are dropped", self._name, len(self._outbox))

    def _end(self) -> bool:
        """Ends all calls; returns whether the portal was open."""
        with self._changing:
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
        found = *self._asking, self._answers, getattr(self, "_sub", None), getattr(self, "_pub", None)
        return [socket for socket in found if socket is not None]

    # ------------------------------------------------------------------ its life

    def _wake(self) -> None:
        """Ends `_wait_news`, also one that begins later."""
        self._news = True
        self._notify()

    async def _wait_news(self, timeout: float) -> None:
        await self._await(lambda: self._news, timeout)
        self._news = False
        self._check_open()

    async def _pause(self, seconds: float) -> None:
        await self._await(lambda: False, seconds)
        self._check_open()

    async def _find(self) -> None:
        """Finds the manager for the first time.

        Raises:
            ConnectError: It does not answer in time, or not as a manager does.
        """
        manager = self._bus.manager
        reply = await self._ask(ask_sockets(self._name, self._pid), self._manager_timeout)
        if reply is None:
            raise self._not_found(f"no manager (gobyd) has answered at {manager} within {self._manager_timeout:g} s")
        try:
            at = read_sockets(reply, self._bus)
        except Malformed as fault:
            raise self._not_found(f"the process that answers at {manager} is not a manager: {fault}") from None
        self._connect(at)

    def _not_found(self, reason: str) -> ConnectError:
        name, value = self._bus.argument
        return ConnectError(f"{name}={value!r}: {reason}").about(name)

    async def _run(self) -> None:
        """Lives until the portal is closed."""
        try:
            await self._live()
        except ClosedError:
            pass
        except Exception:
            log.exception("%s: the portal has failed", self._name)
            await self._got(self.close())

    async def _live(self) -> None:
        """Waits for the release, publishes what was held, and begins again whenever the router is lost."""
        settle = SETTLE_S
        while True:
            at = await self._wait_for_release(settle)
            while await self._open(at) and not await self._lose(at):
                pass
            self._outbox.hold()
            self._hold = True
            self._released = False
            log.info("%s: the router at %s is lost: publications wait", self._name, self._bus.manager)
            self._notify()
            await self._find_again()
            settle = RETURN_S

    async def _wait_for_release(self, settle: float) -> object:
        """Asks until the hold is released, and gives subscriptions of others a moment.

        Returns:
            The connections by which the release was received: it is that of the router at their ends.
        """
        first = at = None
        reported = False  # a portal that was ready
        self._answered_at = prompted = time.monotonic()
        while self._hold:
            ready = self._ready
            if at is None or self._where() != at:
                reported = ready
                at = await self._listen()
                first = first or at
                if at is not None:
                    self._answered_at = time.monotonic()
            if ready and not reported:
                await self._barrier()
                reported = True
            await self._transmit([ask_hold(self._name, self._pid, threading.get_ident(), ready)])
            end = time.monotonic() + HOLD_INTERVAL_S
            while self._hold and self._ready == ready and (left := end - time.monotonic()) > 0:
                await self._wait_news(left)
                if self._prompted and time.monotonic() - prompted >= PROMPT_INTERVAL_S:
                    self._prompted, prompted = False, time.monotonic()
                    break
            if self._hold and time.monotonic() - self._answered_at > MANAGER_IDLE_TIMEOUT_S:
                await self._find_again()
                self._answered_at = time.monotonic()
            if not self._hold and (at is None or self._where() != at):
                self._hold = True  # the manager that has released it may be gone
        await self._end_answers()
        await self._pause(settle if at == first else RETURN_S)
        return at

    async def _listen(self) -> object:
        """Reads the manager's answers from a new connection: one of a gobyd that is gone does not count for the next.

        Nor do the answers wait after other publications, for callbacks that take long.

        Returns:
            The connections by which the router is reached. Those of the answers came after them.
        """
        await self._barrier()
        at = self._where()
        await self._open_answers()
        self._hold = True
        await self._barrier(by_answers=True)
        return at

    async def _open(self, at: object) -> bool:
        """Publishes what waits, once all is in force that was subscribed to before, until nothing waits.

        Args:
            at: The connections by which the release was received. By others nothing leaves: it may be another router.

        Returns:
            Whether they are still there.
        """
        while not self._outbox.open:
            mark = self._outbox.let_go()
            if not await self._barrier() and self._where() == at:
                log.warning("%s: the router passes no subscriptions on: what is published now may be lost", self._name)
                self._no_barrier_until = time.monotonic() + NO_BARRIER_S
            while self._where() == at:
                frames = self._outbox.take(CHUNK)
                if self._outbox.left >= mark:
                    self._released = True
                    self._rounds += 1
                    self._notify()
                if not frames:
                    break
                left = await self._transmit(frames)
                while not left and self._where() == at:
                    # The router stalls: with more the publisher would reach its bound, and drop.
                    self._outbox.stall()
                    self._notify()
                    left = await self._transmit([])
                if len(frames) == CHUNK:
                    await self._pause(CHUNK_PAUSE_S)
            else:
                return False
        return True

    async def _lose(self, at: object) -> bool:
        """Waits until the router is no longer reached by these connections, or publications are held.

        Returns:
            Whether the connections are lost.
        """
        while self._where() == at:
            if not self._outbox.open:
                return False
            await self._wait_news(CHECK_INTERVAL_S)
        return True

    async def _find_again(self) -> None:
        """Asks the manager once more: it may have been started again, and have other ports."""
        warned = float("-inf")
        self._no_barrier_until = float("-inf")
        while True:
            reply = await self._ask(ask_sockets(self._name, self._pid), MANAGER_IDLE_TIMEOUT_S)
            try:
                if reply is not None:
                    at = read_sockets(reply, self._bus)
                    break
                fault = "does not answer"
            except Malformed as malformed:
                fault = str(malformed)
                await self._pause(HOLD_INTERVAL_S)
            if time.monotonic() - warned > WARNING_INTERVAL_S:
                warned = time.monotonic()
                log.warning("%s: the manager at %s: %s", self._name, self._bus.manager, fault)
        if at != self._at:
            self._connect(at)

    async def _barrier(self, *, by_answers: bool = False) -> bool:
        """Waits until all that was subscribed before is in force; see the module.

        Args:
            by_answers: Subscribes by the connection of the answers.

        Returns:
            Whether it is.
        """
        if time.monotonic() < self._no_barrier_until:
            return True
        self._barriers += 1
        name = self._name.replace("/", "_")
        prefix = f"/omq::goby::_word/{name}/{self._pid}/{id(self):x}/{self._barriers}/".encode()
        self._subscribe(prefix, by_answers=by_answers)
        passed = await self._wait_subscribed(prefix, BARRIER_TIMEOUT_S / 2)
        if not passed and await self._wait_subscribed(b"", 0):
            # No proxy, but something that takes all from publishers, and passes no subscription on.
            self._no_barrier_until, passed = time.monotonic() + NO_BARRIER_S, True
        passed = passed or await self._wait_subscribed(prefix, BARRIER_TIMEOUT_S / 2)
        self._subscribe(prefix, wanted=False, by_answers=by_answers)
        return passed

    def _answered(self, response: ManagerResponse, number: int) -> None:
        """Takes an answer of a manager to any client.

        Args:
            response: The answer.
            number: The ordinal of the socket that has received it; see `_listen`.
        """
        if response.request != PROVIDE_HOLD_STATE or number != self._answers_number:
            return
        self._answered_at = time.monotonic()
        if response.client_name == self._name and response.client_pid == self._pid:
            self._hold = response.hold
        elif not response.hold:
            self._prompted = True  # ask at once
        else:
            return
        self._wake()

    # ------------------------------------------------------------------ its sockets

    def _connect(self, at: Sockets) -> None:
        """Connects the sockets; where they were connected before, they disconnect."""
        with self._changing:
            self._check_open()
            before, self._at = self._at, at
            if before is None:
                self._pub = self._sockets.PUB(self._context, linger=LINGER_S, send_hwm=at.send_hwm, **self._options)
                self._sub = self._sockets.SUB(
                    self._context, linger=0, recv_hwm=at.recv_hwm, subscribe=self._dispatcher.prefixes, **self._options
                )
                self._losses = ConnectionLossMonitor(self._wake)
                for socket in (self._pub, self._sub):
                    socket._may_monitor().reporter.add(self._losses)
                for inbox in self._inboxes():
                    inbox.limit = at.recv_hwm
            else:
                self._pub.set_options(send_hwm=at.send_hwm)
                self._sub.set_options(recv_hwm=at.recv_hwm)
                self._pub.disconnect(before.publish)
                self._sub.disconnect(before.subscribe)
            self._pub.connect(at.publish)
            self._sub.connect(at.subscribe)

    def _where(self) -> object:
        """Returns the connections by which the router is reached, others after a loss; `None` if one is missing."""
        found = self._pub.peers, self._sub.peers
        return tuple(peer.since for peers in found for peer in peers) if all(found) else None

    def _subscribe(self, prefix: bytes, *, wanted: bool = True, by_answers: bool) -> None:
        sub = self._sub if not by_answers or self._answers is None else self._answers
        (sub.subscribe if wanted else sub.unsubscribe)(prefix)

    async def _wait_subscribed(self, prefix: bytes, timeout: float) -> bool:
        """Waits until the publisher has a subscription to exactly this; returns whether it came in time."""
        try:
            await self._got(self._pub.wait_subscribed(prefix, timeout=timeout))
        except Timeout:
            return False
        return True

    async def _transmit(self, frames: list[bytes]) -> bool:
        """Publishes; returns whether all that was published has left in time."""
        for frame in frames:
            await self._got(self._pub.send(frame))
        try:
            await self._got(self._pub.flush(LINGER_S))
        except Timeout:
            return False
        return True

    async def _ask(self, request: bytes, timeout: float) -> bytes | None:
        """Asks the manager; returns its reply, `None` if none comes in time."""
        with self._changing:
            self._check_open()
            asking = self._sockets.REQ(self._context, connect=self._bus.manager, linger=0, **self._options)
            self._asking.add(asking)
        try:
            await self._got(asking.send(request, timeout=timeout))
            parts: list[bytes] = await self._got(asking.recv_multipart(timeout=timeout))
            return parts[0]
        except Timeout:
            return None
        finally:
            self._asking.discard(asking)
            await self._got(asking.close())

    async def _open_answers(self) -> None:
        """Reads the manager's answers by a connection of their own, a new one, and no more by the one before."""
        await self._end_answers()
        with self._changing:
            self._check_open()
            assert self._at is not None
            self._answers_number += 1
            self._answers = self._sockets.SUB(
                self._context, connect=self._at.subscribe, subscribe=[RESPONSES], linger=0, **self._options
            )
            self._begin_reading(self._answers, self._answers_number)

    async def _end_answers(self) -> None:
        if self._answers is not None:
            await self._got(self._answers.close())
            await self._end_reading()
            self._answers = None

    async def _read(self, sub: Any, take: Callable[[list[Any]], Any]) -> None:
        """Reads a socket until it is closed."""
        while not self._closed:
            try:
                await take(await self._got(sub.recv_many(BATCH)))
            except ClosedError:
                return
            except Exception:
                log.exception("%s: reading goes on", self._name)

    async def _read_publications(self) -> None:
        sort = self._dispatcher.sort

        async def take(publications: list[bytes | list[bytes]]) -> None:
            self._pub._look()  # see the module: a portal that asks has subscribed to the answer before
            for inbox, items in sort(publications).items():
                await self._got(inbox.put(items))

        await self._read(self._sub, take)

    async def _read_answers(self, answers: Any, number: int) -> None:
        async def take(frames: list[bytes | list[bytes]]) -> None:
            for frame in frames:
                try:
                    if isinstance(frame, bytes):
                        self._answered(read_message(ManagerResponse, split_frame(frame)[1]), number)
                except Malformed as fault:
                    self._dispatcher.malformations.note(str(fault))

        await self._read(answers, take)
