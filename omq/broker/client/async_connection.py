"""The connection of an asyncio client: one task reads the socket that all calling tasks share."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import omq.asyncio as omq
from omq.broker.client.client_protocol import LeaderElsewhere, PendingRequest, State
from omq.broker.client.connection import (
    ACK_BATCH_INTERVAL_S,
    FULL_RETRY_DELAY_S,
    RECV_BATCH,
    ConnectionBase,
    ConnectionMonitor,
    Role,
)
from omq.broker.client.stream_state import StreamState
from omq.broker.errors import BrokerFailed, SyntaxFault
from omq.errors import ClosedError, ContextTerminated, OmqError, ReceiveTimeout, SendTimeout, StateError, Timeout
from omq.types import UNSET, Unset

log = logging.getLogger("omq")


class AsyncConnection(ConnectionBase):
    """The connection of an asyncio client, which one task maintains.

    Attributes:
        acknowledged: The number of calls that have acknowledged messages.
    """

    def __init__(
        self,
        endpoint: str | Iterable[str],
        timeout: float | None,
        context: omq.Context | None,
        options: dict[str, Any],
        role: Role = "leader",
    ) -> None:
        super().__init__(endpoint, timeout, context, options, role)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reader: asyncio.Task[None] | None = None
        self._waits: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        self.acknowledged = 0
        self._durable_count = 0  # those of them that are durable
        self._flushing: asyncio.Task[None] | None = None  # that waiting calls share
        self._send_timer: asyncio.TimerHandle | None = None
        self._busy_timer: asyncio.TimerHandle | None = None  # repeats requests that a busy broker refused
        self._up = False
        self._refusal = ""  # why the broker does not serve this client
        self._socket: omq.DEALER | None = None
        self._open()

    # ------------------------------------------------------------------ life

    def check_usable(self) -> None:
        if os.getpid() != self._pid:
            raise StateError("this client belongs to the parent process: make a new one after fork()")
        if self.closed:
            self.check_open()
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
            self._reader = loop.create_task(self._run(), name=f"omq client of {self.endpoint}")
            self._reader.add_done_callback(self._reader_ended)
        elif self._loop is not loop:
            raise StateError(f"this client belongs to another event loop: {self._loop!r}")

    async def close(self) -> None:
        """Flushes acknowledgements, returns unread deliveries to the broker, and closes.

        Raises:
            BrokerTimeout: The broker has not confirmed the acknowledgements in time.
            StateError: The client belongs to another event loop.
        """
        if self._reader is not None:
            self.check_usable()  # first, as this may be another loop
        try:
            if self._reader is not None:
                await self.send_bye()
        finally:
            self.closed = True
            self.core.close()
            self.wake_ready()
            for timer in (self._send_timer, self._busy_timer):
                if timer is not None:
                    timer.cancel()
            socket, self._socket = self._socket, None
            if socket is not None:
                socket.stop()
            if self._reader is not None:
                self._reader.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await self._reader

    def drop(self, one: StreamState | PendingRequest) -> None:
        loop = self._loop
        if (
            not self.closed
            and loop is not None
            and not loop.is_closed()
            and not (isinstance(one, StreamState) and one.ended)
        ):
            super().drop(one)
            loop.call_soon_threadsafe(self.end_dropped)

    # ------------------------------------------------------------------ waiting

    def deadline(self, timeout: float | Unset | None = UNSET) -> float | None:
        seconds = self.timeout if isinstance(timeout, Unset) else timeout
        return None if seconds is None else asyncio.get_running_loop().time() + seconds

    async def wait_ready(self, ready: Callable[[], bool], deadline: float | None) -> bool:
        while not ready():
            self.check_usable()
            future = asyncio.get_running_loop().create_future()
            self._waits.append((ready, future))
            try:
                if not await in_time(future, deadline):
                    return ready()
            finally:
                self._waits = [change for change in self._waits if change[1] is not future]
        return True

    async def answer(self, request: PendingRequest, deadline: float | None) -> bool:
        future = asyncio.get_running_loop().create_future()
        request.wake = partial(wake, future)
        await in_time(future, deadline)
        return request.done

    def wake_ready(self) -> None:
        for ready, future in self._waits:
            if self.closed or ready():
                wake(future)

    # ------------------------------------------------------------------ acknowledgements

    async def recorded(self) -> None:
        """Waits until earlier acknowledgements are durable. Waiting calls share a flush.

        Raises:
            BrokerTimeout: The broker has not answered in time.
            ClosedError: The client was closed.
        """
        mark = self.acknowledged
        while self._durable_count < mark:
            self.check_usable()
            if self._flushing is None:
                self._flushing = asyncio.get_running_loop().create_task(self._flush_all(), name="omq broker flush")
                self._flushing.add_done_callback(_mark_retrieved)  # every task that waits may be cancelled
            await asyncio.shield(self._flushing)

    async def _flush_all(self) -> None:
        mark = self.acknowledged
        try:
            await self.flush(self.deadline())
        finally:
            self._flushing = None
        self._durable_count = max(self._durable_count, mark)

    def send_acks_later(self) -> None:
        asyncio.get_running_loop().call_soon(self._send_due_acks)

    def _send_due_acks(self) -> None:
        self._acks_due = False
        if self.core.unsent_consumers:
            self.send_acks()

    def send_late_acks(self) -> None:
        """Sends acknowledgements that have waited, since the caller may now take long until its next call."""
        if self.core.unsent_consumers and time.monotonic() - self._acks_sent > ACK_BATCH_INTERVAL_S:
            self.send_acks()

    # ------------------------------------------------------------------ the socket

    def _open(self) -> None:
        socket = omq.DEALER(self._context, **self._options)
        self._monitor = socket.monitor()
        self._connection_monitor = ConnectionMonitor(self._monitor)
        try:
            socket.connect(self.endpoint)
        except BaseException:
            socket.stop()
            raise
        self._socket = socket

    def _reader_ended(self, reader: asyncio.Task[None]) -> None:
        """Fails every waiting call after the reader task has failed."""
        if not reader.cancelled() and (error := reader.exception()) is not None:
            self.core.fail(error if isinstance(error, OmqError) else BrokerFailed(f"the client has failed: {error!r}"))
            self.wake_ready()

    async def _run(self) -> None:
        """Reads the connection, and connects again when it is lost."""
        while not self.closed:
            if self._socket is None:
                now = asyncio.get_running_loop().time
                await asyncio.sleep(max(self.endpoints.remaining(now()), 0))
                self.open_next(now())
            if self._socket is not None:
                await self._serve_socket(self._socket)

    async def _serve_socket(self, socket: omq.DEALER) -> None:
        self._refusal = ""
        attempt = None
        watching = asyncio.get_running_loop().create_task(
            self._watch_connection(socket, self._monitor, self._connection_monitor)
        )
        try:
            timeout = self.attempt_timeout
            await socket.wait_connected(timeout=timeout)
            self._up = True
            self.core.connected()
            self.send_out()
            if timeout is not None:
                attempt = asyncio.get_running_loop().call_later(timeout, self._end_attempt, socket)
            while True:
                self._receive(await socket.recv_many(RECV_BATCH))
        except ContextTerminated:
            raise
        except (ClosedError, Timeout):
            pass
        except SyntaxFault as error:
            log.warning("%s: %s", self.endpoint, error)
        finally:
            watching.cancel()
            if attempt is not None:
                attempt.cancel()
            self.end_session(asyncio.get_running_loop().time(), self._refusal)
            self._up = False
            self._socket = None
            socket.stop()
            self.wake_ready()

    def _end_attempt(self, socket: omq.DEALER) -> None:
        """Stops the socket of a broker that has not answered in time, as there are others."""
        if self.core.state is not State.UP:
            socket.stop()

    def _receive(self, messages: Iterable[bytes | list[bytes]]) -> None:
        try:
            for message in messages if not self._refusal else ():
                self.core.receive(message)
        except LeaderElsewhere as refusal:
            self._refusal = str(refusal)
            if self._socket is not None:
                self._socket.stop()
        if self.core.is_busy and self._busy_timer is None and self._loop is not None:
            self._busy_timer = self._loop.call_later(self.core.busy_backoff.next(), self._repeat)
        self.send_out()
        self.wake_ready()

    async def _watch_connection(
        self, socket: omq.DEALER, monitor: omq.Monitor, connection_monitor: ConnectionMonitor
    ) -> None:
        """Waits for the end of the connection, and then stops the socket."""
        with contextlib.suppress(ClosedError, SyntaxFault):
            while not connection_monitor.handle(await monitor.recv()):
                if (refusal := connection_monitor.refusal(self.endpoint)) is not None and self.core.fault is None:
                    self.core.fail(refusal)
                    self.wake_ready()
                if self.core.state is not State.UP and self.attempt_has_failed():
                    break
            # Read what has arrived: an answered request is not sent again.
            with contextlib.suppress(ReceiveTimeout):
                while self._up:
                    self._receive(await socket.recv_many(RECV_BATCH, timeout=0))
        socket.stop()

    def send_out(self) -> None:
        core, socket = self.core, self._socket
        if socket is None or not self._up:
            return
        try:
            while core.out:
                socket.send_multipart_nowait(core.out[0])
                core.out.popleft()
        except SendTimeout:
            if self._send_timer is None and self._loop is not None:
                self._send_timer = self._loop.call_later(FULL_RETRY_DELAY_S, self._send_later)
        except ClosedError:
            pass  # the reader task handles it

    def _repeat(self) -> None:
        self._busy_timer = None
        self.core.repeat()
        self.send_out()

    def _send_later(self) -> None:
        self._send_timer = None
        self.send_out()


def _mark_retrieved(task: asyncio.Task[None]) -> None:
    """Retrieves an exception, so that asyncio does not log it."""
    if not task.cancelled():
        task.exception()


async def in_time(future: asyncio.Future[None], deadline: float | None) -> bool:
    """Waits for a future. Returns false after the deadline, a time of the loop."""
    try:
        async with asyncio.timeout_at(deadline):
            await future
    except TimeoutError:
        return False
    return True


def wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
