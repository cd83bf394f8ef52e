"""Reads of topics for Spark, as a batch or as a stream."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

import omq
from omq.broker import TopicInfo
from omq.spark.errors import hidden_traceback
from omq.spark.provider import Provider
from omq.spark.topics.catalog import TopicCatalog, describe_timeout, report_loss, stream_offset
from omq.spark.topics.offsets import Offset, TopicOffset, TopicRange, allocate, split
from omq.spark.topics.read import read
from omq.spark.topics.settings import TopicSettings
from omq.spark.topics.sink import checked_sink


class TopicReader(DataSourceReader):
    """Reads topics once, between bounds that are resolved when Spark plans the read."""

    def __init__(self, settings: TopicSettings) -> None:
        self._settings = settings

    @hidden_traceback()
    def partitions(self) -> Any:
        settings = self._settings
        catalog = TopicCatalog(settings)
        try:
            broker, infos = catalog.required_topics()
            starts, stops = catalog.starts(infos), catalog.stops(infos)
            for name, start in starts.items():
                if start > stops[name] and settings.starting_timestamp is None:
                    raise omq.OptionError(
                        f"option startingOffsets={start} of topic {name!r} is after endingOffsets={stops[name]}"
                    )
            stops = {name: max(stop, starts[name]) for name, stop in stops.items()}
            begin, end = stream_offset(broker, infos, starts), stream_offset(broker, infos, stops)
            found = split(catalog.ranges(begin, end, broker, infos), settings.min_partitions)
        finally:
            catalog.close()
        # Spark replaces an empty list by a partition without a range.
        return found or [TopicRange("", 0, 0, 0)]

    def read(self, partition: Any) -> Iterator[Any]:
        with hidden_traceback():
            if len(partition):
                yield from read(self._settings, partition)


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads in microbatches. An offset is the next id of each topic, so every microbatch can be read again."""

    def __init__(self, settings: TopicSettings) -> None:
        self._settings = settings
        self._catalog = TopicCatalog(settings)
        self._initial: Offset | None = None  # the initial offset; unknown after a restart from a checkpoint
        self._available_now: dict[str, TopicOffset] | None = None  # the end of Trigger.AvailableNow
        self._planned: Offset | None = None  # the end of the last microbatch
        self._latest: Offset | None = None  # the end of the topics at that time
        self._last_batch_at = time.monotonic()  # the time of the last microbatch
        self._new_topics: dict[str, int] = {}  # ids of later topics that have the subscription

    # ------------------------------------------------------------------ offsets

    @hidden_traceback()
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names, here and below
        broker, infos = self._catalog.required_topics()
        self._initial = stream_offset(broker, infos, self._catalog.stream_starts(infos))
        return self._initial.json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        # Whichever limit Spark passes back, all limits of the options apply.
        settings = self._settings
        if settings.max_rows is not None:
            return ReadMaxRows(settings.max_rows)
        if settings.max_bytes is not None:
            return ReadMaxBytes(settings.max_bytes)
        return ReadAllAvailable() if settings.min_rows is None else ReadMinRows(settings.min_rows)

    @hidden_traceback()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        _, infos = self._catalog.topics()
        self._available_now = {name: TopicOffset(info.id, info.last + 1) for name, info in infos.items()}

    @hidden_traceback()
    def latestOffset(self, start: Any, limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        begin = Offset.parse(start)
        broker, infos = self._catalog.topics()
        offsets = self._resume(begin, broker, infos)
        self._move_cursors(begin, broker, infos)
        known = {(begin.broker, name, offset.topic_id) for name, offset in begin.topics.items()}
        self._create_cursors(
            {name: offset for name, offset in offsets.items() if (broker, name, offset.topic_id) not in known}
        )
        ends = {name: max(self._end(infos[name]), offset.next) for name, offset in offsets.items()}
        self._latest = Offset(broker, {name: TopicOffset(infos[name].id, end) for name, end in ends.items()})
        chosen = self._limited(offsets, ends, infos, limit)
        # A new, empty topic does not start a microbatch.
        found = {
            name: replace(offset, next=chosen[name])
            for name, offset in offsets.items()
            if name in begin.topics or chosen[name] > 1
        }
        self._planned = Offset(broker, found)
        if self._planned != begin:
            self._last_batch_at = time.monotonic()
        elif not self._is_first(begin):
            return begin.json()  # with its own start: Spark compares texts
        return self._planned.json()

    def _is_first(self, begin: Offset) -> bool:
        """Returns whether this is the initial offset, not the end of an empty microbatch."""
        return begin == self._initial and all(offset.begin is None for offset in begin.topics.values())

    def _resume(self, begin: Offset, broker: str, infos: Mapping[str, TopicInfo]) -> dict[str, TopicOffset]:
        """Returns the next offset of each topic of the query, and reports messages that can no longer be read."""
        settings = self._settings
        found: dict[str, TopicOffset] = {}
        is_first = self._is_first(begin)
        if begin.broker != broker and begin.topics:
            report_loss(
                settings, f"option connect={settings.endpoint!r}: the checkpoint belongs to another broker's topics"
            )
        if self._planned is None:
            self._catalog.check_names(infos, begin.topics)
        for name, offset in begin.topics.items():
            info = infos.get(name)
            if begin.broker == broker and info is not None and info.id == offset.topic_id:
                found[name] = replace(offset, begin=offset.next if is_first else None)
                # With other persistence, a broker that was killed skips ids, so its last id may be below.
                if info.persistence == "strong" and offset.next > info.last + 1:
                    text = f"topic {name!r} ends with id {info.last}, and the query has read up to id {offset.next - 1}"
                    report_loss(
                        settings, f"{text}: the broker's store is an older copy, and the messages after that are lost"
                    )
                    found[name] = TopicOffset(info.id, info.last + 1, info.last + 1)
            elif begin.broker == broker:
                why = self._catalog.missing(name, info)
                report_loss(settings, f"{why}: messages after id {offset.next - 1} are not read")
        for name, info in infos.items():
            earliest = max(info.first, 1)
            found.setdefault(name, TopicOffset(info.id, earliest, earliest))
        return found

    def _move_cursors(self, begin: Offset, broker: str, infos: Mapping[str, TopicInfo]) -> None:
        """Moves the subscription to the end of the last microbatch, which Spark has committed before this call.

        Spark's own call of `commit` comes with the next microbatch, which an idle topic never has.
        """
        if begin.broker == broker and not self._is_first(begin):
            counts = {
                name: one for name, one in begin.topics.items() if name in infos and infos[name].id == one.topic_id
            }
            self._catalog.move_cursors(Offset(broker, counts))

    def _create_cursors(self, new: Mapping[str, TopicOffset]) -> None:
        """Creates the subscription in later topics, before any of their messages is read."""
        if self._settings.subscription is not None:
            self._catalog.create_cursors(
                {name: offset.next for name, offset in new.items() if self._new_topics.get(name) != offset.topic_id}
            )
            self._new_topics.update((name, offset.topic_id) for name, offset in new.items())

    def _end(self, info: TopicInfo) -> int:
        """Returns the end of a topic: the id after the last one, or the end of Trigger.AvailableNow."""
        if self._available_now is None:
            return info.last + 1
        until = self._available_now.get(info.name)
        return until.next if until is not None and until.topic_id == info.id else 1

    def _limited(
        self,
        offsets: Mapping[str, TopicOffset],
        ends: Mapping[str, int],
        infos: Mapping[str, TopicInfo],
        limit: ReadLimit,
    ) -> dict[str, int]:
        """Returns the ends of a microbatch within the limits."""
        settings = self._settings
        # Messages that retention has deleted do not count.
        begins = {name: min(max(offset.next, infos[name].first), ends[name]) for name, offset in offsets.items()}
        if isinstance(limit, ReadAllAvailable):
            return dict(ends)
        names = list(offsets)
        if settings.max_rows is not None:
            begins |= self._skip_gaps(begins, ends, infos, settings.max_rows)
        counts = [ends[name] - begins[name] for name in names]
        is_waiting = time.monotonic() - self._last_batch_at < settings.max_trigger_delay and self._available_now is None
        if settings.min_rows is not None and sum(counts) < settings.min_rows and is_waiting:
            return {name: offset.next for name, offset in offsets.items()}
        if settings.max_rows is not None:
            counts = allocate(counts, settings.max_rows)
        found = {name: begins[name] + rows for name, rows in zip(names, counts, strict=True)}
        return found if settings.max_bytes is None else self._in_bytes(begins, found, infos, settings.max_bytes)

    def _skip_gaps(
        self, begins: Mapping[str, int], ends: Mapping[str, int], infos: Mapping[str, TopicInfo], limit: int
    ) -> dict[str, int]:
        """Returns the first ids with messages; a broker that was killed may have skipped a million ids."""
        found: dict[str, int] = {}
        with describe_timeout(self._settings):
            for name, begin in begins.items():
                if ends[name] - begin > limit and infos[name].persistence != "strong":
                    found[name] = max(self._catalog.client.offset_after(name, begin, ends[name], 1) - 1, begin)
        return found

    def _in_bytes(
        self, begins: Mapping[str, int], ends: Mapping[str, int], infos: Mapping[str, TopicInfo], limit: int
    ) -> dict[str, int]:
        """Divides *limit* bytes among topics in proportion to their estimated sizes, and returns the ends."""
        names = [name for name, end in ends.items() if end > begins[name]]
        means = {name: infos[name].bytes / max(infos[name].last + 1 - infos[name].first, 1) for name in names}
        counts = {name: (ends[name] - begins[name]) * means[name] for name in names}
        total = sum(counts.values())
        with describe_timeout(self._settings):
            ends_in_bytes = {
                name: self._catalog.client.offset_after(name, begins[name], ends[name], int(limit * share / total))
                for name, share in counts.items()
            }
        return {**ends, **ends_in_bytes}

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        # From the last poll, which was just before: a report must not fail because the broker is unreachable.
        if self._latest is None or self._planned is None:
            return None
        read = self._planned.topics
        lags = {
            name: offset.next - (read[name].next if name in read else 1) for name, offset in self._latest.topics.items()
        }
        return self._latest.json(rowsBehind=sum(lags.values()))

    # ------------------------------------------------------------------ microbatches

    @hidden_traceback()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Any:
        broker, infos = self._catalog.topics()
        begin = Offset.parse(start)
        found = self._catalog.ranges(begin, Offset.parse(end), broker, infos, is_initial=self._is_first(begin))
        return split(found, self._settings.min_partitions)

    def read(self, partition: Any) -> Iterator[Any]:
        with hidden_traceback():
            yield from read(self._settings, partition)

    @hidden_traceback()
    def commit(self, end: dict[str, Any]) -> None:
        self._catalog.move_cursors(Offset.parse(end))

    def stop(self) -> None:
        self._catalog.close()


PROVIDER: Final = Provider(
    TopicSettings, TopicReader, TopicStreamReader, checked_sink, "the messages of a topic cannot be replaced"
)
