"""Holding back what would destroy the last words of a peer that has closed.

A peer that closes leaves what it has sent to its kernel, which goes on delivering it as fast as we read. To anything that is
written to it meanwhile that kernel answers with a reset, and forgets the rest (RFC 9293, 3.10.7.4; RFC 1122, 4.2.2.13). Nothing
tells whether the peer has closed before its last byte is here. So a command leaves at once while our kernel has had room: then
the other one had no reason to keep anything. Otherwise it waits until we have caught up.
"""

cimport cython
from libc.string cimport memset

from omq._core.clock cimport now_ns

cdef extern from "<poll.h>" nogil:
    struct pollfd:
        int fd
        short events
        short revents
    int poll(pollfd *, unsigned long, int)
    short POLLRDHUP, POLLHUP, POLLERR

cdef extern from "<sys/socket.h>" nogil:
    int getsockopt(int, int, int, void *, unsigned int *)
    int SOL_SOCKET, SO_DOMAIN, AF_UNIX

cdef extern from "<sys/ioctl.h>" nogil:
    int ioctl(int, unsigned long, ...)
    unsigned long FIONREAD

cdef extern from *:
    """
    #ifndef SO_MEMINFO
    #define SO_MEMINFO 55
    #endif
    """
    int SO_MEMINFO

cdef enum:
    RMEM, RCVBUF = 1         # fields of SO_MEMINFO: bytes that the receive buffer has, and may have
    FIELDS = 16              # more than it has
    SHARE = 4                # the part of the receive buffer below which it has room
    SEND_BUFFER = 4194304    # bytes that a peer's send buffer has at most where nobody has changed the system's limits


cdef bint can_reset(int fd) noexcept:
    """Whether a write may destroy what the peer has sent. A unix socket's is in our queue as soon as it is sent."""
    cdef int domain = 0
    cdef unsigned int size = sizeof(domain)
    return getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 and domain != AF_UNIX


cdef Outlook outlook(int fd, long long *holds) noexcept nogil:
    """What the kernel knows now; *holds*: the bytes that it and the peer's may have at most."""
    cdef pollfd watched
    cdef unsigned int memory[FIELDS]
    cdef unsigned int size = sizeof(memory)
    watched.fd = fd
    watched.events = POLLRDHUP
    watched.revents = 0
    if poll(&watched, 1, 0) > 0 and watched.revents & (POLLRDHUP | POLLHUP | POLLERR):
        return ENDED
    memset(memory, 0, sizeof(memory))
    # Small segments take much more memory than they have bytes: FIONREAD would not tell that there is no room.
    if getsockopt(fd, SOL_SOCKET, SO_MEMINFO, memory, &size) < 0:
        return CLEAR  # a kernel without that option, or a sandbox
    holds[0] = <long long>memory[RCVBUF] + SEND_BUFFER
    return CROWDED if <long long>memory[RMEM] * SHARE > memory[RCVBUF] else CLEAR


cdef bint has_unread(int fd) noexcept nogil:
    """Whether the kernel has something that we have not read."""
    cdef int waiting = 0
    return ioctl(fd, FIONREAD, &waiting) == 0 and waiting > 0


@cython.final
cdef class CommandBacklog:
    """The commands of one connection that wait; made with the first, gone with the last.

    Args:
        bytes_in: What has arrived so far.
    """

    def __init__(self, long long bytes_in):
        self.frames = []
        self.pong = b""
        self.bytes_in = bytes_in
        self.since = now_ns()

    cdef int add(self, bytes frame) except -1:
        """One more waits. Of several PONGs the newest tells enough."""
        if frame[2:7] == b"\4PONG":
            self.pong = frame
        else:
            self.frames.append(frame)
            self.size += len(frame)
        return 0

    cdef bytes all(self):
        return self.pong + b"".join(self.frames)

    cdef bint outlived(self, long long bytes_in) noexcept:
        """Whether so much has arrived that a peer which had closed before cannot have left it behind.

        It may have closed since. Subscriptions take that risk, or they would wait for ever behind a stream that we never
        catch up with; a PONG takes it only where the stream is so quick that the peer may still hope for it.
        """
        if bytes_in - self.bytes_in <= self.room:
            return False
        if self.frames or now_ns() - self.since < QUICK_NS:
            return True
        self.bytes_in = bytes_in
        self.since = now_ns()
        return False
