# Datagrams of RADIO and DISH: one peer that only sends, and one that only receives (RFC 48 over UDP).

from omq._core.kernel cimport iovec
from omq._core.link.poller cimport Poller
from omq._core.queues.groups cimport GroupRecvQueue, UnaskedPeer
from omq._core.queues.object_peer cimport ObjectPeer

cdef extern from "<sys/socket.h>" nogil:
    struct timespec
    struct msghdr:
        iovec *msg_iov
        size_t msg_iovlen
        int msg_flags
    struct mmsghdr:
        msghdr msg_hdr
        unsigned int msg_len
    int recvmmsg(int, mmsghdr *, unsigned int, int, timespec *)
    int sendmmsg(int, mmsghdr *, unsigned int, int)
    int MSG_TRUNC

cdef enum:
    MAX_DATAGRAMS = 64  # datagrams of one system call, at most


cdef class DatagramSender(UnaskedPeer):
    cdef readonly int fd             # the connected descriptor, owned; -1 once closed
    cdef char *_arena                # the datagrams that wait, one after the other; owned
    cdef Py_ssize_t _used            # bytes of it
    cdef mmsghdr *_headers           # MAX_DATAGRAMS of them; owned
    cdef iovec *_vectors             # likewise; owned
    cdef int _count                  # datagrams that wait
    cdef long long _written          # nanoseconds on the monotonic clock, at the last system call
    cdef bint _gathers               # datagrams gather until a loop's turn ends; otherwise each leaves at once
    cdef int _burst                  # datagrams of a burst that may still leave at once
    cdef long long _sent             # bytes that the kernel has taken
    cdef int _write_large(self, const char *group, Py_ssize_t group_size, const char *body, Py_ssize_t size) except -1
    cdef int _write(self) noexcept
    cdef int _hand_over(self, mmsghdr *headers) noexcept
    cdef bint _decide(self) except -1


cdef class DatagramReceiver(ObjectPeer):
    cdef readonly int fd             # the bound descriptor, owned; -1 once closed
    cdef Poller _poller
    cdef GroupRecvQueue _groups      # the receive queue, which has the joined groups
    cdef unsigned long long _ticket  # the number that comes with its events
    cdef bint _watched               # it is in the epoll set
    cdef bint _stopped               # reading is paused because recv_hwm messages wait
    cdef object _ring                # deque of the messages that wait: (group, body)
    cdef Py_ssize_t _hwm             # messages; 0 no bound
    cdef Py_ssize_t _max_size        # bytes of group and body; -1 no bound
    cdef Py_ssize_t _room            # bytes of one slot of the slab
    cdef char *_slab                 # MAX_DATAGRAMS slots; owned
    cdef mmsghdr *_headers           # likewise; owned
    cdef iovec *_vectors             # likewise; owned
    cdef bytes _group                # that of the last datagram: mostly the next one's, too
    cdef int _read(self) except -1
    cdef bint _accept(self, const char *data, Py_ssize_t size) except -1
    cdef int _join(self) except -1
    cdef int _leave(self) except -1
