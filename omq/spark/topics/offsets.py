"""Offsets of a stream in a checkpoint, and the division of id ranges among tasks, without I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Final

from pyspark.sql.datasource import InputPartition

import omq
from omq.spark.errors import check_offset

#: The version of an offset in a checkpoint.
VERSION: Final = 1
KIND: Final = "topics"


@dataclass(frozen=True, slots=True)
class TopicOffset:
    """The offset of a topic.

    Attributes:
        topic_id: The topic's own id, which a later topic of the same name does not have.
        next: The next id to read.
        begin: The start of the microbatch that ends here, for the first microbatch of a topic; otherwise `None`.
            Spark stores ends only, and a repeated call for the initial offset may return another start.
    """

    topic_id: int
    next: int
    begin: int | None = field(default=None, compare=False)

    def json(self) -> dict[str, int]:
        """Returns the JSON for a checkpoint."""
        begin = {} if self.begin is None else {"from": self.begin}
        return {**begin, "id": self.topic_id, "next": self.next}

    @classmethod
    def parse(cls, found: Any) -> TopicOffset:
        """Parses the JSON of a checkpoint."""
        begin = found.get("from")
        return cls(int(found["id"]), int(found["next"]), None if begin is None else int(begin))


@dataclass(frozen=True, slots=True)
class Offset:
    """The offset of a stream.

    Attributes:
        broker: The id of the broker's store.
        topics: The offset of each topic, by name.
    """

    broker: str
    topics: Mapping[str, TopicOffset]

    def json(self, **more: Any) -> dict[str, Any]:
        """Returns the JSON for a checkpoint. Spark compares offsets as text, so keys are sorted."""
        topics = {name: one.json() for name, one in sorted(self.topics.items())}
        return dict(sorted({"broker": self.broker, "kind": KIND, "topics": topics, "version": VERSION, **more}.items()))

    @classmethod
    def parse(cls, found: Any) -> Offset:
        """Parses the JSON of a checkpoint.

        Raises:
            StateError: The checkpoint belongs to another kind of source, or is damaged.
        """
        check_offset(found, KIND, VERSION, "topics")
        try:
            topics = {name: TopicOffset.parse(one) for name, one in found["topics"].items()}
            return cls(str(found["broker"]), topics)
        except (AttributeError, KeyError, TypeError, ValueError):
            raise omq.StateError(f"the checkpoint has a damaged offset: {found}") from None


@dataclass
class TopicRange(InputPartition):
    """The messages of a topic that one task reads.

    Attributes:
        topic: The topic's name.
        topic_id: The topic's own id.
        start: The first id.
        stop: The id after the last one.
        broker: The id of the broker's store at planning.
    """

    topic: str
    topic_id: int
    start: int
    stop: int
    broker: str = ""

    def __len__(self) -> int:
        return self.stop - self.start


def split(ranges: Sequence[TopicRange], min_count: int | None) -> list[TopicRange]:
    """Splits ranges into at least *min_count* parts, if they have as many ids; drops empty ones."""
    ranges = [one for one in ranges if len(one)]
    total = sum(map(len, ranges))
    if min_count is None or len(ranges) >= min_count:
        return list(ranges)
    found: list[TopicRange] = []
    for one, parts in zip(ranges, allocate([len(one) for one in ranges], min(min_count, total)), strict=True):
        parts = max(parts, 1)
        cuts = [one.start + len(one) * number // parts for number in range(parts + 1)]
        found += [replace(one, start=a, stop=b) for a, b in pairwise(cuts)]
    return found


def allocate(wanted: Sequence[int], limit: int) -> list[int]:
    """Divides *limit* in proportion to the wanted numbers. No share exceeds its wanted number.

    Every number above 0 gets at least 1, if the limit allows it: a small topic must not starve next to a large one.
    """
    total = sum(wanted)
    if total <= limit:
        return list(wanted)
    min_count = int(sum(map(bool, wanted)) <= limit)
    allocated = [max(one * limit // total, min_count) if one else 0 for one in wanted]
    # The remainder goes to the largest rounding losses; an excess is taken from the largest shares.
    by_loss = sorted(
        range(len(wanted)), key=lambda number: (allocated[number] * total - wanted[number] * limit, number)
    )
    while (remainder := limit - sum(allocated)) > 0:
        for number in [one for one in by_loss if allocated[one] < wanted[one]][:remainder]:
            allocated[number] += 1
    for _ in range(-remainder):
        allocated[max(range(len(allocated)), key=allocated.__getitem__)] -= 1
    return allocated
