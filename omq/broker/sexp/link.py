"""A connection of a client that speaks S-expressions: it lives in an event loop, and answers pings there."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable
from typing import Final, cast

from omq._core.blocks import Message
from omq.broker.errors import BrokerError, TooLarge, VersionFault
from omq.broker.sexp import protocol
from omq.broker.sexp.endpoint import parse_endpoint
from omq.broker.sexp.protocol import ClientSide, Command, Frame
from omq.broker.sexp.syntax import MAX_LENGTH, shown
from omq.errors import ClosedError, ConnectError, OmqError, StateError, Timeout

#: Bytes of messages that wait for the program; beyond, nothing is read, and what follows waits at the server.
BACKLOG: Final = 16 << 20
_TOGETHER: Final = 256 << 10  # bytes of commands that are given to the connection at once


class Queue:
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


class Request:
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


class Link(asyncio.Protocol):
    """A connection to a server. All of it runs in the loop, but for `took`."""

    def __init__(self, client: bytes, version: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.side = ClientSide(client, version)
        self.agreed: asyncio.Future[None] = self.loop.create_future()
        self.lost: OmqError | None = None
        self.closed = False  # by the program
        self.queues: dict[int, Queue] = {}
        self._leaving: Queue | None = None  # the server has ended it, and says next why
        self._request: Request | None = None
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
                self.queues[frame.topic_id] = Queue(frame.topic.decode("utf-8", "replace"), frame.topic_id)
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
            request = self._request = Request(commands[0], len(lines), self.loop.create_future())
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

    async def _wait(self, request: Request, timeout: float | None) -> None:
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


async def dial(endpoint: str, client: str | bytes | None, version: int, timeout: float | None) -> Link:
    if version not in protocol.VERSIONS:
        raise StateError(f"versions are {protocol.VERSIONS}, unlike {version}")
    host, port = parse_endpoint(endpoint)
    if client is None:
        client = f"omq-{os.urandom(8).hex()}"
    name = client.encode() if isinstance(client, str) else client
    link: Link | None = None
    try:
        async with asyncio.timeout(timeout):
            loop = asyncio.get_running_loop()
            _, link = await loop.create_connection(lambda: Link(name, version), host or "127.0.0.1", port)
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
