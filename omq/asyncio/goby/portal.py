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
from omq.goby.dispatch import Handler, Inbox, Item, does_not_parse
from omq.goby.portal_base import LINGER_S, PortalBase, PortalSubscriptionBase
from omq.goby.scheme import SchemeId

__all__ = ["Portal", "Subscription"]

log = logging.getLogger("omq.goby")

CALLBACKS_S: Final = 0.002  # that callbacks run before the loop goes round


class _Done:
    """The result of a call that never waits: it may be awaited all the same."""

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


class AsyncInbox(Inbox):
    """Publications that wait for tasks; see `Inbox`."""

    def __init__(self, limit: int, *, shared: bool = False) -> None:
        super().__init__(limit, shared=shared)
        self._filled = asyncio.Event()
        self._emptied = asyncio.Event()
        self._blocked = False  # the portal waits for room

    async def put(self, items: list[Item]) -> None:
        """Takes publications, as soon as there is room for them."""
        start = self.accept(items, 0)
        self._filled.set()
        while start < len(items):
            self._blocked = True
            self._emptied.clear()
            if (wait_time := self.wait_time()) <= 0 or not await _within(wait_time, self._emptied):
                self._blocked = False
                self.drop(len(items) - start)
                return
            start = self.accept(items, start)
            self._filled.set()
        self._blocked = False

    async def get(self, timeout: float | None) -> Item | None:
        """Waits for the next one; returns `None` if none comes in time, or it has ended."""
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
            left = None if end is None else end - time.monotonic()
            if self.ended or timeout == 0 or not await _within(left, self._filled):
                return False
        return True

    def end(self) -> None:
        """Takes nothing more, and ends all waits."""
        self.ended = True
        self._filled.set()
        self._emptied.set()


