"""Subscriptions and consumers of the asyncio client."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Generator
from functools import partial
from itertools import islice
from operator import length_hint
from types import TracebackType
from typing import Any, Self, TypeVar

from omq.broker.client.async_connection import AsyncConnection, in_time, wake
from omq.broker.client.stream_state import StreamState
from omq.broker.client.streams import ConsumerBase, StreamBase, SubscriptionBase
from omq.broker.errors import BrokerTimeout
from omq.broker.types import Delivery, Message
from omq.errors import ClosedError, ReceiveTimeout
from omq.socket_base import check_timeout, checked_count

log = logging.getLogger("omq")

_Message = TypeVar("_Message", bound=Message)


class AckAwaitable:
    """An awaitable that waits until earlier acknowledgements of a stream are durable.

    Raises:
        BrokerError: The broker has ended the stream: it may have ignored them.
    """

    __slots__ = ("_connection", "_stream")

    def __init__(self, connection: AsyncConnection, stream: StreamState) -> None:
        self._connection = connection
        self._stream = stream

    def __await__(self) -> Generator[Any, None, None]:
        yield from self._connection.recorded().__await__()
        if self._stream.error is not None:
            raise self._stream.error


class AsyncClosing:
    """A base class that calls `close` at the end of an `async with` block; an error of the block precedes its own."""

    async def close(self) -> None:
        """Closes the object."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except BrokerTimeout as failure:
            if error is None:
                raise
            log.warning("%s", failure)


class AsyncStream(StreamBase[_Message, AckAwaitable], AsyncClosing):
    """The common part of subscriptions and consumers of the asyncio client."""

    _connection: AsyncConnection

    def __init__(self, connection: AsyncConnection, stream: StreamState) -> None:
        super().__init__(connection, stream)
        self._recorded = AckAwaitable(connection, stream)
        self._waiting: set[asyncio.Future[None]] = set()
        stream.wake = partial(_wake_all, self._waiting)  # not a method, whose reference would keep this alive

    def _ack_result(self) -> AckAwaitable:
        self._connection.acknowledged += 1
        return self._recorded

    async def recv(self, *, timeout: float | None = None) -> _Message:
        """Returns the next message; see `omq.broker.Subscription.recv`. A cancelled call takes no message."""
        deadline = None if timeout is None else self._connection.deadline(check_timeout(timeout))
        while True:
            for message in self._batch:
                if self._is_current(message):
                    self._connection.send_late_acks()
                    return message
            await self._load(deadline)

    async def recv_many(self, limit: int | None = None, *, timeout: float | None = None) -> list[_Message]:
        """Returns the next messages, *limit* at most; see `omq.broker.Subscription.recv_many`."""
        if limit is not None:
            limit = checked_count("limit", limit)
        deadline = None if timeout is None else self._connection.deadline(check_timeout(timeout))
        while True:
            taken = [*islice(self._batch, limit)]
            if messages := [message for message in taken if self._is_current(message)]:
                self._connection.send_late_acks()
                return messages
            if taken:
                continue
            await self._load(deadline)

    def __aiter__(self) -> AsyncIterator[_Message]:
        return self._iterate()

    async def _iterate(self) -> AsyncIterator[_Message]:
        while True:
            for message in self._batch:
                yield message
            try:
                await self._load(None)
            except ClosedError:
                return

    async def __anext__(self) -> _Message:
        try:
            return await self.recv()
        except ClosedError:
            raise StopAsyncIteration from None

    async def _load(self, deadline: float | None) -> None:
        """Waits for a block, and decodes it."""
        connection, stream = self._connection, self._stream
        if connection.inherited or not stream.readable:
            connection.check_usable()
            await self._wait_readable(deadline)
        else:
            await asyncio.sleep(0)  # others have their turn between two blocks, and more may come meanwhile
        block = connection.core.take_block(stream)
        if block is not None:
            messages = self._decode(block, connection.core.session)
            self._batch = iter([*self._batch, *messages])  # another task may have loaded one, too
            connection.send_out()
            _wake_all(self._waiting)  # there may be some for other tasks
        elif stream.ended and not length_hint(self._batch):
            raise stream.error or ClosedError(f"the {self._shown_as} of {stream.topic!r} is closed")

    async def _wait_readable(self, deadline: float | None) -> None:
        stream = self._stream
        while not stream.readable and not length_hint(self._batch):  # another task may have filled it
            future = asyncio.get_running_loop().create_future()
            self._waiting.add(future)
            try:
                if not await in_time(future, deadline):
                    raise ReceiveTimeout(f"no message of {stream.topic!r} has arrived in time")
            finally:
                self._waiting.discard(future)

    async def close(self) -> None:
        """Closes the stream, and waits for the broker's confirmation; see `omq.broker.Subscription.close`."""
        if not self._connection.closed and not self._connection.inherited:
            self._connection.check_usable()
            await self._end()


class AsyncSubscription(SubscriptionBase[AckAwaitable], AsyncStream[Message]):
    """A subscription to a broadcast topic: messages in order, each once; see `omq.broker.Subscription`."""

    _shown_as = "omq.asyncio.broker.Subscription"


class AsyncConsumer(ConsumerBase[AckAwaitable], AsyncStream[Delivery]):
    """A consumer of a round-robin topic; see `omq.broker.Consumer`.

    `ack`, `nack` and `in_progress` return an awaitable that waits until earlier acks and nacks are durable. The call
    alone is enough.
    """

    _shown_as = "omq.asyncio.broker.Consumer"

    def acknowledge(self, delivery: Delivery) -> AckAwaitable:
        """Acknowledges a delivery; `Delivery.ack` calls it."""
        connection, stream = self._connection, self._stream
        connection.check_usable()
        if stream.ended:
            self._check_open()
        connection.acknowledge(stream, delivery.session, delivery.id)
        connection.acknowledged += 1
        return self._recorded

    async def _iterate(self) -> AsyncIterator[Delivery]:
        while True:
            for delivery in self._batch:
                if self._is_current(delivery):
                    self._connection.send_late_acks()
                    yield delivery
            try:
                await self._load(None)
            except ClosedError:
                return


def _wake_all(waiting: set[asyncio.Future[None]]) -> None:
    for future in waiting:
        wake(future)
