"""Subscriptions and consumers of the asyncio client."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator
from functools import partial
from itertools import groupby, islice
from operator import length_hint
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar
from weakref import ref

from omq.broker.client.async_caller import AsyncCaller, wake
from omq.broker.client.checks import check_limit, patience
from omq.broker.client.feeds import Block, Feed, ShareFeed, SubscriptionFeed, deliveries_of, messages_of
from omq.broker.errors import (
    BrokerError,
    BrokerTimeout,
)
from omq.broker.types import Delivery, Message, check_delay
from omq.errors import ClosedError, ReceiveTimeout, StateError

if TYPE_CHECKING:
    pass

log = logging.getLogger("omq")

_Message = TypeVar("_Message", bound=Message)


class Recorded:
    """Waits, where it is awaited, until the broker has recorded what was acknowledged before."""

    __slots__ = ("_caller",)

    def __init__(self, caller: AsyncCaller) -> None:
        self._caller = caller

    def __await__(self) -> Generator[Any, None, None]:
        return self._caller.recorded().__await__()


class AsyncStream(Generic[_Message]):
    """What subscriptions and consumers have in common."""

    def __init__(self, caller: AsyncCaller, feed: Feed) -> None:
        self._caller = caller
        self._feed = feed
        self._batch: Iterator[_Message] = iter(())
        self._recorded = Recorded(caller)
        feed.reader = ref(self)
        self._waiting: set[asyncio.Future[None]] = set()
        feed.wake = partial(_wake_all, self._waiting)  # not a method: who drops the last reference ends it

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self._feed.topic

    @property
    def closed(self) -> bool:
        """Whether nothing follows: it was closed, or the broker has ended it."""
        return self._feed.ended

    async def recv(self, *, timeout: float | None = None) -> _Message:
        """Takes the next message; see `omq.broker.Subscription.recv`. A call that is cancelled has taken none."""
        until = self._until(timeout)
        while True:
            for message in self._batch:
                if self._counts(message):
                    self._caller.settle_late()
                    return message
            await self._load(until)

    async def recv_many(self, limit: int | None = None, *, timeout: float | None = None) -> list[_Message]:
        """Takes what is there of the next block, *limit* messages at most; see `omq.broker.Subscription.recv_many`."""
        check_limit(limit)
        until = self._until(timeout)
        while True:
            taken = [*islice(self._batch, limit)]
            if messages := [message for message in taken if self._counts(message)]:
                self._caller.settle_late()
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

    def _until(self, timeout: float | None) -> float | None:
        timeout = patience(timeout)
        return None if timeout is None else asyncio.get_running_loop().time() + timeout

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
            self._batch = iter([*self._batch, *self._decode(block)])  # another task may have loaded one, too
            caller.send_out()
            _wake_all(self._waiting)  # there may be some for other tasks
        elif feed.ended and not length_hint(self._batch):
            raise feed.error or ClosedError(f"what reads {feed.topic!r} is closed")

    async def _stirred(self, until: float | None) -> None:
        feed = self._feed
        try:
            async with asyncio.timeout_at(until):
                while not feed.stirred and not length_hint(self._batch):  # another task may have filled it
                    future = asyncio.get_running_loop().create_future()
                    self._waiting.add(future)
                    try:
                        await future
                    finally:
                        self._waiting.discard(future)
        except TimeoutError:
            raise ReceiveTimeout(f"no message of {feed.topic!r} in time") from None

    def _decode(self, block: Block) -> list[_Message]:
        raise NotImplementedError

    def _counts(self, message: _Message) -> bool:
        """Whether a message that was taken from the feed may still be handed out."""
        return True

    def _forget(self) -> list[_Message]:
        """What `Feed.forget` calls."""
        return list(self._batch)

    async def close(self) -> None:
        """Ends it, and returns once the broker knows; see `omq.broker.Subscription.close`."""
        caller, feed = self._caller, self._feed
        if caller.closed or caller.inherited or feed.ended:
            return
        with caller.asking() as core:
            request = core.cancel(feed)
            self._batch = iter(())
        if request is not None:
            try:
                await caller.finish(request)
            except BrokerTimeout:
                raise
            except BrokerError:
                pass  # it is over, whatever the broker says
        await caller.flush()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await leave(self.close, error)

    def __del__(self) -> None:
        self._feed.left = self._forget()
        self._caller.drop(self._feed)

    def __repr__(self) -> str:
        state = "closed" if self.closed else "in force" if self._feed.in_force else "waits for the broker"
        return f"<omq.asyncio.broker.{type(self).__name__[5:]} of {self.topic!r}, {state}>"


class AsyncSubscription(AsyncStream[Message]):
    """The messages of a broadcast topic, in order and each once; see `omq.broker.Subscription`."""

    _feed: SubscriptionFeed

    @property
    def name(self) -> str | None:
        """The name that the broker keeps its position under."""
        return self._feed.name

    def ack(self, message: Message | int) -> Recorded:
        """Moves the position of the subscription's name; see `omq.broker.Subscription.ack`.

        Returns:
            An awaitable: calling is enough, awaiting it waits until the broker has recorded the position.
        """
        if self._feed.name is None:
            raise StateError(f"this subscription of {self.topic!r} has no name to keep a position under")
        with self._caller.asking() as core:
            if self._feed.ended:
                raise ClosedError(f"the subscription of {self.topic!r} is closed")
            core.move(self._feed, message)
        self._caller.note_acknowledged()
        return self._recorded

    def _decode(self, block: Block) -> list[Message]:
        return messages_of(self._feed, block)


class AsyncConsumer(AsyncStream[Delivery]):
    """A share of a round-robin topic; see `omq.broker.Consumer`.

    `ack`, `nack` and `in_progress` give an awaitable: calling them is enough, and awaiting waits until the broker has
    recorded them.
    """

    _feed: ShareFeed

    def ack(self, deliveries: Iterable[Delivery]) -> Recorded:
        """Acknowledges many; see `omq.broker.Consumer.ack`."""
        for delivery in deliveries:
            self.acknowledge(delivery)
        return self._recorded

    def nack(self, deliveries: Iterable[Delivery], *, delay: float | None = None) -> Recorded:
        """Asks for many again; see `omq.broker.Consumer.nack`."""
        delay = check_delay(delay)
        self._refuse_ended()
        for session, group in groupby(deliveries, key=_session):
            self._caller.retry(self._feed, session, [one.id for one in group], delay)
        return self._recorded

    def acknowledge(self, delivery: Delivery) -> Recorded:
        """Does what `Delivery.ack` is for."""
        self._refuse_ended()
        self._caller.acknowledge(self._feed, delivery.session, delivery.id)
        return self._recorded

    def retry(self, delivery: Delivery, delay: float | None) -> Recorded:
        """Does what `Delivery.nack` is for."""
        self._refuse_ended()
        self._caller.retry(self._feed, delivery.session, (delivery.id,), delay)
        return self._recorded

    def progress(self, delivery: Delivery) -> Recorded:
        """Does what `Delivery.in_progress` is for."""
        self._refuse_ended()
        self._caller.progress(self._feed, delivery.session, delivery.id)
        return self._recorded

    def _refuse_ended(self) -> None:
        self._caller.refuse()
        if self._feed.ended:
            raise ClosedError(f"the consumer of {self.topic!r} is closed: its messages go to others")

    async def _iterate(self) -> AsyncIterator[Delivery]:
        while True:
            for delivery in self._batch:
                if self._counts(delivery):
                    self._caller.settle_late()
                    yield delivery
            try:
                await self._load(None)
            except ClosedError:
                return

    def _counts(self, message: Delivery) -> bool:
        if message.session != self._caller.core.session:
            return False  # the broker delivers it again
        return not self._feed.is_done(message.id)  # it may have come again, and then have been acknowledged

    def _decode(self, block: Block) -> list[Delivery]:
        feed = self._feed
        found = deliveries_of(feed, block, self, self._caller.core.session)
        if not feed.may_repeat(block[2]):
            return found
        if done := [one for one in found if feed.is_done(one.id)]:
            self.ack(done)  # the broker has not heard of it
        return [one for one in found if not feed.is_done(one.id)]


async def leave(close: Callable[[], Any], error: BaseException | None) -> None:
    """Closes at the end of a block; an error of the block stands above trouble with that."""
    try:
        await close()
    except BrokerTimeout as trouble:
        if error is None:
            raise
        log.warning("%s", trouble)


def _session(delivery: Delivery) -> int:
    return delivery.session


def _wake_all(waiting: set[asyncio.Future[None]]) -> None:
    for future in waiting:
        wake(future)
