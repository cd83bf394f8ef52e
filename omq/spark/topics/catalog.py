"""The driver's view of a broker: the topics of a read, the bounds of its ranges, and data loss."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any

import omq
from omq.broker import BrokerTimeout, Client, TopicError, TopicInfo
from omq.broker.start_time import MAX_TIME_S
from omq.spark.options import STREAM_READ
from omq.spark.topics.offsets import Offset, TopicOffset, TopicRange
from omq.spark.topics.settings import EARLIEST, LATEST, Offsets, TopicSettings

log = logging.getLogger("omq.spark")


class DataLoss(omq.OmqError):
    """Raised when the broker no longer has the messages of a read."""


@contextlib.contextmanager
def describe_timeout(settings: TopicSettings) -> Iterator[None]:
    """Adds the options `connect` and `timeout` to the text of a `BrokerTimeout`."""
    try:
        yield
    except BrokerTimeout as error:
        raise BrokerTimeout(
            f"option connect={settings.endpoint!r}: {error} (option timeout={settings.timeout:g})"
        ) from None


def report_loss(settings: TopicSettings, what: str) -> None:
    """Reports messages that cannot be read.

    Raises:
        DataLoss: The option `failOnDataLoss` is true; otherwise the loss is logged.
    """
    if settings.fail_on_data_loss:
        raise DataLoss(f"{what} (option failOnDataLoss=false continues without them)")
    log.warning("%s; failOnDataLoss=false: continuing without them", what)


class TopicCatalog:
    """The topics of a read at the broker. It connects on first use; a copy connects again.

    Args:
        settings: The options.
    """

    def __init__(self, settings: TopicSettings) -> None:
        self._settings = settings
        self._client: Client | None = None
        self._cursors_set: dict[str, TopicOffset] = {}  # where this run has moved the subscription
        self._is_shared = False  # whether another query has moved it

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None}

    @property
    def client(self) -> Client:
        """The client of the broker."""
        if self._client is None:
            self._client = self._settings.client()
        return self._client

    def close(self) -> None:
        """Closes the connection."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    # ------------------------------------------------------------------ topics

    def topics(self) -> tuple[str, dict[str, TopicInfo]]:
        """Returns the broker's id, and the existing topics that the options choose, by name."""
        settings = self._settings
        found: dict[str, TopicInfo] = {}
        with describe_timeout(settings):
            if settings.pattern is None:
                # One by one: a broker may have thousands of others.
                for name in settings.topics:
                    with contextlib.suppress(TopicError):
                        (found[name],) = self.client.topics(name)
            else:
                found = {info.name: info for info in self.client.topics() if settings.chooses(info.name)}
        if settings.use == STREAM_READ:
            for name, info in list(found.items()):
                if info.delivery == "broadcast":
                    continue
                if settings.pattern is None:
                    raise TopicError(
                        f"option {settings.chosen}: {name!r} is a round-robin topic, whose messages are deleted once"
                        " they are acknowledged; a stream reads broadcast topics"
                    )
                del found[name]
        return self.client.broker, found

    def required_topics(self) -> tuple[str, dict[str, TopicInfo]]:
        """Returns `topics()` for the beginning of a query.

        Raises:
            TopicError: A topic that the options name does not exist.
        """
        broker, found = self.topics()
        self.check_names(found)
        return broker, found

    def check_names(self, found: Mapping[str, TopicInfo], known: Container[str] = ()) -> None:
        """Checks that the topics of the options exist.

        Args:
            found: The existing topics.
            known: Names of topics that may be missing, because the caller reports them.

        Raises:
            TopicError: A topic does not exist.
        """
        if missing := [name for name in self._settings.topics if name not in found and name not in known]:
            with describe_timeout(self._settings):
                names = sorted(info.name for info in self.client.topics())
            listed = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "") or "none"
            raise TopicError(
                f"option {self._settings.chosen}: {self._settings.endpoint} has no topic {missing[0]!r};"
                f" its topics are: {listed}"
            )

    # ------------------------------------------------------------------ bounds

    def starts(self, infos: Mapping[str, TopicInfo]) -> dict[str, int]:
        """Returns the first id of each topic by the options; retention may have deleted it."""
        settings = self._settings
        if settings.starting_timestamp is not None:
            return {name: self._first_since(info, settings.starting_timestamp) for name, info in infos.items()}
        if settings.starting_offsets == EARLIEST:
            return {name: info.first or 1 for name, info in infos.items()}
        return self._ids("startingOffsets", settings.starting_offsets, infos)

    def stops(self, infos: Mapping[str, TopicInfo]) -> dict[str, int]:
        """Returns the end of each topic by the options: the id after the last one."""
        settings = self._settings
        if settings.ending_timestamp is not None:
            return {name: self._first_since(info, settings.ending_timestamp) for name, info in infos.items()}
        return self._ids("endingOffsets", settings.ending_offsets, infos)

    def _ids(self, option: str, offsets: Offsets, infos: Mapping[str, TopicInfo]) -> dict[str, int]:
        if offsets == LATEST:
            return {name: info.last + 1 for name, info in infos.items()}
        assert not isinstance(offsets, str)
        given = dict(offsets)
        if unknown := sorted(given.keys() - infos.keys()):
            raise omq.OptionError(f"option {option}: {unknown[0]!r} is not a topic of {self._settings.chosen}")
        if unnamed := sorted(infos.keys() - given.keys()):
            if option != "startingOffsets":
                raise omq.OptionError(f"option {option}: an id of topic {unnamed[0]!r} is missing")
            # The other topics begin as they would without the option.
            for name in unnamed:
                info = infos[name]
                given[name] = info.last + 1 if self._settings.use == STREAM_READ else info.first or 1
        for name, id in given.items():
            last = infos[name].last
            if id > last + 1:
                raise omq.OptionError(
                    f"option {option}={id} of topic {name!r} is beyond the end: the newest id is {last}; use"
                    f" {last + 1} or less"
                )
        return given

    def _first_since(self, info: TopicInfo, moment: int) -> int:
        """Returns the first id at or after a time in milliseconds since 1970; the end of the topic without one."""
        with describe_timeout(self._settings):
            found = self.client.offset_at(info.name, min(moment, MAX_TIME_S * 1000) / 1000)
        return min(found, info.last + 1)  # the topic may have grown since

    # ------------------------------------------------------------------ ranges

    def ranges(
        self, start: Offset, end: Offset, broker: str, infos: Mapping[str, TopicInfo], *, is_initial: bool = False
    ) -> list[TopicRange]:
        """Returns the ranges of ids between two offsets, as far as their messages still exist.

        Args:
            start: The start, unless the end has a start of its own. A topic that is not in it, or has another id
                there, begins with its first message.
            end: The end.
            broker: The id of the broker's store.
            infos: The current topics.
            is_initial: Whether the start is the initial offset of this run, not the end of a microbatch.

        Raises:
            DataLoss: Some of the messages are lost, and `failOnDataLoss` is true.
            StateError: The checkpoint goes backwards.
        """
        settings = self._settings
        found: list[TopicRange] = []
        for name, offset in sorted(end.topics.items()):
            before = start.topics.get(name) if start.broker == end.broker else None
            if before is not None and before.topic_id != offset.topic_id:
                before = None  # the name was another topic's
            begin = offset.begin
            if begin is None:
                begin = 1 if before is None else before.next
            if begin > offset.next:
                if not is_initial:
                    raise omq.StateError(
                        f"the checkpoint goes backwards: topic {name!r} from {begin} to {offset.next};"
                        " it belongs to other topics"
                    )
                # A former version did not store the start, which has moved since.
                log.warning(
                    "topic %r: the start of the checkpoint's first microbatch is no longer known; the microbatch is"
                    " skipped, and the query continues with id %d",
                    name,
                    offset.next,
                )
                begin = offset.next
            info = infos.get(name)
            if end.broker != broker or info is None or info.id != offset.topic_id:
                if begin < offset.next:
                    report_loss(
                        settings,
                        f"{self._loss_reason(name, end.broker, broker, info)}: {_ids(begin, offset.next)} are lost",
                    )
                continue
            stop = min(offset.next, info.last + 1)
            if stop < offset.next:
                report_loss(
                    settings, f"topic {name!r} ends with {info.last}: {_ids(max(stop, begin), offset.next)} are lost"
                )
            if begin < info.first:
                if before is not None or offset.begin is not None:
                    text = f"topic {name!r} now begins with {info.first}: {_ids(begin, min(info.first, stop))} are lost"
                    report_loss(settings, text)
                begin = info.first
            if begin < stop:
                found.append(TopicRange(name, offset.topic_id, begin, stop, broker))
        return found

    def _loss_reason(self, name: str, before: str, broker: str, info: TopicInfo | None) -> str:
        if before != broker:
            return f"topic {name!r}: the checkpoint belongs to another broker than {self._settings.endpoint}"
        return self.missing(name, info)

    def missing(self, name: str, info: TopicInfo | None) -> str:
        """Returns the reason for which a topic of the checkpoint is no longer read.

        Args:
            name: Its name.
            info: The topic that now has this name, if the options choose it.
        """
        if not self._settings.chooses(name):
            return f"topic {name!r} of the checkpoint is no longer among those of option {self._settings.chosen}"
        return f"topic {name!r} was deleted" + ("" if info is None else ", and created again")

    # ------------------------------------------------------------------ a stream

    def stream_starts(self, infos: Mapping[str, TopicInfo]) -> dict[str, int]:
        """Returns the start of a stream: the cursor of its subscription, or else the start in the options.

        A topic that is new to an existing subscription begins with its first message, like a topic that is created
        later.
        """
        settings = self._settings
        kept = self._cursors(infos)
        new = {name: info for name, info in infos.items() if name not in kept}
        starts = {name: max(info.first, 1) for name, info in new.items()} if kept else self._chosen_starts(new)
        starts |= kept
        if settings.subscription is not None:
            self.create_cursors({name: starts[name] for name in new})
            self._cursors_set = {name: TopicOffset(infos[name].id, next_id) for name, next_id in starts.items()}
        return starts

    def _chosen_starts(self, infos: Mapping[str, TopicInfo]) -> dict[str, int]:
        """Returns the start of a stream that has no subscription yet."""
        settings = self._settings
        if (
            settings.subscription is None
            and settings.starting_offsets == LATEST
            and settings.starting_timestamp is None
        ):
            log.warning(
                "startingOffsets=latest without the option 'subscription': a crash before the checkpoint has the first"
                " microbatch moves the start, and messages that came in between are skipped"
            )
        starts = self.starts(infos)
        for name, start in starts.items():
            if start < infos[name].first:
                report_loss(
                    settings,
                    f"topic {name!r} begins with {infos[name].first}: {_ids(start, infos[name].first)} are lost",
                )
                starts[name] = infos[name].first
        return starts

    def _cursors(self, names: Iterable[str]) -> dict[str, int]:
        """Returns the next id of the subscription in each topic that has its cursor."""
        found: dict[str, int] = {}
        if self._settings.subscription is not None:
            with describe_timeout(self._settings):
                for name in names:
                    kept = {one.name: one.position for one in self.client.durables(name)}
                    if self._settings.subscription in kept:
                        found[name] = kept[self._settings.subscription] + 1
        return found

    def create_cursors(self, starts: Mapping[str, int]) -> None:
        """Creates the subscription in topics; an existing cursor stays."""
        with describe_timeout(self._settings):
            for name, start in starts.items():
                self._move_cursor(name, start, new=True)

    def move_cursors(self, end: Offset) -> None:
        """Moves the subscription to the offset of a stream."""
        if self._settings.subscription is None:
            return
        for name, offset in end.topics.items():
            before = self._cursors_set.get(name)
            if before == offset:
                continue
            try:
                if before is not None and before.topic_id == offset.topic_id and not self._is_shared:
                    self._check_other_queries(name, before)
                self._move_cursor(name, offset.next, new=False)
            except omq.OmqError as error:
                # Only the broker's status page needs the cursor: the stream resumes from its checkpoint.
                log.warning(
                    "subscription=%r of topic %r could not be moved: %s", self._settings.subscription, name, error
                )
            self._cursors_set[name] = offset

    def _check_other_queries(self, name: str, before: TopicOffset) -> None:
        """Checks whether another query has moved the subscription, and logs that once."""
        found = self._cursors([name]).get(name, before.next)
        self._is_shared = found != before.next
        if self._is_shared:
            log.warning(
                "subscription=%r of topic %r was left at id %d and is at id %d: another query moves it, too. Use one"
                " name per query: after a lost checkpoint, either would continue where the other was",
                self._settings.subscription,
                name,
                before.next - 1,
                found - 1,
            )

    def _move_cursor(self, name: str, next_id: int, *, new: bool) -> None:
        subscription = self._settings.subscription
        try:
            durable = self.client.subscribe(name, replay=next_id - 1, name=subscription, credit=1)
        except TopicError as error:
            raise TopicError(f"option subscription={subscription!r}: {error}") from None
        with durable:
            if not new:
                durable.ack(next_id - 1)


def _ids(start: int, stop: int) -> str:
    return f"ids {start} to {stop - 1}"


def stream_offset(broker: str, infos: Mapping[str, TopicInfo], next_ids: Mapping[str, int]) -> Offset:
    """Returns the offset of a stream from the next ids of its topics."""
    return Offset(broker, {name: TopicOffset(infos[name].id, next_id) for name, next_id in next_ids.items()})
