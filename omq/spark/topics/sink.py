"""A sink for topics: rows are staged by tasks and published by the commit, together and once; or published directly."""

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
from omq.spark.topics.catalog import named
from omq.spark.topics.settings import AT_LEAST_ONCE, TopicSettings

log = logging.getLogger("omq.spark")

STAGES: Final = 4096  # that one commit takes
ROUND: Final = 64 << 20  # bytes after which the answers to what was published are waited for
GATHERED: Final = 8 << 20  # bytes of records that are gathered for one of several topics
ALL_GATHERED: Final = 64 << 20  # bytes of all topics'

#: The types that a column may have, as Spark calls them; the first one is what messages say.
COLUMNS: Final = {
    "value": ("binary", "string"),
    "key": ("binary", "string"),
    "headers": ("map<string,binary>", "map<string,string>"),
    "topic": ("string",),
}


def check_rows(settings: TopicSettings, rows: StructType) -> None:
    """Raises where columns do not fit.

    Raises:
        OptionError: One is unknown, missing or of another type.
    """
    types = {one.name: one.dataType.simpleString() for one in rows.fields}
    for name, kind in types.items():
        if name not in COLUMNS:
            raise omq.OptionError(f"column {name!r}: a topic takes {', '.join(COLUMNS)}; select these")
        if kind not in COLUMNS[name]:
            raise omq.OptionError(f"column {name!r} is {kind}: it must be {' or '.join(COLUMNS[name])}")
    if len(types) < len(rows.fields):
        raise omq.OptionError("a column stands there twice")
    if "value" not in types:
        raise omq.OptionError("column 'value' is missing: the body of a message")
    if not settings.topics and "topic" not in types:
        raise omq.OptionError("neither option 'topic' nor a column 'topic' says where rows go")


def check_topic(settings: TopicSettings, client: Client) -> None:
    """Raises where the topic of the options is not there.

    Raises:
        TopicError: It is not.
        BrokerTimeout: The broker is not.
    """
    for name in settings.topics:
        with named(settings):
            try:
                client.topics(name)
            except TopicError:
                raise TopicError(
                    f"option topic={name!r}: {settings.endpoint} has no such topic; a sink makes none"
                ) from None


# ---------------------------------------------------------------------- from record batches


def records(batch: pa.RecordBatch) -> Iterator[Records]:
    """The messages of a batch, encoded."""
    names = batch.schema.names
    keys = _strings("key", batch.column("key")) if "key" in names and not _is_null(batch, "key") else None
    headers = None
    if "headers" in names and not _is_null(batch, "headers"):
        maps = batch.column("headers")
        valid, ends = maps.buffers()[:2]
        counts = Strings(ends, None, len(maps), valid=valid, start=maps.offset, counts=True)
        # What stands behind the map, whole: its own ends count from the beginning.
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
    """The messages of batches, each with the topic that its column says."""
    for batch in batches:
        column = batch.column("topic")
        if column.null_count:
            raise omq.OptionError("column 'topic' has a null: there is nowhere to send the row to")
        names = pc.unique(column).to_pylist()
        for name in names:
            part = batch if len(names) == 1 else batch.filter(pc.equal(column, name))
            for some in records(part):
                yield name, some


# ---------------------------------------------------------------------- tasks


@dataclass
class TaskCommit(WriterCommitMessage):
    """The work that a task has done.

    Attributes:
        scope: The query and the microbatch, or the job, that it belongs to.
        stages: The stages that wait for the commit.
        rows: How many rows it had for each topic.
        bytes: Bytes of their records.
        broker: The id of the broker's store that has the stages; empty if it has none.
    """

    scope: str
    stages: list[str] = field(default_factory=list)
    rows: Counter[str] = field(default_factory=Counter)
    bytes: int = 0
    broker: str = ""


