# Blocks of memory that connections borrow.

cimport cython

cdef enum:
    BLOCK_BYTES = 131072  # bytes of data that a pooled block holds
    NODE_BYTES = 64       # bytes reserved before a block's data: room for a Node


@cython.final
cdef class Pool:
    cdef void **_free                # cached blocks; owned
    cdef int _count                  # blocks cached
    cdef int _limit                  # blocks kept at most
    cdef char *get(self) noexcept nogil
    cdef void put(self, char *block) noexcept nogil
