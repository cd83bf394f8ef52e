"""Writes rows to topics: exactly once, staged by tasks and published by the commit, or at least once, directly."""

from __future__ import annotations

import contextlib
import logging
import os
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

import omq
from omq.broker import BrokerError, BrokerTimeout, Client, Records, TopicError
from omq.broker.columns import Strings, encode_columns
from omq.spark.errors import hidden_traceback
from omq.spark.options import WRITE
from omq.spark.provider import SparkSink
from omq.spark.topics.catalog import describe_timeout
from omq.spark.topics.settings import AT_LEAST_ONCE, TopicSettings

log = logging.getLogger("omq.spark")

MAX_STAGES: Final = 4096  # of one commit
MAX_UNCONFIRMED_BYTES: Final = 64 << 20  # published before the answers are awaited
MAX_TOPIC_BUFFER_BYTES: Final = 8 << 20  # buffered records of one of several topics
MAX_BUFFER_BYTES: Final = 64 << 20  # buffered records of all topics

#: The Spark types that a column may have.
COLUMNS: Final = {
    "value": ("binary", "string"),
    "key": ("binary", "string"),
    "headers": ("map<string,binary>", "map<string,string>"),
    "topic": ("string",),
}


def check_rows(settings: TopicSettings, rows: StructType) -> None:
    """Checks the columns of rows.

    Raises:
        OptionError: A column is unknown, missing or of another type.
    """
    types = {one.name: one.dataType.simpleString() for one in rows.fields}
    for name, kind in types.items():
        if name not in COLUMNS:
            raise omq.OptionError(f"column {name!r}: a topic takes {', '.join(COLUMNS)}; select these")
        if kind not in COLUMNS[name]:
            raise omq.OptionError(f"column {name!r} is {kind}: it must be {' or '.join(COLUMNS[name])}")
    if len(types) < len(rows.fields):
        raise omq.OptionError("two columns have the same name")
    if "value" not in types:
        raise omq.OptionError("column 'value' is missing: the body of a message")
    if not settings.topics and "topic" not in types:
        raise omq.OptionError("option 'topic' or a column 'topic' is missing: the topic of the rows")


def check_topic(settings: TopicSettings, client: Client) -> None:
    """Checks that the topic of the options exists.

    Raises:
        TopicError: The topic does not exist.
        BrokerTimeout: The broker does not answer.
    """
    for name in settings.topics:
        with describe_timeout(settings):
            try:
                client.topics(name)
            except TopicError:
                raise TopicError(
                    f"option {settings.chosen}: {settings.endpoint} has no such topic; a sink does not create topics"
                ) from None


# ---------------------------------------------------------------------- from record batches


def records(batch: pa.RecordBatch) -> Iterator[Records]:
    """Yields the encoded messages of a batch."""
    names = batch.schema.names
    keys = _strings("key", batch.column("key")) if "key" in names and not _is_null(batch, "key") else None
    headers = None
    if "headers" in names and not _is_null(batch, "headers"):
        maps = batch.column("headers")
        valid, ends = maps.buffers()[:2]
        counts = Strings(ends, None, len(maps), valid=valid, start=maps.offset, counts=True)
        # The whole child arrays, because the map's offsets count from their beginning.
        headers = (counts, _strings("headers", maps.keys), _strings("headers", maps.items))
    yield from encode_columns(_strings("value", batch.column("value")), keys=keys, headers=headers)


def _is_null(batch: pa.RecordBatch, name: str) -> bool:
    column = batch.column(name)
    return bool(column.null_count == len(column))


def _strings(name: str, column: pa.Array) -> Strings:
    kind = column.type
    wide = pa.types.is_large_binary(kind) or pa.types.is_large_string(kind)
    if not (wide or pa.types.is_binary(kind) or pa.types.is_string(kind)):
        raise omq.OptionError(f"column {name!r} is {kind}: it must be binary or string")
    valid, ends, data = column.buffers()
    if len(column) == 0:
        ends, valid, data = bytes(8), None, None
        return Strings(ends, data, 0, wide=wide)
    return Strings(ends, data, len(column), valid=valid, start=column.offset, wide=wide)


def by_topic(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[str, Records]]:
    """Yields the encoded messages of batches with their topics, from the column `topic`."""
    for batch in batches:
        column = batch.column("topic")
        if column.null_count:
            raise omq.OptionError("column 'topic' has a null: the row has no topic")
        names = pc.unique(column).to_pylist()
        for name in names:
            part = batch if len(names) == 1 else batch.filter(pc.equal(column, name))
            for encoded in records(part):
                yield name, encoded


# ---------------------------------------------------------------------- tasks


