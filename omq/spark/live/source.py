"""Live sockets as endpoints of the data source: PULL and SUB are read, PUSH and PUB are written."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

import omq
from omq.spark.errors import check_offset, hidden_traceback
from omq.spark.live import receiver_client
from omq.spark.live.connection import read_once
from omq.spark.live.coordinator import Coordinator
from omq.spark.live.receiver import ReadRequest
from omq.spark.live.settings import SocketSettings
from omq.spark.live.sink import SocketSink, check_columns, send_through
from omq.spark.options import READ, WRITE
from omq.spark.provider import Provider

log = logging.getLogger("omq.spark")

KIND: Final = "live"
OFFSET_VERSION: Final = 3  # of an offset in a checkpoint
MAX_IDLE_WAIT_S: Final = 1.0  # of `latestOffset`, for messages
ROWS_PER_BATCH: Final = 1000  # that `push_partition` sends at a time


class SocketReader(DataSourceReader):
    """Reads a batch, until a limit is reached."""

    def __init__(self, settings: SocketSettings) -> None:
        self._settings = settings

    def partitions(self) -> Any:
        return [InputPartition(endpoint) for endpoint in self._settings.endpoints]

    def read(self, partition: Any) -> Iterator[Any]:
        with hidden_traceback():
            yield from read_once(self._settings, partition.value)


class SocketStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads in microbatches. An offset is the number of a microbatch."""

    def __init__(self, settings: SocketSettings) -> None:
        self._settings = settings
        self._available_now = False
        self._planned = 0  # the last microbatch that this run has planned
        self._committed = 0  # the last microbatch that is known to be committed
        self._coordinator: Coordinator | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names, here and below
        return _offset(0)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable()  # the receivers apply the limits

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._available_now = True

    @hidden_traceback()
    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:  # noqa: N802
        number = _microbatch_number(start) if start else 0
        # Spark calls this after a commit, but `commit` only with the next microbatch.
        self.commit(_offset(number))
        # Also refreshes the readiness of the receivers for `wait_ready`: their last reports may precede the commit.
        reports = self._reports()
        self._check_lost()
        has_next = True
        # The first microbatch of a run starts the receivers.
        if self._coordinator is not None and self._planned == number:
            if self._available_now:
                # A receiver has more than its limit.
                has_next = any(one["bounded"] and one["microbatch"] == number for one in reports if "microbatch" in one)
            else:
                seconds = min(self._settings.max_seconds or MAX_IDLE_WAIT_S, MAX_IDLE_WAIT_S)
                has_next = self._coordinator.wait_ready(len(self._settings.endpoints), seconds)
        if has_next:
            self._planned = number + 1
        return _offset(number + has_next)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Returns the reports of the receivers, which Spark shows as `latestOffset` in a query's progress."""
        # A loss is left to `latestOffset`: a report must not fail the query.
        return {"kind": KIND, "partitions": sorted(self._reports(), key=lambda one: str(one["connection"]))}

    @hidden_traceback()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Any:
        after, number = _microbatch_number(start), _microbatch_number(end)
        if after > number:
            raise omq.StateError(
                f"the checkpoint goes backwards, from microbatch {after} to {number}; it is damaged: use a new one"
            )
        if number != self._planned:
            self._planned = number
            log.warning(
                "microbatch %d was planned by an earlier run of the query, and is read again; messages that the earlier"
                " run had read for it are lost",
                number,
            )
        if self._coordinator is None:
            self._coordinator = Coordinator()
        address, secret = self._coordinator.address, self._coordinator.secret
        return [
            ReadRequest(f"{endpoint} #{index}", endpoint, after, number, self._available_now, address, secret)
            for index, endpoint in enumerate(self._settings.endpoints)
        ]

    def read(self, partition: Any) -> Iterator[Any]:
        with hidden_traceback():
            yield from receiver_client.read(self._settings, partition)

    @hidden_traceback()
    def commit(self, end: dict[str, Any]) -> None:
        self._committed = max(self._committed, _microbatch_number(end))
        if self._coordinator is not None:
            self._coordinator.commit(self._committed)

    def _reports(self) -> list[dict[str, Any]]:
        return [] if self._coordinator is None else self._coordinator.status()

    def _check_lost(self) -> None:
        """Logs the loss of receivers that have died.

        Raises:
            StateError: A receiver has died, and `failOnDataLoss` is true.
        """
        if self._coordinator is None:
            return
        for one in self._coordinator.take_lost():
            text = _loss_text(one, self._committed)
            if self._settings.fail_on_data_loss:
                raise omq.StateError(f"{text} (failOnDataLoss=true)")
            log.warning("%s", text)