async def _within(seconds: float | None, event: asyncio.Event) -> bool:
    """Waits for an event; returns whether it came in time."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


class Subscription(PortalSubscriptionBase, _Done):
    """A subscription of a portal: an asynchronous iterator of messages; see `omq.goby.Subscription`."""

    def __await__(self) -> Generator[Any, None, Self]:  # type: ignore[override]
        return self
        yield

    async def recv(self, *, timeout: float | None = None) -> Any:
        """Waits for a message; see `omq.goby.Subscription.recv`.

        Raises:
            ReceiveTimeout: None came in time.
            ClosedError: The subscription, or its portal, is closed.
            UsageError: It has a callback.
        """
        if (inbox := self._inbox) is None:
            raise self._no_message(timeout)
        await self._portal._begin()
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            item = await inbox.get(None if end is None else max(end - time.monotonic(), 0))
            if item is None:
                raise self._no_message(timeout)
            handler, identifier, payload = item
            try:
                return handler.decode(identifier, payload)
            except Exception as fault:
                self._portal._dispatcher.malformations.note(does_not_parse(identifier, fault))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self.recv()
        except ClosedError:
            raise StopAsyncIteration from None


class Portal(PortalBase[Subscription]):
    """A client of a Goby bus; see `omq.goby.Portal`, whose arguments these are. Tasks may share it.

    It connects with `async with`, `start`, or the first call of any other kind. `subscribe`, `subscribe_regex`,
    `unsubscribe` and `ready` never wait, and need not be awaited: the portal then connects in the background, and logs
    why it could not; the next call tries again. Outside of an event loop they are kept for the first call inside one.
    Callbacks are called in the loop.
    """

    _sockets: ClassVar[Any] = omq
    _inbox_type = AsyncInbox
    _subscription_type: ClassVar[Any] = Subscription
    _calls: AsyncInbox

    def _set_up(self) -> None:
        self._reading: asyncio.Task[None] | None = None
        self._starting: asyncio.Task[None] | None = None
        self._starters = 0  # calls that wait for it
        self._closing: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._changed = asyncio.Event()  # for `_await`

    # ------------------------------------------------------------------ its calls

    async def start(self) -> None:
        """Finds the manager and connects; nothing happens if that is done.

        Raises:
            ConnectError: No manager has answered in time.
            StateError: It has been started in another event loop.
            ClosedError: The portal is closed.
        """
        self._check_usable()
        if self._closed:
            raise self._closed_error()
        if self._tasks:
            return
        starting = self._starting or self._start_in(asyncio.get_running_loop())
        self._starters += 1
        try:
            await asyncio.shield(starting)
        finally:
            self._starters -= 1

    _begin = start

    def _start_in(self, loop: asyncio.AbstractEventLoop) -> asyncio.Task[None]:
        """Begins to connect, in the background."""
        self._loop = loop
        self._starting = loop.create_task(self._start())
        self._starting.add_done_callback(self._started)
        return self._starting

    def _started(self, starting: asyncio.Task[None]) -> None:
        self._starting = None
        error = None if starting.cancelled() else starting.exception()
        if error is not None and not self._starters:
            log.error("%s is not connected; the next call tries again: %s", self._name, error)

    async def _start(self) -> None:
        try:
            await self._find()
        except BaseException:
            await self._close_sockets()
            self._loop = None
            raise
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(life) for life in (self._read_publications(), self._run(), self._call())]

    async def publish(
        self, group: str | int, message: Any, *, scheme: SchemeId | None = None, type_name: str | None = None
    ) -> None:
        """Publishes a message, or keeps it until the hold is released; see `omq.goby.Portal.publish`.

        Raises:
            UsageError: The group does not fit, or no scheme handles the message.
            BufferFull: The hold is not released, and as many publications as may wait do so.
            ConnectError: The portal was not connected, and no manager has answered.
            ClosedError: The portal is closed.
        """
        frame = self._compose(group, message, scheme, type_name)
        if self._outbox.open:
            await self._pub.send(frame)
        else:
            await self._keep(frame)

    async def flush(self, timeout: float | None = None) -> None:
        """Waits until what was published after the release has left; see `omq.goby.Portal.flush`.

        Raises:
            SendTimeout: Something has not left in time; nothing is lost.
            ClosedError: The portal is closed.
        """
        await self._flush(timeout)

    def unsubscribe(  # type: ignore[override]
        self, group: str | int, type: type, *, scheme: SchemeId | None = None, type_name: str | None = None
    ) -> _Done:
        """Ends all of the portal's subscriptions to a type in a group; see `omq.goby.Portal.unsubscribe`."""
        super().unsubscribe(group, type, scheme=scheme, type_name=type_name)
        return _Done()

    def ready(self) -> _Done:  # type: ignore[override]
        """Reports to the manager that this client is ready; see `omq.goby.Portal.ready`. It need not be awaited."""
        super().ready()
        return _Done()

    async def wait_released(self, timeout: float | None = None) -> None:
        """Waits until the hold is released, and what was kept has left; see `omq.goby.Portal.wait_released`.

        Raises:
            Timeout: It was not released in time.
            ConnectError: The portal was not connected, and no manager has answered.
            ClosedError: The portal is closed.
        """
        await self._wait_released(timeout)

    async def missing(self, *, timeout: float = 1.0) -> list[str]:
        """The required clients that the hold waits for; see `omq.goby.Portal.missing`."""
        return await self._missing(timeout)

    async def close(self) -> None:
        """Ends; what was published leaves first, if the hold is released within a second. Idempotent.

        A call that is cancelled goes on in the background; another one waits for that. After the portal's event loop
        has ended, it may be called in another one; nothing is sent then.

        Raises:
            StateError: It belongs to another event loop, which has not ended.
        """
        if self._closing is not None and self._closing.done():
            return
        ended = self._loop is not None and self._loop.is_closed()
        if not ended:
            self._check_loop()
        self._ends = True
        if self._closing is None or ended:
            mine = asyncio.current_task() in self._tasks
            self._closing = asyncio.get_running_loop().create_task(self._close(linger=not (mine or ended)))
        await asyncio.shield(self._closing)

    async def _close(self, *, linger: bool) -> None:
        if self._tasks and linger:
            await self._drain(LINGER_S)
        self._end()
        tasks = [task for task in (self._starting, *self._tasks, self._reading) if task is not None and not task.done()]
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

    # ------------------------------------------------------------------ what waits

    def _check_usable(self) -> None:
        self._check_process()
        self._check_loop()

    def _check_loop(self) -> None:
        if self._loop is None or self._loop is _running():
            return
        if self._loop.is_closed():
            raise StateError(f"{self!r} belongs to an event loop that has ended: make another portal")
        raise StateError(f"{self!r} belongs to another event loop, or no loop runs here")

    def _was_called(self, handler: Handler | None = None) -> None:
        loop = _running()
        if loop is not None and self._loop is None and not self._ends:
            self._start_in(loop)

    async def _got(self, found: Any) -> Any:
        return await found

    async def _await(self, true: Callable[[], bool], timeout: float | None) -> bool:
        end = None if timeout is None else time.monotonic() + timeout
        while not (self._closed or true()):
            self._changed.clear()
            if not await _within(None if end is None else end - time.monotonic(), self._changed):
                return False
        return True

    def _notify(self) -> None:
        self._changed.set()

    # ------------------------------------------------------------------ its tasks

    def _begin_reading(self, answers: Any, number: int) -> None:
        self._reading = asyncio.get_running_loop().create_task(self._read_answers(answers, number))

    async def _end_reading(self) -> None:
        assert self._reading is not None
        await self._reading

    async def _call(self) -> None:
        """Calls callbacks with what has come for them, and lets the portal read in between."""
        calls = self._calls
        since = 0.0
        while not calls.ended:
            if not calls.items:
                since = 0.0
            if (item := await calls.get(None)) is not None and not (self._closed or item[0].ended):
                since = since or time.monotonic()
                handler, identifier, payload = item
                # These end the loop, as anywhere in it. A callback is not a coroutine, so a CancelledError that it
                # raises cancels no task.
                handler.call(identifier, payload, self._dispatcher.malformations, (SystemExit, KeyboardInterrupt))
                if time.monotonic() - since > CALLBACKS_S:
                    await asyncio.sleep(0)
                    since = 0.0


def _running() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
