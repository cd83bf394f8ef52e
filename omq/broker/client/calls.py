"""The calls of a client of either twin: they check their arguments, make requests, and read the answers.

`omq.asyncio.broker.Client` inherits them; `omq.broker.Client` runs them over a connection that blocks.
"""

from __future__ import annotations

import itertools
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from omq._core.blocks import encode, encode_record
from omq.broker import protocol
from omq.broker.client.client_protocol import BLOCK_BYTES, BLOCK_RECORDS, PendingRequest, read_first
from omq.broker.client.connection import ConnectionBase
from omq.broker.client.readers import find_time
from omq.broker.client.stream_state import CREDIT_BYTES, Replay, StreamState, encode_replay
from omq.broker.errors import BrokerError, BrokerTimeout, TooLarge
from omq.broker.protocol import (
    DEFAULT_ACK_TIMEOUT_S,
    DEFAULT_PREFETCH,
    MAX_ACK_TIMEOUT_S,
    MIN_ACK_TIMEOUT_S,
    check_name,
    pack_json,
    u64,
)
from omq.broker.start_time import start_time
from omq.broker.types import (
    Committed,
    DurableInfo,
    GroupInfo,
    Record,
    Records,
    TopicInfo,
    buffer_of,
    check_bodies,
)
from omq.socket_base import check_timeout, checked_count
from omq.types import UNSET, Unset

if TYPE_CHECKING:
    from typing_extensions import Buffer

_Stream = TypeVar("_Stream")
_Subscription = TypeVar("_Subscription")
_Consumer = TypeVar("_Consumer")


