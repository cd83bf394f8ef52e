"""Messages that were taken from a socket at a time, and the record batch that they become."""

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

MAX_ROWS: Final = 1 << 18  # of a record batch: 16 MiB of 64 bytes
BODY_AT: Final = (4 * (MAX_ROWS + 1) + 63) // 64 * 64  # bytes of a block in front of the body: for the ends
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
    """Messages, their parts one after the other in memory.

    Attributes:
        endpoint: The endpoint that they came from.
        first: The number of the first message.
        runs: When they were taken: microseconds since 1970, and how many were taken then.
        body: The bytes of all parts.
        ends: The offsets in there at which parts begin and end, as Arrow has them: one more than there are parts.
        starts: Likewise the numbers of the parts at which messages begin and end; `None` if each message is one part.
        block: The block that begins with the ends and has the body at `BODY_AT`; `None` if they are not in such a one.
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
        """Returns messages of one part, whose ends and *size* bytes are in a block."""
        memory = pa.py_buffer(block)
        ends = memory.slice(0, 4 * (sum(count for _, count in runs) + 1))
        return cls(endpoint, first, runs, memory.slice(BODY_AT, size), ends, block=block)

    @classmethod
    def of_messages(
        cls, endpoint: str, first: int, runs: list[tuple[int, int]], messages: Sequence[list[bytes]]
    ) -> MessageBatch:
        """Returns messages of any number of parts."""
        parts = list(chain.from_iterable(messages))
        return cls(endpoint, first, runs, pa.py_buffer(b"".join(parts)), _offsets(parts), _offsets(messages))

    @property
    def count(self) -> int:
        """The number of messages."""
        return int((self.ends if self.starts is None else self.starts).size) // 4 - 1

    @property
    def size(self) -> int:
        """Bytes of all parts."""
        return int(self.body.size)

    def batch(self, settings: SocketSettings) -> pa.RecordBatch:
        """Returns the record batch that a read with these options has of them."""
        names = settings.read_columns
        # As PUB sends it, a message of two parts is a topic and a value.
        columns = [self._column(name, 2 if settings.socket == "SUB" else 1) for name in names]
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema([pa.field(name, _TYPES[name]) for name in names]))

    def _column(self, name: str, value_parts: int) -> pa.Array:
        """Returns a column; `value_parts` is how many parts a message with a value has at most."""
        n = self.count
        match name:
            case "endpoint":
                return pa.repeat(pa.scalar(self.endpoint), n)
            case "sequence":
                return _fixed(_TYPES[name], array("q", range(self.first, self.first + n)))
            case "timestamp":
                times = array("q")
                for moment, count in self.runs:
                    times.extend(array("q", [moment]) * count)
                return _fixed(_TYPES[name], times)
        parts = pa.Array.from_buffers(pa.binary(), int(self.ends.size) // 4 - 1, [None, self.ends, self.body])
        if self.starts is None and name != "parts":
            return parts if name == "value" else pa.nulls(n, pa.binary())
        bounds = _fixed(pa.int32(), array("i", range(n + 1)) if self.starts is None else self.starts)
        if name == "parts":
            return pa.ListArray.from_arrays(bounds, parts, type=_TYPES[name])
        begins, ends = bounds[:-1], bounds[1:]
        lengths = pc.subtract(ends, begins)
        if name == "value":
            return _chosen(parts, pc.less_equal(lengths, value_parts), pc.subtract(ends, 1))
        return _chosen(parts, pc.equal(lengths, 2), begins)


def _offsets(items: Iterable[Any]) -> pa.Buffer:
    """Returns the offsets of items one after the other, as Arrow has them."""
    return pa.py_buffer(array("i", accumulate(map(len, items), initial=0)))


def _fixed(kind: pa.DataType, values: Any) -> pa.Array:
    data = pa.py_buffer(values)
    return pa.Array.from_buffers(kind, data.size // (kind.bit_width // 8), [None, data])


def _chosen(parts: pa.Array, there: pa.Array, numbers: pa.Array) -> pa.Array:
    """Returns the parts of these numbers, and nulls for messages without one."""
    return parts.take(pc.if_else(there, numbers, pa.scalar(None, pa.int32())))
