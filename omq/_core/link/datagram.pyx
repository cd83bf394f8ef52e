"""Datagrams of RADIO and DISH in libzmq's layout (udp_engine.cpp): a byte of the group's length, the group, the body.

There is no handshake, no connection and no way back. Datagrams that the kernel has no room for are lost, on both sides.
"""

# stub: MAX_DATAGRAM_BYTES: int
# stub: MAX_MESSAGE_BYTES: int

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.errno cimport ECONNREFUSED, EINTR, errno
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy
from posix.unistd cimport close

from omq._core.clock cimport now_ns
from omq._core.kernel cimport EPOLLIN, MSG_DONTWAIT, MSG_NOSIGNAL, NO_FD, iovec
from omq._core.link.poller cimport Poller
from omq._core.queues.groups cimport GroupRecvQueue, UnaskedPeer
from omq._core.queues.object_peer cimport ObjectPeer
from omq._core.queues.peer cimport TURN_BYTES, TURN_MESSAGES
from omq._core.wire.send_buffer cimport MAX_INLINE_BYTES, SPARSE_NS, Part

from collections import deque

cdef extern from "Python.h":
    Py_ssize_t Py_SIZE(object)  # the length of a deque, without a call

cdef enum:
    UDP_PAYLOAD_BYTES = 65507  # bytes of a datagram over IPv4: 65535 without the headers of IP and UDP
    MAX_HEADER_BYTES = 256     # bytes of the length and a group, at most
    ARENA_BYTES = 65536        # bytes of datagrams that wait for one system call
    SHORT_BURST_DATAGRAMS = 3  # datagrams directly after one that left at once that leave at once as well
    MAX_RETRIES = 2            # system calls in a row that may report an ICMP error of an earlier datagram

#: The largest number of bytes of a datagram, and of a group and a body in it.
MAX_DATAGRAM_BYTES = UDP_PAYLOAD_BYTES
MAX_MESSAGE_BYTES = UDP_PAYLOAD_BYTES - 1


cdef inline Py_ssize_t group_size(const char *data, Py_ssize_t size) noexcept nogil:
    """Returns the bytes of the group in a datagram; -1: the datagram is malformed."""
    cdef Py_ssize_t has
    if size < 1:
        return -1
    has = <unsigned char>data[0]
    return has if has < size else -1


def parse_datagram(bytes data not None) -> tuple[bytes, bytes] | None:
    """Returns the group and the body of a datagram, or `None` if it is malformed.

    Args:
        data: The content of one datagram.
    """
    cdef const char *begin = PyBytes_AS_STRING(data)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
    cdef Py_ssize_t has = group_size(begin, size)
    if has < 0:
        return None
    return (
        PyBytes_FromStringAndSize(begin + 1, has),
        PyBytes_FromStringAndSize(begin + 1 + has, size - 1 - has),
    )