class Calls(Generic[_Subscription, _Consumer]):
    """The calls of a client that wait; `omq.broker.Client` describes them.

    Args:
        connection: The connection of the twin.
        subscription: Makes a subscription of the twin from the connection and a `SubscriptionState`.
        consumer: Makes a consumer of the twin from the connection and a `ConsumerState`.
    """

    def __init__(
        self,
        connection: Any,
        subscription: Callable[[Any, Any], _Subscription],
        consumer: Callable[[Any, Any], _Consumer],
    ) -> None:
        self._connection: ConnectionBase = connection
        self._make_subscription = subscription
        self._make_consumer = consumer

    # ------------------------------------------------------------------ topics

    async def create(
        self, topic: str, *, delivery: str = "broadcast", persistence: str = "strong", **settings: Any
    ) -> TopicInfo:
        """Creates a topic, or returns an existing one; see `omq.broker.Client.create`."""
        name = check_name(topic)
        about = {"name": name, "delivery": delivery, "persistence": persistence, "settings": settings}
        answer = await self._connection.ask(protocol.CREATE, pack_json(about))
        return TopicInfo.read(protocol.read_json(answer[0]))

    async def alter(self, topic: str, *, force: bool = False, **settings: Any) -> TopicInfo:
        """Changes settings of a topic; see `omq.broker.Client.alter`."""
        name = check_name(topic)
        if not isinstance(force, bool):
            raise TypeError(f"force={force!r:.80}: must be True or False, not {type(force).__name__}")
        answer = await self._connection.ask(
            protocol.ALTER, pack_json({"name": name, "settings": settings, "force": force})
        )
        return TopicInfo.read(protocol.read_json(answer[0]))

    async def delete(self, topic: str) -> None:
        """Deletes a topic with all its messages; see `omq.broker.Client.delete`."""
        await self._connection.ask(protocol.DELETE, check_name(topic).encode())

    async def topics(self, topic: str | None = None) -> list[TopicInfo]:
        """Returns the topics that this client may use; see `omq.broker.Client.topics`."""
        part = None if topic is None else check_name(topic).encode()
        answer = await self._connection.ask(protocol.TOPICS, part)
        return [TopicInfo.read(one) for one in protocol.read_value(answer[0])]

    async def durables(self, topic: str) -> list[DurableInfo]:
        """Returns the durable subscriptions of a broadcast topic; see `omq.broker.Client.durables`."""
        answer = await self._connection.ask(protocol.DURABLES, check_name(topic).encode())
        return [DurableInfo.read(one) for one in protocol.read_value(answer[0])]

    async def delete_durable(self, topic: str, name: str) -> None:
        """Deletes a durable subscription that no client has open; see `omq.broker.Client.delete_durable`."""
        named = check_name(topic).encode(), check_name(name, "a subscription's name").encode()
        await self._connection.ask(protocol.DELETE_DURABLE, named[0], named[1])

    async def groups(self, topic: str) -> list[GroupInfo]:
        """Returns the consumer groups of a broadcast topic; see `omq.broker.Client.groups`."""
        answer = await self._connection.ask(protocol.GROUPS, check_name(topic).encode())
        return [GroupInfo.read(one) for one in protocol.read_value(answer[0])]

    async def seek_group(self, topic: str, name: str, replay: str | int | float | datetime) -> None:
        """Moves a consumer group; see `omq.broker.Client.seek_group`."""
        start = _check_replay(replay)
        named = check_name(topic).encode(), check_name(name, "a group's name").encode()
        await self._connection.ask(protocol.SEEK_GROUP, named[0], named[1], pack_json({"replay": encode_replay(start)}))

    async def delete_group(self, topic: str, name: str) -> None:
        """Deletes a consumer group without consumers; see `omq.broker.Client.delete_group`."""
        named = check_name(topic).encode(), check_name(name, "a group's name").encode()
        await self._connection.ask(protocol.DELETE_GROUP, named[0], named[1])

    async def purge(self, topic: str, *, up_to: int | None = None) -> int:
        """Drops messages; see `omq.broker.Client.purge`."""
        name = check_name(topic).encode()
        # The client names the last id: a repetition after a lost connection must not drop later messages.
        last = (await self.topics(topic))[0].last if up_to is None else checked_count("up_to", up_to)
        answer = await self._connection.ask(protocol.PURGE, name, u64(last))
        return protocol.number(answer[0])

    async def requeue(self, dead_topic: str, *, to: str | None = None, limit: int | None = None) -> int:
        """Moves dead letters back to the topics that they came from; see `omq.broker.Client.requeue`."""
        name = check_name(dead_topic).encode()
        target = None if to is None else check_name(to, "to: a topic's name").encode()
        left = None if limit is None else checked_count("limit", limit, 0)
        info = (await self.topics(dead_topic))[0]
        moved, following = 0, info.first
        while True:
            # The client names the last id: a repetition after a lost connection must not move later dead letters.
            last = info.last if left is None else min(following + left - moved - 1, info.last)
            try:
                answer = await self._connection.ask(protocol.REQUEUE, name, u64(last), target)
            except BrokerError as error:
                text = f"{error}; before that, {moved} dead letters were moved"
                raise type(error)(text, error.first, error.last) from error
            count, following = map(protocol.number, answer)
            moved += count
            if not 0 < following <= info.last or (left is not None and moved >= left):
                return moved

    # ------------------------------------------------------------------ publishing

    async def publish(
        self,
        topic: str,
        body: Buffer,
        *,
        key: bytes | None = None,
        headers: Mapping[str, Buffer] | None = None,
        message_id: bytes | str | None = None,
    ) -> int:
        """Publishes a message, and waits until the topic's persistence holds for it; see `omq.broker.Client.publish`.

        A cancelled call may have published its message.
        """
        connection, core = self._connection, self._connection.core
        connection.check_usable()
        check_body(body, core.max_body)
        _check_extras(key, headers)
        records = encode_record(body, key, headers)
        unique = b"" if message_id is None else _message_id(message_id)
        deadline = connection.deadline()
        if not core.has_room(len(records)):
            await connection.wait_for(partial(core.has_room, len(records)), deadline, "an answer to an earlier request")

        asked: list[PendingRequest] = []

        def ask() -> list[PendingRequest]:
            asked.append(core.append(topic, records, unique))
            return [*asked, core.flush()] if core.dirty else asked

        try:
            request, *flushes = await connection.submit(ask, deadline)
        except BrokerTimeout as error:
            if not (asked and asked[0].sent):
                raise
            safe = "with the same message_id stores it once" if unique else "without a message_id may store it twice"
            raise BrokerTimeout(f"{error}; the message may be stored, and a second publish {safe}") from None
        for flush in flushes:
            await connection.flush(deadline, flush)
        return read_first(request)

    async def publish_many(
        self, topic: str, bodies: Iterable[Buffer | Record | Records], *, in_flight: int | None = None
    ) -> list[int]:
        """Publishes messages in a pipeline; see `omq.broker.Client.publish_many`."""
        connection = self._connection
        check_bodies(bodies)
        if in_flight is not None:
            in_flight = checked_count("in_flight", in_flight)
        check_name(topic)
        ids: list[int] = []
        for answer, count in await self._ask_all(bodies, partial(connection.core.append, topic), in_flight):
            first = protocol.number(answer[0])
            ids.extend(range(first, first + count))
        await connection.flush(connection.deadline())
        return ids

    async def _ask_all(
        self,
        bodies: Iterable[Buffer | Record | Records],
        ask: Callable[[bytes], PendingRequest],
        in_flight: int | None = None,
    ) -> list[tuple[list[bytes], int]]:
        """Sends bodies in pipelined requests; returns the answers in order, each with its number of records."""
        connection, core = self._connection, self._connection.core
        connection.check_usable()
        asked: deque[tuple[PendingRequest, int]] = deque()
        answers: list[tuple[list[bytes], int]] = []

        def take() -> None:
            request, count = asked.popleft()
            answers.append((request.result(), count))

        def may_send(size: int, count: int) -> bool:
            if in_flight is not None:
                waiting = sum(batch for request, batch in asked if not request.done)
                if waiting > max(in_flight - count, 0):
                    return False
            return core.may_send(size)

        try:
            for records, count in pack(bodies, core.max_body, in_flight):
                if not may_send(len(records), count):
                    ready = partial(may_send, len(records), count)
                    await connection.wait_for(ready, connection.deadline(), "an answer to an earlier request")
                while asked and asked[0][0].done:
                    take()
                connection.run_locked(lambda: asked.append((ask(records), count)))  # noqa: B023 - called at once
            while asked:
                await connection.finish(asked[0][0], connection.deadline())
                take()
        finally:
            # The last one first: the broker must not store a request after it has dropped an earlier one.
            connection.give_up([request for request, _ in reversed(asked)])
        return answers

    async def stage(
        self, topic: str, bodies: Iterable[Buffer | Record | Records], stage: str, *, sequence: int = 1
    ) -> int:
        """Stores messages until `commit` publishes them; see `omq.broker.Client.stage`."""
        core, name = self._connection.core, _check_stage(stage)
        check_bodies(bodies)
        check_name(topic)
        numbers = itertools.count(checked_count("sequence", sequence))
        await self._ask_all(bodies, lambda records: core.stage(topic, records, name, next(numbers)))
        return next(numbers)

    async def commit(self, commit: str, stages: Iterable[str]) -> list[Committed]:
        """Publishes stages atomically; see `omq.broker.Client.commit`."""
        name = _check_stage(commit, "a commit's name")
        if isinstance(stages, str):
            raise TypeError(f"stages={stages!r:.80}: must be a list of names, not str")
        names = [b64encode(_check_stage(stage)).decode() for stage in stages]
        if not names:
            self._connection.check_usable()
            return []
        answer = await self._connection.ask(protocol.COMMIT, name, pack_json(names))
        return [
            Committed(b64decode(one["stage"]).decode(errors="replace"), one["topic"], one["first"], one["count"])
            for one in protocol.read_value(answer[0])
        ]

    async def abort(self, stage: str, *, prefix: bool = False) -> None:
        """Discards a stage, or all whose names begin with *stage*; see `omq.broker.Client.abort`."""
        await self._connection.ask(protocol.ABORT, _check_stage(stage), b"all" if prefix else None)

    # ------------------------------------------------------------------ reading

    async def subscribe(
        self,
        topic: str,
        *,
        replay: str | int | float | datetime | None = None,
        name: str | None = None,
        take_over: bool = False,
        credit: int = CREDIT_BYTES,
    ) -> _Subscription:
        """Subscribes to a broadcast topic; see `omq.broker.Client.subscribe`."""
        start = None if replay is None else _check_replay(replay)
        if name is not None:
            check_name(name, "a subscription's name")
        elif take_over:
            raise ValueError(f"take_over={take_over!r:.80}: needs the name of a durable subscription")
        credit = checked_count("credit", credit)
        core = self._connection.core
        return await self._open(
            lambda: core.subscribe(topic, start, name, credit, bool(take_over)), self._make_subscription
        )

    async def consume(
        self,
        topic: str,
        *,
        group: str | None = None,
        replay: str | int | float | datetime | None = None,
        ack_timeout: float = DEFAULT_ACK_TIMEOUT_S,
        credit: int = DEFAULT_PREFETCH,
    ) -> _Consumer:
        """Adds a consumer to a round-robin topic or a consumer group; see `omq.broker.Client.consume`."""
        start = None if replay is None else _check_replay(replay)
        if group is not None:
            check_name(group, "a group's name")
        elif replay is not None:
            raise ValueError(f"replay={replay!r:.80}: needs a group; a round-robin topic has no other start")
        allowed = f"must be {MIN_ACK_TIMEOUT_S} to {MAX_ACK_TIMEOUT_S:.0f} seconds"
        if isinstance(ack_timeout, bool) or not isinstance(ack_timeout, int | float):
            raise TypeError(f"ack_timeout={ack_timeout!r:.80}: {allowed}, not {type(ack_timeout).__name__}")
        if not MIN_ACK_TIMEOUT_S <= ack_timeout <= MAX_ACK_TIMEOUT_S:
            raise ValueError(f"ack_timeout={ack_timeout!r:.80}: {allowed}")
        credit = checked_count("credit", credit)
        core = self._connection.core
        return await self._open(lambda: core.consume(topic, ack_timeout, credit, group, start), self._make_consumer)

    async def _open(
        self,
        begin: Callable[[], tuple[StreamState, PendingRequest]],
        make: Callable[[ConnectionBase, StreamState], _Stream],
    ) -> _Stream:
        opened: list[_Stream] = []

        def ask() -> list[PendingRequest]:
            stream, request = begin()
            opened.append(make(self._connection, stream))
            return [request]

        await self._connection.submit(ask, self._connection.deadline())
        return opened[0]

    async def offset_after(self, topic: str, start: int, stop: int, size: int) -> int:
        """Returns the id before which messages have a number of bytes; see `omq.broker.Client.offset_after`."""
        named = check_name(topic).encode()
        start = checked_count("start", start, 0)
        stop = checked_count("stop", stop, 0)
        size = checked_count("size", size, 0)
        while start < stop:
            answer = await self._connection.ask(protocol.OFFSET_AFTER, named, u64(start), u64(stop), u64(size))
            before, (start, seen) = start, map(protocol.number, answer)
            size -= seen
            if size <= 0 or start == before:
                break
        return start

    async def offset_at(self, topic: str, time: datetime | float) -> int:
        """Returns the id of the first message at or after a time; see `omq.broker.Client.offset_at`."""
        return (await find_time(self._connection, check_name(topic), start_time("time", time)))[0]

    async def flush(self, *, timeout: float | Unset | None = UNSET) -> None:
        """Waits until every ack, nack and position is durable; see `omq.broker.Client.flush`."""
        connection = self._connection
        connection.check_usable()
        await connection.flush(connection.deadline(timeout if isinstance(timeout, Unset) else check_timeout(timeout)))


