"""Checks of an LMDB data file before LMDB maps it: access beyond the end of a truncated file kills the process.

This module reads only the two meta pages. LMDB uses the one with the higher transaction number. Transactions write the
two in turn.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import lmdb.verify

from omq._core.blocks import crc32c
from omq.store.errors import DamagedError

MAGIC: Final = 0xBEEFC0DE
VERSION: Final = 1
META_FLAG: Final = 0x08
PAGE_HEADER: Final = struct.Struct("=QHHHH")  # number, unused, flags, lower, upper
#: magic, version, address, map size, the tree of free pages, the main tree, last page, transaction
META: Final = struct.Struct("=IIQQ48s48sQQ")
#: page size (in the tree of free pages), flags, depth, branch pages, leaf pages, overflow pages, entries, root
TREE: Final = struct.Struct("=IHHQQQQQ")
META_BYTES: Final = PAGE_HEADER.size + META.size  # the used part of a meta page

#: Opening a store checks trees of at most this many pages, at about 30 us a page. `omq store verify` has no limit.
MAX_PAGES_AFTER_CRASH: Final = 300_000
MAX_PAGES_AFTER_CLOSE: Final = 30_000
DATA_FILE: Final = "data.mdb"  # in the directory of an environment; LMDB's name
UNSYNCED: Final = "data.mdb.unsynced"  # the name of a data file that was put aside after a power loss


@dataclass(frozen=True, slots=True)
class Meta:
    """The content of a meta page.

    Attributes:
        page_size: The bytes of a page.
        last_page: The number of the last page in use.
        transaction: The number of the transaction that wrote it.
        used: The number of pages in use.
        effort: The cost of checking the trees, in pages. Overflow pages are only counted, and cost less.
        raw: The used bytes of the page.
    """

    page_size: int
    last_page: int
    transaction: int
    used: int
    effort: int
    raw: bytes

    @property
    def end(self) -> int:
        """The offset in the file after the last page in use."""
        return (self.last_page + 1) * self.page_size

    @property
    def used_bytes(self) -> int:
        """The bytes of the pages in use."""
        return self.used * self.page_size


def parse_meta(raw: bytes) -> Meta | None:
    """Returns a meta page; `None` if the bytes are not a meta page."""
    if len(raw) < META_BYTES:
        return None
    _, _, flags, _, _ = PAGE_HEADER.unpack_from(raw)
    magic, version, _, _, free, main, last_page, transaction = META.unpack_from(raw, PAGE_HEADER.size)
    page_size = TREE.unpack(free)[0]
    if not flags & META_FLAG or magic != MAGIC or version != VERSION:
        return None
    if page_size < 512 or page_size & page_size - 1 or page_size > 65536:
        return None
    trees = [TREE.unpack(free)[3:6], TREE.unpack(main)[3:6]]
    used = 2 + sum(map(sum, trees))
    effort = sum(branches + leaves + large // 20 for branches, leaves, large in trees)
    return Meta(page_size, last_page, transaction, used, effort, bytes(raw[:META_BYTES]))


def read_metas(path: Path) -> tuple[list[Meta | None], int]:
    """Returns both meta pages, and the size of the file."""
    with path.open("rb") as file:
        return metas_of(file.fileno()), os.fstat(file.fileno()).st_size


def metas_of(descriptor: int) -> list[Meta | None]:
    """Returns both meta pages of an open file."""
    start = os.pread(descriptor, 65536 + META_BYTES, 0)
    found = parse_meta(start[:META_BYTES])
    sizes = [found.page_size] if found is not None else [2**power for power in range(9, 17)]
    for page_size in sizes:
        second = parse_meta(start[page_size : page_size + META_BYTES])
        if second is not None and second.page_size == page_size:
            return [found, second]
    return [found, None]


def read_meta(path: Path) -> Meta | None:
    """Returns the meta page that LMDB will use; `None` if the file is missing or empty.

    Raises:
        DamagedError: The file cannot be mapped: a meta page is invalid, or pages are missing at the end.
    """
    try:
        metas, size = read_metas(path)
    except FileNotFoundError:
        return None
    if size == 0:
        return None
    one, two = metas
    if one is None or two is None:
        which = "both meta pages" if one is two else f"meta page {0 if one is None else 1}"
        raise DamagedError(
            f"{path}: damaged: {which} of LMDB cannot be read. Nothing was changed. Restore the directory from a "
            "copy, or move it away to start over."
        )
    meta = max(one, two, key=lambda meta: meta.transaction)
    if meta.transaction and size < meta.end:
        raise DamagedError(
            f"{path}: damaged: the file has {size} bytes, and {meta.end} are in use: its end is missing. Nothing was "
            "changed. Restore the directory from a copy, or move it away to start over."
        )
    return meta


def check_structure(directory: Path, limit: int | None = None) -> list[str]:
    """Checks the trees of an environment that is not open, without LMDB; returns findings to report.

    Args:
        directory: The directory of the environment.
        limit: The effort above which the trees are not checked, which becomes a finding. `None`: no limit.

    Raises:
        DamagedError: The trees are damaged: LMDB must not open the file.
    """
    path = directory / DATA_FILE
    meta = read_meta(path)
    if meta is None or not meta.transaction:
        return []
    if limit is not None and meta.effort > limit:
        return [f"{path}: too large to check while opening; run `omq store verify` to check it"]
    try:
        problems: list[str] = lmdb.verify.verify(str(directory))  # type: ignore[no-untyped-call]
    except lmdb.verify.VerifyError as error:
        problems = [str(error)]
    except Exception as error:
        problems = [f"{type(error).__name__}: {error}"]
    # Unused pages are not a problem: a restored meta page leaves some.
    if problems:
        raise DamagedError(
            f"{path}: damaged: {problems[0]}{f' (and {len(problems) - 1} more)' if problems[1:] else ''}. Nothing was "
            "changed. Restore the directory from a copy, or move it away to start over."
        )
    return []


def are_consecutive(path: Path) -> bool:
    """Returns whether the meta pages are of consecutive transactions, as LMDB leaves them unless one is damaged."""
    try:
        one, two = read_metas(path)[0]
    except FileNotFoundError:
        return True
    if one is None or two is None:
        return one is two
    numbers = one.transaction, two.transaction
    return numbers == (0, 0) or (numbers[0] % 2 == 0 and abs(numbers[0] - numbers[1]) == 1)


def checksum(path: Path) -> int:
    """Returns the checksum of both meta pages; 0 if there is no file."""
    try:
        return crc32c(b"".join(meta.raw if meta is not None else b"-" for meta in read_metas(path)[0]))
    except FileNotFoundError:
        return 0


def extend_to_last_page(descriptor: int) -> None:
    """Extends a closed file to the end of its last page, as LMDB may leave out unused pages there."""
    metas = metas_of(descriptor)
    needed = max(meta.end for meta in metas if meta is not None and meta.transaction)
    if os.fstat(descriptor).st_size < needed:
        os.truncate(descriptor, needed)
