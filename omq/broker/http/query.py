"""Parts of `/topics.json`: some topics by their names, and of these what is new to who asks."""

from __future__ import annotations

import secrets
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from omq.broker.core.stats import TopicStats

_PARAMETERS: Final = ("match", "after", "limit", "since")
_MAX_DIGITS: Final = 18  # of a number of an answer, at most


@dataclass(frozen=True, slots=True)
class Selection:
    """Topics that an answer is about, in the order of their names.

    Attributes:
        topics: The topics.
        matching: How many topics the query has in all.
        next: The name after which the next part begins; `None` where this is the last one.
    """

    topics: Sequence[TopicStats]
    matching: int
    next: str | None


@dataclass(frozen=True, slots=True)
class Query:
    """The question of one request for topics.

    Attributes:
        match: Text that is in the topics' names; case does not matter.
        after: Topics begin after this name; `None`: with the first.
        limit: The most topics in the answer; `None`: all.
        since: The `revision` of an earlier answer: topics that are the same are left out. `None`: none are.
    """

    match: str = ""
    after: str | None = None
    limit: int | None = None
    since: str | None = None

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Query:
        """Reads the parameters of an address.

        Raises:
            ValueError: One is not known, or its value is not valid; the text names it.
        """
        if len(set(given)) < len(given):
            raise ValueError("a parameter is there twice")
        for name in given:
            if name not in _PARAMETERS:
                raise ValueError(f"{name[:40]!r} is not a parameter; there are {', '.join(_PARAMETERS)}")
        limit = given.get("limit")
        if limit is not None and not (limit.isascii() and limit.isdecimal() and int(limit[:9]) > 0):
            raise ValueError(f"limit={limit[:40]!r}: must be a number of topics, at least 1")
        max_topics = None if limit is None else int(limit[:9])
        return cls(given.get("match", ""), given.get("after"), max_topics, given.get("since"))

    def select(self, topics: Iterable[TopicStats]) -> Selection:
        """Returns the topics that are asked for."""
        wanted = self.match.lower()
        found = sorted(
            (one for one in topics if wanted in one["name"].lower()) if wanted else topics, key=lambda one: one["name"]
        )
        start = 0 if self.after is None else bisect_right(found, self.after, key=lambda one: one["name"])
        stop = len(found) if self.limit is None else min(start + self.limit, len(found))
        return Selection(found[start:stop], len(found), found[stop - 1]["name"] if start < stop < len(found) else None)


class Changes:
    """Numbers the answers, and keeps in which one each topic was new."""

    def __init__(self) -> None:
        self._broker_run = secrets.token_hex(4)  # numbers of a broker before mean nothing
        self._answers = 0
        self._seen: dict[int, tuple[int, int]] = {}  # by a topic's id: the answer in which it was new, and its hash

    def since(self, revision: str | None) -> int | None:
        """Returns the number of an earlier answer; `None` where this broker has given none of that revision."""
        broker_run, _, number = (revision or "").partition("-")
        known = broker_run == self._broker_run and number.isascii() and number.isdecimal()
        return int(number) if known and len(number) < _MAX_DIGITS and int(number) <= self._answers else None

    def record(self, topics: Mapping[int, str], existing: int) -> tuple[str, dict[int, int]]:
        """Notes what an answer has of topics.

        Args:
            topics: Their JSON, by their ids.
            existing: The number of all topics.

        Returns:
            The answer's revision, and by a topic's id the number of the answer in which it was new.
        """
        self._answers += 1
        if len(self._seen) > 2 * existing + 1024:
            self._seen.clear()  # most of them are of topics that were deleted
        numbers = {}
        for id, text in topics.items():
            number, before = self._seen.get(id, (0, 0))
            if not number or before != hash(text):
                number = self._answers
                self._seen[id] = number, hash(text)
            numbers[id] = number
        return f"{self._broker_run}-{self._answers}", numbers
