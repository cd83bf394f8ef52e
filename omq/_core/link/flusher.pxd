# The thread that sends batches that callers left. It never takes the GIL.

from omq._core.wire.send_buffer cimport SendBuffer
from omq._core.link.pointers cimport PointerArray
from omq._core.lock cimport pthread_mutex_t, sem_t
from omq._core.thread cimport pthread_t

cdef class Flusher:
    cdef pthread_t _thread
    cdef bint _running               # the thread exists
    cdef int _pid                    # the process that it exists in
    cdef pthread_mutex_t _mutex      # guards the following fields; no other lock is taken under it
    cdef sem_t _work                 # posted when the parked thread has something to do
    cdef PointerArray _left          # SendBuffers with batches to write; forget() removes them
    cdef bint _needless              # the last check found batches, and all of them in their callers' hands
    cdef bint _parked
    cdef bint _over                  # stopped for good: asyncio sockets may outlive their context
    cdef bint _start(self) noexcept
    cdef bint leave(self, SendBuffer send_buffer) noexcept
    cdef int forget(self, SendBuffer send_buffer) except -1
    cdef bint _rest(self) noexcept nogil
    cdef void _loop(self) noexcept nogil
    cdef bint _ended(self) noexcept nogil
    cdef bint _round(self) noexcept nogil
