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
from omq.broker.client.connection import check_count, check_timeout
from omq.broker.client.stream_state import StreamState
from omq.broker.client.streams import ConsumerBase, StreamBase, SubscriptionBase
from omq.broker.errors import BrokerTimeout
from omq.broker.types import Delivery, Message
from omq.errors import ClosedError, ReceiveTimeout

log = logging.getLogger("omq")

_Message = TypeVar("_Message", bound=Message)


class Recorded:
    """Waits, where it is awaited, until the broker has recorded what was acknowledged before."""

    __slots__ = ("_caller",)

    def __init__(self, caller: AsyncConnection) -> None:
        self._caller = caller

    def __await__(self) -> Generator[Any, None, None]:
        return self._caller.recorded().__await__()


class AsyncClosing:
    """Closes at the end of an `async with` block; an error of the block stands above trouble with that."""

    async def close(self) -> None:
        """Ends it."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except BrokerTimeout as trouble:
            if error is None:
                raise
            log.warning("%s", trouble)


class AsyncStream(StreamBase[_Message, Recorded], AsyncClosing):
    """The common part of subscriptions and consumers of the asyncio client."""

    _caller: AsyncConnection

    def __init__(self, caller: AsyncConnection, feed: StreamState) -> None:
        super().__init__(caller, feed)
        self._recorded = Recorded(caller)
        self._waiting: set[asyncio.Future[None]] = set()
        feed.wake = partial(_wake_all, self._waiting)  # not a method: who drops the last reference ends it

    def _noted(self) -> Recorded:
        self._caller.acknowledged += 1
        return self._recorded

    async def recv(self, *, timeout: float | None = None) -> _Message:
        """Takes the next message; see `omq.broker.Subscription.recv`. A call that is cancelled has taken none."""
        until = None if timeout is None else self._caller.until(check_timeout(timeout))
        while True:
            for message in self._batch:
                if self._counts(message):
                    self._caller.send_late_acks()
                    return message
            await self._load(until)

    async def recv_many(self, limit: int | None = None, *, timeout: float | None = None) -> list[_Message]:
        """Takes what is there of the next block, *limit* messages at most; see `omq.broker.Subscription.recv_many`."""
        check_count("limit", limit)
        until = None if timeout is None else self._caller.until(check_timeout(timeout))
        while True:
            taken = [*islice(self._batch, limit)]
            if messages := [message for message in taken if self._counts(message)]:
                self._caller.send_late_acks()
                return messages
            if taken:
                continue
            await self._load(until)

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

    async def _load(self, until: float | None) -> None:
        """Waits for a block, and decodes it."""
        caller, feed = self._caller, self._feed
        if caller.inherited or not feed.stirred:
            caller.refuse()
            await self._stirred(until)
        else:
            await asyncio.sleep(0)  # others have their turn between two blocks, and more may come meanwhile
        block = caller.core.take(feed)
        if block is not None:
            messages = self._decode(block, caller.core.session)
            self._batch = iter([*self._batch, *messages])  # another task may have loaded one, too
            caller.send_out()
            _wake_all(self._waiting)  # there may be some for other tasks
        elif feed.ended and not length_hint(self._batch):
            raise feed.error or ClosedError(f"what reads {feed.topic!r} is closed")

    async def _stirred(self, until: float | None) -> None:
        feed = self._feed
        while not feed.stirred and not length_hint(self._batch):  # another task may have filled it
            future = asyncio.get_running_loop().create_future()
            self._waiting.add(future)
            try:
                if not await in_time(future, until):
                    raise ReceiveTimeout(f"no message of {feed.topic!r} in time")
            finally:
                self._waiting.discard(future)

    async def close(self) -> None:
        """Ends it, and returns once the broker has confirmed; see `omq.broker.Subscription.close`."""
        if not self._caller.closed and not self._caller.inherited:
            self._caller.refuse()
            await self._end()


class AsyncSubscription(SubscriptionBase[Recorded], AsyncStream[Message]):
    """The messages of a broadcast topic, in order and each once; see `omq.broker.Subscription`."""

    _shown_as = "omq.asyncio.broker.Subscription"


class AsyncConsumer(ConsumerBase[Recorded], AsyncStream[Delivery]):
    """A share of a round-robin topic; see `omq.broker.Consumer`.

    `ack`, `nack` and `in_progress` give an awaitable: calling them is enough, and awaiting waits until the broker has
    recorded them.
    """

    _shown_as = "omq.asyncio.broker.Consumer"

    def acknowledge(self, delivery: Delivery) -> Recorded:
        """Does what `Delivery.ack` is for."""
        caller, feed = self._caller, self._feed
        caller.refuse()
        if feed.ended:
            self._refuse_ended()
        caller.acknowledge(feed, delivery.session, delivery.id)
        caller.acknowledged += 1
        return self._recorded

    async def _iterate(self) -> AsyncIterator[Delivery]:
        while True:
            for delivery in self._batch:
                if self._counts(delivery):
                    self._caller.send_late_acks()
                    yield delivery
            try:
                await self._load(None)
            except ClosedError:
                return


def _wake_all(waiting: set[asyncio.Future[None]]) -> None:
    for future in waiting:
        wake(future)
