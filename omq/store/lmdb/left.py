"""What was left in the directory, looked at before LMDB believes it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from omq.store.errors import DamagedError
from omq.store.lmdb.data_file import checksum, in_a_row
from omq.store.lmdb.flusher import Flusher
from omq.store.lmdb.session import Session
from omq.store.lmdb.verify import AFTER_A_CRASH, IN_ORDER, check_presence, check_structure

ANOTHER: Final = (
    "it is not as it was left: a meta page is damaged, or it is a copy; what was written last may be missing, and ids "
    "go on behind it"
)


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
