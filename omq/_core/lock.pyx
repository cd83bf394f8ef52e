"""The lock of a socket that several threads share, and the switch that keeps the garbage collector out of it."""

cimport cython

from collections import deque

from omq.errors import StateError
from omq.process_hooks import run_in_child


def _begin_in_child():
    """Resets the counter in a forked child: the threads that were in such sections do not exist there."""
    global gc_pauses
    if gc_pauses:
        gc_pauses = 1
        resume_gc()


run_in_child(_begin_in_child)


@cython.final
cdef class SocketLock:
    """A recursive lock among threads that hold the GIL: taking it is two assignments when it is free.

    The GIL makes the test and the assignment one step, for no Python code runs between them.
    """

    def __cinit__(self):
        self.deferred = deque()
        sem_init(&self._free, 0, 0)

    def __dealloc__(self):
        sem_destroy(&self._free)

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *exception: Any) -> None:
        self.release()

    cdef int _wait(self, unsigned long me) except -1:
        self._waiters += 1
        while self._owner != 0:
            with nogil:
                sem_wait(&self._free)
            self._posted = False
        self._waiters -= 1
        pause_gc()
        self._owner = me
        self._depth = 1
        return 0

    @property
    def mine(self) -> bool:
        """Returns whether this thread holds the lock."""
        return self._owner == PyThread_get_thread_ident()

    cdef int _refuse(self) except -1:
        # For example, a `__buffer__` or an iterator of the user calls back.
        raise StateError("the socket is in a call in this thread: code inside the call cannot call the socket again")

    cdef int _run_deferred(self) except -1:
        """Makes the calls that were deferred while the lock was taken, and releases it: later callers find it free."""
        try:
            while self.deferred:
                function = self.deferred.popleft()
                function()
        finally:
            self._let_go()
        return 0
