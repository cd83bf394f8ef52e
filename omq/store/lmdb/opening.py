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
from omq.store.lmdb.catalog import RESERVED, Catalog, Topic
from omq.store.lmdb.data_file import AFTER_A_CRASH, IN_ORDER, UNSYNCED, check_structure, checksum, in_a_row
from omq.store.lmdb.environment import Environment
from omq.store.lmdb.flusher import Flusher
from omq.store.lmdb.reader import LmdbReader
from omq.store.lmdb.session import Session

ANOTHER: Final = (
    "it is not as it was left: a meta page is damaged, or it is a copy; what was written last may be missing, and ids "
    "go on behind it"
)
UNKNOWN: Final = 1 << 24  # ids that are passed over where nobody knows how many were given of late
TOPICS_UNKNOWN: Final = 1 << 16  # the same of the ids of topics


@dataclass(slots=True)
class Left:
    """What the files say.

    Attributes:
        missing: The weak environment is not there any more.
        lost: What was acknowledged of weak and async topics may not be in it.
        older: The strong environment is not the one that was left.
        findings: What to tell.
    """

    missing: bool
    lost: bool
    older: bool
    findings: list[str]


def look(session: Session, flusher: Flusher, strong: Path, weak: Path) -> Left:
    """Looks at both environments, and puts the weak one's last sync in place where a crash has taken what came behind.

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
            "copy of the whole directory in its place, or move all of it away to begin anew."
        )
    if lost:
        findings += flusher.restore()
    elif _is_another(session, weak) or flusher.is_ahead():
        findings.append(f"{weak}: {ANOTHER}")
        lost = True
    older = _is_another(session, strong)
    # LMDB believes what its pages say; a wrong one would take the process with it.
    limit = IN_ORDER if session.orderly else AFTER_A_CRASH
    large = check_structure(strong, limit) + check_structure(weak, limit)
    findings += large if not session.orderly else []
    return Left(missing, lost, older, findings)


def _is_another(session: Session, directory: Path) -> bool:
    """Whether an environment is not what was left at an orderly end, or its meta pages do not fit together."""
    left = session.left.get(directory.name)
    path = directory / "data.mdb"
    return (left is not None and left != checksum(path)) or not in_a_row(path)


def check_presence(strong: Path, weak: Path) -> None:
    """Looks whether the data files of a store that was open before are there: LMDB would make new, empty ones.

    The directory of the weak environment may be missing as a whole: who moves it away wants to begin it anew. So may
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
        raise DamagedError(f"{path}: damaged: it is missing, or empty, and {what} to begin anew.")


def check_tails(environment: Environment, topics: Iterable[Topic]) -> list[StoreError]:
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
