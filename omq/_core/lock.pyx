"""The lock of a socket that several threads share."""

cimport cython
from cpython.pythread cimport PyThread_get_thread_ident


@cython.final
cdef class SocketLock:
    """A recursive lock among threads that hold the GIL: taking it is two assignments when it is free.

    The GIL makes the test and the assignment one step, for no Python code runs between them.
    """

    def __cinit__(self):
        sem_init(&self._free, 0, 0)

    def __dealloc__(self):
        sem_destroy(&self._free)

    def __enter__(self):
        self.acquire()
        return self

    def __exit__(self, *exception):
        self.release()

    cdef int acquire(self) except -1:
        cdef unsigned long me = PyThread_get_thread_ident()
        if self._owner == 0:
            self._owner = me
            self._depth = 1
        elif self._owner == me:
            self._depth += 1
        else:
            self._wait(me)
        return 0

    cdef int _wait(self, unsigned long me) except -1:
        self._waiters += 1
        while self._owner != 0:
            with nogil:
                sem_wait(&self._free)
        self._waiters -= 1
        self._owner = me
        self._depth = 1
        return 0

    cdef int release(self) except -1:
        self._depth -= 1
        if self._depth == 0:
            self._owner = 0
            if self._waiters:
                sem_post(&self._free)
        return 0
