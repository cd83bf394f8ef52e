"""Opening a store: its files are looked at before LMDB believes them, and new ids begin where none was given yet.

The ids of topics that are not strong are reserved in the strong environment before they are given. Where they ended is
also noted in the session, at each beginning, every hour, and at an orderly end: so an environment that is older than it
was left, of which LMDB reports nothing, does not give again what was given since.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from omq.store.errors import DamagedError, StoreError
from omq.store.lmdb.catalog import RESERVED_IDS, Catalog, StoredTopic
from omq.store.lmdb.data_file import (
    MAX_PAGES_AFTER_CLOSE,
    MAX_PAGES_AFTER_CRASH,
    UNSYNCED,
    check_structure,
    checksum,
    in_a_row,
)
from omq.store.lmdb.environment import Environment
from omq.store.lmdb.flusher import Flusher
from omq.store.lmdb.reader import LmdbReader
from omq.store.lmdb.store_directory import StoreDirectory

ANOTHER: Final = (
    "it is not as it was left: a meta page is damaged, or it is a copy; what was written last may be missing, and ids "
    "go on after it"
)
SKIPPED_IDS: Final = 1 << 24  # that are passed over where the number of ids given of late is unknown
SKIPPED_TOPIC_IDS: Final = 1 << 16  # the same of the ids of topics


@dataclass(slots=True)
class RecoveryReport:
    """The state of the files at opening.

    Attributes:
        missing: The weak environment is not there any more.
        lost: What was acknowledged of weak and async topics may not be in it.
        older: The strong environment is not the one that was left.
        findings: What to report.
    """

    missing: bool
    lost: bool
    older: bool
    findings: list[str]


def look(session: StoreDirectory, flusher: Flusher, strong: Path, weak: Path) -> RecoveryReport:
    """Looks at both environments, and puts the weak one's last sync in place where a crash has lost what came after.

    Raises:
        DamagedError: They cannot be opened.
    """
    findings: list[str] = []
    if session.begun:
        check_presence(strong, weak)
    missing = (strong / "data.mdb").exists() and not (weak / "data.mdb").exists()
    lost = missing or (not session.same_boot and not session.orderly)
    if (weak / "data.mdb").exists() and not (strong / "data.mdb").exists():
        raise DamagedError(
            f"{strong}: damaged: it is missing, and the names of all topics with it. Nothing was changed. Put a "
            "copy of the whole directory in its place, or move all of it away to start over."
        )
    if lost:
        findings += flusher.restore()
    elif _is_another(session, weak) or flusher.is_ahead():
        findings.append(f"{weak}: {ANOTHER}")
        lost = True
    older = _is_another(session, strong)
    # LMDB trusts its pages; a wrong one would crash the process.
    limit = MAX_PAGES_AFTER_CLOSE if session.orderly else MAX_PAGES_AFTER_CRASH
    large = check_structure(strong, limit) + check_structure(weak, limit)
    findings += large if not session.orderly else []
    return RecoveryReport(missing, lost, older, findings)


def _is_another(session: StoreDirectory, directory: Path) -> bool:
    """Returns whether an environment differs from the one left at an orderly end, or its meta pages do not fit."""
    left = session.left.get(directory.name)
    path = directory / "data.mdb"
    return (left is not None and left != checksum(path)) or not in_a_row(path)


def check_presence(strong: Path, weak: Path) -> None:
    """Looks whether the data files of a store that was open before are there: LMDB would make new, empty ones.

    The directory of the weak environment may be missing as a whole: moving it away resets it. So may
    its file be where it was put aside after a loss of power.

    Raises:
        DamagedError: One is missing, or empty.
    """
    for directory in (strong, weak):
        path = directory / "data.mdb"
        aside = not path.exists() and path.with_name(UNSYNCED).exists()
        if (path.exists() and path.stat().st_size) or (directory is weak and (aside or not directory.exists())):
            continue
        what = (
            "the names of all topics with it. Nothing was changed. Put a copy of the whole directory in its place, or "
            f"move all of {directory.parent} away"
            if directory is strong
            else "the messages of weak and async topics with it. Nothing was changed. Put a copy of the directory in "
            f"its place, or move {directory} away"
        )
        raise DamagedError(f"{path}: damaged: it is missing, or empty, and {what} to start over.")


def check_tails(environment: Environment, topics: Iterable[StoredTopic]) -> list[StoreError]:
    """Reads the last block of each topic; what is damaged, or cannot be read."""
    found: list[StoreError] = []
    for topic in topics:
        if topic.last < topic.first:
            continue
        dense = topic.persistence == "strong"
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
    """The ids with which topics go on.

    Attributes:
        jumps: The id to go on after, by topic: those whose next id is not the one of their environment.
        reserved: What is to be reserved, by topic.
        next_topic: Topics get no id below it; 0: they go on as they were.
    """

    jumps: dict[int, int]
    reserved: dict[int, int]
    next_topic: int


def far(topic: StoredTopic) -> int:
    """Returns the highest id that a topic may have given, as the strong environment has it."""
    return topic.state.last if topic.reserved is None else topic.reserved


def is_behind(session: StoreDirectory, catalog: Catalog, topics: Iterable[StoredTopic]) -> bool:
    """Returns whether the strong environment is older than what was noted next to it."""
    return catalog.next < session.next_topic or any(far(topic) < session.ids.get(topic.id, 0) for topic in topics)


def note(session: StoreDirectory, catalog: Catalog, *, orderly: bool, left: dict[str, int] | None = None) -> bool:
    """Notes the state of the store next to the environments; returns whether there was room for that."""
    topics = list(catalog.topics.values())
    ids = {topic.id: max(far(topic), session.ids.get(topic.id, 0)) for topic in topics}
    next_topic = max(catalog.next, session.next_topic)
    return session.note(orderly=orderly, ids=ids, next_topic=next_topic, left=left)


def beginning(
    session: StoreDirectory, catalog: Catalog, topics: Iterable[StoredTopic], *, lost: bool, older: bool
) -> NextIds:
    """Returns the ids with which topics go on.

    Args:
        session: What was noted.
        catalog: The catalog.
        topics: Those that are opened.
        lost: The weak environment is older than it was.
        older: So is the strong one: more is reserved than it has recorded.
    """
    # What was noted at an orderly end is all; else more was given since then.
    exact = not older or (session.orderly and session.noted)
    found = NextIds({}, {}, 0)
    if older:
        found = found._replace(next_topic=max(catalog.next, session.next_topic) + (0 if exact else SKIPPED_TOPIC_IDS))
    for topic in topics:
        upto = max(far(topic), session.ids.get(topic.id, 0) if older else 0) + (0 if exact else SKIPPED_IDS)
        if topic.reserved is None:
            if upto > topic.last:
                found.jumps[topic.id] = upto
            continue
        starts_over = topic.persistence == "transient" or lost or (topic.persistence == "async" and not session.orderly)
        if starts_over:
            found.jumps[topic.id] = upto
        if starts_over or older:
            found.reserved[topic.id] = upto + RESERVED_IDS
    return found
