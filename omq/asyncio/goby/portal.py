"""The asyncio twin of the portal."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self

import omq.asyncio as omq
from omq.errors import ClosedError, ReceiveTimeout, SendTimeout, StateError, Timeout, UsageError
from omq.event import Event
from omq.goby.dispatch import Dispatcher, Handler, Inbox, Item, does_not_parse
from omq.goby.errors import BufferFull
from omq.goby.outbox import Closing
from omq.goby.portal_base import BATCH, LIMIT, LINGER, LOOK, LOSSES, NAMING, NEWS, PortalBase
from omq.goby.scheme import SchemeId
from omq.goby.session import (
    Ask,
    AwaitLoss,
    AwaitNews,
    AwaitSubscribed,
    Connect,
    Hear,
    Pause,
    Send,
    Step,
    Subscribe,
    Tell,
    Where,
)

__all__ = ["Portal", "Subscription"]

log = logging.getLogger("omq.goby")

SLICE: Final = 0.002  # seconds that callbacks run before the loop goes round


class _Done:
    """What a call gives that never waits: it may be awaited all the same."""

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


class AsyncInbox(Inbox):
    """Publications that wait for tasks; see `Inbox`."""

    def __init__(self, limit: int, *, shared: bool = False) -> None:
        super().__init__(limit, shared=shared)
        self._filled: list[asyncio.Future[None]] = []
        self._emptied: asyncio.Future[None] | None = None

    async def put(self, items: list[Item]) -> None:
        """Takes publications, as soon as there is room for them."""
        start = self.accept(items, 0)
        self._wake()
        while start < len(items):
            came = False
            if (patience := self.patience()) > 0:
                self._emptied = asyncio.get_running_loop().create_future()
                await asyncio.wait([self._emptied], timeout=patience)
                came, self._emptied = self._emptied.done(), None
            if not came:
                self.drop(len(items) - start)
                return
            start = self.accept(items, start)
            self._wake()

    async def get(self, timeout: float | None) -> Item | None:
        """Waits for the next one; `None` if none comes in time, or it has ended."""
        while not self.items:
            if self.ended or timeout == 0:
                return None
            waiter = asyncio.get_running_loop().create_future()
            self._filled.append(waiter)
            try:
                done, _ = await asyncio.wait([waiter], timeout=timeout)
            finally:
                if waiter in self._filled:
                    self._filled.remove(waiter)
                elif self.items:
                    self._wake()  # who was woken may have been cancelled
            if not done:
                break
        item = self.take()
        if self._emptied is not None and not self._emptied.done():
            self._emptied.set_result(None)
        return item

    def end(self) -> None:
        """Nothing comes any more."""
        self.ended = True
        for waiter in self._filled:
            if not waiter.done():
                waiter.set_result(None)
        self._filled.clear()
        if self._emptied is not None and not self._emptied.done():
            self._emptied.set_result(None)

    def _wake(self) -> None:
        for waiter in self._filled[: len(self.items)]:
            if not waiter.done():
                waiter.set_result(None)
        del self._filled[: len(self.items)]


class Losses(omq.Monitor):
    """Tells when a connection of either socket is over."""

    def __init__(self, pub: omq.Socket, sub: omq.Socket) -> None:
        super().__init__(sub._may_monitor(), LIMIT, sub)
        pub._may_monitor().reporter.add(self)

    def put(self, event: Event) -> None:
        """Takes an event in, if it is a loss, or news."""
        if event.kind in LOSSES:
            super().put(event)


class Subscription(_Done):
    """What a portal has subscribed to: an asynchronous iterator of messages; see `omq.goby.Subscription`."""

    def __init__(self, portal: Portal, handler: Handler) -> None:
        self._portal = portal
        self._handler = handler
        inbox = handler.inbox if handler.callback is None else None
        self._inbox = inbox if isinstance(inbox, AsyncInbox) else None

    def __await__(self) -> Generator[Any, None, Self]:  # type: ignore[override]
        return self
        yield

    @property
    def dropped(self) -> int:
        """Messages that nobody has taken in time, so that they were dropped."""
        return 0 if self._inbox is None else self._inbox.dropped

    async def recv(self, *, timeout: float | None = None) -> Any:
        """Waits for a message; see `omq.goby.Subscription.recv`.

        Raises:
            ReceiveTimeout: None came in time.
            ClosedError: The subscription, or its portal, is closed.
            UsageError: It has a callback.
        """
        inbox = self._inbox
        if inbox is None:
            raise UsageError("this subscription has a callback: there is nothing to wait for")
        await self._portal.start()
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            item = await inbox.get(None if end is None else max(end - time.monotonic(), 0))
            if item is None:
                if inbox.ended:
                    raise ClosedError("the subscription is closed")
                raise ReceiveTimeout(f"no message within {timeout} s")
            handler, identifier, payload = item
            try:
                return handler.decode(identifier, payload)
            except Exception as fault:  # whatever it is, the payload does not parse
                self._portal._session.dispatcher.malformations.note(does_not_parse(identifier, fault))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self.recv()
        except ClosedError:
            raise StopAsyncIteration from None

    def close(self) -> None:
        """Ends it. Idempotent."""
        self._portal._remove(self._handler)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Portal(PortalBase[Subscription]):
    """A client of a Goby bus; see `omq.goby.Portal`, whose arguments these are. Tasks may share it.

    It connects with `async with`, `start`, or the first call of any other kind. `subscribe`, `subscribe_regex`,
    `unsubscribe` and `ready` never wait, and need not be awaited: the portal then connects in the background, and logs
    why it could not; the next call tries again. Outside of an event loop they are kept for the first call inside one.
    Callbacks are called in the loop.
    """

    # They end the loop, as anywhere in it. A callback is no coroutine: what cancels one means no task.
    _raised = (SystemExit, KeyboardInterrupt)

    def _set_up(self) -> None:
        self._session.wake = self._wake
        self._pub: omq.Socket
        self._sub: omq.Socket
        self._at: tuple[str, str] | None = None
        self._answers: omq.Socket | None = None
        self._hearer: asyncio.Task[None] | None = None
        self._starting: asyncio.Task[None] | None = None
        self._starters = 0  # calls that wait for it
        self._closing: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._news = asyncio.Event()
        self._changed = asyncio.Event()  # it is released, or closed

    # ------------------------------------------------------------------ life

    async def start(self) -> None:
        """Finds the manager and connects; nothing happens if that is done.

        Raises:
            ConnectError: No manager has answered in time.
            StateError: It has been started in another event loop.
            ClosedError: The portal is closed.
        """
        self._session.check_process()
        if self._closed:
            raise self._closed_error()
        if self._tasks:
            self._check_loop()
            return
        starting = self._starting or self._begin(asyncio.get_running_loop())
        self._starters += 1
        try:
            await asyncio.shield(starting)
        finally:
            self._starters -= 1

    def _begin(self, loop: asyncio.AbstractEventLoop) -> asyncio.Task[None]:
        """Begins to connect, in the background."""
        self._loop = loop
        self._starting = loop.create_task(self._start())
        self._starting.add_done_callback(self._started)
        return self._starting

    def _begin_unawaited(self) -> None:
        """The same for a call that does not wait; outside of an event loop the first call inside one does it."""
        loop = _running()
        if loop is not None and self._loop is None and not self._ends:
            self._begin(loop)

    def _started(self, starting: asyncio.Task[None]) -> None:
        self._starting = None
        error = None if starting.cancelled() else starting.exception()
        if error is not None and not self._starters:
            log.error("%s is not connected; the next call tries again: %s", self.name, error)

    async def _start(self) -> None:
        try:
            await self._do_all(self._session.connect())
        except BaseException:
            await self._drop()
            self._loop = None
            raise
        loop = asyncio.get_running_loop()
        reading = loop.create_task(self._read(self._sub, self._session.dispatcher))
        self._tasks = [reading, loop.create_task(self._live()), loop.create_task(self._call())]

    def _check_loop(self) -> None:
        """Raises `StateError` where its tasks do not run: in another event loop, or in none."""
        if self._loop is None or self._loop is _running():
            return
        if self._loop.is_closed():
            raise StateError(f"{self!r} belongs to an event loop that has ended: make another portal")
        raise StateError(f"{self!r} belongs to another event loop, or there is none here")

    async def _drop(self) -> None:
        for socket in (self._answers, getattr(self, "_sub", None), getattr(self, "_pub", None)):
            if socket is not None:
                await socket.close()

    async def close(self) -> None:
        """Ends; what was published leaves first, if the hold is released within a second. Idempotent.

        A call that is cancelled goes on in the background; another one waits for that. Behind the end of the event
        loop that the portal belongs to it may be called in another one, and nothing leaves any more.

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
            mark = self._outbox.kept
            with suppress(TimeoutError):
                async with asyncio.timeout(LINGER):
                    await self._await(lambda: self._outbox.left >= mark)
        self._closed = self._session.dispatcher.ended = True
        if self._outbox and self._tasks:
            log.warning("%s: %d publications that were held are dropped", self.name, len(self._outbox))
        self._outbox.hold()
        for inbox in self._inboxes():
            assert isinstance(inbox, AsyncInbox)
            inbox.end()
        self._changed.set()
        tasks = [task for task in (self._starting, *self._tasks, self._hearer) if task is not None and not task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._drop()

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except asyncio.CancelledError:
            await self.close()  # nobody will
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # ------------------------------------------------------------------ publications

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
        frame = self._session.compose(group, message, scheme, type_name)
        if self._outbox.open:
            await self._pub.send(frame)
            return
        await self.start()
        while True:
            if self._closed or self._ends:
                raise self._closed_error()
            rounds = self._session.rounds
            try:
                if not self._outbox.put(frame):
                    await self._pub.send(frame)
                return
            except Closing:
                await self._await(lambda: not self._outbox.closing)
            except BufferFull:
                if not self._session.released:
                    raise
                # What waits does so for a moment, since something was subscribed to.
                await self._await(self._session.behind(rounds))

    async def flush(self, timeout: float | None = None) -> None:
        """Waits until what was published after the release has left; see `omq.goby.Portal.flush`.

        Raises:
            SendTimeout: Something has not left in time; nothing is lost.
            ClosedError: The portal is closed.
        """
        await self.start()
        end = None if timeout is None else time.monotonic() + timeout
        mark = self._outbox.kept
        try:
            async with asyncio.timeout(timeout):
                await self._await(lambda: self._outbox.left >= mark or not self._session.rounds)
        except TimeoutError:
            raise SendTimeout(self._session.not_left(timeout)) from None
        await self._pub.flush(end and max(end - time.monotonic(), 0))

    # ------------------------------------------------------------------ subscriptions

    def unsubscribe(  # type: ignore[override]
        self, group: str | int, type: type, *, scheme: SchemeId | None = None, type_name: str | None = None
    ) -> _Done:
        """Ends all of the portal's subscriptions to a type in a group; see `omq.goby.Portal.unsubscribe`."""
        super().unsubscribe(group, type, scheme=scheme, type_name=type_name)
        return _Done()

    def _new_inbox(self, limit: int, *, shared: bool = False) -> AsyncInbox:
        return AsyncInbox(limit, shared=shared)

    def _add(self, handler: Handler) -> Subscription:
        if self._closed:
            raise self._closed_error()
        self._check_loop()
        prefix = self._session.dispatcher.add(handler)
        if prefix is not None and self._at is not None:
            self._sub.subscribe(prefix)
            self._session.subscribed()
        self._begin_unawaited()
        return Subscription(self, handler)

    def _remove(self, handler: Handler) -> None:
        handler.ended = True
        prefix = self._session.dispatcher.remove(handler)
        if prefix is not None and self._at is not None and not self._closed:
            with suppress(ClosedError):
                self._sub.unsubscribe(prefix)
        if isinstance(handler.inbox, AsyncInbox) and not handler.inbox.shared:
            handler.inbox.end()

    # ------------------------------------------------------------------ the hold

    def ready(self) -> _Done:
        """Tells the manager that this client is ready; see `omq.goby.Portal.ready`. It need not be awaited."""
        self._session.ready()
        self._begin_unawaited()
        return _Done()

    async def wait_released(self, timeout: float | None = None) -> None:
        """Waits until the hold is released, and what was kept has left; see `omq.goby.Portal.wait_released`.

        Raises:
            Timeout: It was not released in time.
            ConnectError: The portal was not connected, and no manager has answered.
            ClosedError: The portal is closed.
        """
        await self.start()
        try:
            async with asyncio.timeout(timeout):
                await self._await(lambda: self._session.released)
        except TimeoutError:
            raise Timeout(self._session.not_released(timeout, await self.missing(timeout=NAMING))) from None
        if self._closed:
            raise self._closed_error()

    async def _await(self, true: Callable[[], bool]) -> None:
        """Waits until something is true, or the portal is closed."""
        while not (self._closed or true()):
            self._changed.clear()
            await self._changed.wait()

    async def missing(self, *, timeout: float = 1.0) -> list[str]:
        """The required clients that the hold waits for; see `omq.goby.Portal.missing`."""
        return self._session.missing_of(await self._ask(self._session.missing_request(timeout)))

    # ------------------------------------------------------------------ its tasks

    def _wake(self) -> None:
        self._news.set()
        if self._at is not None:
            self._losses.put(NEWS)

    async def _read(self, sub: omq.Socket, dispatcher: Dispatcher) -> None:
        sort = dispatcher.sort
        while not self._closed:
            try:
                publications = await sub.recv_many(BATCH)
                self._pub._look()  # see `Session`: who asks has subscribed to the answer before
                for inbox, items in sort(publications).items():
                    assert isinstance(inbox, AsyncInbox)
                    await inbox.put(items)
            except ClosedError:
                return
            except Exception:
                log.exception("%s: reading goes on", self.name)

    async def _call(self) -> None:
        """Calls callbacks with what has come for them, and lets the portal read in between."""
        dispatcher, calls = self._session.dispatcher, self._calls
        assert isinstance(calls, AsyncInbox)
        since = 0.0
        while not calls.ended:
            if not calls.items:
                since = 0.0
            if (item := await calls.get(None)) is not None and not (dispatcher.ended or item[0].ended):
                since = since or time.monotonic()
                handler, identifier, payload = item
                handler.call(identifier, payload, dispatcher.malformations, self._raised)
                if time.monotonic() - since > SLICE:
                    await asyncio.sleep(0)
                    since = 0.0

    async def _live(self) -> None:
        try:
            await self._do_all(self._session.live())
        except ClosedError:
            pass
        except Exception:
            log.exception("%s: the portal has failed", self.name)
            await self.close()

    async def _do_all(self, life: Generator[Step, Any, None]) -> None:
        """Does the steps of a life until it ends."""
        try:
            step = next(life)
            while True:
                step = life.send(await self._do(step))
        except StopIteration:
            pass
        finally:
            life.close()

    async def _do(self, step: Step) -> Any:
        match step:
            case Ask():
                return await self._ask(step)
            case Connect(sockets):
                self._connect(sockets.publish, sockets.subscribe, sockets.send_hwm, sockets.recv_hwm)
            case Hear(answers):
                await self._hear(answers)
            case Subscribe(prefix, wanted, hearing):
                sub = self._sub if not hearing or self._answers is None else self._answers
                (sub.subscribe if wanted else sub.unsubscribe)(prefix)
            case AwaitSubscribed(prefix, timeout):
                try:
                    await self._pub.wait_subscribed(prefix, timeout=timeout)
                except Timeout:
                    return False
                return True
            case AwaitNews(timeout):
                with suppress(TimeoutError):
                    async with asyncio.timeout(timeout):
                        await self._news.wait()
                self._news.clear()
            case Where():
                return self._where()
            case AwaitLoss(at):
                return await self._await_loss(at)
            case Send(frames):
                for frame in frames:
                    await self._pub.send(frame)
                try:
                    await self._pub.flush(LINGER)
                except Timeout:
                    return False
                return True
            case Pause(seconds):
                await asyncio.sleep(seconds)
            case Tell():
                self._changed.set()
        return None

    async def _ask(self, step: Ask) -> bytes | None:
        async with omq.REQ(self._context, connect=step.endpoint, linger=0, **self._options) as asking:
            try:
                await asking.send(step.request, timeout=step.timeout)
                return (await asking.recv_multipart(timeout=step.timeout))[0]
            except Timeout:
                return None

    def _connect(self, publish: str, subscribe: str, send_hwm: int, recv_hwm: int) -> None:
        if self._at is None:
            self._pub = omq.PUB(self._context, linger=LINGER, send_hwm=send_hwm, **self._options)
            self._sub = omq.SUB(self._context, linger=0, recv_hwm=recv_hwm, **self._options)
            self._losses = Losses(self._pub, self._sub)
            for prefix in self._session.dispatcher.wanted:
                self._sub.subscribe(prefix)
            for inbox in self._inboxes():
                inbox.limit = recv_hwm
        else:
            self._pub.set_options(send_hwm=send_hwm)
            self._sub.set_options(recv_hwm=recv_hwm)
        at, self._at = self._at, (publish, subscribe)
        for number, socket in enumerate((self._pub, self._sub)):
            if at is not None:
                socket.disconnect(at[number])
            socket.connect(self._at[number])

    async def _hear(self, answers: Dispatcher | None) -> None:
        if self._answers is not None and self._hearer is not None:
            await self._answers.close()
            await self._hearer
            self._answers = None
        if answers is not None and self._at is not None:
            self._answers = omq.SUB(
                self._context, connect=self._at[1], subscribe=answers.wanted, linger=0, **self._options
            )
            self._hearer = asyncio.get_running_loop().create_task(self._read(self._answers, answers))

    def _where(self) -> object:
        """By which connections the router is reached; see `Where`."""
        found = self._pub.peers, self._sub.peers
        return tuple(peer.since for peers in found for peer in peers) if all(found) else None

    async def _await_loss(self, at: object) -> bool:
        """Waits until the router is lost, or publications are held; see `AwaitLoss`."""
        while self._where() == at:
            if not self._outbox.open:
                return False
            with suppress(ReceiveTimeout):
                await self._losses.recv(timeout=LOOK)
        return True


def _running() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