@cython.final
cdef class DatagramSender(UnaskedPeer):
    """Sends each message as a datagram: at once, or many in one system call if they are dense in a loop's turn.

    Datagrams that the kernel does not take are dropped, and counted.

    Args:
        session: The engine's owner.
        fd: A connected datagram descriptor; owned from here on.
        gathers: Datagrams gather until a loop's turn ends; otherwise each leaves at once.
    """

    def __cinit__(self, *_, **__):
        self.fd = NO_FD

    def __init__(self, session: Any, int fd, bint gathers=False) -> None:
        cdef int i
        self.session = session
        self._gathers = gathers
        self.limit = MAX_MESSAGE_BYTES
        self._arena = <char *>malloc(ARENA_BYTES)
        self._headers = <mmsghdr *>calloc(MAX_DATAGRAMS, sizeof(mmsghdr))
        self._vectors = <iovec *>calloc(MAX_DATAGRAMS, sizeof(iovec))
        if self._arena == NULL or self._headers == NULL or self._vectors == NULL:
            raise MemoryError()
        for i in range(MAX_DATAGRAMS):
            self._headers[i].msg_hdr.msg_iov = self._vectors + i
            self._headers[i].msg_hdr.msg_iovlen = 1
        self.fd = fd  # last: if this fails, the caller closes it
        self.writable = True

    def __dealloc__(self):
        if self.fd >= 0:
            close(self.fd)
        free(self._arena)
        free(self._headers)
        free(self._vectors)

    def start(self) -> None:
        """Does nothing: nothing is read."""

    def close(self) -> None:
        """Closes the descriptor; waiting datagrams are dropped."""
        self.lost = True
        self.writable = False
        self.send_queue = None
        self.abandoned += self._count
        self._count = 0
        self._used = 0
        self.close_after_fork()

    def close_after_fork(self) -> None:
        """Closes the descriptor in a forked child, and nothing else."""
        if self.fd >= 0:
            close(self.fd)
            self.fd = NO_FD

    cdef int send(self, const Part *parts, Py_ssize_t count) except -1:
        cdef Py_ssize_t group = parts[0].size
        cdef Py_ssize_t size = 1 + group + parts[1].size
        cdef char *end
        if self.fd < 0:
            return 0
        self.messages_out += 1
        if size > MAX_INLINE_BYTES:
            self._write()
            self._write_large(parts[0].data, group, parts[1].data, parts[1].size)
            return 1
        if self._count == MAX_DATAGRAMS or self._used + size > ARENA_BYTES:
            self._write()
        end = self._arena + self._used
        end[0] = <char>group
        memcpy(end + 1, parts[0].data, group)
        memcpy(end + 1 + group, parts[1].data, parts[1].size)
        self._vectors[self._count].iov_base = end
        self._vectors[self._count].iov_len = size
        self._used += size
        self._count += 1
        if self._decide():
            self._write()
        return 1

    cdef bint _decide(self) except -1:
        """Returns whether waiting datagrams leave now; otherwise they gather, until the turn ends or room runs out."""
        if self._count > 1:
            return False
        if self.send_queue is None:
            return True
        if self.send_queue.led:
            self.send_queue.note(self)
            self.send_queue.wait_queue.notify()
            return False
        # Without a loop's turn, a thread that needs the GIL would have to write: it holds a sender up for longer than a
        # shared system call saves, because the kernel's work is done for each datagram anyway.
        if not self._gathers:
            return True
        if not self.send_queue.more:
            if now_ns() - self._written > SPARSE_NS:
                self._burst = SHORT_BURST_DATAGRAMS
                return True
            if self._burst > 0:
                self._burst -= 1
                return True
        self.send_queue.defer(self)
        return False

    cdef int _write_large(self, const char *group, Py_ssize_t group_size, const char *body, Py_ssize_t size) except -1:
        """Sends one datagram at once, without a copy of its body."""
        cdef char head[MAX_HEADER_BYTES]
        cdef iovec both[2]
        cdef mmsghdr header = self._headers[0]
        head[0] = <char>group_size
        memcpy(head + 1, group, group_size)
        both[0].iov_base = head
        both[0].iov_len = 1 + group_size
        both[1].iov_base = <void *>body
        both[1].iov_len = size
        header.msg_hdr.msg_iov = both
        header.msg_hdr.msg_iovlen = 2
        self._used = 1 + group_size + size
        self._count = 1
        return self._hand_over(&header)

    cdef int _write(self) noexcept:
        """Sends the waiting datagrams, and drops those that the kernel does not accept."""
        return self._hand_over(self._headers) if self._count else 0

    cdef int _hand_over(self, mmsghdr *headers) noexcept:
        cdef int done = 0
        cdef int refused = 0
        cdef int n
        while done < self._count:
            n = sendmmsg(self.fd, headers + done, self._count - done, MSG_DONTWAIT | MSG_NOSIGNAL)
            if n > 0:
                done += n
                refused = 0
            elif n < 0 and errno == EINTR:
                continue
            elif n < 0 and errno == ECONNREFUSED and refused < MAX_RETRIES:
                # udp(7): the closed port of an earlier datagram is reported now; this one has not been tried.
                refused += 1
            else:
                break
        for n in range(done):
            self._sent += headers[n].msg_len
        self.dropped += self._count - done
        self._count = 0
        self._used = 0
        self._written = now_ns()
        return 0

    cdef int flush(self) except -1:
        return self._write()

    cdef Py_ssize_t pending(self) noexcept:
        return self._count

    cdef long long sent_messages(self) noexcept:
        return self.messages_out - self._count - self.abandoned - self.dropped

    cdef long long sent_bytes(self) noexcept:
        return self._sent

    cdef int fail(self, object error) except -1:
        return 0  # nothing is read, and unsent datagrams are counted

    cpdef int control(self, bytes frames) except -1:
        return 0  # there are no commands


