"""The blocking client of the protocol of S-expressions.

It has a loop in a thread of its own, so that its connection stays alive while the program is busy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar

import uvloop

from omq._core.blocks import Message
from omq.broker.sexp import protocol
from omq.broker.sexp.async_client import AsyncClient
from omq.broker.sexp.link import Link, Queue
from omq.broker.sexp.protocol import Delivery, Persistence, Replay
from omq.errors import ClosedError, ReceiveTimeout
from omq.unpatched import threading

T = TypeVar("T")


class Subscription:
    """Messages of one topic, in order; an iterator.

    Attributes:
        topic: The topic's name.
        topic_id: Its number.
    """

    def __init__(self, client: Client, link: Link, queue: Queue) -> None:
        self._client = client
        self._link = link
        self._queue = queue
        self._changed = threading.Condition()
        self.topic = queue.topic
        self.topic_id = queue.topic_id
        queue.wake = self._wake

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    @property
    def note(self) -> str:
        """What the server said about the topic last, such as where a replay begins; empty for nothing."""
        return self._queue.note

    def recv(self, *, timeout: float | None = None) -> Message:
        """Gives the next message; raises as `AsyncSubscription.recv`."""
        queue = self._queue
        while True:
            try:
                message = queue.messages.popleft()
            except IndexError:
                with self._changed:
                    if not self._changed.wait_for(lambda: queue.messages or queue.end, timeout):
                        raise ReceiveTimeout(f"no message within {timeout} seconds") from None
                if not queue.messages and queue.end is not None:
                    raise type(queue.end)(*queue.end.args) from None
                continue
            self._link.took(len(message.body))
            return message

    def close(self) -> None:
        """Unsubscribes. Idempotent."""
        with self._changed:
            if self._queue.end is not None:
                return
            self._queue.end = ClosedError("the subscription is closed")
            self._changed.notify_all()
        self._client._unsubscribe(self.topic)

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        try:
            return self.recv()
        except ClosedError:
            if self._link.lost is None or self._link.closed:
                raise StopIteration from None
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Client:
    """A client of a broker's S-expression door, or of any server that speaks the protocol.

    Calls may come from any thread. The client answers pings by itself. It does not connect again by itself: whoever
    wants to go on makes another one and subscribes with the last message's id as `replay`.

    Args:
        endpoint: Where the server is: `tcp://host:port`.
        client: The client's id: one connection at a time has it. Made up by default.
        version: 1 can only subscribe; 2 can publish and create, too.
        timeout: Seconds that the server has for an answer.

    Raises:
        ConnectError: There is no connection.
        VersionFault: The server does not speak this version.
    """

    def __init__(
        self, endpoint: str, *, client: str | bytes | None = None, version: int = 2, timeout: float | None = 5.0
    ) -> None:
        self._loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="omq-sexp-client", daemon=True)
        self._thread.start()
        self._closing = threading.Lock()
        self._client = AsyncClient(endpoint, client=client, version=version, timeout=timeout)
        try:
            self._run(self._client.start())
        except BaseException:
            self.close()
            raise

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        if self._loop.is_closed():
            call.close()
            raise ClosedError("the client is closed")
        future = asyncio.run_coroutine_threadsafe(call, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def create(self, topic: str, *, delivery: Delivery = "broadcast", persistence: Persistence = "strong") -> int:
        """Makes a topic, or finds it as asked; gives its number.

        Raises:
            BrokerError: The server refuses.
        """
        return self._run(self._client.create(topic, delivery=delivery, persistence=persistence))

    def publish(self, topic: str, body: bytes) -> int:
        """Publishes a message; gives its id, once the topic's persistence holds for it.

        Raises:
            BrokerError: The server refuses.
            TooLarge: The command has more than 64 KiB; bytes that are not printable need four each.
        """
        return self._run(self._client.publish(topic, body))

    def publish_many(self, topic: str, bodies: Iterable[bytes]) -> list[int]:
        """The same for many, pipelined. After an error some of them may be published."""
        return self._run(self._client.publish_many(topic, list(bodies)))

    def subscribe(self, topic: str, *, replay: Replay = "current") -> Subscription:
        """Subscribes, and waits until that is in force.

        Args:
            topic: The topic.
            replay: `"current"`, `"beginning"`, or an id: those after it. A round-robin topic has only `"current"`.

        Raises:
            BrokerError: The server refuses.
        """
        queue = self._run(self._client._subscribed(topic, replay))
        return Subscription(self, self._client._linked(), queue)

    def _unsubscribe(self, topic: str) -> None:
        try:
            self._run(self._client._linked().ask([protocol.Unsubscribe(topic.encode())], self._client._timeout))
        except ClosedError:
            pass

    def close(self) -> None:
        """Ends the connection. Idempotent."""
        with self._closing:
            if self._loop.is_closed():
                return
            asyncio.run_coroutine_threadsafe(self._shut(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _shut(self) -> None:
        await self._client.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # the transport's last step

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
