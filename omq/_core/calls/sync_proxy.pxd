# The blocking proxy, on the calling thread.

from omq._core.calls.proxy cimport ProxyCore

cdef extern from "<poll.h>" nogil:
    struct pollfd:
        int fd
        short events
        short revents
    int poll(pollfd *, unsigned long, int)
    short POLLIN

cdef enum:
    MAX_SOCKETS = 4  # frontend, backend, capture, control


cdef class SyncProxy(ProxyCore):
    cdef list _cores                 # LeaderCore of each socket, all distinct
    cdef list _blocked_calls         # of each socket, the BlockedCall with which this proxy leads
    cdef Py_ssize_t _count           # sockets
    cdef pollfd _fds[MAX_SOCKETS]   # their epoll sets
    cdef long long _spin             # nanoseconds to spin before sleeping; 0 never
    cdef bint _adaptive              # spin only while waits are short
    cdef bint _was_short             # the last wait was short
    cdef long long _nap              # nanoseconds that the main thread's next sleep has at most
    cdef long long _yielded_at       # when other threads last ran, in nanoseconds on the monotonic clock
    cdef long long _signals_at       # likewise, when signal handlers last ran
    cdef long long _looked           # likewise, when the descriptors were last checked
    cdef bint _armed                 # the sleep has begun: the threads inside the epoll sets are counted
    cdef int _hold(self) except -1
    cdef int _release(self, Py_ssize_t count) except -1
    cdef int _lead(self) except -1
    cdef int _take_lead(self) except -1
    cdef int _leave_lead(self) except -1
    cdef int _refuse_closed(self) except -1
    cdef bint _work(self) except -1
    cdef int _check_descriptors(self) except -1
    cdef bint _is_wanted(self) noexcept
    cdef int _yield_gil(self) except -1
    cdef int _heed_signals(self) except -1
    cdef int _sleep(self) except -1
    cdef bint _arm(self) except -1
    cdef int _wake_up(self) except -1
    cdef int _end(self) except -1
