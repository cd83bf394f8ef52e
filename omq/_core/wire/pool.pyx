"""Blocks of memory that connections borrow."""

cimport cython
from libc.stdlib cimport free, malloc


@cython.final
cdef class Pool:
    """Caches blocks of `BLOCK_BYTES` bytes. The last one returned is reused first: it is probably still in the cache.

    Args:
        limit: The number of unused blocks that are kept.
    """

    def __cinit__(self, int limit=16) -> None:
        self._limit = limit
        self._free = <void **>malloc(limit * sizeof(void *))
        if self._free == NULL:
            raise MemoryError()

    def __dealloc__(self):
        while self._count > 0:
            self._count -= 1
            free(self._free[self._count])
        free(self._free)

    cdef char *get(self) noexcept nogil:
        if self._count > 0:
            self._count -= 1
            return <char *>self._free[self._count]
        return <char *>malloc(NODE_BYTES + BLOCK_BYTES)

    cdef void put(self, char *block) noexcept nogil:
        if self._count < self._limit:
            self._free[self._count] = block
            self._count += 1
        else:
            free(block)
