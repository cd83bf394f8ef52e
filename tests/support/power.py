"""The files of a store as a power failure leaves them."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from lmdb import verify

from omq.store.lmdb.data_file import DATA_FILE
from omq.store.lmdb.flusher import Flusher

METAS: Final = 2


def lose_power(directory: Path, environment: str, chance: random.Random) -> None:
    """Loses pages of an environment that were written after its last sync, and lets the system have another boot.

    Args:
        directory: The directory of a store whose process was killed, or a copy of one that is open.
        environment: The environment that does not sync each commit.
        chance: Selects the pages. A lost one has zeros, or the content of another one.
    """
    session = directory / "session"
    if not session.exists():
        return  # it was never open
    session.write_text(json.dumps(json.loads(session.read_text()) | {"boot": f"boot {chance.random()}"}))
    path = directory / environment / DATA_FILE
    kept = _kept_pages(path.parent)
    if not kept:
        return
    likely = chance.random()
    with path.open("r+b") as file:
        page_size = os.sysconf("SC_PAGESIZE")
        pages = os.fstat(file.fileno()).st_size // page_size
        for number in range(METAS, pages):
            if (number >= len(kept) or not kept[number]) and chance.random() < likely:
                other = chance.randrange(METAS, pages)
                content = os.pread(file.fileno(), page_size, other * page_size) if chance.random() < 0.5 else b""
                os.pwrite(file.fileno(), content.ljust(page_size, b"\0"), number * page_size)


def _kept_pages(environment: Path) -> bytearray:
    """Returns for each page whether the state of the last sync has it; empty if there was no sync."""
    if not (environment / "synced").exists():
        return bytearray()
    with TemporaryDirectory() as copy:
        for name in (DATA_FILE, "synced"):
            shutil.copy(environment / name, copy)
        Flusher(Path(copy), 1.0, lambda hour: None, lambda error: None).restore()
        with (Path(copy) / DATA_FILE).open("rb") as file:
            found = verify._Verifier(file, os.fstat(file.fileno()).st_size)
            assert found.verify() == []
            return found.live
