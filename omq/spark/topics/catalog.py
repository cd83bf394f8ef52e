"""The driver's questions to the broker: which topics there are, where reads of them begin and end, and what is lost."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any

import omq
from omq.broker import BrokerTimeout, Client, TopicError, TopicInfo
from omq.spark.options import STREAM_READ
from omq.spark.topics.offsets import Offset, TopicOffset, TopicRange
from omq.spark.topics.settings import EARLIEST, LATEST, Offsets, TopicSettings

log = logging.getLogger("omq.spark")


class DataLoss(omq.OmqError):
    """Messages that were to be read are not there any more."""


@contextlib.contextmanager
def named(settings: TopicSettings) -> Iterator[None]:
    """Has a broker that is away told with the options that name it."""
    try:
        yield
    except BrokerTimeout as error:
        raise BrokerTimeout(
            f"option connect={settings.endpoint!r}: {error} (option timeout={settings.timeout:g})"
        ) from None


def lost(settings: TopicSettings, what: str) -> None:
    """Tells of messages that cannot be read.

    Raises:
        DataLoss: Unless `failOnDataLoss` is false: then it is logged.
    """
    if settings.fail_on_data_loss:
        raise DataLoss(f"{what} (option failOnDataLoss=false goes on without)")
    log.warning("%s; failOnDataLoss=false: going on without", what)


class TopicCatalog:
    """The topics of a read, as the broker has them. It connects when it is first asked; a copy connects again.

    Args:
        settings: The options.
    """

    def __init__(self, settings: TopicSettings) -> None:
        self._settings = settings
        self._client: Client | None = None
        self._left: dict[str, TopicOffset] = {}  # where this run has left the subscription
        self._shared = False  # whether another query has moved it

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None}

    @property
    def client(self) -> Client:
        """A client of the broker."""
        if self._client is None:
            self._client = self._settings.client()
        return self._client

    def close(self) -> None:
        """Ends the connection."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    # ------------------------------------------------------------------ topics

    def topics(self) -> tuple[str, dict[str, TopicInfo]]:
        """The broker's id, and the topics that the options choose, by name; those that are not there are left out."""
        settings = self._settings
        found: dict[str, TopicInfo] = {}
        with named(settings):
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
                        f"option {settings.chosen}: {name!r} is a round-robin topic, whose messages go once they are"
                        " acknowledged; a stream reads broadcast topics"
                    )
                del found[name]
        return self.client.broker, found

    def known(self) -> tuple[str, dict[str, TopicInfo]]:
        """The same, where the query begins: every topic that is named has to be there.

        Raises:
            TopicError: One is not.
        """
        broker, found = self.topics()
        self.check_names(found)
        return broker, found

    def check_names(self, found: Mapping[str, TopicInfo], known: Container[str] = ()) -> None:
        """Raises where a topic that is named is not there.

        Args:
            found: The topics that are there.
            known: Names of topics that may be missing: what became of them is told elsewhere.

        Raises:
            TopicError: One is not.
        """
        if missing := [name for name in self._settings.topics if name not in found and name not in known]:
            with named(self._settings):
                names = sorted(info.name for info in self.client.topics())
            there = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "") if names else "none"
            raise TopicError(
                f"option {self._settings.chosen}: {self._settings.endpoint} has no topic {missing[0]!r};"
                f" there are: {there}"
            )

    # ------------------------------------------------------------------ bounds

    def starts(self, infos: Mapping[str, TopicInfo]) -> dict[str, int]:
        """The first id of each topic, as the options say; it may no longer be kept."""
        settings = self._settings
        if settings.starting_timestamp is not None:
            return {name: self._first_since(info, settings.starting_timestamp) for name, info in infos.items()}
        if settings.starting_offsets == EARLIEST:
            return {name: info.first or 1 for name, info in infos.items()}
        return self._ids("startingOffsets", settings.starting_offsets, infos)

    def stops(self, infos: Mapping[str, TopicInfo]) -> dict[str, int]:
        """The id behind the last of each topic."""
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
            raise omq.OptionError(f"option {option}: {unknown[0]!r} is no topic of {self._settings.chosen}")
        if left := sorted(infos.keys() - given.keys()):
            if option != "startingOffsets":
                raise omq.OptionError(f"option {option}: an id of topic {left[0]!r} is missing")
            # They begin as they would without the option.
            for name in left:
                info = infos[name]
                given[name] = info.last + 1 if self._settings.use == STREAM_READ else info.first or 1
        for name, id in given.items():
            last = infos[name].last
            if id > last + 1:
                raise omq.OptionError(
                    f"option {option}={id} of topic {name!r} is beyond the end: the newest id is {last}, so {last + 1}"
                    " is the most"
                )
        return given

    def _first_since(self, info: TopicInfo, moment: int) -> int:
        """The first id of this time, milliseconds since 1970, or later: by halving, for ids and times both grow."""
        low, high = info.first or 1, info.last + 1
        with named(self._settings):
            while low < high:
                middle = (low + high) // 2
                message = next(iter(self.client.read(info.name, middle, high, limit=1)), None)
                if message is None or message.timestamp * 1000 >= moment:
                    high = middle
                else:
                    low = message.id + 1
        return low

    # ------------------------------------------------------------------ ranges

    def ranges(
        self, start: Offset, end: Offset, broker: str, infos: Mapping[str, TopicInfo], *, asked: bool = False
    ) -> list[TopicRange]:
        """Returns the ranges between two offsets that are there.

        Args:
            start: Where it begins, unless the end says so; a topic that is not in it, or has another number there,
                begins with what it keeps.
            end: Where it ends.
            broker: The id of the broker's store.
            infos: The topics as they are now.
            asked: Whether the start is none of a microbatch's end, but what the source has said in this run.

        Raises:
            DataLoss: Not everything is there any more.
        """
        settings = self._settings
        found: list[TopicRange] = []
        for name, place in sorted(end.places.items()):
            before = start.places.get(name) if start.broker == end.broker else None
            if before is not None and before.topic_id != place.topic_id:
                before = None  # another topic had the name
            begin = place.begin
            if begin is None:
                begin = 1 if before is None else before.next
            if begin > place.next:
                if not asked:
                    raise omq.StateError(
                        f"the checkpoint goes backwards: topic {name!r} from {begin} to {place.next};"
                        " it is of other topics"
                    )
                # It is of a version that did not note it, and the start has moved on.
                log.warning(
                    "topic %r: where the first microbatch of the checkpoint began is not known any more; what was in it"
                    " is passed over, and the query goes on with id %d",
                    name,
                    place.next,
                )
                begin = place.next
            info = infos.get(name)
            if end.broker != broker or info is None or info.id != place.topic_id:
                if begin < place.next:
                    lost(settings, f"{self._gone(name, end.broker, broker, info)}: {_ids(begin, place.next)} are lost")
                continue
            stop = min(place.next, info.last + 1)
            if stop < place.next:
                lost(settings, f"topic {name!r} ends with {info.last}: {_ids(max(stop, begin), place.next)} are lost")
            if begin < info.first:
                if before is not None or place.begin is not None:
                    text = f"topic {name!r} begins with {info.first} now: {_ids(begin, min(info.first, stop))} are lost"
                    lost(settings, text)
                begin = info.first
            if begin < stop:
                found.append(TopicRange(name, place.topic_id, begin, stop, broker))
        return found

    def _gone(self, name: str, before: str, broker: str, info: TopicInfo | None) -> str:
        if before != broker:
            return f"topic {name!r}: the checkpoint is of another broker than {self._settings.endpoint}"
        return self.missing(name, info)

    def missing(self, name: str, info: TopicInfo | None) -> str:
        """Returns why a topic of the checkpoint is not read any more.

        Args:
            name: Its name.
            info: The topic that has this name now, and is among those that the options choose.
        """
        if not self._settings.chooses(name):
            return f"topic {name!r} of the checkpoint is not among those of option {self._settings.chosen} any more"
        return f"topic {name!r} was deleted" + ("" if info is None else ", and made again")

    # ------------------------------------------------------------------ a stream

    def pinned(self, infos: Mapping[str, TopicInfo]) -> dict[str, int]:
        """Returns the start of a stream: the position of its subscription, or, if there is none yet, the options'.

        In a topic that is new to the subscription it begins with what is kept, as where a topic comes later.
        """
        settings = self._settings
        kept = self._positions(infos)
        new = {name: info for name, info in infos.items() if name not in kept}
        starts = {name: max(info.first, 1) for name, info in new.items()} if kept else self._chosen_starts(new)
        starts |= kept
        if settings.subscription is not None:
            self.pin({name: starts[name] for name in new})
            self._left = {name: TopicOffset(infos[name].id, following) for name, following in starts.items()}
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
                " microbatch moves the start, and what came meanwhile is passed over"
            )
        starts = self.starts(infos)
        for name, start in starts.items():
            if start < infos[name].first:
                lost(
                    settings,
                    f"topic {name!r} begins with {infos[name].first}: {_ids(start, infos[name].first)} are lost",
                )
                starts[name] = infos[name].first
        return starts

    def _positions(self, names: Iterable[str]) -> dict[str, int]:
        """The ids that come next for the subscription, in the topics in which it has a position."""
        found: dict[str, int] = {}
        if self._settings.subscription is not None:
            with named(self._settings):
                for name in names:
                    kept = {one.name: one.position for one in self.client.durables(name)}
                    if self._settings.subscription in kept:
                        found[name] = kept[self._settings.subscription] + 1
        return found

    def pin(self, starts: Mapping[str, int]) -> None:
        """Makes the subscription in topics; where it has a position, that stays."""
        with named(self._settings):
            for name, start in starts.items():
                self._move(name, start, new=True)

    def keep(self, end: Offset) -> None:
        """Moves the subscription to where a stream is."""
        if self._settings.subscription is None:
            return
        for name, place in end.places.items():
            before = self._left.get(name)
            if before == place:
                continue
            try:
                if before is not None and before.topic_id == place.topic_id and not self._shared:
                    self._look_for_others(name, before)
                self._move(name, place.next, new=False)
            except omq.OmqError as error:
                # The checkpoint says where the stream is; this is for the broker's status page.
                log.warning("subscription=%r of topic %r is not moved: %s", self._settings.subscription, name, error)
            self._left[name] = place

    def _look_for_others(self, name: str, before: TopicOffset) -> None:
        """Tells, once, of a subscription that is no longer where this query has left it."""
        there = self._positions([name]).get(name, before.next)
        self._shared = there != before.next
        if self._shared:
            log.warning(
                "subscription=%r of topic %r was left at id %d and is at id %d: another query moves it, too. A name is"
                " for one query: after a lost checkpoint either goes on where the other one was",
                self._settings.subscription,
                name,
                before.next - 1,
                there - 1,
            )

    def _move(self, name: str, following: int, *, new: bool) -> None:
        subscription = self._settings.subscription
        try:
            held = self.client.subscribe(name, replay=following - 1, name=subscription, credit=1)
        except TopicError as error:
            raise TopicError(f"option subscription={subscription!r}: {error}") from None
        with held:
            if not new:
                held.ack(following - 1)


def _ids(start: int, stop: int) -> str:
    return f"ids {start} to {stop - 1}"


def offset(broker: str, infos: Mapping[str, TopicInfo], nexts: Mapping[str, int]) -> Offset:
    """An offset of topics as they are."""
    return Offset(broker, {name: TopicOffset(infos[name].id, following) for name, following in nexts.items()})
