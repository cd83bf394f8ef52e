"""The parameters of `/topics.json`: select topics by name, and only those that have changed."""

from __future__ import annotations

import secrets
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from omq.broker.core.stats import TopicStats

_PARAMETERS: Final = ("match", "after", "limit", "since")
_MAX_DIGITS: Final = 18  # of an answer's number


@dataclass(frozen=True, slots=True)
class Selection:
    """The topics of one answer, sorted by name.

    Attributes:
        topics: The topics.
        matching: The number of all topics that match the query.
        next: The `after` of the next page; `None` on the last one.
    """

    topics: Sequence[TopicStats]
    matching: int
    next: str | None


@dataclass(frozen=True, slots=True)
class Query:
    """The parameters of one request.

    Attributes:
        match: Selects topics whose names contain this text; case-insensitive.
        after: The answer begins after this name; `None` begins with the first topic.
        limit: The maximum number of topics in the answer; `None` returns all.
        since: The `revision` of an earlier answer; topics that have not changed since are left out.
    """

    match: str = ""
    after: str | None = None
    limit: int | None = None
    since: str | None = None

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Query:
        """Parses the parameters of a URL.

        Raises:
            ValueError: A parameter is unknown, or its value is not valid.
        """
        if len(set(given)) < len(given):
            raise ValueError("a parameter may be given only once")
        for name in given:
            if name not in _PARAMETERS:
                raise ValueError(f"unknown parameter {name[:40]!r}; expected {', '.join(_PARAMETERS)}")
        limit = given.get("limit")
        if limit is not None and not (limit.isascii() and limit.isdecimal() and int(limit[:9]) > 0):
            raise ValueError(f"limit={limit[:40]!r}: must be a number of topics, at least 1")
        max_topics = None if limit is None else int(limit[:9])
        return cls(given.get("match", ""), given.get("after"), max_topics, given.get("since"))

    def select(self, topics: Iterable[TopicStats]) -> Selection:
        """Returns the topics that the query selects."""
        wanted = self.match.lower()
        found = sorted(
            (one for one in topics if wanted in one["name"].lower()) if wanted else topics, key=lambda one: one["name"]
        )
        start = 0 if self.after is None else bisect_right(found, self.after, key=lambda one: one["name"])
        stop = len(found) if self.limit is None else min(start + self.limit, len(found))
        return Selection(found[start:stop], len(found), found[stop - 1]["name"] if start < stop < len(found) else None)


class ChangeTracker:
    """Numbers the answers, and records in which answer each topic has changed last."""

    def __init__(self) -> None:
        self._broker_run = secrets.token_hex(4)  # revisions of an earlier run are unknown
        self._answers = 0
        self._seen: dict[
            int, tuple[int, int]
        ] = {}  # by topic id: the answer of its last change, and the hash of its JSON

    def since(self, revision: str | None) -> int | None:
        """Returns the number of an earlier answer; `None` if this run of the broker has not sent that revision."""
        broker_run, _, number = (revision or "").partition("-")
        known = broker_run == self._broker_run and number.isascii() and number.isdecimal()
        return int(number) if known and len(number) < _MAX_DIGITS and int(number) <= self._answers else None

    def record(self, topics: Mapping[int, str], existing: int) -> tuple[str, dict[int, int]]:
        """Records the content of an answer.

        Args:
            topics: The JSON of its topics, by their ids.
            existing: The number of all topics.

        Returns:
            The revision of the answer, and by topic id the number of the answer in which the topic changed last.
        """
        self._answers += 1
        if len(self._seen) > 2 * existing + 1024:
            self._seen.clear()  # most entries are of deleted topics
        numbers = {}
        for id, text in topics.items():
            number, before = self._seen.get(id, (0, 0))
            if not number or before != hash(text):
                number = self._answers
                self._seen[id] = number, hash(text)
            numbers[id] = number
        return f"{self._broker_run}-{self._answers}", numbers
