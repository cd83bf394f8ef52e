"""Memory for record batches, reused: fresh pages cost as much as the copy into them."""

from __future__ import annotations

import contextlib
import mmap


class Memory:
    """Blocks of memory, each reused once no batch refers to it.

    Args:
        most: Blocks that are kept to be reused.
    """

    def __init__(self, most: int = 4) -> None:
        self._most = most
        self._blocks: list[mmap.mmap] = []

    def take(self, size: int) -> mmap.mmap:
        """A free block of so many bytes, or more; it stays free until a buffer refers to it, as a batch does."""
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

    def trim(self) -> None:
        """Gives back to the system what nobody refers to, but for one block."""
        free = [block for block in self._blocks if self._is_free(block)]
        for block in free[1:]:
            self._blocks.remove(block)

    @staticmethod
    def _is_free(block: mmap.mmap) -> bool:
        # A block counts the buffers over its memory, and refuses to be resized, even to its own size, while there are
        # any. The object's reference count would not do: Python 3.14 does not count all references.
        try:
            block.resize(len(block))
        except BufferError:
            return False
        return True
