"""Pools of memory for record batches: fresh pages would cost as much as the copy into them."""

from __future__ import annotations

import contextlib
import mmap
import os
import weakref
from collections.abc import Iterator
from pathlib import Path


class BufferPool:
    """Blocks of memory. A block is reused when no batch refers to it.

    Args:
        max_blocks: The maximum number of blocks to keep for reuse.
    """

    def __init__(self, max_blocks: int = 4) -> None:
        self._max_blocks = max_blocks
        self._blocks: list[mmap.mmap] = []

    def allocate(self, size: int) -> mmap.mmap:
        """Returns a free block of at least *size* bytes. It is in use while a buffer refers to it."""
        for block in self._blocks:
            if len(block) >= size and self._is_free(block):
                return block
        block = self._make(size)
        # With pages of 2 MiB the copies take a tenth less time. Not every kernel has them.
        with contextlib.suppress(OSError):
            block.madvise(mmap.MADV_HUGEPAGE)
        # The block for a rare, very large message is not kept.
        if len(self._blocks) < self._max_blocks and (not self._blocks or size <= len(self._blocks[0])):
            self._blocks.append(block)
        return block

    def _make(self, size: int) -> mmap.mmap:
        return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

    @staticmethod
    def _is_free(block: mmap.mmap) -> bool:
        # A block cannot be resized, even to its own size, while a buffer refers to it. The object's reference count
        # is not reliable: Python 3.14 does not count all references.
        try:
            block.resize(len(block))
        except BufferError:
            return False
        return True


class SharedBlock(mmap.mmap):
    """A block that another process of this host can map.

    Attributes:
        descriptor: The descriptor with which another process maps it; closed with the block.
    """

    descriptor: int


class SharedBufferPool(BufferPool):
    """A pool of blocks that other processes of this host can map; private blocks if no descriptor is left."""

    def _make(self, size: int) -> mmap.mmap:
        try:
            return self._make_shared(size)
        except OSError:
            return super()._make(size)

    @staticmethod
    def _make_shared(size: int) -> SharedBlock:
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


def map_block(descriptor: int, size: int) -> mmap.mmap:
    """Maps the beginning of another process's block for reading, and closes the descriptor."""
    try:
        return mmap.mmap(descriptor, size, mmap.MAP_SHARED, mmap.PROT_READ)
    finally:
        os.close(descriptor)


def available_bytes(root: Path = Path("/")) -> int:
    """Returns the bytes that this machine, or this container (control group), can still allocate.

    Args:
        root: The directory that has `proc` and `sys`.
    """
    fields = (line.split() for line in (root / "proc/meminfo").read_text(encoding="ascii").splitlines())
    found = [1024 * int(field[1]) for field in fields if field[0] == "MemAvailable:"]
    for group, limit_file, usage_file in _control_groups(root):
        # Most groups have no limit of their own: their file has "max", or does not exist.
        with contextlib.suppress(OSError, ValueError):
            limit = int((group / limit_file).read_text(encoding="ascii"))
            used = int((group / usage_file).read_text(encoding="ascii"))
            found.append(max(limit - used, 0))
    return min(found)


def _control_groups(root: Path) -> Iterator[tuple[Path, str, str]]:
    """Yields the control groups of this process, of either version, and the files of their limits: cgroups(7)."""
    for line in (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        _, controllers, name = line.split(":", 2)
        if controllers == "":
            top, files = root / "sys/fs/cgroup", ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            top, files = root / "sys/fs/cgroup/memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        # Each group is limited by its ancestors. A container may see its own group as the root.
        group = top / name.lstrip("/")
        for ancestor in (group, *group.parents):
            if ancestor == top or top in ancestor.parents:
                yield ancestor, *files
