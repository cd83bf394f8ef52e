"""A pool of memory for record batches, shared with tasks: fresh pages cost as much as the copy into them."""

from __future__ import annotations

import contextlib
import mmap
import os
import weakref
from collections.abc import Iterator
from pathlib import Path


class BufferPool:
    """Blocks of memory, each reused once no batch refers to it.

    Args:
        most: Blocks that are kept to be reused.
    """

    def __init__(self, most: int = 4) -> None:
        self._most = most
        self._blocks: list[mmap.mmap] = []

    def take(self, size: int) -> mmap.mmap:
        """Returns a free block of at least that many bytes; free until a buffer refers to it, as batches do."""
        for block in self._blocks:
            if len(block) >= size and self._is_free(block):
                return block
        block = self._make(size)
        # In pages of 2 MiB the copies in and out take a tenth less. Not every kernel has them.
        with contextlib.suppress(OSError):
            block.madvise(mmap.MADV_HUGEPAGE)
        # A rare message that is larger than all others is not kept room for.
        if len(self._blocks) < self._most and (not self._blocks or size <= len(self._blocks[0])):
            self._blocks.append(block)
        return block

    def _make(self, size: int) -> mmap.mmap:
        return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

    @staticmethod
    def _is_free(block: mmap.mmap) -> bool:
        # A block counts the buffers over its memory, and refuses to be resized, even to its own size, while there are
        # any. The object's reference count would not do: Python 3.14 does not count all references.
        try:
            block.resize(len(block))
        except BufferError:
            return False
        return True


class SharedBlock(mmap.mmap):
    """A block that another process of this host can map.

    Attributes:
        descriptor: The descriptor by which another process maps it, for as long as the block lives.
    """

    descriptor: int


class SharedBufferPool(BufferPool):
    """Blocks that other processes of this host can map, as long as there are descriptors for them."""

    def _make(self, size: int) -> mmap.mmap:
        try:
            return self._shared(size)
        except OSError:
            return super()._make(size)

    @staticmethod
    def _shared(size: int) -> SharedBlock:
        descriptor = os.memfd_create("omq-spark", os.MFD_CLOEXEC)
        try:
            os.ftruncate(descriptor, size)
            block = SharedBlock(descriptor, size)
        except BaseException:
            os.close(descriptor)
            raise
        block.descriptor = descriptor
        weakref.finalize(block, os.close, descriptor)
        return block


def mapped(descriptor: int, size: int) -> mmap.mmap:
    """Maps the beginning of a block of another process, to read it; takes the descriptor."""
    try:
        return mmap.mmap(descriptor, size, mmap.MAP_SHARED, mmap.PROT_READ)
    finally:
        os.close(descriptor)


def available(root: Path = Path("/")) -> int:
    """Returns the bytes that processes of this machine, or of our container (control group), may take in addition.

    Args:
        root: Where `proc` and `sys` are.
    """
    fields = (line.split() for line in (root / "proc/meminfo").read_text(encoding="ascii").splitlines())
    found = [1024 * int(field[1]) for field in fields if field[0] == "MemAvailable:"]
    for group, most, current in _groups(root):
        # Most groups have no bound of their own, and say "max" or nothing.
        with contextlib.suppress(OSError, ValueError):
            bound = int((group / most).read_text(encoding="ascii"))
            used = int((group / current).read_text(encoding="ascii"))
            found.append(max(bound - used, 0))
    return min(found)


def _groups(root: Path) -> Iterator[tuple[Path, str, str]]:
    """The control groups that we are in, of either version, and the files of their bounds: cgroups(7)."""
    for line in (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        _, controllers, name = line.split(":", 2)
        if controllers == "":
            top, files = root / "sys/fs/cgroup", ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            top, files = root / "sys/fs/cgroup/memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        # Each group is bound by those above it. A container may see its own as the top.
        group = top / name.lstrip("/")
        for one in (group, *group.parents):
            if one == top or top in one.parents:
                yield one, *files
