# The receiving half of a connection, and its place in the epoll set of its socket.

from omq._core.wire.send_buffer cimport SendBuffer
from omq._core.wire.frame_reader cimport FrameReader
from omq._core.link.background cimport Background, WatchedSet
from omq._core.link.flusher cimport Flusher
from omq._core.queues.peer cimport Peer, RecvQueue
from omq._core.link.poller cimport Poller
from omq._core.link.read_ahead cimport ReadAhead


cdef class Receiver(Peer):
    cdef readonly int fd             # the descriptor, owned; -1 once closed
    cdef Poller _poller
    cdef ReadAhead _read_ahead       # what the background thread has read and answered, or None
    cdef Background _background      # that thread, or None
    cdef WatchedSet _attached_to     # the epoll set where it serves this connection, or None
    cdef long long _from_kernel      # bytes that the owner has read from the kernel
    cdef bint _reading               # a read is under way
    cdef Flusher _flusher            # writes batches that callers left; None: the send queue does when the turn ends
    cdef SendBuffer _send_buffer
    cdef FrameReader _frame_reader
    cdef Py_ssize_t _hwm             # messages waiting at which reading stops; 0 never
    cdef long long _brim             # bytes that may arrive in all before `_hwm` applies
    cdef bint _watched               # it is in the epoll set
    cdef bint _stopped               # reading is paused because recv_hwm messages wait
    cdef bint _away                  # it left the epoll set because it is stopped and the kernel reports the end
    cdef bint _ending                # the kernel has reported the end: read up to it
    cdef bint _resets                # a write to the peer may destroy bytes that it has sent (tcp)
    cdef bint _behind                # our kernel had no room at some time since everything was last known to be here
    cdef bint _owing                 # the peer sends nothing more: it gets the rest of its batch
    cdef bint _parting               # our side of the stream is ended: further bytes are dropped
    cdef readonly long long pings    # PINGs that have come
    cdef public int untold           # commands sent to the session and not handled yet; it counts them down
    cdef int _ttl                    # tenths of a second of silence that the last PING allows; 0: not given
    cdef int _set_up(self, object session, int fd, Poller poller, SendBuffer send_buffer, FrameReader frame_reader,
                     RecvQueue recv_queue, Py_ssize_t hwm, Flusher flusher, Background background) except -1
    cdef bint _heed(self, const char *data, Py_ssize_t size) except -1
    cdef bint _pass_on(self, const char *body, Py_ssize_t size) except -1
    cdef bint _filled(self) noexcept
    cdef int _begin_large(self) except -1
    cdef int _read(self) except -1
    cdef int _take_in(self) except -1
    cdef void _set_low_water(self) noexcept
    cdef int _begin_read_ahead(self) except -1
    cdef int _end_read_ahead(self) except -1
    cdef int _pong(self, const char *context, Py_ssize_t size) except -1
    cdef bint _full(self) noexcept
    cdef bint _passes_over(self) noexcept
    cdef int _discard(self) except -1
    cdef int _look_back(self, bint caught_up) except -1
    cdef int _digest(self) except -1
    cdef int _hand_over(self) except -1
    cdef int _lose(self, object reason) except -1
    cdef int _settle(self) except -1
    cdef int _cease(self) except -1
    cdef int _read_on(self, bint on) except -1
    cdef int _join(self) except -1
    cdef int _leave(self) except -1
