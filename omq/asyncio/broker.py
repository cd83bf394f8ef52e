"""The asyncio twin of `omq.broker`: the same client, whose calls are awaited.

import omq.asyncio.broker

async with omq.asyncio.broker.Client("tcp://127.0.0.1:5565") as client:
    await client.create("prices")
    await client.publish("prices", b"AAPL 189.95")
    async for message in await client.subscribe("prices", replay="beginning"):
        print(message.id, message.body)
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from omq._core.blocks import encode_record
from omq.broker import protocol
from omq.broker.client.async_caller import AsyncCaller
from omq.broker.client.async_streams import AsyncConsumer as Consumer
from omq.broker.client.async_streams import AsyncSubscription as Subscription
from omq.broker.client.async_streams import leave
from omq.broker.client.checks import (
    check_bodies,
    check_headers,
    check_in_flight,
    check_reading,
    check_sequence,
    check_share,
    check_stage,
    check_stages,
    check_subscription,
    patience,
)
from omq.broker.client.client_core import (
    State,
    describe,
    read_committed,
    read_first,
    read_names,
    read_topic,
    read_topics,
    write_stages,
)
from omq.broker.client.column_reader import BATCH_BYTES, PARTS, ColumnReader
from omq.broker.client.feeds import CREDIT_BYTES
from omq.broker.client.packing import check_body, pack, turn
from omq.broker.client.range_reader import MOST_BYTES, RangeReader
from omq.broker.client.request import Request
from omq.broker.errors import (
    BrokerError,
    BrokerFailed,
    BrokerTimeout,
    Busy,
    Damaged,
    Overrun,
    PermissionDenied,
    StoreFull,
    TopicError,
)
from omq.broker.protocol import u64
from omq.broker.server import AsyncServer as Server
from omq.broker.types import Columns, Committed, Delivery, Message, NameInfo, Record, Records, TopicInfo
from omq.context import Context
from omq.types import UNSET, Unset

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from omq.types import Security

__all__ = [
    "BrokerError",
    "BrokerFailed",
    "BrokerTimeout",
    "Busy",
    "Client",
    "Columns",
    "Committed",
    "Consumer",
    "Damaged",
    "Delivery",
    "Message",
    "NameInfo",
    "Overrun",
    "PermissionDenied",
    "Record",
    "Records",
    "Server",
    "StoreFull",
    "Subscription",
    "TopicError",
    "TopicInfo",
]

_Read = TypeVar("_Read")


class Client:
    """A client of a broker; see `omq.broker.Client`.

    It belongs to the loop of its first call. The connection is dialled in the background, from then on.

    Args:
        endpoint: Where the broker's ZMTP door is.
        timeout: Seconds that a call waits for the broker, also for a connection; `None` for ever.
        security: A `PlainClient` or `CurveClient`.
        context: What its socket shares with others; `None` for the default context.
        **options: More options of its DEALER socket; see `omq.Options`.

    Raises:
        EndpointError: The endpoint cannot be understood.
        OptionError: An option does not fit.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        timeout: float | None = 30.0,
        security: Security | None = None,
        context: Context | None = None,
        **options: Any,
    ) -> None:
        self._caller = AsyncCaller(endpoint, timeout, context, {"security": security, **options})

    @property
    def endpoint(self) -> str:
        """Where the broker's ZMTP door is."""
        return self._caller.endpoint

    @property
    def timeout(self) -> float | None:
        """Seconds that a call waits for the broker; `None` for ever."""
        return self._caller.timeout

    @property
    def broker(self) -> str:
        """The id of the broker's store, which no other store has; empty until the broker has answered anything."""
        return self._caller.core.broker

    # ------------------------------------------------------------------ topics

    async def create(
        self, topic: str, *, delivery: str = "broadcast", persistence: str = "strong", **settings: Any
    ) -> TopicInfo:
        """Makes a topic, or finds it as asked; see `omq.broker.Client.create`."""
        about = describe(topic, delivery, persistence, settings)
        return read_topic(await self._caller.ask(protocol.CREATE, about))

    async def delete(self, topic: str) -> None:
        """Deletes a topic with all its messages; see `omq.broker.Client.delete`."""
        await self._caller.ask(protocol.DELETE, protocol.check_name(topic).encode())

    async def topics(self, topic: str | None = None) -> list[TopicInfo]:
        """All topics, or that one; see `omq.broker.Client.topics`."""
        parts = [] if topic is None else [protocol.check_name(topic).encode()]
        return read_topics(await self._caller.ask(protocol.TOPICS, *parts))

    async def names(self, topic: str) -> list[NameInfo]:
        """The names that the broker keeps positions of a broadcast topic under; see `omq.broker.Client.names`."""
        return read_names(await self._caller.ask(protocol.NAMES, protocol.check_name(topic).encode()))

    async def forget(self, topic: str, name: str) -> None:
        """Has the broker forget a name that nobody holds, with its position; see `omq.broker.Client.forget`."""
        named = protocol.check_name(topic).encode(), protocol.check_name(name, "a subscription's name").encode()
        await self._caller.ask(protocol.FORGET, *named)

    # ------------------------------------------------------------------ publishing

    async def publish(
        self, topic: str, body: Buffer, *, key: bytes | None = None, headers: Mapping[str, Buffer] | None = None
    ) -> int:
        """Publishes a message, and waits until the topic's persistence holds for it; see `omq.broker.Client.publish`.

        Whether a message was published whose call is cancelled is unknown.
        """
        caller = self._caller
        caller.refuse()
        check_body(body, caller.core.max_body)
        check_headers(headers)
        records = encode_record(body, key, headers)
        if not caller.core.has_room(len(records)):
            await caller.wait_for(partial(caller.core.has_room, len(records)), "room for a message")
        with caller.asking() as core:
            request = core.append(topic, records)
            flush = core.flush() if core.dirty else None
        try:
            await caller.finish(request)
        except BaseException:
            if flush is not None:
                core.give_up(flush)
            raise
        if flush is not None:
            await caller.flush(flush)
        return read_first(request)

    async def publish_many(
        self, topic: str, bodies: Iterable[Buffer | Record | Records], *, in_flight: int | None = None
    ) -> list[int]:
        """Publishes messages, many on their way at once; see `omq.broker.Client.publish_many`."""
        check_bodies(bodies)
        check_in_flight(in_flight)
        protocol.check_name(topic)
        asked = await self._ask_all(bodies, partial(self._caller.core.append, topic), read_first, in_flight)
        await self._caller.flush()
        return [number for first, count in asked for number in range(first, first + count)]

    async def _ask_all(
        self,
        bodies: Iterable[Buffer | Record | Records],
        ask: Callable[[bytes], Request],
        read: Callable[[Request], _Read],
        in_flight: int | None = None,
    ) -> list[tuple[_Read, int]]:
        """Makes requests of bodies, many on their way at once; what their answers say, and what is in each."""
        caller = self._caller
        caller.refuse()
        core = caller.core
        asked: deque[tuple[Request, int]] = deque()
        answers: list[tuple[_Read, int]] = []
        try:
            for records, count in pack(bodies, core.max_body, in_flight):
                may_append = turn(core, len(records), count, asked, in_flight)
                if not may_append():
                    await caller.wait_for(may_append, "an answer to what was published")
                while asked and asked[0][0].done:
                    request, some = asked.popleft()
                    answers.append((read(request), some))
                with caller.asking():
                    asked.append((ask(records), count))
            while asked:
                await caller.finish(asked[0][0])
                request, some = asked.popleft()
                answers.append((read(request), some))
        finally:
            for request, _ in reversed(asked):  # else the broker might store later ones meanwhile
                core.give_up(request)
            if asked and not caller.closed:
                caller.send_out()
        return answers

    async def stage(
        self, topic: str, bodies: Iterable[Buffer | Record | Records], stage: str, *, sequence: int = 1
    ) -> int:
        """Keeps messages aside until `commit` publishes them; see `omq.broker.Client.stage`."""
        core, name = self._caller.core, check_stage(stage)
        check_bodies(bodies)
        protocol.check_name(topic)
        check_sequence(sequence)
        numbers = itertools.count(sequence)
        await self._ask_all(bodies, lambda records: core.stage(topic, records, name, next(numbers)), Request.result)
        return next(numbers)

    async def commit(self, commit: str, stages: Iterable[str]) -> list[Committed]:
        """Publishes stages at once; see `omq.broker.Client.commit`."""
        name, names = check_stage(commit, "a commit's name"), [check_stage(stage) for stage in check_stages(stages)]
        if not names:
            self._caller.refuse()
            return []
        return read_committed(await self._caller.ask(protocol.COMMIT, name, write_stages(names)))

    async def abort(self, stage: str, *, prefix: bool = False) -> None:
        """Forgets a stage, or all whose names begin so; see `omq.broker.Client.abort`."""
        await self._caller.ask(protocol.ABORT, check_stage(stage), *([b"all"] if prefix else []))

    # ------------------------------------------------------------------ reading

    async def subscribe(
        self, topic: str, *, replay: str | int | None = None, name: str | None = None, credit: int = CREDIT_BYTES
    ) -> Subscription:
        """Begins to read a broadcast topic, and returns once it is in force; see `omq.broker.Client.subscribe`."""
        caller = self._caller
        check_subscription(replay, name, credit)
        with caller.asking() as core:
            feed, request = core.subscribe(topic, replay, name, credit)
        await caller.finish(request)
        return Subscription(caller, feed)

    async def consume(self, topic: str, *, ack_timeout: float = 30.0, credit: int = 100) -> Consumer:
        """Takes a share of a round-robin topic, and returns once it is in force; see `omq.broker.Client.consume`."""
        caller = self._caller
        check_share(ack_timeout, credit)
        with caller.asking() as core:
            feed, request = core.consume(topic, ack_timeout, credit)
        await caller.finish(request)
        return Consumer(caller, feed)

    def read(
        self, topic: str, start: int | None = None, stop: int | None = None, *, limit: int | None = None
    ) -> AsyncIterator[Message]:
        """Reads what is kept now, in order; not awaited; see `omq.broker.Client.read`."""
        protocol.check_name(topic)
        check_reading(start, stop, limit)
        return self._read(topic, start, stop, limit)

    async def _read(self, topic: str, start: int | None, stop: int | None, limit: int | None) -> AsyncIterator[Message]:
        caller = self._caller
        (info,) = read_topics(await caller.ask(protocol.TOPICS, topic.encode()))
        with caller.asking() as core:
            reader = RangeReader(core, info, start, stop, limit)
        try:
            while (request := reader.request) is not None:
                await caller.finish(request)
                with caller.asking():
                    blocks = reader.blocks()
                for header, records in zip(blocks[::2], blocks[1::2], strict=True):
                    for message in reader.messages(header, records):
                        yield message
        finally:
            reader.close()

    def read_columns(
        self,
        topic: str,
        start: int | None = None,
        stop: int | None = None,
        *,
        parts: Collection[str] = PARTS,
        batch_bytes: int = BATCH_BYTES,
        memory: Callable[[int], Buffer] = bytearray,
    ) -> AsyncIterator[Columns]:
        """Reads what is kept now, as columns; not awaited; see `omq.broker.Client.read_columns`."""
        protocol.check_name(topic)
        check_reading(start, stop, None)
        return self._read_columns(topic, start, stop, ColumnReader(topic, batch_bytes, parts, memory))

    async def _read_columns(
        self, topic: str, start: int | None, stop: int | None, columns: ColumnReader
    ) -> AsyncIterator[Columns]:
        caller = self._caller
        (info,) = read_topics(await caller.ask(protocol.TOPICS, topic.encode()))
        with caller.asking() as core:
            reader = RangeReader(core, info, start, stop, None, strict=True, size=MOST_BYTES)
        try:
            while (request := reader.request) is not None:
                try:
                    await caller.finish(request)
                    with caller.asking():
                        blocks = reader.blocks()
                except BrokerError:
                    for some in columns.rest():  # what is well before
                        yield some
                    raise
                for header, records in zip(blocks[::2], blocks[1::2], strict=True):
                    for some in columns.add(header, records):
                        yield some
            for some in columns.rest():
                yield some
        finally:
            reader.close()

    async def reach(self, topic: str, start: int, stop: int, size: int) -> int:
        """How far so many bytes of messages reach; see `omq.broker.Client.reach`."""
        named = protocol.check_name(topic).encode()
        check_reading(start, stop, size)
        while start < stop:
            answer = await self._caller.ask(protocol.REACH, named, u64(start), u64(stop), u64(size))
            before, (start, seen) = start, map(protocol.number, answer)
            size -= seen
            if size <= 0 or start == before:
                break
        return start

    async def flush(self, *, timeout: float | Unset | None = UNSET) -> None:
        """Waits until every acknowledgement, `nack` and position is recorded; see `omq.broker.Client.flush`."""
        self._caller.refuse()
        await self._caller.flush(timeout=timeout if isinstance(timeout, Unset) else patience(timeout))

    # ------------------------------------------------------------------ life

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._caller.closed

    async def close(self) -> None:
        """Flushes what was acknowledged, gives back what is held, and ends; see `omq.broker.Client.close`."""
        if not self._caller.closed and not self._caller.inherited:
            await self._caller.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await leave(self.close, error)

    def __repr__(self) -> str:
        up = self._caller.core.state is State.UP
        state = "closed" if self.closed else "connected" if up else "not connected"
        return f"<omq.asyncio.broker.Client {self.endpoint} {state}>"
