"""Clients of the protocol of S-expressions, blocking and for asyncio.

Both stand on one `_Link`, which lives in an event loop and answers pings there: a blocking client has a loop in a
thread of its own, so that it stays alive while the program is busy.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from types import TracebackType
from typing import Any, Final, Self, TypeVar, cast

import uvloop

from omq._core.blocks import Message
from omq.broker.errors import BrokerError, TooLarge, VersionFault
from omq.broker.protocol import check_name
from omq.broker.sexp import protocol
from omq.broker.sexp.endpoint import parse_endpoint
from omq.broker.sexp.protocol import ClientSide, Command, Delivery, Frame, Persistence, Replay
from omq.broker.sexp.syntax import MAX_LENGTH, shown
from omq.errors import ClosedError, ConnectError, OmqError, ReceiveTimeout, StateError, Timeout

__all__ = ["AsyncClient", "AsyncSubscription", "Client", "Subscription"]

#: Bytes of messages that wait for the program; beyond, nothing is read, and what follows waits at the server.
BACKLOG: Final = 16 << 20
_TOGETHER: Final = 256 << 10  # bytes of commands that are given to the connection at once

T = TypeVar("T")


class _Queue:
    """Messages of one topic that have come; filled in the loop's thread, emptied in that of the program.

    Attributes:
        messages: They.
        end: Why nothing follows; `None` while something may.
        note: What the server said about the topic last, where that ended nothing.
        wake: Called in the loop's thread when any of this has changed.
    """

    def __init__(self, topic: str, topic_id: int) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.messages: deque[Message] = deque()
        self.end: OmqError | None = None
        self.note = ""
        self.wake: Callable[[], None] = _nothing


def _nothing() -> None:
    pass


class _Request:
    """What the server was asked for: one thing at a time."""

    def __init__(self, command: Command, count: int, answer: asyncio.Future[None]) -> None:
        self.prefix = f"{type(command).__name__} {shown(getattr(command, 'topic', b''))}: "
        self.kind = _ANSWERS[type(command)]
        self.topic: bytes = getattr(command, "topic", b"")
        self.count = count
        self.numbers: list[int] = []
        self.errors: list[BrokerError] = []
        self.answer = answer

    def fits(self, frame: Frame) -> bool:
        """Whether the frame answers it."""
        return isinstance(frame, self.kind) and getattr(frame, "topic", self.topic) == self.topic

    def answered(self) -> None:
        """One answer more has come."""
        if len(self.numbers) + len(self.errors) == self.count and not self.answer.done():
            self.answer.set_result(None)


_ANSWERS: Final[dict[type, type]] = {
    protocol.Subscribe: protocol.Subscribed,
    protocol.Unsubscribe: protocol.Unsubscribed,
    protocol.Publish: protocol.Published,
    protocol.Create: protocol.Created,
}


class _Link(asyncio.Protocol):
    """A connection to a server. All of it runs in the loop, but for `took`."""

    def __init__(self, client: bytes, version: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.side = ClientSide(client, version)
        self.agreed: asyncio.Future[None] = self.loop.create_future()
        self.lost: OmqError | None = None
        self.closed = False  # by the program
        self.queues: dict[int, _Queue] = {}
        self._leaving: _Queue | None = None  # the server has ended it, and says next why
        self._request: _Request | None = None
        self._turn = asyncio.Lock()
        self._transport: asyncio.Transport
        self._waiting = 0  # bytes of messages that have come; taken ones are counted by the program's thread
        self._taken = 0
        self._paused = False
        self._writable = asyncio.Event()
        self._writable.set()
        self._last = ""  # what the server said last about the connection

    # --------------------------------------------------------------------------------------- of the connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its type
        self._transport.write(self.side.hello())

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self.side.receive(data):
                self._take(frame)
        except BrokerError as error:
            self._end(error)
            return
        if self.side.agreed and not self.agreed.done():
            self._transport.write(self.side.connect())
            self.agreed.set_result(None)
        if not self._paused and self._waiting - self._taken > BACKLOG:
            self._paused = True
            self._transport.pause_reading()

    def connection_lost(self, error: Exception | None) -> None:
        why = self._last or (str(error) if error else "the server has ended it")
        self._end(ClosedError(f"the connection is over: {why}"))

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def _end(self, error: OmqError) -> None:
        if self.lost is not None:
            return
        self.lost = error
        self._transport.abort()
        self._writable.set()
        if not self.agreed.done():
            self.agreed.set_exception(error if isinstance(error, VersionFault) else ConnectError(str(error)))
            self.agreed.exception()  # asked for, whether somebody waits or not
        if self._request is not None and not self._request.answer.done():
            self._request.answer.set_exception(error)
        for queue in (*self.queues.values(), *([self._leaving] if self._leaving else [])):
            queue.end = queue.end or error
            queue.wake()
        self.queues.clear()

    def _take(self, frame: Frame) -> None:
        request = self._request
        if isinstance(frame, protocol.Message):
            queue = self.queues.get(frame.topic_id)
            if queue is not None:
                queue.messages.append(Message(frame.id, queue.topic, frame.body))
                self._waiting += len(frame.body)
                queue.wake()
        elif isinstance(frame, protocol.Ping):
            self._transport.write(protocol.write_command(protocol.Ack(frame.time)))
        elif isinstance(frame, protocol.Error):
            self._take_error(frame.text)
        elif request is not None and request.fits(frame):
            if isinstance(frame, protocol.Subscribed):
                self.queues[frame.topic_id] = _Queue(frame.topic.decode("utf-8", "replace"), frame.topic_id)
            elif isinstance(frame, protocol.Unsubscribed):
                self.queues.pop(frame.topic_id, None)
            request.numbers.append(frame.id if isinstance(frame, protocol.Published) else frame.topic_id)
            request.answered()
        elif isinstance(frame, protocol.Unsubscribed):
            self._leaving = self.queues.pop(frame.topic_id, None)

    def _take_error(self, text: str) -> None:
        """Finds out what an error is about: it names the command, or the topic."""
        request = self._request
        if self._leaving is not None:
            queue, self._leaving = self._leaving, None
            queue.end = BrokerError(text)
            queue.wake()
            return
        for queue in self.queues.values():
            name = shown(queue.topic.encode())
            if text.startswith((f"{name}: ", f"Subscribe {name}: ")):
                queue.note = text
                queue.wake()
                if request is None or not text.startswith(request.prefix):
                    return
        if request is not None and len(request.numbers) + len(request.errors) < request.count:
            request.errors.append(BrokerError(text))
            request.answered()
        else:
            self._last = text

    # --------------------------------------------------------------------------------------------- for clients

    def took(self, size: int) -> None:
        """The program has taken a message; called in its thread."""
        self._taken += size
        if self._paused and self._waiting - self._taken < BACKLOG // 2:
            self.loop.call_soon_threadsafe(self._resume)

    def _resume(self) -> None:
        if self._paused and self.lost is None:
            self._paused = False
            self._transport.resume_reading()

    async def ask(self, commands: list[Command], timeout: float | None) -> list[int]:
        """Says commands of one kind about one topic; gives the ids of the answers.

        Raises:
            BrokerError: The server refused one of them.
            Timeout: No answer came in time. The connection is over: nobody knows what a later one belongs to.
            ClosedError: The connection is over.
        """
        lines = [protocol.write_command(command) for command in commands]
        for line in lines:
            if len(line) - 1 > MAX_LENGTH:
                raise TooLarge(f"a command has at most {MAX_LENGTH} bytes, not {len(line) - 1}")
        if not lines:
            return []
        async with self._turn:
            if self.lost is not None:
                raise type(self.lost)(*self.lost.args)
            request = self._request = _Request(commands[0], len(lines), self.loop.create_future())
            sending = self.loop.create_task(self._send(lines))
            try:
                await self._wait(request, timeout)
            finally:
                sending.cancel()
                self._request = None
                if not request.answer.done() or request.answer.cancelled():
                    self._end(ClosedError("the connection is over: an answer was not waited for"))
        if request.errors:
            raise request.errors[0]
        return request.numbers

    async def _send(self, lines: list[bytes]) -> None:
        begun = size = 0
        for at, line in enumerate(lines):
            size += len(line)
            if size >= _TOGETHER or at == len(lines) - 1:
                await self._writable.wait()
                self._transport.write(b"".join(lines[begun : at + 1]))
                begun, size = at + 1, 0

    async def _wait(self, request: _Request, timeout: float | None) -> None:
        """Waits while answers come; gives up when none has come for so long."""
        seen = -1
        while not request.answer.done():
            now = len(request.numbers) + len(request.errors)
            if now == seen:
                raise Timeout(f"no answer within {timeout} seconds")
            seen = now
            await asyncio.wait([request.answer], timeout=timeout)
        request.answer.result()

    async def close(self) -> None:
        """Ends the connection. What was answered is with the server."""
        self.closed = True
        if self.lost is None:
            self._end(ClosedError("the client is closed"))


async def _dial(endpoint: str, client: str | bytes | None, version: int, timeout: float | None) -> _Link:
    if version not in protocol.VERSIONS:
        raise StateError(f"versions are {protocol.VERSIONS}, unlike {version}")
    host, port = parse_endpoint(endpoint)
    if client is None:
        client = f"omq-{os.urandom(8).hex()}"
    name = client.encode() if isinstance(client, str) else client
    link: _Link | None = None
    try:
        async with asyncio.timeout(timeout):
            loop = asyncio.get_running_loop()
            _, link = await loop.create_connection(lambda: _Link(name, version), host or "127.0.0.1", port)
            await asyncio.shield(link.agreed)
    except TimeoutError:
        if link is not None:
            await link.close()
        raise ConnectError(f"{endpoint}: no connection within {timeout} seconds") from None
    except ConnectError:
        raise
    except OSError as error:
        raise ConnectError(error.errno, f"{endpoint}: {error.strerror or error}") from error
    return link


class AsyncSubscription:
    """Messages of one topic, in order; an asynchronous iterator.

    Attributes:
        topic: The topic's name.
        topic_id: Its number.
    """

    def __init__(self, link: _Link, queue: _Queue, timeout: float | None) -> None:
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
        self._link: _Link | None = None

    async def start(self) -> None:
        """Connects; `async with` does it."""
        if self._link is None:
            self._link = await _dial(*self._dialled)

    def _linked(self, needed: int = 1) -> _Link:
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

    async def _subscribed(self, topic: str, replay: Replay) -> _Queue:
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


class Subscription:
    """Messages of one topic, in order; an iterator.

    Attributes:
        topic: The topic's name.
        topic_id: Its number.
    """

    def __init__(self, client: Client, link: _Link, queue: _Queue) -> None:
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
