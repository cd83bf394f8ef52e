"""The asyncio twin of the portal."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Generator
from types import TracebackType
from typing import Any, ClassVar, Final, Self

import omq.asyncio as omq
from omq.errors import ClosedError, StateError
from omq.goby.dispatch import Handler, Inbox, Item, parse_error_text
from omq.goby.portal_base import LINGER_S, PortalBase, PortalSubscriptionBase
from omq.goby.scheme import SchemeId

__all__ = ["Portal", "Subscription"]

log = logging.getLogger("omq.goby")

CALLBACK_TIME_SLICE_S: Final = 0.002  # of callbacks in one turn of the loop


class _CompletedCall:
    """The result of a call that never waits, which may be awaited nevertheless."""

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


class AsyncInbox(Inbox):
    """Publications that wait for tasks; see `Inbox`."""

    def __init__(self, limit: int, *, shared: bool = False) -> None:
        super().__init__(limit, shared=shared)
        self._filled = asyncio.Event()
        self._emptied = asyncio.Event()
        self._blocked = False  # whether the portal waits for room

    async def put(self, items: list[Item]) -> None:
        """Adds publications, as soon as there is room for them; drops them if the reader has stalled."""
        start = self.accept(items, 0)
        self._filled.set()
        while start < len(items):
            self._blocked = True
            self._emptied.clear()
            if (wait_time := self.wait_time()) <= 0 or not await _wait_event(wait_time, self._emptied):
                self._blocked = False
                self.drop(len(items) - start)
                return
            start = self.accept(items, start)
            self._filled.set()
        self._blocked = False

    async def get(self, timeout: float | None) -> Item | None:
        """Waits for the next publication; returns `None` after the timeout, and if the inbox has ended."""
        if not self.items and not await self._fill(timeout):
            return None
        item = self.take()
        if self._blocked:
            self._emptied.set()
        return item

    async def _fill(self, timeout: float | None) -> bool:
        end = None if timeout is None else time.monotonic() + timeout
        while not self.items:
            self._filled.clear()
            remaining = None if end is None else end - time.monotonic()
            if self.ended or timeout == 0 or not await _wait_event(remaining, self._filled):
                return False
        return True

    def end(self) -> None:
        """Accepts nothing more, and ends all waits."""
        self.ended = True
        self._filled.set()
        self._emptied.set()


async def _wait_event(timeout: float | None, event: asyncio.Event) -> bool:
    """Waits for an event; returns whether it came in time."""
    try:
        async with asyncio.timeout(timeout):
            await event.wait()
    except TimeoutError:
        return False
    return True


class Subscription(PortalSubscriptionBase, _CompletedCall):
    """A subscription of a portal: an asynchronous iterator of messages; see `omq.goby.Subscription`."""

    def __await__(self) -> Generator[Any, None, Self]:  # type: ignore[override]
        return self
        yield

    async def recv(self, *, timeout: float | None = None) -> Any:
        """Waits for a message; see `omq.goby.Subscription.recv`.

        Raises:
            ReceiveTimeout: No message has arrived in time.
            ConnectError: The portal was not connected, and no manager has answered.
            ClosedError: The subscription, or its portal, is closed.
            UsageError: The subscription has a callback.
            StateError: The portal belongs to a parent process, or to another event loop.
        """
        if (inbox := self._inbox) is None:
            raise self._no_message(timeout)
        await self._portal._ensure_started()
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            item = await inbox.get(None if end is None else max(end - time.monotonic(), 0))
            if item is None:
                raise self._no_message(timeout)
            handler, identifier, payload = item
            try:
                return handler.decode(identifier, payload)
            except Exception as fault:
                self._portal._dispatcher.parse_errors.note(parse_error_text(identifier, fault))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self.recv()
        except ClosedError:
            raise StopAsyncIteration from None


class Portal(PortalBase[Subscription]):
    """A client of a Goby bus. The arguments are those of `omq.goby.Portal`. Tasks may share it.

    It connects with `async with`, `start`, or any other first call. `subscribe`, `subscribe_regex`, `unsubscribe` and
    `ready` never wait, and need not be awaited: the portal then connects in the background. If that fails, it logs the
    reason, and the next call tries again. Outside of an event loop these calls take effect with the first call inside
    one. Callbacks are called in the event loop.
    """

    _socket_module: ClassVar[Any] = omq
    _inbox_type = AsyncInbox
    _subscription_type: ClassVar[Any] = Subscription
    _callback_inbox: AsyncInbox

    def _set_up(self) -> None:
        self._answer_reader: asyncio.Task[None] | None = None
        self._starting: asyncio.Task[None] | None = None
        self._start_waiters = 0  # calls that wait for `_starting`
        self._closing: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._changed = asyncio.Event()  # for `_wait_until`

    # ------------------------------------------------------------------ calls

    async def start(self) -> None:
        """Finds the manager and connects. Idempotent.

        Raises:
            ConnectError: No manager has answered in time, or the process that has answered is not a manager.
            StateError: The portal was started in another event loop.
            ClosedError: The portal is closed.
        """
        self._check_usable()
        if self._closed:
            raise self._closed_error()
        if self._tasks:
            return
        starting = self._starting or self._start_in(asyncio.get_running_loop())
        self._start_waiters += 1
        try:
            await asyncio.shield(starting)
        finally:
            self._start_waiters -= 1

    _ensure_started = start

    def _start_in(self, loop: asyncio.AbstractEventLoop) -> asyncio.Task[None]:
        """Connects in the background."""
        self._loop = loop
        self._starting = loop.create_task(self._start())
        self._starting.add_done_callback(self._started)
        return self._starting

    def _started(self, starting: asyncio.Task[None]) -> None:
        self._starting = None
        error = None if starting.cancelled() else starting.exception()
        if error is not None and not self._start_waiters:
            log.error("%s is not connected; the next call tries again: %s", self._name, error)

    async def _start(self) -> None:
        try:
            await self._find_manager()
        except BaseException:
            await self._close_sockets()
            self._loop = None
            raise
        loop = asyncio.get_running_loop()
        coroutines = self._read_publications(), self._run(), self._run_callbacks()
        self._tasks = [loop.create_task(coroutine) for coroutine in coroutines]

    async def publish(
        self, group: str | int, message: Any, *, scheme: SchemeId | None = None, type_name: str | None = None
    ) -> None:
        """Publishes a message, or keeps it until the hold is released; see `omq.goby.Portal.publish`.

        Raises:
            UsageError: The group, *scheme* or *type_name* is not valid, no scheme handles the message, or a protobuf
                or JSON message cannot be encoded.
            UnicodeEncodeError: A `str` cannot be encoded in UTF-8.
            TypeError: The group is neither a `str` nor an `int`, or *type_name* is not a `str`.
            ImportError: The scheme is JSON, and pymongo is not installed.
            BufferFull: The hold is not released, and `buffer` publications already wait, or more than 64 MiB would.
            ConnectError: The portal was not connected, and no manager has answered.
            StateError: The portal belongs to a parent process, or to another event loop.
            ClosedError: The portal is closed.
        """
        frame = self._compose(group, message, scheme, type_name)
        if self._outbox.open:
            await self._pub.send(frame)
        else:
            await self._keep(frame)

    async def flush(self, timeout: float | None = None) -> None:
        """Waits until all earlier publications are sent; see `omq.goby.Portal.flush`.

        Raises:
            SendTimeout: Some publications were not sent in time. No publication is lost.
            ConnectError: The portal was not connected, and no manager has answered.
            ClosedError: The portal is closed.
        """
        await self._flush(timeout)

    def unsubscribe(  # type: ignore[override]
        self, group: str | int, type: type, *, scheme: SchemeId | None = None, type_name: str | None = None
    ) -> _CompletedCall:
        """Ends all subscriptions of the portal to a type in a group; see `omq.goby.Portal.unsubscribe`."""
        super().unsubscribe(group, type, scheme=scheme, type_name=type_name)
        return _CompletedCall()

    def ready(self) -> _CompletedCall:  # type: ignore[override]
        """Reports to the manager that this client is ready; see `omq.goby.Portal.ready`."""
        super().ready()
        return _CompletedCall()

    async def wait_released(self, timeout: float | None = None) -> None:
        """Waits until the hold is released, and the kept publications are sent; see `omq.goby.Portal.wait_released`.

        Raises:
            Timeout: The hold was not released in time; see `omq.goby.Portal.wait_released` for the text.
            ConnectError: The portal was not connected, and no manager has answered.
            ClosedError: The portal is closed.
        """
        await self._wait_released(timeout)

    async def missing(self, *, timeout: float = 1.0) -> list[str]:
        """Returns the names of the required clients that are not ready; see `omq.goby.Portal.missing`."""
        return await self._missing(timeout)

    async def close(self) -> None:
        """Closes the portal. Kept publications are sent first, if the hold is released within a second. Idempotent.

        A cancelled call continues in the background, and another call waits for it. Once the portal's event loop is
        closed, this may be called in another one; nothing is sent then.

        Raises:
            StateError: The portal belongs to another event loop, which is not closed.
        """
        if self._closing is not None and self._closing.done():
            return
        ended = self._loop is not None and self._loop.is_closed()
        if not ended:
            self._check_loop()
        self._is_closing = True
        if self._closing is None or ended:
            own_task = asyncio.current_task() in self._tasks
            self._closing = asyncio.get_running_loop().create_task(self._close(linger=not (own_task or ended)))
        await asyncio.shield(self._closing)

    async def _close(self, *, linger: bool) -> None:
        if self._tasks and linger:
            await self._drain(LINGER_S)
        self._end()
        tasks = [
            task for task in (self._starting, *self._tasks, self._answer_reader) if task is not None and not task.done()
        ]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._close_sockets()

    async def _close_sockets(self) -> None:
        for socket in self._open_sockets():
            await socket.close()

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except asyncio.CancelledError:
            await self.close()  # the caller has no other chance to
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # ------------------------------------------------------------------ waiting

    def _check_usable(self) -> None:
        self._check_process()
        self._check_loop()

    def _check_loop(self) -> None:
        if self._loop is None or self._loop is _running():
            return
        if self._loop.is_closed():
            raise StateError(f"{self!r} belongs to an event loop that is closed: create another portal")
        raise StateError(f"{self!r} belongs to another event loop, or no loop runs here")

    def _start_background(self, handler: Handler | None = None) -> None:
        loop = _running()
        if loop is not None and self._loop is None and not self._is_closing:
            self._start_in(loop)

    async def _result(self, call: Any) -> Any:
        return await call

    async def _wait_until(self, condition: Callable[[], bool], timeout: float | None) -> bool:
        end = None if timeout is None else time.monotonic() + timeout
        while not (self._closed or condition()):
            self._changed.clear()
            if not await _wait_event(None if end is None else end - time.monotonic(), self._changed):
                return False
        return True

    def _notify(self) -> None:
        self._changed.set()

    # ------------------------------------------------------------------ tasks

    def _start_answer_reader(self, socket: Any, number: int) -> None:
        self._answer_reader = asyncio.get_running_loop().create_task(self._read_answers(socket, number))

    async def _join_answer_reader(self) -> None:
        assert self._answer_reader is not None
        await self._answer_reader

    async def _run_callbacks(self) -> None:
        """Calls the callbacks with their publications, and lets the loop run in between."""
        inbox = self._callback_inbox
        slice_start = 0.0
        while not inbox.ended:
            if not inbox.items:
                slice_start = 0.0
            if (item := await inbox.get(None)) is not None and not (self._closed or item[0].ended):
                slice_start = slice_start or time.monotonic()
                handler, identifier, payload = item
                # These two end the loop, as anywhere in it. A CancelledError is logged: a callback is not a coroutine,
                # so it does not cancel a task.
                handler.call(identifier, payload, self._dispatcher.parse_errors, (SystemExit, KeyboardInterrupt))
                if time.monotonic() - slice_start > CALLBACK_TIME_SLICE_S:
                    await asyncio.sleep(0)
                    slice_start = 0.0


def _running() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
