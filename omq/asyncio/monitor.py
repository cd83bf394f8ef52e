"""The asyncio monitor of a socket."""

from __future__ import annotations

import asyncio
import weakref
from types import TracebackType
from typing import Protocol, Self

from omq._core.clock import check_timeout
from omq.engine.socket import Engine
from omq.errors import ClosedError, ReceiveTimeout
from omq.event import Event
from omq.monitor import MonitorBase


class LoopBound(Protocol):
    """A socket that belongs to the loop of its first use."""

    def _begin(self) -> None:
        """Begins a call; raises if the socket's loop runs in another thread."""
        ...


class Monitor(MonitorBase):
    """A queue of the events of an asyncio socket, in order. Iterate over it with `async for`, or await `recv`.

    It holds at most `limit` events. If it is full, it drops the oldest events, and one event `missed` with their count
    replaces them. The socket never waits for a monitor, and does not keep a monitor alive. The last event is
    `monitor_stopped`, when the socket is closed.
    """

    def __init__(self, engine: Engine, limit: int, owner: LoopBound) -> None:
        self._waiters: set[asyncio.Future[None]] = set()
        self._owner = weakref.ref(owner)
        super().__init__(engine, limit)

    def put(self, event: Event) -> None:
        """Queues an event, and wakes the calls of `recv`; the socket calls it in its event loop."""
        super().put(event)
        self._wake()

    def _forget(self) -> None:
        super()._forget()
        self._wake()

    def _wake(self) -> None:
        """Wakes the calls that wait."""
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            if not waiter.done() and not waiter.get_loop().is_closed():
                waiter.set_result(None)

    async def recv(self, *, timeout: float | None = None) -> Event:
        """Waits for the next event. A call that is cancelled takes none.

        Args:
            timeout: Seconds; `None` waits for ever, 0 does not wait.

        Raises:
            ReceiveTimeout: No event came in time.
            ClosedError: The socket is closed and all its events have been received, or the monitor is closed.
            StateError: The process has forked, or the socket's loop runs in another thread.
            ValueError: The timeout is below 0, or NaN.
            TypeError: The timeout is not a number.
        """
        timeout = check_timeout(timeout)
        if (event := self.take()) is not None:
            return event
        owner = self._owner()
        if owner is not None and not self.closed:
            owner._begin()  # a socket that was bound outside of a loop starts with the first await
        del owner
        try:
            async with asyncio.timeout(timeout):
                while (event := self.take()) is None:
                    waiter = asyncio.get_running_loop().create_future()
                    self._waiters.add(waiter)
                    try:
                        await waiter
                    finally:
                        self._waiters.discard(waiter)
                return event
        except TimeoutError:
            raise ReceiveTimeout(f"no event within {timeout} s" if timeout else "no event has arrived") from None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        try:
            return await self.recv()
        except ClosedError:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
