"""What is taken from a socket at a time, and the record batch that it becomes; the memory that it stands in."""

from __future__ import annotations

import contextlib
import mmap
import time
from array import array
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

_TYPES: Final = {
    "value": pa.binary(),
    "parts": pa.list_(pa.field("element", pa.binary())),
    "topic": pa.binary(),
    "endpoint": pa.string(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "sequence": pa.int64(),
}


class Memory:
    """Blocks of memory, each reused once no batch refers to it: fresh pages cost as much as the copy.

    Args:
        size: Bytes of a block.
        most: Blocks that are kept to be reused.
    """

    def __init__(self, size: int, most: int = 4) -> None:
        self._size = size
        self._most = most
        self._blocks: list[mmap.mmap] = []

    def take(self) -> mmap.mmap:
        """A free block; it stays free until a buffer refers to it, such as that of a batch."""
        for block in self._blocks:
            if self._is_free(block):
                return block
        block = self._make(self._size)
        # In pages of 2 MiB the copies in and out take a tenth less. Not every kernel has them.
        with contextlib.suppress(OSError):
            block.madvise(mmap.MADV_HUGEPAGE)
        if len(self._blocks) < self._most:
            self._blocks.append(block)
        return block

    def _make(self, size: int) -> mmap.mmap:
        return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

    def trim(self) -> None:
        """Gives back to the system what nobody refers to, but for one block."""
        free = [block for block in self._blocks if self._is_free(block)]
        for block in free[1:]:
            self._blocks.remove(block)

    def _is_free(self, block: mmap.mmap) -> bool:
        # A block counts the buffers over its memory, and refuses to be resized, even to its own size, while there are
        # any. The object's reference count would not do: Python 3.14 does not count all references.
        try:
            block.resize(self._size)
        except BufferError:
            return False
        return True


class Shape:
    """The columns and the size of a batch.

    Args:
        columns: The names, in order.
        batch_bytes: Bytes of bodies in a batch, about.
        topics: Whether a message of two parts is a topic and a value, as PUB sends it.
    """

    def __init__(self, columns: tuple[str, ...], batch_bytes: int, topics: bool) -> None:
        self.columns = columns
        self.batch_bytes = batch_bytes
        self.topics = topics
        self.schema = pa.schema([pa.field(name, _TYPES[name]) for name in columns])

    def of_columns(self, value: pa.Array, marks: Marks) -> pa.RecordBatch:
        """A batch of messages that have one part each."""
        n = len(value)
        made: dict[str, Any] = {"value": value}
        if "topic" in self.columns:
            made["topic"] = pa.nulls(n, pa.binary())
        if "parts" in self.columns:
            ends = pa.array(range(n + 1), pa.int32())
            made["parts"] = pa.ListArray.from_arrays(ends, value, type=_TYPES["parts"])
        return self._with(made, marks)

    def of_messages(self, messages: list[list[bytes]], marks: Marks) -> pa.RecordBatch:
        """A batch of whole messages."""
        made: dict[str, Any] = {}
        if "value" in self.columns:
            made["value"] = pa.array([self.value(parts) for parts in messages], pa.binary())
        if "topic" in self.columns:
            made["topic"] = pa.array([parts[0] if len(parts) == 2 else None for parts in messages], pa.binary())
        if "parts" in self.columns:
            made["parts"] = pa.array(messages, _TYPES["parts"])
        return self._with(made, marks)

    def value(self, parts: list[bytes]) -> bytes | None:
        """The only part, or the part after the topic."""
        if len(parts) == 1:
            return parts[0]
        return parts[1] if self.topics and len(parts) == 2 else None

    def refuses(self, parts: list[bytes]) -> bool:
        """Whether a message has more parts than there are columns for."""
        return "parts" not in self.columns and len(parts) > (2 if self.topics else 1)

    def _with(self, made: dict[str, Any], marks: Marks) -> pa.RecordBatch:
        n = marks.count
        if "endpoint" in self.columns:
            made["endpoint"] = pa.repeat(pa.scalar(marks.endpoint), n)
        if "timestamp" in self.columns:
            made["timestamp"] = _numbers(marks.times(), _TYPES["timestamp"])
        if "sequence" in self.columns:
            made["sequence"] = _numbers(array("q", range(marks.first, marks.first + n)), pa.int64())
        return pa.RecordBatch.from_arrays([made[name] for name in self.columns], schema=self.schema)


def _numbers(values: array[int], kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


class Marks:
    """What a batch records beside the bodies.

    Attributes:
        endpoint: Where the messages came from.
        first: The number of the first message.
        count: How many they are.
        runs: When they were taken: microseconds since 1970, and how many were taken then.
    """

    def __init__(self, endpoint: str, first: int) -> None:
        self.endpoint = endpoint
        self.first = first
        self.count = 0
        self.runs: list[tuple[int, int]] = []

    def took(self, count: int) -> None:
        """Records that *count* more messages have been taken now."""
        self.count += count
        self.runs.append((time.time_ns() // 1000, count))

    def times(self) -> array[int]:
        """When each message was taken."""
        found = array("q")
        for moment, count in self.runs:
            found.extend(array("q", [moment]) * count)
        return found


@dataclass(slots=True)
class Columns:
    """Messages of one part each, one behind the other in memory.

    Attributes:
        body: The bodies.
        ends: Where each of them begins and ends in there, as Arrow has it: a number more than there are messages.
        marks: What is recorded beside them.
        blocks: The blocks that begin with the bodies and with the ends, if they stand in such.
    """

    body: pa.Buffer
    ends: pa.Buffer
    marks: Marks
    blocks: tuple[mmap.mmap, mmap.mmap] | None = None

    @property
    def size(self) -> int:
        """Bytes of the bodies."""
        return int(self.body.size)

    def batch(self, shape: Shape) -> pa.RecordBatch:
        """The record batch."""
        value = pa.Array.from_buffers(pa.binary(), self.marks.count, [None, self.ends, self.body])
        return shape.of_columns(value, self.marks)


@dataclass(slots=True)
class Messages:
    """Messages of any number of parts.

    Attributes:
        messages: The messages.
        size: Bytes of all parts.
        marks: What is recorded beside them.
    """

    messages: list[list[bytes]]
    size: int
    marks: Marks

    def batch(self, shape: Shape) -> pa.RecordBatch:
        """The record batch."""
        return shape.of_messages(self.messages, self.marks)


#: What was taken from a socket at a time.
Taken = Columns | Messages