def _offset(number: int) -> dict[str, Any]:
    # Spark compares offsets as text, so their keys are sorted.
    return {"kind": KIND, "microbatch": number, "version": OFFSET_VERSION}


def _microbatch_number(offset: dict[str, Any]) -> int:
    """Returns the number of the microbatch in an offset.

    Raises:
        StateError: The checkpoint belongs to another kind of source, or is damaged.
    """
    check_offset(offset, KIND, OFFSET_VERSION, "a live socket")
    number = offset.get("microbatch")
    if type(number) is not int or number < 0:
        raise omq.StateError(f"the checkpoint has a damaged offset: {offset}")
    return number


def _loss_text(report: dict[str, Any], committed: int) -> str:
    """Returns the text about a receiver that has died, from its last report, which may be half a second old."""
    text = f"{report.get('endpoint', report['connection'])}: the receiver has died"
    if report.get("microbatch") is None:
        return f"{text}; the messages that had arrived there are lost"
    # Of a committed microbatch, only the messages that no task has read are lost.
    is_committed = report["microbatch"] <= committed
    return (
        f"{text}; about {report['unread' if is_committed else 'rows']} messages of microbatch {report['microbatch']}"
        f" are lost, and {report['waiting']} that had arrived, by its last report. This is a lower bound: later"
        " messages and those in the kernel's buffers are not counted"
    )


PROVIDER: Final = Provider(
    SocketSettings, SocketReader, SocketStreamReader, SocketSink, "messages that a socket has sent cannot be replaced"
)


# ---------------------------------------------------------------------- functions for Spark's tasks


def _parsed(use: str, given: dict[str, Any]) -> SocketSettings:
    return SocketSettings.parse(use, {name: _text(value) for name, value in given.items()})


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, list | tuple):
        return ",".join(map(_text, value))
    return str(value)


def pull_batches(**given: Any) -> Iterator[pa.RecordBatch]:
    """Yields the messages of a socket as record batches, until a limit is reached; for `mapInArrow` and the like.

    Args:
        **given: The options of `spark.read.format("omq")`: `socket`, `connect` or `bind` with one endpoint, and
            at least one of `maxRows`, `maxBytes`, `maxSeconds`.

    Raises:
        OptionError: An option is unknown, missing or not valid, or there are several endpoints.
    """
    found = _parsed(READ, given)
    if len(found.endpoints) != 1:
        raise omq.OptionError(f"pull_batches: {len(found.endpoints)} endpoints; give one per call")
    return read_once(found, found.endpoints[0])


def push_partition(rows: Iterable[Any], **given: Any) -> Iterator[pa.RecordBatch]:
    """Sends the rows of a partition and waits until they have left; for `foreachPartition` and `mapInArrow`.

    Args:
        rows: Record batches or Rows with the columns `value` or `parts`, and `topic` for a PUB; or the bytes of one
            message each.
        **given: The options of `write.format("omq")`.

    Returns:
        One record batch of one row: the counts `rows` and `bytes` (both bigint).

    Raises:
        OptionError: An option or a column is unknown, missing or not valid.
        SendTimeout: A PUSH has had no room for `send_timeout`, or rows were still queued after `linger`.
    """
    found = _parsed(WRITE, given)

    def checked() -> Iterator[pa.RecordBatch]:
        for batch in _batched(rows):
            check_columns(found, dict.fromkeys(batch.schema.names))
            yield batch

    sent = send_through(found, checked())
    return iter([pa.RecordBatch.from_pydict({"rows": [sent.rows], "bytes": [sent.bytes]})])


def _batched(rows: Iterable[Any]) -> Iterator[pa.RecordBatch]:
    """Yields record batches of rows, and record batches as they are."""
    gathered: list[Any] = []
    for row in rows:
        if isinstance(row, pa.RecordBatch):
            yield row
            continue
        gathered.append({"value": row} if isinstance(row, bytes | bytearray) else row.asDict())
        if len(gathered) == ROWS_PER_BATCH:
            yield pa.RecordBatch.from_pylist(gathered)
            gathered = []
    if gathered:
        yield pa.RecordBatch.from_pylist(gathered)