@dataclass
class TaskCommit(WriterCommitMessage):
    """The result of a task.

    Attributes:
        scope: The query and the microbatch, or the job, that it belongs to.
        stages: The names of its stages, for the commit.
        rows: The count of its rows, by topic.
        bytes: The bytes of their records.
        broker: The id of the broker's store that has the stages; empty without stages.
    """

    scope: str
    stages: list[str] = field(default_factory=list)
    rows: Counter[str] = field(default_factory=Counter)
    bytes: int = 0
    broker: str = ""


class TaskAttempt:
    """One attempt of a task.

    Args:
        settings: The options.
        client: A client of the broker.
        scope: The name of the commit; `None` to publish directly.
    """

    def __init__(self, settings: TopicSettings, client: Client, scope: str | None) -> None:
        self._settings = settings
        self._client = client
        self._scope = scope
        self._stages: dict[str, tuple[str, int]] = {}  # name and next sequence, by topic
        context = TaskContext.get()
        partition, attempt = (0, 0) if context is None else (context.partitionId(), context.attemptNumber())
        # After a restart an attempt repeats the number of an earlier one, and its batches may differ.
        self._name = f"{scope}/{partition}/{attempt}/{os.urandom(6).hex()}"
        self.sent = TaskCommit(scope or "")

    def write(self, batches: Iterator[pa.RecordBatch]) -> TaskCommit:
        """Stages or publishes all rows.

        Raises:
            OptionError: A row is not a valid message.
            BrokerError: The broker refuses a message, or does not answer within `timeout`.
            StateError: Another broker answers than the one that has the first stage.
        """
        try:
            with describe_timeout(self._settings):
                if self._settings.topics:
                    self._write_topic(self._settings.topics[0], chain.from_iterable(map(records, batches)))
                else:
                    self._write_by_topic(by_topic(batches))
        except ValueError as error:
            self.abort_stages()
            if isinstance(error, omq.OmqError):
                raise
            raise omq.OptionError(f"column 'value', 'key' or 'headers': {error}") from None
        except BrokerTimeout:
            raise  # the broker drops its stages after a day
        except BaseException:
            self.abort_stages()
            raise
        self.sent.stages = [name for name, _ in self._stages.values()]
        return self.sent

    def abort_stages(self) -> None:
        """Aborts the stages, if the broker can be reached."""
        if self._stages:
            with contextlib.suppress(omq.OmqError):
                self._client.abort(f"{self._name}/", prefix=True)

    def _write_by_topic(self, found: Iterator[tuple[str, Records]]) -> None:
        buffered: dict[str, list[Records]] = {}
        sizes: dict[str, int] = {}
        for topic, encoded in found:
            buffered.setdefault(topic, []).append(encoded)
            sizes[topic] = sizes.get(topic, 0) + len(encoded.data)
            full = [topic] if sizes[topic] >= MAX_TOPIC_BUFFER_BYTES else []
            for name in list(buffered) if sum(sizes.values()) >= MAX_BUFFER_BYTES else full:
                self._write_topic(name, iter(buffered.pop(name)))
                del sizes[name]
        for name, remaining in buffered.items():
            self._write_topic(name, iter(remaining))

    def _write_topic(self, topic: str, encoded: Iterator[Records]) -> None:
        try:
            if self._scope is None:
                while chunk := self._next_chunk(topic, encoded):
                    self._client.publish_many(topic, chunk)
                return
            if not self.sent.broker:
                self._client.topics(topic)  # any answer has the broker's id
                self.sent.broker = self._client.broker
            name, sequence = self._stages.get(topic, (f"{self._name}/{len(self._stages)}", 1))
            # Before the call, so that an error aborts this stage, too.
            self._stages[topic] = name, sequence
            after = self._client.stage(topic, self._count_rows(topic, encoded), name, sequence=sequence)
            self._check_broker()
            if after == 1:
                del self._stages[topic]  # no rows, no stage
            else:
                self._stages[topic] = name, after
        except TopicError as error:
            which = f"option {self._settings.chosen}" if self._settings.topics else f"column 'topic' with {topic!r}"
            raise TopicError(f"{which}: {error}") from None

    def _check_broker(self) -> None:
        """Raises a `StateError` if another broker has answered, which does not have all stages."""
        if self.sent.broker != self._client.broker:
            where = self._settings.endpoint
            raise omq.StateError(f"another broker is now at {where} than the one at which this task began to stage")

    def _count_rows(self, topic: str, encoded: Iterator[Records]) -> Iterator[Records]:
        for one in encoded:
            self.sent.rows[topic] += one.count
            self.sent.bytes += len(one.data)
            yield one

    def _next_chunk(self, topic: str, encoded: Iterator[Records]) -> list[Records]:
        """Returns the next records to publish. A limit keeps their ids from filling the memory."""
        found: list[Records] = []
        left = MAX_UNCONFIRMED_BYTES
        for one in self._count_rows(topic, encoded):
            found.append(one)
            left -= len(one.data)
            if left <= 0:
                break
        return found


