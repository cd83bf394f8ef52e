"""Blocks of memory that another process of this host can map: what is received there is read there, without a copy."""

from __future__ import annotations

import mmap
import os
import weakref

from omq.spark.memory import Memory


class SharedBlock(mmap.mmap):
    """A block.

    Attributes:
        descriptor: The descriptor by which another process maps it, for as long as the block lives.
    """

    descriptor: int


class SharedMemory(Memory):
    """Blocks as those of `Memory`, which other processes can map, as long as there are descriptors for them."""

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
