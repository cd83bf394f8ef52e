"""Batches of messages from a socket, and their record batches."""

from __future__ import annotations

import mmap
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from omq.spark.live.settings import SocketSettings

MAX_BATCH_ROWS: Final = 1 << 18  # 16 MiB of messages of 64 bytes
BODY_OFFSET_BYTES: Final = (4 * (MAX_BATCH_ROWS + 1) + 63) // 64 * 64  # after the ends, a multiple of 64 for Arrow
_TYPES: Final = {
    "value": pa.binary(),
    "parts": pa.list_(pa.field("element", pa.binary())),
    "topic": pa.binary(),
    "endpoint": pa.string(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "sequence": pa.int64(),
}


@dataclass(slots=True)
class MessageBatch:
    """Messages of one connection, in Arrow's layout.

    Attributes:
        endpoint: The endpoint of the connection.
        first: The sequence of the first message.
        runs: The timestamps, run-length encoded: microseconds since 1970, and the number of messages taken then.
        body: The bytes of all parts.
        ends: Arrow's offsets of the parts in the body, one more than there are parts.
        starts: Arrow's offsets of the messages in the parts; `None` if each message has one part.
        block: The block that has the ends at its beginning and the body at `BODY_OFFSET_BYTES`; `None` if the memory is
            not in a block.
    """

    endpoint: str
    first: int
    runs: list[tuple[int, int]]
    body: pa.Buffer
    ends: pa.Buffer
    starts: pa.Buffer | None = None
    block: mmap.mmap | None = None

    @classmethod
    def in_block(
        cls, endpoint: str, first: int, runs: list[tuple[int, int]], block: mmap.mmap, size: int
    ) -> MessageBatch:
        """Returns messages of one part, whose ends and body of *size* bytes are in a block."""
        memory = pa.py_buffer(block)
        ends = memory.slice(0, 4 * (sum(count for _, count in runs) + 1))
        return cls(endpoint, first, runs, memory.slice(BODY_OFFSET_BYTES, size), ends, block=block)

    @classmethod
    def of_messages(
        cls, endpoint: str, first: int, runs: list[tuple[int, int]], messages: Sequence[list[bytes]]
    ) -> MessageBatch:
        """Returns messages of any number of parts."""
        parts = list(chain.from_iterable(messages))
        # Without starts, the column `value` is the body itself and no copy of it.
        starts = None if all(len(one) == 1 for one in messages) else _offsets(messages)
        return cls(endpoint, first, runs, pa.py_buffer(b"".join(parts)), _offsets(parts), starts)

    @property
    def count(self) -> int:
        """The number of messages."""
        return int((self.ends if self.starts is None else self.starts).size) // 4 - 1

    @property
    def size(self) -> int:
        """The bytes of all parts."""
        return int(self.body.size)

    def record_batch(self, settings: SocketSettings) -> pa.RecordBatch:
        """Returns the record batch for a read with these options."""
        names = settings.read_columns
        # A PUB with a topic sends it as the first of two parts.
        columns = [self._column(name, 2 if settings.socket == "SUB" else 1) for name in names]
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema([pa.field(name, _TYPES[name]) for name in names]))

    def _column(self, name: str, value_parts: int) -> pa.Array:
        """Returns a column; the `value` of a message with more than *value_parts* parts is null."""
        n = self.count
        match name:
            case "endpoint":
                return pa.repeat(pa.scalar(self.endpoint), n)
            case "sequence":
                return _fixed_width(_TYPES[name], array("q", range(self.first, self.first + n)))
            case "timestamp":
                times = array("q")
                for timestamp, count in self.runs:
                    times.extend(array("q", [timestamp]) * count)
                return _fixed_width(_TYPES[name], times)
        parts = pa.Array.from_buffers(pa.binary(), int(self.ends.size) // 4 - 1, [None, self.ends, self.body])
        if self.starts is None and name != "parts":
            return parts if name == "value" else pa.nulls(n, pa.binary())
        bounds = _fixed_width(pa.int32(), array("i", range(n + 1)) if self.starts is None else self.starts)
        if name == "parts":
            return pa.ListArray.from_arrays(bounds, parts, type=_TYPES[name])
        begins, ends = bounds[:-1], bounds[1:]
        lengths = pc.subtract(ends, begins)
        if name == "value":
            return _take_or_null(parts, pc.less_equal(lengths, value_parts), pc.subtract(ends, 1))
        return _take_or_null(parts, pc.equal(lengths, 2), begins)


def _offsets(items: Iterable[Any]) -> pa.Buffer:
    """Returns Arrow's offsets of items."""
    return pa.py_buffer(array("i", accumulate(map(len, items), initial=0)))


def _fixed_width(kind: pa.DataType, values: Any) -> pa.Array:
    data = pa.py_buffer(values)
    return pa.Array.from_buffers(kind, data.size // (kind.bit_width // 8), [None, data])


def _take_or_null(parts: pa.Array, valid: pa.Array, indices: pa.Array) -> pa.Array:
    """Returns the parts at the indices, and null where *valid* is false."""
    return parts.take(pc.if_else(valid, indices, pa.scalar(None, pa.int32())))
