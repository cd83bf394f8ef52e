"""The asyncio client of the protocol of S-expressions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from types import TracebackType
from typing import Self

from omq._core.blocks import Message
from omq.broker.protocol import check_name
from omq.broker.sexp import protocol
from omq.broker.sexp.link import Link, Queue, dial
from omq.broker.sexp.protocol import Delivery, Persistence, Replay
from omq.errors import ClosedError, ReceiveTimeout, StateError


class AsyncSubscription:
    """Messages of one topic, in order; an asynchronous iterator.

    Attributes:
        topic: The topic's name.
        topic_id: Its number.
    """

    def __init__(self, link: Link, queue: Queue, timeout: float | None) -> None:
        self._link = link
        self._queue = queue
        self._timeout = timeout
        self._changed = asyncio.Event()
        self.topic = queue.topic
        self.topic_id = queue.topic_id
        queue.wake = self._changed.set

    @property
    def note(self) -> str:
        """What the server said about the topic last, such as where a replay begins; empty for nothing."""
        return self._queue.note

    async def recv(self, *, timeout: float | None = None) -> Message:
        """Gives the next message.

        Raises:
            ReceiveTimeout: None came in time.
            BrokerError: The server has ended the subscription.
            ClosedError: The connection is over, or the subscription closed. Who subscribes again with the last id as
                `replay` misses nothing of a kept topic.
        """
        try:
            async with asyncio.timeout(timeout):
                while not self._queue.messages:
                    if self._queue.end is not None:
                        raise type(self._queue.end)(*self._queue.end.args)
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise ReceiveTimeout(f"no message within {timeout} seconds") from None
        message = self._queue.messages.popleft()
        self._link.took(len(message.body))
        return message

    async def close(self) -> None:
        """Unsubscribes. Idempotent."""
        if self._queue.end is None:
            self._queue.end = ClosedError("the subscription is closed")
            self._queue.wake()
            await self._link.ask([protocol.Unsubscribe(self.topic.encode())], self._timeout)

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        try:
            return await self.recv()
        except ClosedError:
            if self._link.lost is None or self._link.closed:
                raise StopAsyncIteration from None
            raise

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class AsyncClient:
    """A client for asyncio; see `Client`.

    async with AsyncClient("tcp://...") as client: print(await client.publish("prices", b"AAPL 189.95"))
    """

    def __init__(
        self, endpoint: str, *, client: str | bytes | None = None, version: int = 2, timeout: float | None = 5.0
    ) -> None:
        self._dialled = (endpoint, client, version, timeout)
        self._timeout = timeout
        self._version = version
        self._link: Link | None = None

    async def start(self) -> None:
        """Connects; `async with` does it."""
        if self._link is None:
            self._link = await dial(*self._dialled)

    def _linked(self, needed: int = 1) -> Link:
        if self._link is None:
            raise StateError("the client is not connected: use async with, or start")
        if self._version < needed:
            raise StateError(f"version {self._version} of the protocol has no such command")
        return self._link

    async def create(self, topic: str, *, delivery: Delivery = "broadcast", persistence: Persistence = "strong") -> int:
        """See `Client.create`."""
        command = protocol.Create(check_name(topic).encode(), delivery, persistence)
        return (await self._linked(2).ask([command], self._timeout))[0]

    async def publish(self, topic: str, body: bytes) -> int:
        """See `Client.publish`."""
        return (await self.publish_many(topic, [body]))[0]

    async def publish_many(self, topic: str, bodies: Iterable[bytes]) -> list[int]:
        """See `Client.publish_many`."""
        name = check_name(topic).encode()
        return await self._linked(2).ask([protocol.Publish(name, bytes(body)) for body in bodies], self._timeout)

    async def subscribe(self, topic: str, *, replay: Replay = "current") -> AsyncSubscription:
        """See `Client.subscribe`."""
        queue = await self._subscribed(topic, replay)
        return AsyncSubscription(self._linked(), queue, self._timeout)

    async def _subscribed(self, topic: str, replay: Replay) -> Queue:
        link = self._linked()
        (topic_id,) = await link.ask([protocol.Subscribe(check_name(topic).encode(), replay)], self._timeout)
        queue = link.queues.get(topic_id)
        if queue is None:  # it was deleted just now, or the connection ended
            raise ClosedError("the subscription ended as it began")
        return queue

    async def close(self) -> None:
        """Ends the connection. Idempotent."""
        if self._link is not None:
            await self._link.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