# ---------------------------------------------------------------------- from bodies to requests


def pack(
    bodies: Iterable[Buffer | Record | Records], limit: int, in_flight: int | None = None
) -> Iterator[tuple[bytes, int]]:
    """Yields the encoded records of each request, and their number.

    Args:
        bodies: The bodies; or `Records`, each a request of its own.
        limit: The largest size of a body, in bytes.
        in_flight: Records that may wait for an answer; a request has a quarter of them at most. `None` for no bound.

    Raises:
        TooLarge: A body has more than *limit* bytes; earlier ones were yielded.
        TypeError: A body has a wrong type, or there are `Records` and bodies.
    """
    rest: Iterator[Buffer | Record] = iter(bodies)  # type: ignore[arg-type]
    for first in rest:
        if isinstance(first, Records):
            yield from _encoded(first, rest)
            return
        rest = chain([first], rest)
        break
    max_records = BLOCK_RECORDS if in_flight is None else min(max(in_flight // 4, 1), BLOCK_RECORDS)
    number = min(BLOCK_RECORDS // 4, max_records)
    while batch := list(islice(rest, number)):
        sizes = _sizes(batch, limit)
        total = sum(sizes)
        if total <= 2 * BLOCK_BYTES:
            yield _encode(batch), len(batch)
        else:
            for start, stop in _request_bounds(sizes):
                yield _encode(batch[start:stop]), stop - start
        number = min(max(BLOCK_BYTES * len(batch) // max(total, 1), 1), max_records)


def _encoded(first: Records, rest: Iterator[object]) -> Iterator[tuple[bytes, int]]:
    """Yields the data and the number of encoded records."""
    for one in chain([first], rest):
        if not isinstance(one, Records):
            raise TypeError(f"bodies: must be either all Records or none; one is {type(one).__name__}")
        if one.count:
            yield one.data, one.count


def check_body(body: Buffer, limit: int) -> int:
    """Returns the size of a body in bytes.

    Raises:
        TooLarge: The body has more than *limit* bytes.
        TypeError: The body has no contiguous buffer.
    """
    size = len(body) if isinstance(body, bytes) else buffer_of("body", body).nbytes
    if size > limit:
        raise TooLarge(f"a body has {size} bytes; at most {limit} are allowed")
    return size


def _sizes(batch: list[Buffer | Record], limit: int) -> list[int]:
    """Returns the approximate sizes of records; raises as `check_body`."""
    if set(map(type, batch)) == {bytes}:  # the usual case, and much faster
        sizes = list(map(len, batch))  # type: ignore[arg-type]
        if max(sizes) <= limit:
            return sizes
    return [_size(one, limit) for one in batch]


def _size(one: Buffer | Record, limit: int) -> int:
    """Returns the approximate size of a record; raises as `check_body`."""
    if not isinstance(one, Record):
        return check_body(one, limit)
    return check_body(one.body, limit) + _check_extras(one.key, one.headers)


def _encode(batch: list[Buffer | Record]) -> bytes:
    """Encodes records, one after the other."""
    try:
        return encode(batch)  # type: ignore[arg-type]
    except TypeError:  # most likely one is a Record
        each = (one if isinstance(one, Record) else Record(one) for one in batch)
        return b"".join(encode_record(*one) for one in each)


def _request_bounds(sizes: list[int]) -> Iterator[tuple[int, int]]:
    """Yields the first index of each request, and the one after its last; *sizes* are in bytes."""
    start = total = 0
    for index, size in enumerate(sizes):
        if index > start and total + size > BLOCK_BYTES:
            yield start, index
            start, total = index, 0
        total += size
    yield start, len(sizes)


# ---------------------------------------------------------------------- arguments


def _check_replay(replay: str | int | float | datetime) -> Replay:
    """Returns the start of a subscription.

    Raises:
        ValueError: It is not valid.
    """
    if isinstance(replay, float | datetime):
        return start_time("replay", replay)
    is_id = isinstance(replay, int) and not isinstance(replay, bool) and replay >= 0
    if not is_id and replay not in ("latest", "earliest"):
        raise ValueError(f'replay={replay!r}: must be "latest", "earliest", an id, 0 or more, or a time')
    return replay


def _check_extras(key: bytes | None, headers: Mapping[str, Buffer] | None) -> int:
    """Returns the size of a key and of the values of headers, in bytes.

    Raises:
        TypeError: The key is not bytes, the name of a header is not a string, or its value has no contiguous buffer.
    """
    if key is not None and not isinstance(key, bytes):
        raise TypeError(f"key={key!r:.80}: must be bytes or None, not {type(key).__name__}")
    size = len(key or b"")
    for name, value in (headers or {}).items():
        if not isinstance(name, str):
            raise TypeError(f"headers: a name must be a str, not {type(name).__name__}: {name!r:.80}")
        size += len(value) if isinstance(value, bytes) else buffer_of(f"headers[{name!r:.80}]", value).nbytes
    return size


def _message_id(value: bytes | str) -> bytes:
    """Encodes an idempotency key."""
    if not isinstance(value, bytes | str):
        raise TypeError(f"message_id={value!r:.80}: must be bytes, str or None, not {type(value).__name__}")
    part = value.encode() if isinstance(value, str) else value
    if not 1 <= len(part) <= protocol.MAX_MESSAGE_ID_BYTES:
        raise ValueError(
            f"message_id={value!r:.80}: must have 1 to {protocol.MAX_MESSAGE_ID_BYTES} bytes, not {len(part)}"
        )
    return part


def _check_stage(name: str, what: str = "a stage's name") -> bytes:
    """Returns the encoded name of a stage or a commit.

    Raises:
        ValueError: The name is empty, or has more than 255 bytes.
        TypeError: The name is not a string.
    """
    if not isinstance(name, str):
        raise TypeError(f"{what} must be a string, not {name!r:.80}")
    encoded = name.encode()
    if not 1 <= len(encoded) <= protocol.MAX_NAME_BYTES:
        raise ValueError(f"{what} has {len(encoded)} bytes; 1 to {protocol.MAX_NAME_BYTES} are allowed: {name[:40]!r}")
    return encoded
