# The thread that gets the GIL for the I/O thread. It never takes the GIL itself.

from omq._core.thread cimport pthread_t


cdef int yield_if_requested() except -1


cdef class ConvoyBreaker:
    cdef pthread_t _thread
    cdef bint _running               # the thread exists
    cdef int _pid                    # the process that it exists in
    cdef int _set                    # epoll set, owned: the event loop's own, and _end
    cdef int _end                    # eventfd, owned: stops the thread
    cdef int _state                  # file of /proc, owned: the I/O thread's current system call
    cdef int _loop_fd                # the event loop's epoll set; borrowed
    cdef int _arm(self, int how) noexcept nogil
    cdef bint _ended(self, int milliseconds) noexcept nogil
    cdef void _loop(self) noexcept nogil
