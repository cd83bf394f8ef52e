# The bounded queue of one monitor: putting an event never waits, and an interrupted call loses no event.

from omq._core.calls.leader cimport ForkGuard
from omq._core.lock cimport sem_t


cdef class EventQueue:
    cdef object _events              # deque of events; the newest are kept
    cdef Py_ssize_t _limit           # events that are kept at most
    cdef Py_ssize_t _missed          # events that were dropped and not reported yet
    cdef readonly bint closed        # no further events come
    cdef object _last                # the kind of the last event, after which no other comes
    cdef object _make_missed         # (count, time) -> the event that reports dropped events
    cdef ForkGuard _fork_guard
    cdef int _waiting                # calls that wait for an event
    cdef sem_t _wake                 # posted while calls wait, once for each event
    cdef object _take(self)


# Has no attributes or C methods of its own, so that a Python class can derive from it and from another subclass.
cdef class SyncEventQueue(EventQueue):
    pass
