"""Messages that were taken from a socket at a time, and the record batch that they become."""

from __future__ import annotations

import mmap
import time
from array import array
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from omq.spark.live.settings import Settings

_TYPES: Final = {
    "value": pa.binary(),
    "parts": pa.list_(pa.field("element", pa.binary())),
    "topic": pa.binary(),
    "endpoint": pa.string(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "sequence": pa.int64(),
}


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

    @classmethod
    def of(cls, settings: Settings) -> Shape:
        """Returns the columns and the size of a read's batches."""
        return cls(settings.read_columns, settings.batch_bytes, settings.socket == "SUB")

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
        """Returns whether a message has more parts than there are columns for."""
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
    """The metadata of a batch, next to the bodies.

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
        marks: Their metadata.
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
        marks: Their metadata.
    """

    messages: list[list[bytes]]
    size: int
    marks: Marks

    def batch(self, shape: Shape) -> pa.RecordBatch:
        """The record batch."""
        return shape.of_messages(self.messages, self.marks)


#: What was taken from a socket at a time.
Taken = Columns | Messages
