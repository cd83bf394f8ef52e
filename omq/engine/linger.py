"""What closing waits for: that everything accepted has left, and then that the peers' kernels have it.

`flush` waits for the first of the two.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from omq._core.queues.peer import SendQueue
from omq.engine.views import LingeringSocket

_GOODBYE = 1.0  # seconds that closing waits for the kernels of peers that say nothing, when linger has no end
_GLANCE = 0.002  # seconds between two looks at them


class Linger:
    """The waits of one socket that closes, or is flushed; several calls may wait at once."""

    def __init__(self, engine: LingeringSocket) -> None:
        self._engine = engine
        self._waiting: list[asyncio.Future[None]] = []
        self._flushing = 0

    async def wait(self, linger: float | None) -> None:
        """Waits for *linger* seconds at most, `None` for ever; not beyond the socket's end."""
        deadline = None if linger is None else self._engine.loop.time() + linger
        await self._drain(deadline)
        await self._say_goodbye(deadline)

    async def flush(self, timeout: float | None) -> bool:
        """Waits until nothing that was accepted waits; false if the time was up, or the socket closed, first."""
        deadline = None if timeout is None else self._engine.loop.time() + timeout
        self._flushing += 1
        try:
            return await self._empty(deadline, lambda: True)
        finally:
            self._flushing -= 1
            send_queue = self._engine.pattern.send_queue
            if send_queue is not None and not self._flushing and not self._engine.closing:
                with self._engine.lock:
                    send_queue.draining = False

    async def _drain(self, deadline: float | None) -> None:
        """Waits until nothing that was accepted waits, or nobody can come for it; listeners and dialers go on."""
        await self._empty(deadline, lambda: self._engine.may_have_peers)

    async def _empty(self, deadline: float | None, worthwhile: Callable[[], bool]) -> bool:
        """Waits until nothing that was accepted waits, or it is not worth while any more; whether nothing does."""
        engine = self._engine
        send_queue = engine.pattern.send_queue
        if send_queue is None:
            return True
        engine.driver.take_over()
        with engine.lock:
            send_queue.draining = True
            self._hand_over(send_queue)
        while not engine.closed and worthwhile():
            with engine.lock:
                if engine.drained:
                    self._hand_over(send_queue)  # messages that were queued stand in a batch by now
                    if engine.drained:
                        return True
                watcher = engine.driver.watch_writable(engine.loop)
            left = None if deadline is None else deadline - engine.loop.time()
            self._waiting.append(watcher)
            try:
                async with asyncio.timeout(left):
                    # Other calls may wait for the same.
                    await asyncio.shield(watcher)
            except TimeoutError:
                return False
            finally:
                self._waiting.remove(watcher)
        return False

    def _hand_over(self, send_queue: SendQueue) -> None:
        """Hands what stands in batches to the kernel, as far as it takes it."""
        send_queue.flush_turn()
        for session in self._engine.sessions:
            session.peer.flush_now()

    async def _say_goodbye(self, deadline: float | None) -> None:
        """Waits until the kernels of the peers have what has left.

        Our kernel goes on after the descriptor is closed, as long as the peer is silent. It answers bytes of the peer's
        with a reset, and that destroys the rest. So a peer that speaks is waited for until its kernel has everything.
        """
        engine = self._engine
        loop = engine.loop
        limit = loop.time() + _GOODBYE
        heard = engine.heard
        while not engine.half_close():
            now = loop.time()
            if heard != engine.heard:
                heard = engine.heard
                limit = now + _GOODBYE
            if now >= (limit if deadline is None else min(limit, deadline)):
                return
            ends = [session.ended for session in engine.parting if not session.ended.done()]
            if ends:  # mostly the peer's own end comes before the next look
                await asyncio.wait(ends, timeout=_GLANCE, return_when=asyncio.FIRST_COMPLETED)
            else:
                await asyncio.sleep(_GLANCE)

    def look(self) -> None:
        """Peers have gone, or the socket is closed: calls that wait look whether they still have a reason to."""
        for watcher in self._waiting:
            if not watcher.done() and not watcher.get_loop().is_closed():
                watcher.set_result(None)
