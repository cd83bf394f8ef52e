"""Functions for stages of your own: send the rows of a partition, or read record batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

import omq
from omq.spark.live.connection import read_once
from omq.spark.live.settings import Settings
from omq.spark.options import READ, WRITE


def _texts(given: dict[str, Any]) -> dict[str, str]:
    return {name: _text(value) for name, value in given.items()}


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, list | tuple):
        return ",".join(map(_text, value))
    return str(value)


def pull_batches(**given: Any) -> Iterator[pa.RecordBatch]:
    """Yields what arrives as record batches, until a bound is reached; for `mapInArrow` and similar methods.

    Args:
        **given: The options of `spark.read.format("omq")`: `socket`, `connect` or `bind` with one endpoint, and
            at least one of `maxRows`, `maxBytes`, `maxSeconds`.

    Raises:
        OptionError: An option is unknown or missing, does not fit, or there are several endpoints.
    """
    found = Settings.parse(READ, _texts(given))
    if len(found.endpoints) != 1:
        raise omq.OptionError("pull_batches() has one endpoint: have a partition for each")
    return read_once(found, found.endpoints[0])


def push_partition(rows: Iterable[Any], **given: Any) -> Iterator[pa.RecordBatch]:
    """Sends the rows of a partition and waits until they have left; for `foreachPartition` and `mapInArrow`.

    Args:
        rows: Record batches or Rows with the columns `value` or `parts`, and `topic` for a PUB; or bytes, each a
            message.
        **given: The options of `write.format("omq")`.

    Returns:
        One batch of one row: how many `rows` and `bytes` were sent (both bigint).

    Raises:
        OptionError: An option or a column is unknown or missing or does not fit.
        SendTimeout: See `omq.spark.live.sink.Sender.send`.
    """
    from omq.spark.live import sink

    found = Settings.parse(WRITE, _texts(given))

    def checked() -> Iterator[pa.RecordBatch]:
        for batch in _batched(rows):
            sink.check_columns(found, batch.schema.names)
            yield batch

    sent = sink.send_through(found, checked())
    return iter([pa.RecordBatch.from_pydict({"rows": [sent.rows], "bytes": [sent.bytes]})])


def _batched(rows: Iterable[Any]) -> Iterator[pa.RecordBatch]:
    """Rows gathered into batches of a thousand."""
    gathered: list[Any] = []
    for row in rows:
        if isinstance(row, pa.RecordBatch):
            yield row
            continue
        gathered.append({"value": row} if isinstance(row, bytes | bytearray) else row.asDict())
        if len(gathered) == 1000:
            yield pa.RecordBatch.from_pylist(gathered)
            gathered = []
    if gathered:
        yield pa.RecordBatch.from_pylist(gathered)