class TaskAttempt:
    """The work of one attempt of a task.

    Args:
        settings: The options.
        client: A client of the broker.
        scope: What the commit is called by; `None` to publish without one.
    """

    def __init__(self, settings: TopicSettings, client: Client, scope: str | None) -> None:
        self._settings = settings
        self._client = client
        self._scope = scope
        self._stages: dict[str, tuple[str, int]] = {}  # name and next sequence, by topic
        context = TaskContext.get()
        partition, attempt = (0, 0) if context is None else (context.partitionId(), context.attemptNumber())
        # An attempt after a restart has the number of an earlier one, and may cut its rows elsewhere.
        self._name = f"{scope}/{partition}/{attempt}/{os.urandom(6).hex()}"
        self.sent = TaskCommit(scope or "")

    def write(self, batches: Iterator[pa.RecordBatch]) -> TaskCommit:
        """Stages or publishes all rows.

        Raises:
            OptionError: A row is no message.
            BrokerError: The broker refuses it, or is away for longer than `timeout`.
        """
        try:
            with named(self._settings):
                if self._settings.topics:
                    self._put(self._settings.topics[0], chain.from_iterable(map(records, batches)))
                else:
                    self._gather(by_topic(batches))
        except ValueError as error:
            self.forget()
            if isinstance(error, omq.OmqError):
                raise
            raise omq.OptionError(f"column 'value', 'key' or 'headers': {error}") from None
        except BrokerTimeout:
            raise  # what it has staged vanishes after a day
        except BaseException:
            self.forget()
            raise
        self.sent.stages = [name for name, _ in self._stages.values()]
        return self.sent

    def forget(self) -> None:
        """Drops what is staged, as far as the broker hears of it."""
        if self._stages:
            with contextlib.suppress(omq.OmqError):
                self._client.abort(f"{self._name}/", prefix=True)

    def _gather(self, found: Iterator[tuple[str, Records]]) -> None:
        waiting: dict[str, list[Records]] = {}
        sizes: dict[str, int] = {}
        for topic, some in found:
            waiting.setdefault(topic, []).append(some)
            sizes[topic] = sizes.get(topic, 0) + len(some.data)
            full = [topic] if sizes[topic] >= GATHERED else []
            for name in list(waiting) if sum(sizes.values()) >= ALL_GATHERED else full:
                self._put(name, iter(waiting.pop(name)))
                del sizes[name]
        for name, rest in waiting.items():
            self._put(name, iter(rest))

    def _put(self, topic: str, some: Iterator[Records]) -> None:
        try:
            if self._scope is None:
                while chunk := self._round(topic, some):
                    self._client.publish_many(topic, chunk)
                return
            if not self.sent.broker:
                self._client.topics(topic)  # which broker this is, it says with any answer
                self.sent.broker = self._client.broker
            name, sequence = self._stages.get(topic, (f"{self._name}/{len(self._stages)}", 1))
            # Noted before, for whatever happens meanwhile.
            self._stages[topic] = name, sequence
            after = self._client.stage(topic, self._counted(topic, some), name, sequence=sequence)
            self._check_broker()
            if after == 1:
                del self._stages[topic]  # no rows, no stage
            else:
                self._stages[topic] = name, after
        except TopicError as error:
            which = f"option topic={topic!r}" if self._settings.topics else f"column 'topic' with {topic!r}"
            raise TopicError(f"{which}: {error}") from None

    def _check_broker(self) -> None:
        """Raises where another broker has come meanwhile, which has only a part of what was staged."""
        if self.sent.broker != self._client.broker:
            where = self._settings.endpoint
            raise omq.StateError(f"another broker is at {where} now than the one at which this task began to stage")

    def _counted(self, topic: str, some: Iterator[Records]) -> Iterator[Records]:
        for one in some:
            self.sent.rows[topic] += one.count
            self.sent.bytes += len(one.data)
            yield one

    def _round(self, topic: str, some: Iterator[Records]) -> list[Records]:
        """Some of what is to be published; their ids need memory."""
        found: list[Records] = []
        left = ROUND
        for one in self._counted(topic, some):
            found.append(one)
            left -= len(one.data)
            if left <= 0:
                break
        return found


