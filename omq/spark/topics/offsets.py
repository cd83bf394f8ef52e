"""Offsets of a stream, as a checkpoint holds them, and shares of ids; no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Final

from pyspark.sql.datasource import InputPartition

import omq

#: The version of an offset in a checkpoint.
VERSION: Final = 1
KIND: Final = "topics"


@dataclass(frozen=True, slots=True)
class TopicOffset:
    """The offset of a topic.

    Attributes:
        topic_id: Its number, which no later topic of the name has.
        next: The id that comes next.
        begin: Where the microbatch that ends here began, if nothing else says so: in its first microbatch, and in a
            topic that is new. Spark keeps ends only, and the source would say another beginning when it asks again.
    """

    topic_id: int
    next: int
    begin: int | None = field(default=None, compare=False)

    def json(self) -> dict[str, int]:
        """Returns the part of a checkpoint."""
        begin = {} if self.begin is None else {"from": self.begin}
        return {**begin, "id": self.topic_id, "next": self.next}

    @classmethod
    def read(cls, found: Any) -> TopicOffset:
        """Reads it again."""
        begin = found.get("from")
        return cls(int(found["id"]), int(found["next"]), None if begin is None else int(begin))


@dataclass(frozen=True, slots=True)
class Offset:
    """The offset of a stream.

    Attributes:
        broker: The id of the broker's store.
        places: How far each topic is read, by name.
    """

    broker: str
    places: Mapping[str, TopicOffset]

    def json(self, **more: Any) -> dict[str, Any]:
        """Returns the JSON for a checkpoint. Spark compares offsets as text, so keys are sorted."""
        topics = {name: one.json() for name, one in sorted(self.places.items())}
        return dict(sorted({"broker": self.broker, "kind": KIND, "topics": topics, "version": VERSION, **more}.items()))

    @classmethod
    def read(cls, found: Any) -> Offset:
        """Reads it again.

        Raises:
            StateError: It is none: the checkpoint is of something else.
        """
        if not isinstance(found, dict) or found.get("kind") != KIND:
            raise omq.StateError(f"the checkpoint is of another kind of source, not of topics: {found}")
        if found.get("version") != VERSION:
            raise omq.StateError(
                f"the checkpoint has offsets of version {found.get('version')}, this package knows {VERSION}"
            )
        try:
            places = {name: TopicOffset.read(one) for name, one in found["topics"].items()}
            return cls(str(found["broker"]), places)
        except (AttributeError, KeyError, TypeError, ValueError):
            raise omq.StateError(f"the checkpoint has an offset that is damaged: {found}") from None


@dataclass
class TopicRange(InputPartition):
    """Messages of a topic that one task reads.

    Attributes:
        topic: The topic's name.
        topic_id: Its number.
        start: The first id.
        stop: The id behind the last one.
        broker: The id of the broker's store that this was planned with.
    """

    topic: str
    topic_id: int
    start: int
    stop: int
    broker: str = ""

    def __len__(self) -> int:
        return self.stop - self.start


def split(ranges: Sequence[TopicRange], least: int | None) -> list[TopicRange]:
    """Cuts ranges by their ids so that there are so many at least, as far as there are ids; empty ones are left out."""
    ranges = [one for one in ranges if len(one)]
    total = sum(map(len, ranges))
    if least is None or len(ranges) >= least:
        return list(ranges)
    found: list[TopicRange] = []
    for one, pieces in zip(ranges, shared([len(one) for one in ranges], min(least, total)), strict=True):
        pieces = max(pieces, 1)
        cuts = [one.start + len(one) * number // pieces for number in range(pieces + 1)]
        found += [replace(one, start=a, stop=b) for a, b in pairwise(cuts)]
    return found


def shared(wanted: Sequence[int], limit: int) -> list[int]:
    """Shares a number out in proportion to what each wants: at most that, and all is given out.

    Each that wants any gets one, if there are so many: next to one that wants much the others would wait for ever.
    """
    total = sum(wanted)
    if total <= limit:
        return list(wanted)
    least = int(sum(map(bool, wanted)) <= limit)
    given = [max(one * limit // total, least) if one else 0 for one in wanted]
    # The rest goes to those that lost the largest parts by rounding; those that got most pay what was given too much.
    by_loss = sorted(range(len(wanted)), key=lambda number: (given[number] * total - wanted[number] * limit, number))
    while (left := limit - sum(given)) > 0:
        for number in [one for one in by_loss if given[one] < wanted[one]][:left]:
            given[number] += 1
    for _ in range(-left):
        given[max(range(len(given)), key=given.__getitem__)] -= 1
    return given
