"""Topics as endpoints of the data source: readers and writers for Spark."""

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
from omq.spark.topics.catalog import TopicCatalog, lost, named, offset
from omq.spark.topics.offsets import Offset, TopicOffset, TopicRange, shared, split
from omq.spark.topics.read import read
from omq.spark.topics.settings import TopicSettings
from omq.spark.topics.sink import checked_sink


class TopicReader(DataSourceReader):
    """Reads what is kept between two bounds, which are found when Spark plans the read."""

    def __init__(self, settings: TopicSettings) -> None:
        self._settings = settings

    @hidden_traceback()
    def partitions(self) -> Any:
        settings = self._settings
        catalog = TopicCatalog(settings)
        try:
            broker, infos = catalog.known()
            starts, stops = catalog.starts(infos), catalog.stops(infos)
            for name, start in starts.items():
                if start > stops[name] and settings.starting_timestamp is None:
                    raise omq.OptionError(
                        f"option startingOffsets={start} of topic {name!r} is behind endingOffsets={stops[name]}"
                    )
            stops = {name: max(stop, starts[name]) for name, stop in stops.items()}
            begin, end = offset(broker, infos, starts), offset(broker, infos, stops)
            found = split(catalog.ranges(begin, end, broker, infos), settings.min_partitions)
        finally:
            catalog.close()
        # Spark makes a partition without a range of no partitions.
        return found or [TopicRange("", 0, 0, 0)]

    def read(self, partition: Any) -> Iterator[Any]:
        with hidden_traceback():
            if len(partition):
                yield from read(self._settings, partition)


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads in microbatches. An offset is the next id of each topic: what lies between two can be read again."""

    def __init__(self, settings: TopicSettings) -> None:
        self._settings = settings
        self._catalog = TopicCatalog(settings)
        self._first: Offset | None = None  # where it begins; not known where a checkpoint says how far it is
        self._until: dict[str, TopicOffset] | None = None  # where AvailableNow ends
        self._last: Offset | None = None  # what was given for the newest microbatch
        self._newest: Offset | None = None  # what there was then
        self._given = time.monotonic()  # when a microbatch was given
        self._seen: dict[str, int] = {}  # topics that came later and that the subscription has, with their numbers

    # ------------------------------------------------------------------ offsets

    @hidden_traceback()
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names, here and below
        broker, infos = self._catalog.known()
        self._first = offset(broker, infos, self._catalog.pinned(infos))
        return self._first.json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        # All bounds of the options hold whenever Spark hands back this one.
        settings = self._settings
        if settings.max_rows is not None:
            return ReadMaxRows(settings.max_rows)
        if settings.max_bytes is not None:
            return ReadMaxBytes(settings.max_bytes)
        return ReadAllAvailable() if settings.min_rows is None else ReadMinRows(settings.min_rows)

    @hidden_traceback()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        _, infos = self._catalog.topics()
        self._until = {name: TopicOffset(info.id, info.last + 1) for name, info in infos.items()}

    @hidden_traceback()
    def latestOffset(self, start: Any, limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        begin = Offset.read(start)
        broker, infos = self._catalog.topics()
        places = self._begin(begin, broker, infos)
        self._keep(begin, broker, infos)
        known = {(begin.broker, name, place.topic_id) for name, place in begin.places.items()}
        self._pin({name: place for name, place in places.items() if (broker, name, place.topic_id) not in known})
        ends = {name: max(self._end(infos[name]), place.next) for name, place in places.items()}
        self._newest = Offset(broker, {name: TopicOffset(infos[name].id, end) for name, end in ends.items()})
        chosen = self._limited(places, ends, infos, limit)
        # A topic that is new and empty makes no microbatch.
        found = {
            name: replace(place, next=chosen[name])
            for name, place in places.items()
            if name in begin.places or chosen[name] > 1
        }
        self._last = Offset(broker, found)
        if self._last != begin:
            self._given = time.monotonic()
        elif not self._is_first(begin):
            return begin.json()  # where it began, too: Spark compares texts
        return self._last.json()

    def _is_first(self, begin: Offset) -> bool:
        """Returns whether this is where the query begins, and not the end of a microbatch that had nothing in it."""
        return begin == self._first and all(place.begin is None for place in begin.places.values())

    def _begin(self, begin: Offset, broker: str, infos: Mapping[str, TopicInfo]) -> dict[str, TopicOffset]:
        """Returns the place at which each topic goes on; raises where one cannot."""
        settings = self._settings
        found: dict[str, TopicOffset] = {}
        is_first = self._is_first(begin)
        if begin.broker != broker and begin.places:
            lost(settings, f"option connect={settings.endpoint!r}: the checkpoint is of another broker's topics")
        if self._last is None:
            self._catalog.check_names(infos, begin.places)
        for name, place in begin.places.items():
            info = infos.get(name)
            if begin.broker == broker and info is not None and info.id == place.topic_id:
                found[name] = replace(place, begin=place.next if is_first else None)
                # With any other persistence a broker that was killed goes on behind ids that it may have given.
                if info.persistence == "strong" and place.next > info.last + 1:
                    text = f"topic {name!r} ends with id {info.last}, and the query has read up to id {place.next - 1}"
                    lost(settings, f"{text}: the broker's store is an older one, and what it had behind that is lost")
                    found[name] = TopicOffset(info.id, info.last + 1, info.last + 1)
            elif begin.broker == broker:
                why = self._catalog.missing(name, info)
                lost(settings, f"{why}: what follows id {place.next - 1} is not read")
        for name, info in infos.items():
            earliest = max(info.first, 1)
            found.setdefault(name, TopicOffset(info.id, earliest, earliest))
        return found

    def _keep(self, begin: Offset, broker: str, infos: Mapping[str, TopicInfo]) -> None:
        """Moves the subscription to the end of the last microbatch, which Spark has committed before it asks.

        Spark calls `commit` for it only with the next one, which an idle topic never has.
        """
        if begin.broker == broker and not self._is_first(begin):
            there = {
                name: one for name, one in begin.places.items() if name in infos and infos[name].id == one.topic_id
            }
            self._catalog.keep(Offset(broker, there))

    def _pin(self, new: Mapping[str, TopicOffset]) -> None:
        """Has the subscription begin in topics that came later, before anything is read of them."""
        if self._settings.subscription is not None:
            self._catalog.pin(
                {name: place.next for name, place in new.items() if self._seen.get(name) != place.topic_id}
            )
            self._seen.update((name, place.topic_id) for name, place in new.items())

    def _end(self, info: TopicInfo) -> int:
        """Behind the newest message, or where AvailableNow ends."""
        if self._until is None:
            return info.last + 1
        until = self._until.get(info.name)
        return until.next if until is not None and until.topic_id == info.id else 1

    def _limited(
        self,
        places: Mapping[str, TopicOffset],
        ends: Mapping[str, int],
        infos: Mapping[str, TopicInfo],
        limit: ReadLimit,
    ) -> dict[str, int]:
        """The ends of a microbatch within the bounds."""
        settings = self._settings
        # What retention has dropped is no row.
        begins = {name: min(max(place.next, infos[name].first), ends[name]) for name, place in places.items()}
        if isinstance(limit, ReadAllAvailable):
            return dict(ends)
        names = list(places)
        if settings.max_rows is not None:
            begins |= self._behind_gaps(begins, ends, infos, settings.max_rows)
        there = [ends[name] - begins[name] for name in names]
        waits = time.monotonic() - self._given < settings.max_trigger_delay and self._until is None
        if settings.min_rows is not None and sum(there) < settings.min_rows and waits:
            return {name: place.next for name, place in places.items()}
        if settings.max_rows is not None:
            there = shared(there, settings.max_rows)
        found = {name: begins[name] + rows for name, rows in zip(names, there, strict=True)}
        return found if settings.max_bytes is None else self._in_bytes(begins, found, infos, settings.max_bytes)

    def _behind_gaps(
        self, begins: Mapping[str, int], ends: Mapping[str, int], infos: Mapping[str, TopicInfo], limit: int
    ) -> dict[str, int]:
        """Returns the first ids with messages, of topics in which a killed broker may have left out a million ids."""
        found: dict[str, int] = {}
        with named(self._settings):
            for name, begin in begins.items():
                if ends[name] - begin > limit and infos[name].persistence != "strong":
                    found[name] = max(self._catalog.client.offset_after(name, begin, ends[name], 1) - 1, begin)
        return found

    def _in_bytes(
        self, begins: Mapping[str, int], ends: Mapping[str, int], infos: Mapping[str, TopicInfo], limit: int
    ) -> dict[str, int]:
        """Shares bytes out among topics, by what they have on average."""
        names = [name for name, end in ends.items() if end > begins[name]]
        means = {name: infos[name].bytes / max(infos[name].last + 1 - infos[name].first, 1) for name in names}
        there = {name: (ends[name] - begins[name]) * means[name] for name in names}
        total = sum(there.values())
        with named(self._settings):
            reached = {
                name: self._catalog.client.offset_after(name, begins[name], ends[name], int(limit * share / total))
                for name, share in there.items()
            }
        return {**ends, **reached}

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        # What the last look has found: Spark asks right after it, and a broker that is away must not fail a report.
        if self._newest is None or self._last is None:
            return None
        read = self._last.places
        behind = {
            name: place.next - (read[name].next if name in read else 1) for name, place in self._newest.places.items()
        }
        return self._newest.json(rowsBehind=sum(behind.values()))

    # ------------------------------------------------------------------ microbatches

    @hidden_traceback()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Any:
        broker, infos = self._catalog.topics()
        begin = Offset.read(start)
        found = self._catalog.ranges(begin, Offset.read(end), broker, infos, asked=self._is_first(begin))
        return split(found, self._settings.min_partitions)

    def read(self, partition: Any) -> Iterator[Any]:
        with hidden_traceback():
            yield from read(self._settings, partition)

    @hidden_traceback()
    def commit(self, end: dict[str, Any]) -> None:
        self._catalog.keep(Offset.read(end))

    def stop(self) -> None:
        self._catalog.close()


PROVIDER: Final = Provider(
    TopicSettings, TopicReader, TopicStreamReader, checked_sink, "what a topic has cannot be replaced"
)
