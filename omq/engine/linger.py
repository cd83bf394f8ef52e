"""The linger of a closing socket: waits until all accepted messages have left, then until the peers' kernels have them.

`flush` waits for the first only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from omq._core.queues.peer import SendQueue
from omq.engine.views import SocketView

log = logging.getLogger("omq")

#: Seconds after which a wait is reported.
NOTICE_DELAY_S: Final = 1.0

_KERNEL_TIMEOUT_S = 1.0  # seconds that closing waits for the kernels of silent peers, at most
_POLL_INTERVAL_S = 0.002  # seconds between two checks of them
_MAX_NAMED = 3  # endpoints that a report names
_GIVEN_UP = "_omq_given_up"  # attribute of an exception: Ctrl-C ended the wait of a block that it left


def skip_lingers(error: BaseException) -> None:
    """Makes further blocks that *error* leaves wait for nothing: one Ctrl-C ends the waits of all of them."""
    error.__dict__[_GIVEN_UP] = True


def linger_after_error(linger: float | None, error_linger: float | None, error: BaseException) -> float | None:
    """Returns the linger of a block that *error* leaves."""
    if _GIVEN_UP in error.__dict__:
        return 0.0
    return min((one for one in (linger, error_linger) if one is not None), default=None)


class Linger:
    """The waits of one socket that closes, or is flushed; several calls may wait at once."""

    def __init__(self, engine: SocketView) -> None:
        self._engine = engine
        self._waiting: list[asyncio.Future[None]] = []
        self._flushing = 0
        self._reported = False

    async def wait(self, linger: float | None, notice: float) -> None:
        """Waits for at most *linger* seconds, `None` for ever, and not beyond the socket's end.

        A wait of more than *notice* seconds is reported, and so are messages that are lost in the end. A shorter
        *linger* is what the caller chose, and is not reported.
        """
        loop = self._engine.loop
        deadline = None if linger is None else loop.time() + linger
        report = loop.call_later(notice, self._report, linger) if linger is None or linger > notice else None
        try:
            await self._drain(deadline)
        finally:
            if report is not None and not loop.is_closed():
                report.cancel()
        if self._reported:
            # Not decided by the clock: a timer of uvloop may fire a fraction of a millisecond early.
            self.report_lost("linger is over" if self._engine.may_have_peers else "no peer can come for it")
        await self._wait_for_kernels(deadline)

    def reset_report(self) -> None:
        """Lets the next wait be reported even if an earlier one was."""
        self._reported = False

    def _report(self, linger: float | None) -> None:
        """Logs what calls wait for, once."""
        if not self._reported and (unsent := self._unsent()):
            self._reported = True
            log.warning(
                "%s waits until accepted messages have left: %s (linger=%s)",
                self._engine.socket_type.value,
                unsent,
                "None: without a limit" if linger is None else f"{linger} s",
            )

    def report_lost(self, why: str) -> None:
        """Logs the messages that have not left, if there are any."""
        if unsent := self._unsent():
            self._reported = False
            log.warning("%s has dropped %s: %s", self._engine.socket_type.value, unsent, why)

    def _unsent(self) -> str:
        """Returns the messages that have not left, and their endpoints, as text; empty if all have left."""
        engine = self._engine
        with engine.lock:
            if engine.closed or engine.drained:
                return ""
            count = max(engine.unsent, 1)
        names = engine.endpoints.names
        more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
        where = ", ".join(names[:_MAX_NAMED]) + more
        return f"{count} message{'s' if count > 1 else ''} for {where or 'any peer'}"

    async def flush(self, timeout: float | None) -> bool:
        """Waits until no accepted message is queued; false if the time was up, or the socket closed, first."""
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
        """Waits until no accepted message is queued, or no peer can come for it; listeners and dialers continue."""
        await self._empty(deadline, lambda: self._engine.may_have_peers)

    async def _empty(self, deadline: float | None, worthwhile: Callable[[], bool]) -> bool:
        """Waits until no accepted message is queued, while *worthwhile* holds; returns whether the queue is empty."""
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
                    self._hand_over(send_queue)  # messages that were queued are in a batch by now
                    if engine.drained:
                        return True
                watcher = engine.driver.watch_writable(engine.loop)
            left = None if deadline is None else deadline - engine.loop.time()
            self._waiting.append(watcher)
            try:
                async with asyncio.timeout(left):
                    # Other calls may wait for the same future.
                    await asyncio.shield(watcher)
            except TimeoutError:
                return False
            finally:
                self._waiting.remove(watcher)
        return False

    def _hand_over(self, send_queue: SendQueue) -> None:
        """Hands batches to the kernel, as far as it takes them."""
        send_queue.flush_turn()
        for session in self._engine.sessions:
            session.peer.flush_now()

    async def _wait_for_kernels(self, deadline: float | None) -> None:
        """Waits until the kernels of the peers have everything that has left.

        The kernel continues to send after the descriptor is closed, as long as the peer is silent. It answers bytes of
        the peer with a reset, which destroys the rest. So a peer that sends is waited for until its kernel has
        everything.
        """
        engine = self._engine
        loop = engine.loop
        limit = loop.time() + _KERNEL_TIMEOUT_S
        half_closed_bytes_in = engine.half_closed_bytes_in
        while not engine.half_close():
            now = loop.time()
            if half_closed_bytes_in != engine.half_closed_bytes_in:
                half_closed_bytes_in = engine.half_closed_bytes_in
                limit = now + _KERNEL_TIMEOUT_S
            if now >= (limit if deadline is None else min(limit, deadline)):
                return
            ends = [session.ended for session in engine.half_closed if not session.ended.done()]
            if ends:  # usually the peer ends before the next check
                await asyncio.wait(ends, timeout=_POLL_INTERVAL_S, return_when=asyncio.FIRST_COMPLETED)
            else:
                await asyncio.sleep(_POLL_INTERVAL_S)

    def look(self) -> None:
        """Wakes the waiting calls to check again: peers have gone, or the socket is closed."""
        for watcher in self._waiting:
            if not watcher.done() and not watcher.get_loop().is_closed():
                watcher.set_result(None)
