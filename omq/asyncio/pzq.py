"""The asyncio twin of `omq.pzq`.

import omq.asyncio.pzq

async with omq.asyncio.pzq.Producer("tcp://127.0.0.1:11131") as producer:
    await producer.send(b"job")
async with omq.asyncio.pzq.Consumer("tcp://127.0.0.1:11132") as consumer:
    async for delivery in consumer:
        delivery.ack()
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Generator, Iterable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, NoReturn, Self

import omq.asyncio as omq
from omq.errors import ClosedError, ReceiveTimeout, SendTimeout, Timeout
from omq.pzq.client.client import (
    DEFAULT_PREFETCH,
    DEFAULT_TIMEOUT_S,
    MAX_IN_FLIGHT,
    RETRY_DELAY_S,
    Body,
    DeliveryBase,
    PendingSends,
    SeenIds,
    consumer_options,
    deadline_of,
    device_options,
)
from omq.pzq.device.device import AsyncDevice as Device
from omq.pzq.errors import Malformed, NotReplicated, ProduceTimeout, PzqError, Refused
from omq.serving.cluster import Cluster
from omq.socket_base import check_timeout
from omq.types import UNSET, Unset

__all__ = [
    "Cluster",
    "Consumer",
    "Delivery",
    "Device",
    "Malformed",
    "NotReplicated",
    "ProduceTimeout",
    "Producer",
    "PzqError",
    "Refused",
]


class Producer:
    """Sends messages to a device; see `omq.pzq.Producer` for the arguments. Tasks may share it."""

    def __init__(
        self,
        endpoint: str | Iterable[str],
        *,
        timeout: float | None = DEFAULT_TIMEOUT_S,
        producer: bytes | None = None,
        **options: Any,
    ) -> None:
        self._timeout = check_timeout(timeout)
        self._pending = PendingSends(producer)
        self._lock = asyncio.Lock()
        self._socket = omq.DEALER(**{**device_options(endpoint), **options})

    async def send(
        self,
        body: Body,
        *,
        headers: Iterable[bytes] = (),
        id: bytes | None = None,
        timeout: float | Unset | None = UNSET,
    ) -> None:
        """Sends a message, and waits until it is stored; see `omq.pzq.Producer.send`.

        Raises:
            Refused: The device has not stored the message; the text has the reason.
            NotReplicated: The message is stored, but on fewer nodes than the device's `replicas` option requires.
            ProduceTimeout: The device has not answered in time; the message may be stored.
        """
        async with self._call(timeout) as deadline:
            await self._put(self._pending.compose(0, body, headers, id), deadline)
            await self._drain(0, deadline)
            self._pending.result()

    async def send_many(self, bodies: Iterable[Body], *, timeout: float | Unset | None = UNSET) -> int:
        """Sends messages, and waits until all are stored; see `omq.pzq.Producer.send_many`.

        Raises:
            Refused: The messages at `indexes` are not stored; all others are.
            ProduceTimeout: The device has not answered in time; messages may be stored.
        """
        async with self._call(timeout) as deadline:
            count = 0
            for index, body in enumerate(bodies):
                await self._put(self._pending.compose(index, body), deadline)
                await self._drain(MAX_IN_FLIGHT - 1, deadline)
                count += 1
            await self._drain(0, deadline)
            self._pending.result()
            return count

    @asynccontextmanager
    async def _call(self, timeout: float | Unset | None) -> AsyncIterator[tuple[float, float | None]]:
        """Runs one call at a time; yields its timeout and its deadline."""
        seconds = self._timeout if isinstance(timeout, Unset) else check_timeout(timeout)
        end = None if seconds is None else time.monotonic() + seconds
        try:
            async with asyncio.timeout(seconds if self._lock.locked() else None):
                await self._lock.acquire()
        except TimeoutError:
            raise self._pending.busy_error(seconds or 0.0) from None
        try:
            self._pending.reset()
            yield seconds or 0.0, end
        finally:
            self._lock.release()

    async def _put(self, frames: list[bytes], deadline: tuple[float, float | None]) -> None:
        _, end = deadline
        if not frames:
            return
        try:
            await self._socket.send_multipart(frames, timeout=None if end is None else max(end - time.monotonic(), 0))
        except SendTimeout:
            await self._raise_timeout(deadline[0])

    async def _drain(self, limit: int, deadline: tuple[float, float | None]) -> None:
        """Waits until at most *limit* messages have no answer."""
        seconds, end = deadline
        while len(self._pending) > limit:
            remaining = RETRY_DELAY_S if end is None else min(end - time.monotonic(), RETRY_DELAY_S)
            try:
                self._pending.answered(await self._socket.recv_multipart(timeout=max(remaining, 0)))
            except ReceiveTimeout:
                if end is not None and time.monotonic() >= end:
                    await self._raise_timeout(seconds)
                for frames in self._pending.to_resend():
                    await self._put(frames, deadline)

    async def _raise_timeout(self, seconds: float) -> NoReturn:
        """Raises a timeout. Without a connected device, the error of the connection is its cause."""
        cause = None
        try:
            await self._socket.wait_connected(timeout=0)
        except Timeout as error:
            cause = error
        raise self._pending.timeout_error(seconds) from cause

    async def close(self) -> None:
        """Closes the producer. Idempotent."""
        await self._socket.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class Delivery(DeliveryBase):
    __doc__ = DeliveryBase.__doc__

    __slots__ = ()

    def ack(self) -> AckFlush:
        """Acknowledges the message: it is not redelivered.

        Returns:
            An awaitable that waits until the kernel has the acknowledgement; it need not be awaited.

        Raises:
            ClosedError: The consumer is closed.
        """
        self._consumer._answer(self._answer(True))
        self._consumer._acked.add(self.key)
        return AckFlush(self._consumer._socket)

    def nack(self) -> AckFlush:
        """Returns the message for immediate redelivery.

        Returns:
            An awaitable that waits until the kernel has the nack; it need not be awaited.

        Raises:
            ClosedError: The consumer is closed.
        """
        self._consumer._answer(self._answer(False))
        return AckFlush(self._consumer._socket)


class AckFlush:
    """An awaitable that waits until the kernel has all acknowledgements so far."""

    __slots__ = ("_socket",)

    def __init__(self, socket: omq.ROUTER) -> None:
        self._socket = socket

    def __await__(self) -> Generator[Any, None, None]:
        return self._socket.flush().__await__()


class Consumer:
    """Receives messages from a device: iterate over it, or await `recv`; see `omq.pzq.Consumer`."""

    def __init__(self, endpoint: str | Iterable[str], *, prefetch: int = DEFAULT_PREFETCH, **options: Any) -> None:
        self._socket = omq.ROUTER(**consumer_options(endpoint, prefetch, options))
        self._acked = SeenIds()

    async def recv(self, *, timeout: float | Unset | None = UNSET) -> Delivery:
        """Waits for a message; see `omq.pzq.Consumer.recv`.

        Raises:
            ReceiveTimeout: No message has arrived in time.
            ClosedError: The consumer is closed.
            Malformed: The message is not a delivery: the peer is not a device.
        """
        end = deadline_of(self._socket, timeout)
        delivery = Delivery(self, await self._socket.recv_multipart(timeout=timeout))
        while delivery.key in self._acked:
            # The device redelivered it before it received the acknowledgement.
            delivery.ack()
            remaining = None if end is None else max(end - time.monotonic(), 0)
            delivery = Delivery(self, await self._socket.recv_multipart(timeout=remaining))
        return delivery

    def _answer(self, frames: list[bytes]) -> None:
        self._socket.send_multipart_nowait(frames)  # `send_hwm` is 0 by default, so there is always room

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delivery:
        try:
            return await self.recv()
        except ClosedError:
            raise StopAsyncIteration from None

    async def close(self) -> None:
        """Sends the pending acknowledgements, and closes the consumer. Idempotent."""
        await self._socket.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
