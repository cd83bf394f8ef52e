# The bounded queue of one monitor: whoever puts an event in never waits, whoever takes one loses none.

from omq._core.calls.leader cimport ForkGuard
from omq._core.lock cimport sem_t


cdef class EventQueue:
    cdef object _events              # deque of events; the newest are kept
    cdef Py_ssize_t _limit           # events that wait here at most
    cdef Py_ssize_t _missed          # events that had no place, and that nobody was told of yet
    cdef readonly bint closed        # no further events come
    cdef object _last                # the kind of the event that is the last one
    cdef object _make_missed         # (count, time) -> the event that tells of them
    cdef ForkGuard _fork_guard
    cdef int _waiting                # calls that wait for an event
    cdef sem_t _wake                 # posted while calls wait, once for each event
    cdef object _take(self)


# It adds nothing to the layout and no entry to the table of methods: a Python class stands on it and beside it.
cdef class SyncEventQueue(EventQueue):
    pass
