# State with which a thread without the GIL answers the PINGs of one connection.

cimport cython

from omq._core.wire.codec cimport WireFrame
from omq._core.wire.send_buffer cimport SendBuffer
from omq._core.lock cimport drop_flag, take_flag

cdef enum:
    VIEW = 262144            # bytes of a connection that are looked at

cdef extern from *:
    """
    #define NEVER 0x7fffffffffffffffLL
    """
    const long long NEVER


cdef struct Stillness:
    int poll_fd              # an epoll set; -1: none
    bint still               # nothing is unread on the descriptors that it watches


@cython.final
cdef class PingResponder:
    cdef SendBuffer send_buffer      # answers go there; its descriptor and its codec are the connection's
    # Guarded by the flag.
    cdef int _taken                  # atomic flag: a thread reads the descriptor, or looks at its bytes
    cdef bint resets                 # a write to a peer that has closed would destroy what it has sent
    cdef bint behind                 # our kernel has had no room: the peer's may hold more, and it may have closed
    cdef Py_ssize_t had              # bytes that the kernel had at the last look
    cdef long long boundary          # bytes in the kernel before the next frame begins; -1: unknown
    cdef long long seen              # bytes in the kernel that were looked at
    cdef long long ahead             # PINGs among them that have been answered
    cdef long long begun             # nanoseconds on the monotonic clock, when the connection was made
    cdef long long read              # likewise, when bytes were last read
    cdef long long pinged            # likewise, when the last PING was read, or found; 0: none
    cdef long long gap               # nanoseconds between two PINGs, as far as is known; 0: there was none
    cdef long long due               # likewise, when to look again
    cdef void begin(self) noexcept
    cdef void heard(self, long long now) noexcept nogil
    cdef long long _patience(self, long long now) noexcept nogil
    cdef long long _with_others(self, long long due, long long patience) noexcept nogil
    cdef bint _is_still(self, Stillness *last) noexcept nogil
    cdef long long look(self, long long now, unsigned char *view, Stillness *last) noexcept nogil
    cdef void _examine(self, const unsigned char *view, Py_ssize_t size) noexcept nogil
    cdef int _measure(self, const unsigned char *p, Py_ssize_t available, WireFrame *frame) noexcept nogil
    cdef Py_ssize_t _ping(self, const unsigned char *p, const WireFrame *frame, unsigned char *context) noexcept nogil
    cdef bint _open(self) noexcept nogil
    cdef bint _answer(self, const unsigned char *context, Py_ssize_t size) noexcept nogil

    cdef inline bint enter(self) noexcept nogil:
        return take_flag(&self._taken)

    cdef inline void leave(self) noexcept nogil:
        drop_flag(&self._taken)
