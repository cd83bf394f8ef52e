"""The files of a directory as numbered blocks with a digest each: the messages of the demos."""

import hashlib
import os
import stat
import sysconfig
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

#: Directories next to the standard library that are not a part of it.
NOT_STANDARD: Final = frozenset({"site-packages", "dist-packages", "__pycache__"})


@dataclass(frozen=True, slots=True)
class File:
    """The beginning of a file, or all of it.

    Attributes:
        path: Its path.
        size: Bytes from its start that are sent.
    """

    path: str
    size: int


@dataclass(slots=True)
class FileSet:
    """The files of a directory that are sent, with the digests of their blocks.

    Attributes:
        block: Bytes in a block; the last one of a file may be shorter, an empty file has one of no bytes.
        files: The files that are sent.
        digests: The SHA-256 of every block, in the order in which blocks are numbered.
        skipped: The number of files and links that are left out, by reason.
        cut: The reason for which the rest of the directory is left out; empty if it is not.
    """

    block: int
    files: list[File] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    cut: str = ""

    @property
    def size(self) -> int:
        """The bytes of all blocks."""
        return sum(file.size for file in self.files)


def standard_library() -> Path:
    """Returns the directory of the standard library of the Python that runs."""
    return Path(sysconfig.get_paths()["stdlib"])


def spans(size: int, block: int) -> Iterator[tuple[int, int]]:
    """Yields the offset and the length of each block of a file of *size* bytes."""
    if not size:
        yield 0, 0
    for offset in range(0, size, block):
        yield offset, min(block, size - offset)


def read_blocks(file: File, block: int) -> Iterator[bytes | None]:
    """Yields the blocks of a file; `None` for each that cannot be read in full (any more)."""
    try:
        # A file that was replaced by a pipe or a link after it was found must not block or lead away.
        handle = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        yield from (None for _ in spans(file.size, block))
        return
    try:
        for offset, length in spans(file.size, block):
            try:
                data = os.pread(handle, length, offset)
            except OSError:
                data = None
            yield data if data is not None and len(data) == length else None
    finally:
        os.close(handle)


def walk(root: Path, skipped: Counter[str], prune: frozenset[str]) -> Iterator[tuple[str, int]]:
    """Yields path and size of every regular file below *root*, in order; links are not followed."""
    unreadable: list[OSError] = []
    for folder, below, names in os.walk(root, onerror=unreadable.append):
        below[:] = sorted(name for name in below if name not in prune)
        skipped["links"] += sum(os.path.islink(os.path.join(folder, name)) for name in below)
        for name in sorted(names):
            path = os.path.join(folder, name)
            try:
                status = os.lstat(path)
            except OSError:
                skipped["unreadable"] += 1
                continue
            if stat.S_ISREG(status.st_mode):
                yield path, status.st_size
            else:
                skipped["links" if stat.S_ISLNK(status.st_mode) else "special files"] += 1
    skipped["unreadable"] += len(unreadable)


def read_file_set(
    root: Path, *, block: int, limit: int, seconds: float, prune: frozenset[str] = frozenset()
) -> FileSet:
    """Reads the files of a directory and takes the digest of every block.

    Args:
        root: The directory.
        block: Bytes in a block.
        limit: Bytes of all files at most; of the file that reaches it the first bytes are taken.
        seconds: Time for the reading; files that are not reached by then are left out.
        prune: Names of directories that are left out.
    """
    file_set = FileSet(block)
    size, end = 0, time.monotonic() + seconds
    for path, found in walk(root, file_set.skipped, prune):
        if size >= limit:
            file_set.cut = f"the first {limit / 1e6:,.0f} MB take part (--limit)"
            break
        if time.monotonic() > end:
            file_set.cut = f"what could be read in {seconds:g} s takes part"
            break
        file = File(path, min(found, limit - size))
        digests = [hashlib.sha256(data).digest() for data in read_blocks(file, block) if data is not None]
        if len(digests) < sum(1 for _ in spans(file.size, block)):
            file_set.skipped["unreadable"] += 1
            continue
        size += file.size
        file_set.files.append(file)
        file_set.digests += digests
    file_set.skipped = +file_set.skipped
    return file_set


def recheck(file_set: FileSet, received: dict[int, bytes]) -> set[int]:
    """Returns the numbers of the blocks *received* (number and digest) that the disk does not hold now, either."""
    wrong, number = set(received), 0
    for file in file_set.files:
        blocks = sum(1 for _ in spans(file.size, file_set.block))
        if not wrong.isdisjoint(range(number, number + blocks)):
            for data in read_blocks(file, file_set.block):
                if data is not None and received.get(number) == hashlib.sha256(data).digest():
                    wrong.discard(number)
                number += 1
        else:
            number += blocks
    return wrong