@cython.final
cdef class DatagramReceiver(ObjectPeer):
    """Receives the datagrams of all senders, and keeps the messages of joined groups.

    Args:
        session: The engine's owner; its `end` is called if an event cannot be handled.
        fd: A bound datagram descriptor; owned from here on.
        poller: The epoll set of its socket.
        recv_queue: The queue for its messages.
        recv_hwm: Messages; above it nothing is read, and a full kernel drops datagrams. 0 for no bound.
        max_size: Bytes that a group and a body may have together; a larger datagram is dropped. `None` for no bound.

    Attributes:
        dropped: Datagrams that were dropped here because they were malformed or too large, or memory was short.
    """

    def __cinit__(self, *_, **__):
        self.fd = NO_FD

    def __init__(
        self,
        session: Any,
        int fd,
        Poller poller not None,
        GroupRecvQueue recv_queue not None,
        Py_ssize_t recv_hwm,
        max_size: int | None = None,
    ) -> None:
        cdef int i
        self.session = session
        self._poller = poller
        self.recv_queue = self._groups = recv_queue
        self._ring = deque()
        self._group = b""
        self._hwm = recv_hwm
        self._max_size = -1 if max_size is None or max_size > UDP_PAYLOAD_BYTES else max_size
        # The rest of a larger datagram is cut off. One byte more than allowed, so that the kernel reports that.
        self._room = UDP_PAYLOAD_BYTES + 21 if self._max_size < 0 else self._max_size + 2
        self._slab = <char *>malloc(MAX_DATAGRAMS * self._room)
        self._headers = <mmsghdr *>calloc(MAX_DATAGRAMS, sizeof(mmsghdr))
        self._vectors = <iovec *>calloc(MAX_DATAGRAMS, sizeof(iovec))
        if self._slab == NULL or self._headers == NULL or self._vectors == NULL:
            raise MemoryError()
        for i in range(MAX_DATAGRAMS):
            self._vectors[i].iov_base = self._slab + i * self._room
            self._vectors[i].iov_len = self._room
            self._headers[i].msg_hdr.msg_iov = self._vectors + i
            self._headers[i].msg_hdr.msg_iovlen = 1
        self.fd = fd  # last: if this fails, the caller closes it

    def __dealloc__(self):
        if self.fd >= 0:
            close(self.fd)
        free(self._slab)
        free(self._headers)
        free(self._vectors)

    def start(self) -> None:
        """Joins the epoll set: from here on datagrams are read."""
        self._join()

    def close(self) -> None:
        """Leaves the epoll set and closes the descriptor. Messages that have arrived can still be taken."""
        self.lost = True
        self._leave()
        self.close_after_fork()

    def close_after_fork(self) -> None:
        """Closes the descriptor in a forked child, and nothing else."""
        if self.fd >= 0:
            close(self.fd)
            self.fd = NO_FD

    def set_recv_hwm(self, Py_ssize_t hwm):
        self._hwm = hwm
        if self._stopped and (hwm == 0 or self.ready() < hwm):
            self.recv_queue._resume(self)

    cdef int _join(self) except -1:
        if not self._watched:
            self._ticket = self._poller.join(self, self.fd, EPOLLIN)
            self._watched = True
        return 0

    cdef int _leave(self) except -1:
        if self._watched:
            self._watched = False
            self._poller.leave(self.fd, self._ticket)
        return 0

    # ------------------------------------------------------------------ datagrams in

    cdef int on_events(self, unsigned int events) except -1:
        return 0 if self.lost or self._stopped else self._read()

    cdef int _read(self) except -1:
        """Reads datagrams, up to one turn's worth or to the high-water mark."""
        cdef Py_ssize_t left = TURN_MESSAGES
        cdef Py_ssize_t turn = TURN_BYTES
        cdef Py_ssize_t before = self.ready()
        cdef Py_ssize_t want, size
        cdef int n, i
        while left > 0 and turn > 0:
            want = min(left, <Py_ssize_t>MAX_DATAGRAMS)
            if self._hwm:
                want = min(want, self._hwm - self.ready())
                if want <= 0:
                    break
            n = recvmmsg(self.fd, self._headers, <unsigned int>want, MSG_DONTWAIT, NULL)
            if n < 0 and errno == EINTR:
                continue
            if n <= 0:
                break
            for i in range(n):
                size = self._headers[i].msg_len
                turn -= size
                self.bytes_in += size
                if self._headers[i].msg_hdr.msg_flags & MSG_TRUNC or not self._accept(self._slab + i * self._room, size):
                    self.dropped += 1
            left -= n
            if n < want:
                break
        if self.ready() > before:
            self.recv_queue.arrived(self)
        if self._hwm and self.ready() >= self._hwm and not self._stopped:
            self._stopped = True
            self._leave()
            self.recv_queue.paused(self)
        return 0

    cdef bint _accept(self, const char *data, Py_ssize_t size) except -1:
        """Keeps the message of one datagram if its group was joined; False: the datagram was dropped."""
        cdef Py_ssize_t has = group_size(data, size)
        if has < 0 or 0 <= self._max_size < size - 1:
            return False
        if not self._groups.matcher.c_holds(data + 1, has, 0):
            return True
        try:
            if has != PyBytes_GET_SIZE(self._group) or memcmp(PyBytes_AS_STRING(self._group), data + 1, has) != 0:
                self._group = PyBytes_FromStringAndSize(data + 1, has)
            self._ring.append((self._group, PyBytes_FromStringAndSize(data + 1 + has, size - 1 - has)))
        except MemoryError:
            return False
        self.messages_in += 1
        return True

    cdef bint only_reads(self) noexcept:
        return True

    cdef bint sated(self) noexcept:
        return self.ready() >= TURN_MESSAGES

    cdef int refill(self) except -1:
        if self.lost:
            return 0
        self._stopped = False
        self._read()
        if not self._stopped:
            self._join()
        return 0

    cdef int fail(self, object error) except -1:
        return self._poller.call_back(self.session.end, error)

    cdef int log_error(self, object error) except -1:
        return self._poller.log_error(error)

    # ------------------------------------------------------------------ messages out

    cdef Py_ssize_t ready(self) noexcept:
        return Py_SIZE(self._ring)

    cdef object _message(self):
        return self._ring[0]

    cdef int _taken(self) except -1:
        self._ring.popleft()
        self._part = 0
        return 0

    # ------------------------------------------------------------------ a RADIO cannot be asked: it sends every group

    cdef int ask(self, const char *prefix, Py_ssize_t size, bint subscribe) except -1:
        return 0

    cdef int ask_all(self, list prefixes) except -1:
        return 0
