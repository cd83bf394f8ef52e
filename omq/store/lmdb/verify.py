"""Looking for damage: the trees of LMDB without LMDB, then what is in them."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import lmdb.verify

from omq._core import blocks
from omq.store.errors import DamagedError, StoreError
from omq.store.lmdb.data_file import look
from omq.store.lmdb.environment import Environment
from omq.store.lmdb.layout import PIECE, STAGE, opened
from omq.store.lmdb.reader import LmdbReader
from omq.store.lmdb.topic import Topic

#: Pages of the trees up to which opening looks at all of them, some 30 us each; `omq store verify` always does.
AFTER_A_CRASH: Final = 300_000
IN_ORDER: Final = 30_000
UNSYNCED: Final = "data.mdb.unsynced"  # what was not synced when the power was lost


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


def check_structure(directory: Path, limit: int | None = None) -> list[str]:
    """Looks at the trees of an environment that nobody has open; what there is to say.

    Args:
        directory: Its own.
        limit: The effort above which it is left.

    Raises:
        DamagedError: They are damaged: LMDB may not open them.
    """
    path = directory / "data.mdb"
    meta = look(path)
    if meta is None or not meta.transaction:
        return []
    if limit is not None and meta.effort > limit:
        return [f"{path}: too large to look through now; `omq store verify` does"]
    try:
        problems: list[str] = lmdb.verify.verify(str(directory))  # type: ignore[no-untyped-call]
    except lmdb.verify.VerifyError as error:
        problems = [str(error)]
    except Exception as error:
        problems = [f"{type(error).__name__}: {error}"]
    # Pages that nobody uses do no harm: an older transaction, put back, leaves some.
    if problems:
        raise DamagedError(
            f"{path}: damaged: {problems[0]}{f' (and {len(problems) - 1} more)' if problems[1:] else ''}. Nothing was "
            "changed. Put a copy of the directory in its place, or move it away to begin anew."
        )
    return []


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


def check_topic(environment: Environment, topic: Topic) -> tuple[int, int, list[DamagedError]]:
    """Reads a topic from end to end: its records, their bytes, and what is damaged."""
    found: list[DamagedError] = []
    start, records, size = topic.first, 0, 0
    while start <= topic.last:
        with LmdbReader(environment, topic.id, topic.persistence == "strong", lambda error: None) as reader:
            try:
                for header, view in reader.blocks(start):
                    start = int.from_bytes(header[8:16], "big") + int.from_bytes(header[4:8], "big")
                    records += int.from_bytes(header[4:8], "big")
                    size += len(view)
                break
            except DamagedError as error:
                found.append(error)
                start = error.last + 1
            except StoreError as error:
                found.append(DamagedError(str(error), topic.id, start, topic.last))
                break
    return records, size, found


def check_rows(environment: Environment) -> list[DamagedError]:
    """Opens every row that is no block (those are `check_topic`'s), and what waits for its commit; what is damaged."""
    found: list[DamagedError] = []
    stages: set[int] = set()
    with environment.read() as reading:
        for raw, value in reading.cursor():
            key, kind = bytes(raw), bytes(raw[:1])
            try:
                if kind == b"g":
                    _, stage, _, _, count = PIECE.unpack(key)
                    if stage in stages and blocks.check(value, len(value)) != count:
                        raise ValueError("records are missing")
                elif kind == b"G":
                    stages.add(STAGE.unpack(opened(key, value))[0])
                elif kind != b"b":
                    opened(key, value)
            except (DamagedError, ValueError, struct.error) as error:
                why = "" if isinstance(error, DamagedError) else f"what is stored under {key!r} is damaged: "
                found.append(DamagedError(f"{environment.path}: {why}{error}"))
    return found
