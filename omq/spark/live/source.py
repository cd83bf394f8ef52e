"""Live sockets as endpoints of the data source: PULL and SUB are read, PUSH and PUB are written."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

import omq
from omq.spark.errors import hidden_traceback
from omq.spark.live import receiver_client
from omq.spark.live.connection import read_once
from omq.spark.live.coordinator import Coordinator
from omq.spark.live.receiver import ReadRequest
from omq.spark.live.settings import SocketSettings
from omq.spark.live.sink import SocketSink, check_columns, send_through
from omq.spark.options import READ, WRITE
from omq.spark.provider import Provider

log = logging.getLogger("omq.spark")

VERSION: Final = 3  # of an offset in a checkpoint; before, it had the name of a stream
IDLE_WAIT_S: Final = 1.0  # for which Spark's question for the next microbatch waits until there is something


class SocketReader(DataSourceReader):
    """Reads once, until a bound is reached."""

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
        self._drains = False
        self._planned = 0  # the last microbatch that this run of the query has planned
        self._committed = 0  # the last one that is known to be committed
        self._coordinator: Coordinator | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names, here and below
        return _offset(0)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable()  # the receivers decide how much a microbatch takes: they see the data

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._drains = True

    @hidden_traceback()
    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:  # noqa: N802
        number = _number(start) if start else 0
        # Spark asks when it has committed a microbatch; its `commit` comes only with the next one.
        self.commit(_offset(number))
        reports = self._reports()
        goes_on = True
        # The first microbatch of a run has the receivers started.
        if self._coordinator is not None and self._planned == number:
            if self._drains:
                # Somewhere there was no more room in it.
                goes_on = any(one["bounded"] and one["microbatch"] == number for one in reports if "microbatch" in one)
            else:
                seconds = min(self._settings.max_seconds or IDLE_WAIT_S, IDLE_WAIT_S)
                goes_on = self._coordinator.wait_ready(len(self._settings.endpoints), seconds)
        if goes_on:
            self._planned = number + 1
        return _offset(number + goes_on)

    @hidden_traceback()
    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Returns what Spark shows as `latestOffset` in a query's progress: the reports of the receivers."""
        return {"kind": "live", "partitions": sorted(self._reports(), key=lambda one: str(one["connection"]))}

    @hidden_traceback()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Any:
        after, number = _number(start), _number(end)
        if after > number:
            raise omq.StateError(f"the checkpoint goes backwards, from {start} to {end}")
        if number != self._planned:
            self._planned = number
            log.warning(
                "microbatch %d was planned by a former run of the query, and is read again: if that run had read"
                " anything for it, that is lost",
                number,
            )
        if self._coordinator is None:
            self._coordinator = Coordinator()
        address, secret = self._coordinator.address, self._coordinator.secret
        return [
            ReadRequest(f"{endpoint} #{index}", endpoint, after, number, self._drains, address, secret)
            for index, endpoint in enumerate(self._settings.endpoints)
        ]

    def read(self, partition: Any) -> Iterator[Any]:
        with hidden_traceback():
            yield from receiver_client.read(self._settings, partition)

    @hidden_traceback()
    def commit(self, end: dict[str, Any]) -> None:
        self._committed = max(self._committed, _number(end))
        if self._coordinator is not None:
            self._coordinator.commit(self._committed)

    def _reports(self) -> list[dict[str, Any]]:
        """Returns the reports of the receivers, and logs what was lost with one.

        Raises:
            StateError: One was, and that is to be an error.
        """
        if self._coordinator is None:
            return []
        reports, lost = self._coordinator.status()
        for one in lost:
            text = _lost(one, self._committed)
            if self._settings.fail_on_data_loss:
                raise omq.StateError(f"{text} (failOnDataLoss=true)")
            log.warning("%s", text)
        return reports


def _offset(number: int) -> dict[str, Any]:
    # Spark compares offsets as text, so their keys are sorted.
    return {"kind": "live", "microbatch": number, "version": VERSION}


def _number(offset: Mapping[str, Any]) -> int:
    """Returns the number of the microbatch."""
    if offset.get("kind") != "live" or offset.get("version") != VERSION:
        raise omq.StateError(f"the checkpoint is of another kind of source: {dict(offset)}")
    return int(offset["microbatch"])


def _lost(report: dict[str, Any], committed: int) -> str:
    """Returns what was lost with a receiver that has died.

    Args:
        report: Its last report, which may be half a second old.
        committed: The last microbatch that Spark has committed.
    """
    text = f"{report.get('endpoint', report['connection'])}: the receiver has died"
    if report.get("microbatch") is None:
        return f"{text}; what had arrived there is lost"
    # What its tasks have had of a microbatch that is committed is not lost.
    done = report["microbatch"] <= committed
    return (
        f"{text}; lost are about {report['unread' if done else 'rows']} messages of microbatch {report['microbatch']},"
        f" and {report['waiting']} that had arrived, by its last report: a lower bound, without what came later and"
        " what was in the kernel's buffers"
    )


PROVIDER: Final = Provider(
    SocketSettings, SocketReader, SocketStreamReader, SocketSink, "what a socket has sent cannot be replaced"
)


# ---------------------------------------------------------------------- for stages of a user's own


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
    """Yields what arrives as record batches, until a bound is reached; for `mapInArrow` and similar methods.

    Args:
        **given: The options of `spark.read.format("omq")`: `socket`, `connect` or `bind` with one endpoint, and
            at least one of `maxRows`, `maxBytes`, `maxSeconds`.

    Raises:
        OptionError: An option is unknown or missing, does not fit, or there are several endpoints.
    """
    found = _parsed(READ, given)
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
    found = _parsed(WRITE, given)

    def checked() -> Iterator[pa.RecordBatch]:
        for batch in _batched(rows):
            check_columns(found, dict.fromkeys(batch.schema.names))
            yield batch

    sent = send_through(found, checked())
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
