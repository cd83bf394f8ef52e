"""A topic as the writer of its environment sees it: what is committed, and what the transaction at work makes of it."""

from __future__ import annotations

from typing import Any, NamedTuple

from omq.store.interface import Delivery, Persistence, TopicState
from omq.store.joining import OpenBlock
from omq.store.settled import Settled


class Oldest(NamedTuple):
    """The oldest block of a topic."""

    first: int
    last: int
    size: int  # of its records
    when: int  # it was put, by the store's clock


class Topic:
    """A topic of one environment. Only its writer changes it; others read `state`, which changes as a whole.

    Attributes:
        first: The oldest id that is kept, in the transaction at work.
        last: The newest one given.
        bytes: Of records.
        jumped: Ranges of ids that were passed over, in order; of those that are not kept any more the last ones.
        reserved: The highest id that may be given before more are reserved; `None` where there is no need to.
        open: Records that are not yet put.
        oldest: The oldest block; `None`: not known, or there is none.
        settled: What is acknowledged; `None`: not read yet.
    """

    __slots__ = (
        "_committed",
        "bytes",
        "delivery",
        "first",
        "id",
        "jumped",
        "last",
        "name",
        "oldest",
        "open",
        "persistence",
        "reserved",
        "settings",
        "settled",
    )

    def __init__(
        self, id: int, name: str, delivery: Delivery, persistence: Persistence, settings: dict[str, Any]
    ) -> None:
        self.id = id
        self.name = name
        self.delivery: Delivery = delivery
        self.persistence: Persistence = persistence
        self.settings = settings
        self.first = 1
        self.last = 0
        self.bytes = 0
        self.jumped: list[tuple[int, int]] = []
        self.reserved: int | None = None
        self.open: OpenBlock | None = None
        self.oldest: Oldest | None = None
        self.settled: Settled | None = None
        self._committed: tuple[int, int, int, tuple[tuple[int, int], ...]] = (1, 0, 0, ())

    def stand(self, first: int, last: int, size: int, jumped: list[tuple[int, int]]) -> None:
        """Sets where it stands, as it is committed."""
        self.first, self.last, self.bytes, self.jumped = first, last, size, jumped
        self.open = self.oldest = None
        self.settled = None
        self.commit()

    def commit(self) -> bool:
        """What the transaction at work made of it is committed; whether ids were given."""
        before = self._committed[1]
        self._committed = self.first, self.last, self.bytes, tuple(self.jumped)
        return self.last != before

    @property
    def state(self) -> TopicState:
        """As it is committed."""
        # Made when it is asked for, which is much less often than something is committed.
        return TopicState(self.id, self.name, self.delivery, self.persistence, self.settings, *self._committed)