class TopicSink(SparkSink):
    """Stages rows, or publishes them."""

    def __init__(self, settings: TopicSettings) -> None:
        self._settings = settings
        # A microbatch has its name from Spark.
        self._job = f"{uuid.uuid4()}/batch" if settings.use == WRITE else None

    @property
    def _once(self) -> bool:
        return self._settings.delivery != AT_LEAST_ONCE

    @hidden_traceback()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        with self._settings.client() as client:
            return TaskAttempt(self._settings, client, self._scope() if self._once else None).write(iterator)

    def _scope(self) -> str:
        if self._job is not None:
            return self._job
        context = TaskContext.get()
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        if query is None or batch is None:
            raise omq.StateError("Spark does not say which query and which microbatch this task belongs to")
        return f"{query}/{batch}"

    @hidden_traceback()
    def commit(self, messages: list[Any], batchId: int = 0) -> None:  # noqa: N803 - Spark's name
        """Publishes what tasks have staged."""
        sent = [one for one in messages if one is not None]
        stages = [name for one in sent for name in one.stages]
        if not stages:
            return
        if len(stages) > STAGES:
            raise omq.OptionError(
                f"option delivery='exactly-once': one commit takes {STAGES} stages, one for each topic of a partition,"
                f" not {len(stages)}; coalesce the partitions"
            )
        begun = time.perf_counter()
        scope = sent[0].scope
        brokers = {one.broker for one in sent if one.stages}
        with named(self._settings), self._settings.client() as client:
            published = [] if len(brokers) > 1 else client.commit(scope, stages)
            if brokers != {client.broker}:
                where = self._settings.endpoint
                raise omq.StateError(
                    f"{scope}: another broker is at {where} now than the one at which tasks have staged"
                )
            repeated = not {one.stage for one in published}.issuperset(stages)
            # What is left of the query are copies: of a commit that was done before, of attempts that lost or died.
            client.abort(f"{scope.rpartition('/')[0]}/", prefix=True)
        rows: Counter[str] = sum((one.rows for one in sent), Counter())
        there: Counter[str] = Counter()
        for one in published:
            there[one.topic] += one.count
        if repeated:
            _check_repeated(scope, rows, +there)
        elif rows != +there:
            # Only where the topic's persistence allows it.
            log.error(
                "%s: staged were %s, and published %s: the broker has lost the others", scope, _said(rows), _said(there)
            )
        else:
            log.info("%s: %s published in %.3f s", scope, _said(rows), time.perf_counter() - begun)

    def abort(self, messages: list[Any], batchId: int = 0) -> None:  # noqa: N803
        """Forgets what tasks have staged, also those that have not told."""
        if not self._once:
            return
        scopes = {one.scope for one in messages if one is not None} | ({self._job} if self._job is not None else set())
        try:
            with self._settings.client() as client:
                for scope in scopes - {""}:
                    client.abort(f"{scope}/", prefix=True)
        except BrokerError as error:
            log.warning("what was staged stays for a day: %s", error)


def _check_repeated(scope: str, rows: Counter[str], there: Counter[str]) -> None:
    """Tells of a microbatch that was published before.

    Raises:
        StateError: Its rows were others then, or for other topics, or a topic was deleted since.
    """
    if rows != there:
        raise omq.StateError(
            f"{scope}: this microbatch was published before, with {_said(there)}, and has {_said(rows)} now, of which"
            " none is published: its checkpoint is a copy, and another query has gone on from it; or the query gives"
            " other rows each time it runs, or its options say another topic now. A new checkpoint begins a query that"
            " publishes anew, and option delivery='at-least-once' publishes whatever comes"
        )
    log.warning(
        "%s: this microbatch, with %s, was published before, and is not again: right where the query died between that"
        " and Spark's own note of it; where its checkpoint is a copy of another query's, its rows are passed over",
        scope,
        _said(rows),
    )


def _said(rows: Counter[str]) -> str:
    """Returns the counts of rows by topic, for messages."""
    shown = [
        f"{count} rows for {repr(name) if name else 'a topic that was deleted'}" for name, count in sorted(rows.items())
    ]
    return ", ".join(shown[:10]) + (f" and {len(shown) - 10} more topics" if len(shown) > 10 else "") or "no rows"


def checked_sink(settings: TopicSettings, rows: StructType) -> TopicSink:
    """Returns a sink for rows of a schema.

    Raises:
        OptionError: A column is missing, unknown, or has another type.
        TopicError: The topic of the options is not there.
        BrokerTimeout: The broker is not.
    """
    check_rows(settings, rows)
    with settings.client() as client:
        check_topic(settings, client)
    return TopicSink(settings)
