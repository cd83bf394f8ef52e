# Operations that several threads, and signal handlers of one of them, do in one step each: no bytecode runs inside.

cimport cython

from omq._core.lock cimport sem_t


@cython.final
cdef class Latch:
    cdef readonly bint is_set
    cdef int _waiters                # calls that wait, also of signal handlers that have interrupted one
    cdef sem_t _wake                 # posted once for each of them


@cython.final
cdef class Slot:
    cdef readonly object value