class TopicSink(SparkSink):
    """Writes rows to topics: stages them for a commit, or publishes them directly."""

    def __init__(self, settings: TopicSettings) -> None:
        self._settings = settings
        # Spark names microbatches, not jobs.
        self._job = f"{uuid.uuid4()}/batch" if settings.use == WRITE else None

    @property
    def _is_exactly_once(self) -> bool:
        return self._settings.delivery != AT_LEAST_ONCE

    @hidden_traceback()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        with self._settings.client() as client:
            return TaskAttempt(self._settings, client, self._scope() if self._is_exactly_once else None).write(iterator)

    def _scope(self) -> str:
        if self._job is not None:
            return self._job
        context = TaskContext.get()
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        if query is None or batch is None:
            raise omq.StateError("Spark has not named the query and the microbatch of this task")
        return f"{query}/{batch}"

    @hidden_traceback()
    def commit(self, messages: list[Any], batchId: int = 0) -> None:  # noqa: N803 - Spark's name
        """Publishes the stages of all tasks."""
        sent = [one for one in messages if one is not None]
        stages = [name for one in sent for name in one.stages]
        if not stages:
            return
        if len(stages) > MAX_STAGES:
            raise omq.OptionError(
                f"option delivery='exactly-once': one commit takes {MAX_STAGES} stages, one per topic of a partition,"
                f" not {len(stages)}; coalesce the partitions"
            )
        started_at = time.perf_counter()
        scope = sent[0].scope
        brokers = {one.broker for one in sent if one.stages}
        with describe_timeout(self._settings), self._settings.client() as client:
            published = [] if len(brokers) > 1 else client.commit(scope, stages)
            if brokers != {client.broker}:
                where = self._settings.endpoint
                raise omq.StateError(
                    f"{scope}: another broker is now at {where} than the one at which tasks have staged"
                )
            repeated = not {one.stage for one in published}.issuperset(stages)
            # The query's other stages are copies, of a repeated commit or of attempts that failed.
            client.abort(f"{scope.rpartition('/')[0]}/", prefix=True)
        rows: Counter[str] = sum((one.rows for one in sent), Counter())
        published_rows: Counter[str] = Counter()
        for one in published:
            published_rows[one.topic] += one.count
        if repeated:
            _check_repeated(scope, rows, +published_rows)
        elif rows != +published_rows:
            # Possible only if the topic's persistence is not strong.
            log.error(
                "%s: tasks have staged %s, and the broker has published %s: it has lost the others",
                scope,
                _row_counts(rows),
                _row_counts(published_rows),
            )
        else:
            log.info("%s: published %s in %.3f s", scope, _row_counts(rows), time.perf_counter() - started_at)

    def abort(self, messages: list[Any], batchId: int = 0) -> None:  # noqa: N803
        """Aborts the stages of all tasks, including those that have not reported.

        If no task of a microbatch has reported, the broker drops its stages after a day.
        """
        if not self._is_exactly_once:
            return
        scopes = {one.scope for one in messages if one is not None} | ({self._job} if self._job is not None else set())
        try:
            with self._settings.client() as client:
                for scope in scopes - {""}:
                    client.abort(f"{scope}/", prefix=True)
        except BrokerError as error:
            log.warning("the stages of a failed write stay at the broker for a day: %s", error)


def _check_repeated(scope: str, rows: Counter[str], published_rows: Counter[str]) -> None:
    """Reports a microbatch that was published before.

    Raises:
        StateError: The microbatch had other rows or topics, or a topic has been deleted.
    """
    if rows != published_rows:
        raise omq.StateError(
            f"{scope}: this microbatch was published before, with {_row_counts(published_rows)}. It now has"
            f" {_row_counts(rows)}, which are not published. Either its checkpoint is a copy, and another query"
            " has continued from it; or the query has other rows each time it runs, or its options name another"
            " topic now. A new checkpoint publishes all rows again, and option delivery='at-least-once' publishes"
            " without this check"
        )
    log.warning(
        "%s: this microbatch, with %s, was published before, and is not published again. This is right if the query"
        " died after the publish and before Spark's commit; if its checkpoint is a copy, its rows are skipped",
        scope,
        _row_counts(rows),
    )


def _row_counts(rows: Counter[str]) -> str:
    """Returns the counts of rows by topic, for messages."""
    shown = [
        f"{count} rows for {repr(name) if name else 'a topic that was deleted'}" for name, count in sorted(rows.items())
    ]
    return ", ".join(shown[:10]) + (f" and {len(shown) - 10} more topics" if len(shown) > 10 else "") or "no rows"


def checked_sink(settings: TopicSettings, rows: StructType) -> TopicSink:
    """Returns a sink for rows of a schema.

    Raises:
        OptionError: A column is missing, unknown, or has another type.
        TopicError: The topic of the options does not exist.
        BrokerTimeout: The broker does not answer.
    """
    check_rows(settings, rows)
    with settings.client() as client:
        check_topic(settings, client)
    return TopicSink(settings)
