"""How the tasks that call share the one socket of an asyncio client: a task keeps it and takes what comes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Any, Final

import omq.asyncio as omq
from omq.broker import protocol
from omq.broker.client.checks import patience
from omq.broker.client.client_core import ClientCore, State
from omq.broker.client.connection import SESSION_OPTIONS, Pause, Watch
from omq.broker.client.feeds import Feed, ShareFeed
from omq.broker.client.request import Request
from omq.broker.errors import BrokerFailed, BrokerTimeout, SyntaxFault
from omq.errors import ClosedError, ContextTerminated, OmqError, ReceiveTimeout, SendTimeout, StateError
from omq.types import UNSET, Unset

log = logging.getLogger("omq")

_AT_ONCE: Final = 64  # messages that are taken from the socket in one turn
_FULL: Final = 0.005  # seconds until the next attempt where the socket takes nothing
_DENSE_S: Final = 0.001  # seconds between acknowledgements that leave together


class AsyncCaller:
    """A client's connection, kept by a task, and the calls that wait for something of it.

    Attributes:
        core: What is known.
        closed: Whether `close` was called.
    """

    def __init__(
        self, endpoint: str, timeout: float | None, context: omq.Context | None, options: dict[str, Any]
    ) -> None:
        self.endpoint = endpoint
        self.timeout = patience(timeout)
        self.core = ClientCore(os.urandom(16))
        self.closed = False
        self._context = context
        self._options = {**SESSION_OPTIONS, **options}
        self._pid = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._changes: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        self._settled: list[tuple[ShareFeed, int, int]] = []  # acknowledged; leaves when the loop's turn ends
        self._said = 0.0  # when something acknowledged has left
        self._acknowledged = self._durable = 0  # calls of `ack` and `nack`; those that are recorded
        self._flushing: asyncio.Task[None] | None = None  # of all that wait for that
        self._dropped: deque[Feed] = deque()  # whose holders are gone
        self._later: asyncio.TimerHandle | None = None
        self._again: asyncio.TimerHandle | None = None  # asks again for what a busy broker refused
        self._up = False
        self._pause = Pause()
        self._watch: Watch
        self._socket: omq.DEALER | None = self._open()

    # ------------------------------------------------------------------ life

    @property
    def inherited(self) -> bool:
        """Whether this is a forked child."""
        return os.getpid() != self._pid

    def refuse(self) -> None:
        """Raises where no call can be made: in a forked child, in another loop, and once the client is closed."""
        if self.inherited:
            raise StateError("this client belongs to the parent process: make a new one after fork()")
        if self.closed:
            raise ClosedError(f"the client of {self.endpoint} is closed")
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
            self._keeper = loop.create_task(self._keep(), name=f"omq client of {self.endpoint}")
            self._keeper.add_done_callback(self._kept)
        elif self._loop is not loop:
            raise StateError(f"this client belongs to another event loop: {self._loop!r}")

    async def close(self) -> None:
        """Flushes what was acknowledged, gives back what is held, and ends.

        Raises:
            BrokerTimeout: The broker has not said that what was acknowledged is durable.
        """
        if self._keeper is not None:
            self.refuse()  # before anything ends: this may be another loop
        try:
            if self._keeper is not None:
                await self.flush()
                if self.core.state is State.UP:
                    self.core.give_back()
                    with contextlib.suppress(BrokerTimeout):
                        await self.ask(protocol.BYE)
        finally:
            self.closed = True
            self.core.close()
            self._changed()
            for timer in (self._later, self._again):
                if timer is not None:
                    timer.cancel()
            socket, self._socket = self._socket, None
            if socket is not None:
                socket.stop()
            if self._keeper is not None:
                self._keeper.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await self._keeper

    def drop(self, feed: Feed) -> None:
        """A feed has no holder any more."""
        loop = self._loop
        if not feed.ended and not self.closed and loop is not None and not loop.is_closed():
            self._dropped.append(feed)
            loop.call_soon_threadsafe(self._cancel_dropped)  # any thread may collect garbage

    def _cancel_dropped(self) -> None:
        while self._dropped and not self.closed:
            self.core.cancel(self._dropped.popleft())
            self.send_out()

    # ------------------------------------------------------------------ requests

    @contextlib.contextmanager
    def asking(self) -> Iterator[ClientCore]:
        """For what makes requests; they leave at its end."""
        self.refuse()
        self._cancel_dropped()
        self._settle()
        yield self.core
        self.send_out()

    async def ask(self, command: bytes, *parts: bytes) -> list[bytes]:
        """Makes a request, and waits for its answer."""
        with self.asking() as core:
            request = core.request(command, *parts)
        return await self.finish(request)

    async def finish(self, request: Request, timeout: float | Unset | None = UNSET) -> list[bytes]:
        """Waits for an answer; *timeout*: other seconds than those of the client."""
        if not request.done:
            try:
                future = asyncio.get_running_loop().create_future()
                request.wake = partial(wake, future)
                await self._in_time(future, f"an answer to {request.command.decode()}", timeout)
            except BaseException:
                if not self.closed:
                    self.core.give_up(request)
                    self.send_out()
                raise
        return request.result()

    async def wait_for(self, ready: Callable[[], bool], what: str, timeout: float | Unset | None = UNSET) -> None:
        """Waits until something is so."""
        while not ready():
            self.refuse()
            future = asyncio.get_running_loop().create_future()
            self._changes.append((ready, future))
            try:
                await self._in_time(future, what, timeout)
            finally:
                self._changes = [change for change in self._changes if change[1] is not future]

    async def _in_time(self, future: asyncio.Future[None], what: str, timeout: float | Unset | None) -> None:
        seconds = self.timeout if isinstance(timeout, Unset) else timeout
        try:
            async with asyncio.timeout(seconds):
                await future
        except TimeoutError:
            if self.core.is_busy:
                raise BrokerTimeout(f"{self.endpoint}: the broker is busy: {what} has not come in time") from None
            if self.core.state is State.UP:
                raise BrokerTimeout(f"{self.endpoint}: {what} has not come within {seconds} s") from None
            raise BrokerTimeout(self._watch.failure(self.endpoint, seconds)) from None

    async def flush(self, flush: Request | None = None, timeout: float | Unset | None = UNSET) -> None:
        """Waits until what was acknowledged is durable.

        Args:
            flush: A flush that was asked for already.
            timeout: Seconds from one answer to the next, where they are not those of the client.
        """
        self._settle()
        while flush is not None or self.core.dirty:
            if flush is None:
                with self.asking() as core:
                    flush = core.flush()
            await self.finish(flush, timeout)
            # What goes on after a lost connection is settled again, and may say a position again.
            await self.wait_for(lambda: not self.core.resuming, "an answer to what went on", timeout)
            if flush.session == self.core.session:
                return
            flush = None
        other = self.core.flushing
        if other is not None and not other.done:  # another task's covers what was acknowledged before
            await self.wait_for(lambda: other.done, "an answer to FLUSH", timeout)
            await self.flush(timeout=timeout)  # it may have come to nothing

    async def recorded(self) -> None:
        """Waits until what was acknowledged before this call is durable. Calls that wait share a flush.

        Raises:
            BrokerTimeout: The broker has not said so in time.
            ClosedError: The client was closed.
        """
        mark = self._acknowledged
        while self._durable < mark:
            self.refuse()
            if self._flushing is None:
                self._flushing = asyncio.get_running_loop().create_task(self._flush_all(), name="omq broker flush")
                self._flushing.add_done_callback(_look_at)  # every task that waits may be cancelled
            await asyncio.shield(self._flushing)

    async def _flush_all(self) -> None:
        mark = self._acknowledged
        try:
            await self.flush()
        finally:
            self._flushing = None
        self._durable = max(self._durable, mark)

    def acknowledge(self, feed: ShareFeed, session: int, number: int) -> None:
        """Acknowledges a message: at once where such calls are sparse, else with those that follow in this turn."""
        self._acknowledged += 1
        now = time.monotonic()
        if not self._settled:
            assert self._loop is not None
            if now - self._said > _DENSE_S:
                self._said = now
                self.core.settle(feed, session, (number,), True)
                self.send_out()
                return
            self._loop.call_soon(self._settle)
        self._settled.append((feed, session, number))
        if now - self._said > _DENSE_S:
            self._settle()

    def note_acknowledged(self) -> None:
        """Something was acknowledged, and said."""
        self._acknowledged += 1

    def retry(self, feed: ShareFeed, session: int, numbers: Sequence[int], delay: float | None) -> None:
        """Asks for messages again."""
        self._acknowledged += 1
        self._settle()  # in their order
        self.core.settle(feed, session, numbers, False, delay)
        self.send_out()

    def progress(self, feed: ShareFeed, session: int, number: int) -> None:
        """Restarts the `ack_timeout` of a message."""
        self._acknowledged += 1
        self._settle()
        self.core.progress(feed, session, number)
        self.send_out()

    def _settle(self) -> None:
        settled, self._settled = self._settled, []
        for (feed, session), group in groupby(settled, key=_holding):
            if not feed.ended:
                self.core.settle(feed, session, [number for *_, number in group], True)
        if settled:
            self._said = time.monotonic()
            self.send_out()

    def settle_late(self) -> None:
        """Says what was acknowledged a while ago: the program may go off to work for long."""
        if self._settled and time.monotonic() - self._said > _DENSE_S:
            self._settle()

    # ------------------------------------------------------------------ the socket

    def _open(self) -> omq.DEALER:
        socket = omq.DEALER(self._context, **self._options)
        self._monitor = socket.monitor()
        self._watch = Watch(self._monitor)
        try:
            socket.connect(self.endpoint)
        except BaseException:
            socket.stop()
            raise
        return socket

    def _kept(self, keeper: asyncio.Task[None]) -> None:
        """The keeper has ended: nobody may wait for ever."""
        if not keeper.cancelled() and (error := keeper.exception()) is not None:
            self.core.fail(error if isinstance(error, OmqError) else BrokerFailed(f"the client has failed: {error!r}"))
            self._changed()

    async def _keep(self) -> None:
        """Keeps a connection, and takes what comes."""
        while not self.closed:
            if self._socket is None:
                await asyncio.sleep(max(self._pause.left(asyncio.get_running_loop().time()), 0))
                self._socket = self._open()
            await self._attend(self._socket)

    async def _attend(self, socket: omq.DEALER) -> None:
        looking = asyncio.get_running_loop().create_task(self._look_after(socket, self._monitor, self._watch))
        try:
            await socket.wait_connected()
            self._up = True
            self.core.connected()
            self.send_out()
            while True:
                self._take(await socket.recv_many(_AT_ONCE))
        except ContextTerminated:
            raise
        except ClosedError:
            pass
        except SyntaxFault as error:
            log.warning("%s: %s", self.endpoint, error)
        finally:
            looking.cancel()
            self._pause.lost(asyncio.get_running_loop().time(), self.core.state is State.UP)
            self.core.lost()
            self._up = False
            self._socket = None
            socket.stop()
            self._changed()

    def _take(self, messages: Iterable[bytes | list[bytes]]) -> None:
        for message in messages:
            self.core.receive(message)
        if self.core.is_busy and self._again is None and self._loop is not None:
            self._again = self._loop.call_later(self.core.retreat.next(), self._repeat)
        self.send_out()
        self._changed()

    async def _look_after(self, socket: omq.DEALER, monitor: omq.Monitor, watch: Watch) -> None:
        """Waits for the connection's end, and stops the socket then."""
        with contextlib.suppress(ClosedError, SyntaxFault):
            while not watch.takes(await monitor.recv()):
                if (refusal := watch.refusal(self.endpoint)) is not None and self.core.fault is None:
                    self.core.fail(refusal)
                    self._changed()
            # What has arrived is taken yet: an answer means that its request is not made again.
            with contextlib.suppress(ReceiveTimeout):
                while self._up:
                    self._take(await socket.recv_many(_AT_ONCE, timeout=0))
        socket.stop()

    def _changed(self) -> None:
        for ready, future in self._changes:
            if self.closed or ready():
                wake(future)

    def send_out(self) -> None:
        """Sends what is to be sent, as far as the socket takes it."""
        core, socket = self.core, self._socket
        if socket is None or not self._up:
            return
        try:
            while core.out:
                socket.send_multipart_nowait(core.out[0])
                core.out.popleft()
        except SendTimeout:
            if self._later is None and self._loop is not None:
                self._later = self._loop.call_later(_FULL, self._send_later)
        except ClosedError:
            pass  # the keeper finds out

    def _repeat(self) -> None:
        self._again = None
        self.core.repeat()
        self.send_out()

    def _send_later(self) -> None:
        self._later = None
        self.send_out()


def _look_at(task: asyncio.Task[None]) -> None:
    """Takes note of an exception, so that asyncio does not report it."""
    if not task.cancelled():
        task.exception()


def _holding(settled: tuple[ShareFeed, int, int]) -> tuple[ShareFeed, int]:
    return settled[:2]


def wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
