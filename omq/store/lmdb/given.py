"""How far ids were given, where an environment does not know it: no id is given twice.

The ids of topics that are not strong are reserved in the strong environment before they are given. Where they ended is
also noted beside both environments, at each beginning, every hour, and at an orderly end: so an environment that is
older than it was left, of which LMDB says nothing, does not give again what was given since.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from omq.store.lmdb.catalog import RESERVED, Catalog
from omq.store.lmdb.session import Session
from omq.store.lmdb.topic import Topic

UNKNOWN: Final = 1 << 24  # ids that are passed over where nobody knows how many were given of late
TOPICS_UNKNOWN: Final = 1 << 16  # the same of the ids of topics


class Beginning(NamedTuple):
    """Where ids go on.

    Attributes:
        jumps: Behind which id, by topic: those whose next id is not what their environment says.
        reserved: What is to be reserved, by topic.
        next_topic: Topics get no id below it; 0: they go on as they were.
    """

    jumps: dict[int, int]
    reserved: dict[int, int]
    next_topic: int


def far(topic: Topic) -> int:
    """How far the ids of a topic may have gone, as the strong environment has it."""
    return topic.state.last if topic.reserved is None else topic.reserved


def is_behind(session: Session, catalog: Catalog, topics: Iterable[Topic]) -> bool:
    """Whether the strong environment is older than what was noted beside it."""
    return catalog.next < session.next_topic or any(far(topic) < session.ids.get(topic.id, 0) for topic in topics)


def note(session: Session, catalog: Catalog, *, orderly: bool, left: dict[str, int] | None = None) -> bool:
    """Notes how it stands with the store, beside the environments; whether there was room for that."""
    topics = list(catalog.topics.values())
    ids = {topic.id: max(far(topic), session.ids.get(topic.id, 0)) for topic in topics}
    next_topic = max(catalog.next, session.next_topic)
    return session.note(orderly=orderly, ids=ids, next_topic=next_topic, left=left)


def beginning(session: Session, catalog: Catalog, topics: Iterable[Topic], *, lost: bool, older: bool) -> Beginning:
    """Where ids go on.

    Args:
        session: What was noted.
        catalog: The catalog.
        topics: Those that are opened.
        lost: The weak environment is older than it was.
        older: So is the strong one: what is reserved is more than it says.
    """
    # What was noted at an orderly end is all; else more was given since then.
    exact = not older or (session.orderly and session.noted)
    found = Beginning({}, {}, 0)
    if older:
        found = found._replace(next_topic=max(catalog.next, session.next_topic) + (0 if exact else TOPICS_UNKNOWN))
    for topic in topics:
        upto = max(far(topic), session.ids.get(topic.id, 0) if older else 0) + (0 if exact else UNKNOWN)
        if topic.reserved is None:
            if upto > topic.last:
                found.jumps[topic.id] = upto
            continue
        anew = topic.persistence == "transient" or lost or (topic.persistence == "async" and not session.orderly)
        if anew:
            found.jumps[topic.id] = upto
        if anew or older:
            found.reserved[topic.id] = upto + RESERVED
    return found
