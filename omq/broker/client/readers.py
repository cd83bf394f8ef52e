"""Reads a range of a topic: as blocks, whose messages it decodes, and as columns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Final

from omq._core.columns import Gatherer
from omq.broker import protocol
from omq.broker.client.client_protocol import BLOCK_BYTES, BLOCK_RECORDS, PendingRequest
from omq.broker.client.connection import ConnectionBase
from omq.broker.client.stream_state import decoded
from omq.broker.errors import BrokerFailed, Overrun
from omq.broker.protocol import u32, u64
from omq.broker.start_time import StartTime, overrun_since, start_time
from omq.broker.types import Columns, Maps, Message, Texts, TopicInfo
from omq.socket_base import checked_count

if TYPE_CHECKING:
    from typing_extensions import Buffer

#: A bound of a read: an id, a time, or `None`.
Bound = int | float | datetime | None

BATCH_BYTES: Final = 16 << 20  #: Of the bodies, keys and headers of one `Columns`, about.
#: The columns in addition to ids and timestamps.
PARTS: Final = ("bodies", "keys", "headers")
READ_BYTES: Final = 2 << 20  #: The bytes of records that one READ requests.


class RangeReader:
    """The requests of one `read`, with one request in flight while an answer is used.

    Args:
        connection: The client's connection.
        topic: The topic's name.
        start: The first id, or the time of the first message; `None` for the oldest that is kept.
        stop: The id or time before which to end; `None` to end after the newest id at the first step.
        limit: The largest number of messages; `None` for no bound.
        whole: True raises `Overrun` if a part of the range is no longer kept, and makes requests as large as possible.

    Raises:
        TypeError: A bound has a wrong type.
        ValueError: A bound is negative, or a time without a time zone.
        TopicError: The name of the topic is not valid.
    """

    def __init__(
        self,
        connection: ConnectionBase,
        topic: str,
        start: Bound,
        stop: Bound,
        *,
        limit: int | None = None,
        whole: bool = False,
    ) -> None:
        self._start = _check_bound("start", start)
        self._stop = _check_bound("stop", stop)
        self._remaining = None if limit is None else checked_count("limit", limit, 0)
        self._connection = connection
        self._topic = protocol.check_name(topic)
        self._strict = whole and start is not None
        few = limit is not None and limit <= BLOCK_RECORDS
        self._bytes = protocol.MAX_RANGE_BYTES if whole else BLOCK_BYTES if few else READ_BYTES
        self._begun = False
        self._at = self._end = 0  # the next id, and the one at which to end
        self._request: PendingRequest | None = None

    async def blocks(self) -> list[tuple[bytes, bytes]] | None:
        """Returns the header and the records of the next blocks; `None` at the end.

        Raises:
            BrokerError: As `ConnectionBase.ask`, and `Overrun` with `whole`.
        """
        connection = self._connection
        if not self._begun:
            # Before the topic's range is requested, which then shows what was dropped meanwhile.
            start, stop = await self._find(self._start, self._strict), await self._find(self._stop, strict=False)
            answer = await connection.ask(protocol.TOPICS, self._topic.encode())
            (info,) = map(TopicInfo.read, protocol.read_value(answer[0]))
            self._begun = True
            connection.run_locked(partial(self._begin, info, start, stop))
        if self._request is None:
            return None
        await connection.finish(self._request, connection.deadline())
        found = connection.run_locked(self._next_request)
        return list(zip(found[::2], found[1::2], strict=True))

    async def _find(self, bound: int | StartTime | None, strict: bool) -> int | None:
        """Returns the id of a bound. With *strict*, raises `Overrun` if messages since its time may be dropped."""
        if not isinstance(bound, StartTime):
            return bound
        following, timestamp, dropped = await find_time(self._connection, self._topic, bound)
        if strict and dropped:
            raise overrun_since(self._topic, bound, following, timestamp)
        return following

    def _begin(self, topic: TopicInfo, start: int | None, stop: int | None) -> None:
        end = topic.last + 1
        self._at = start or 1
        self._end = end if stop is None else stop
        self._check_gap(topic.first)
        self._end = min(self._end, end)
        self._ask(max(self._at, topic.first))

    def _check_gap(self, first: int) -> None:
        """Raises `Overrun` if the next id is no longer kept and the whole range is required."""
        if self._strict and self._at < min(first, self._end):
            text = f"message {self._at} of topic {self._topic!r} is no longer kept; the oldest is {first}"
            raise Overrun(text, first)

    def _ask(self, start: int) -> None:
        if start < self._end and (self._remaining is None or self._remaining > 0):
            parts = self._topic.encode(), u64(start), u64(self._end), u32(self._bytes)
            self._request = self._connection.core.request(protocol.READ, *parts)

    def _next_request(self) -> list[bytes]:
        """Returns the received headers and records in turn, and requests the next ones."""
        assert self._request is not None
        answer = self._request.result()
        self._request = None
        following = protocol.number(answer[0])
        self._check_gap(protocol.number(answer[1]))
        self._at = following or self._end
        self._ask(self._at)
        return answer[2:]

    def messages(self, header: bytes, records: bytes) -> list[Message]:
        """Decodes a block; raises as `stream_state.messages_of`."""
        found = decoded(header, records, self._topic, Message)
        if self._remaining is not None:
            found = found[: self._remaining]
            self._remaining -= len(found)
        return found

    def close(self) -> None:
        """Gives up the request that is in flight."""
        if self._request is not None:
            self._connection.drop(self._request)
            self._request = None


def _check_bound(name: str, value: Bound) -> int | StartTime | None:
    """Returns a bound of a read; raises as `RangeReader`."""
    if isinstance(value, float | datetime):
        return start_time(name, value)
    return None if value is None else checked_count(name, value, 0)


async def find_time(connection: ConnectionBase, topic: str, start: StartTime) -> tuple[int, int, bool]:
    """Finds the first message at or after a time.

    Returns:
        Its id, or the next id if all messages are earlier; its timestamp, or 0; and whether messages at or after the
        time may have been dropped.

    Raises:
        BrokerError: As `ConnectionBase.ask`.
    """
    answer = await connection.ask(protocol.OFFSET_AT, topic.encode(), u64(start.microseconds))
    following, timestamp, dropped = map(protocol.number, answer)
    return following, timestamp, bool(dropped)


class ColumnReader:
    """Gathers blocks into columns.

    Args:
        topic: The topic's name, for the texts of errors.
        batch_bytes: The approximate bytes of bodies, keys and headers in one `Columns`. A larger message gets one of
            its own.
        parts: The columns in addition to ids and timestamps; see `PARTS`.
        memory: Allocates the memory of the bodies: called with a number of bytes, it returns a writable buffer of that
            size or more.

    Raises:
        ValueError: *parts* or *batch_bytes* is not valid.
        TypeError: *batch_bytes* is not a whole number.
    """

    def __init__(self, topic: str, batch_bytes: int, parts: Collection[str], memory: Callable[[int], Buffer]) -> None:
        batch_bytes = checked_count("batch_bytes", batch_bytes)
        if unknown := [part for part in parts if part not in PARTS]:
            raise ValueError(f"parts={unknown[0]!r}: must be some of {', '.join(PARTS)}")
        self._topic = topic
        self._limit = batch_bytes
        self._gatherer = Gatherer(batch_bytes, **{part: part in parts for part in PARTS})
        self._new = memory if "bodies" in parts else None
        self._memory: Buffer | None = None

    def add(self, header: bytes, records: bytes) -> Iterator[Columns]:
        """Adds a block; yields the columns that it has filled.

        Raises:
            BrokerFailed: The broker sent damaged records.
        """
        gatherer = self._gatherer
        try:
            gatherer.load(header, records)
            self._begin(self._limit)
            while (wanted := gatherer.fill()) is not None:
                if gatherer.count:
                    yield self._take()
                    self._begin(max(self._limit, wanted))
                else:
                    self._memory = None  # too small
                    self._begin(wanted)
        except ValueError as error:
            raise BrokerFailed(f"{self._topic}: the broker sent records that are damaged: {error}") from error

    def rest(self) -> Iterator[Columns]:
        """Yields the columns of the remaining records."""
        if self._gatherer.count:
            yield self._take()

    def _begin(self, size: int) -> None:
        """Allocates memory of *size* bytes for the next bodies, if there is none."""
        if self._new is not None and self._memory is None:
            self._memory = self._new(size)
            self._gatherer.begin(self._memory)

    def _take(self) -> Columns:
        count, ids, timestamps, ends, size, keys, headers = self._gatherer.take()
        bodies, self._memory = self._memory, None
        return Columns(
            count,
            ids,
            timestamps,
            ends,
            bodies,
            size,
            None if keys is None else Texts(*keys),
            None if headers is None else Maps(headers[0], Texts(*headers[1]), Texts(*headers[2]), *headers[3:]),
        )
