# Operations that threads, and signal handlers that interrupt them, do in one step each: no bytecode runs inside.

cimport cython

from omq._core.lock cimport sem_t


@cython.final
cdef class Latch:
    cdef readonly bint is_set
    cdef int _waiters                # calls that wait, including those of signal handlers that interrupted another call
    cdef sem_t _wake                 # posted once for each of them


@cython.final
cdef class Slot:
    cdef readonly object value
