"""Opening a store: checks the files before LMDB trusts them, and chooses next ids that were never assigned.

Ids of topics that are not strong are reserved in the strong environment before they are assigned. The file `session`
also has the highest ids, as of the opening, of each hour and of a clean shutdown. So an environment that was replaced
by an older copy, which LMDB cannot detect, does not assign ids again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from omq.store.errors import DamagedError, StoreError
from omq.store.lmdb.catalog import RESERVED_IDS, Catalog, StoredTopic
from omq.store.lmdb.data_file import (
    DATA_FILE,
    MAX_PAGES_AFTER_CLOSE,
    MAX_PAGES_AFTER_CRASH,
    UNSYNCED,
    are_consecutive,
    check_structure,
    checksum,
)
from omq.store.lmdb.environment import Environment
from omq.store.lmdb.flusher import Flusher
from omq.store.lmdb.reader import LmdbReader
from omq.store.lmdb.store_directory import StoreDirectory

CHANGED: Final = (
    "it is not as it was left: a meta page is damaged, or it is an older copy; the last writes may be missing, and "
    "their ids are skipped"
)
CHANGED_REPLICA: Final = (
    "it is not as it was left: a meta page is damaged, or it is an older copy; the entries that it lacks are applied "
    "again from the journal"
)
SKIPPED_IDS: Final = 1 << 24  # where the number of ids assigned since the last record of it is unknown
SKIPPED_TOPIC_IDS: Final = 1 << 16  # the same for ids of topics


@dataclass(slots=True)
class RecoveryReport:
    """The state of the files at opening.

    Attributes:
        missing: The weak environment was removed.
        lost: Acknowledged messages of weak and async topics may be missing.
        older: The strong environment is not the one that the last process left.
        findings: Sentences to report.
    """

    missing: bool
    lost: bool
    older: bool
    findings: list[str]


def examine(session: StoreDirectory, flusher: Flusher, strong: Path, weak: Path) -> RecoveryReport:
    """Checks both environments, and restores the last sync of the one that the flusher syncs after a power loss.

    Raises:
        DamagedError: An environment cannot be opened.
    """
    findings: list[str] = []
    if session.used_before:
        check_presence(strong, weak)
    missing = (strong / DATA_FILE).exists() and not (weak / DATA_FILE).exists()
    power_lost = not session.same_boot and not session.clean_shutdown
    if (weak / DATA_FILE).exists() and not (strong / DATA_FILE).exists():
        raise DamagedError(
            f"{strong}: damaged: it is missing, and with it the names of all topics. Nothing was changed. Restore "
            "the whole store from a copy, or move all of it away to start over."
        )
    if power_lost:
        findings += flusher.restore()
    changed = {path for path in (strong, weak) if _has_changed(session, path)}
    if flusher.is_ahead():
        changed.add(flusher.directory)
    lost = missing or power_lost
    if weak in changed and not lost:
        findings.append(f"{weak}: {CHANGED}")
        lost = True
    # LMDB trusts its pages: an invalid one would crash the process.
    limit = MAX_PAGES_AFTER_CLOSE if session.clean_shutdown else MAX_PAGES_AFTER_CRASH
    large = check_structure(strong, limit) + check_structure(weak, limit)
    findings += large if not session.clean_shutdown else []
    return RecoveryReport(missing, lost, strong in changed, findings)


def _has_changed(session: StoreDirectory, directory: Path) -> bool:
    """Returns whether an environment has changed since a clean shutdown, or its meta pages are not consecutive."""
    left = session.left.get(directory.name)
    path = directory / DATA_FILE
    return (left is not None and left != checksum(path)) or not are_consecutive(path)


def check_presence(strong: Path, weak: Path) -> None:
    """Checks that a store that was open before has its data files: LMDB would create new, empty ones.

    The directory of the weak environment may be missing, as moving it away resets it. Its data file may be missing
    too, if it was put aside after a power loss.

    Raises:
        DamagedError: A data file is missing or empty.
    """
    for directory in (strong, weak):
        path = directory / DATA_FILE
        aside = not path.exists() and path.with_name(UNSYNCED).exists()
        if (path.exists() and path.stat().st_size) or (directory is weak and (aside or not directory.exists())):
            continue
        consequence = (
            "the names of all topics with it. Nothing was changed. Restore the whole store from a copy, or move all of "
            f"{directory.parent} away"
            if directory is strong
            else "the messages of weak and async topics with it. Nothing was changed. Restore the directory from a "
            f"copy, or move {directory} away"
        )
        raise DamagedError(f"{path}: damaged: it is missing, or empty, and {consequence} to start over.")


def check_tails(environment: Environment, topics: Iterable[StoredTopic]) -> list[StoreError]:
    """Reads the last block of each topic; returns an error for each block that is damaged or unreadable."""
    found: list[StoreError] = []
    for topic in topics:
        if topic.last < topic.first:
            continue
        dense = topic.engine == "strong"
        with LmdbReader(environment, topic.id, dense, found.append) as reader:
            try:
                for _ in reader.blocks(topic.last):
                    pass
            except DamagedError:
                pass
            except StoreError as error:
                found.append(error)
    return found


class NextIds(NamedTuple):
    """The ids with which topics continue.

    Attributes:
        skips: The last id to skip, by topic; only for topics that do not continue at the next id of their environment.
        reserved: The highest id to reserve, by topic.
        next_topic: The lowest id of the next topic; 0: as the catalog has it.
    """

    skips: dict[int, int]
    reserved: dict[int, int]
    next_topic: int


def highest_id(topic: StoredTopic) -> int:
    """Returns the highest id that a topic may have assigned, according to the strong environment."""
    return topic.state.last if topic.reserved is None else topic.reserved


def is_behind(session: StoreDirectory, catalog: Catalog, topics: Iterable[StoredTopic]) -> bool:
    """Returns whether the strong environment is older than the ids in `session`."""
    return catalog.next < session.next_topic or any(
        highest_id(topic) < session.ids.get(topic.id, 0) for topic in topics
    )


def save_session(session: StoreDirectory, catalog: Catalog, *, clean: bool, left: dict[str, int] | None = None) -> bool:
    """Writes the state of the store to `session`; returns whether there was space for it."""
    topics = list(catalog.topics.values())
    ids = {topic.id: max(highest_id(topic), session.ids.get(topic.id, 0)) for topic in topics}
    next_topic = max(catalog.next, session.next_topic)
    return session.save(clean=clean, ids=ids, next_topic=next_topic, left=left)


def next_ids(
    session: StoreDirectory, catalog: Catalog, topics: Iterable[StoredTopic], *, lost: bool, older: bool
) -> NextIds:
    """Returns the ids with which topics continue.

    Args:
        session: The directory, with the state that the last session has left.
        catalog: The catalog.
        topics: The topics that are opened.
        lost: The weak environment may have lost writes.
        older: The strong environment may have too: ids may be reserved that it does not know.
    """
    # After a clean shutdown the ids in `session` are exact. Otherwise more were assigned since they were written.
    exact = not older or (session.clean_shutdown and session.has_ids)
    found = NextIds({}, {}, 0)
    if older:
        found = found._replace(next_topic=max(catalog.next, session.next_topic) + (0 if exact else SKIPPED_TOPIC_IDS))
    for topic in topics:
        highest = max(highest_id(topic), session.ids.get(topic.id, 0) if older else 0) + (0 if exact else SKIPPED_IDS)
        if topic.reserved is None:
            if highest > topic.last:
                found.skips[topic.id] = highest
            continue
        starts_over = (
            topic.persistence == "transient" or lost or (topic.persistence == "async" and not session.clean_shutdown)
        )
        if starts_over:
            found.skips[topic.id] = highest
        if starts_over or older:
            found.reserved[topic.id] = highest + RESERVED_IDS
    return found
