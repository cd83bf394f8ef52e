"""Holds back commands that would destroy the last bytes of a peer that has closed.

The kernel of a peer that has closed still delivers the peer's bytes as fast as we read. It answers a write of ours with
a reset, and drops the rest (RFC 9293, 3.10.7.4; RFC 1122, 4.2.2.13). Before the last byte has arrived, nothing shows
whether the peer has closed. So a command leaves at once while our kernel has had room: then the peer's kernel had no
reason to keep anything. Otherwise the command waits until we have caught up.
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
    int setsockopt(int, int, int, const void *, unsigned int)
    int SOL_SOCKET, SO_DOMAIN, SO_RCVLOWAT, AF_UNIX

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

cdef extern from *:
    """
    #include <netinet/in.h>
    #include <netinet/tcp.h>

    /* Microseconds of a round trip, as the kernel has measured it; 0: it is not known. */
    static unsigned int round_trip_us(int fd) {
        struct tcp_info info;
        socklen_t size = sizeof(info);
        return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 ? info.tcpi_rtt : 0;
    }
    """
    unsigned int round_trip_us(int) noexcept nogil

cdef enum:
    RMEM, RCVBUF = 1         # fields of SO_MEMINFO: the receive buffer's size and its limit
    MEMINFO_FIELDS = 16              # more fields than SO_MEMINFO has
    RECEIVE_BUFFER_DIVISOR = 4       # a receive buffer filled below this fraction, one quarter, has room
    MIN_SETTLING_NS = 200000000      # TCP_RTO_MIN: the earliest retransmission of a lost segment
    SETTLING_ROUND_TRIPS = 8         # round trips that a retransmission takes
    MAX_SEND_BUFFER_BYTES = 4194304  # a peer's largest send buffer while the system's limits are unchanged


cdef bint can_reset(int fd) noexcept:
    """Returns whether a write may destroy bytes of the peer. Those of a unix socket are in our queue at once."""
    cdef int domain = 0
    cdef unsigned int size = sizeof(domain)
    return getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 and domain != AF_UNIX


cdef Outlook outlook(int fd, long long *holds) noexcept nogil:
    """Reads the kernel's state; *holds*: the largest number of bytes in our kernel and the peer's."""
    cdef pollfd watched
    cdef unsigned int memory[MEMINFO_FIELDS]
    cdef unsigned int size = sizeof(memory)
    watched.fd = fd
    watched.events = POLLRDHUP
    watched.revents = 0
    if poll(&watched, 1, 0) > 0 and watched.revents & (POLLRDHUP | POLLHUP | POLLERR):
        return ENDED
    memset(memory, 0, sizeof(memory))
    # Small segments take much more memory than they have bytes: FIONREAD would not show that there is no room.
    if getsockopt(fd, SOL_SOCKET, SO_MEMINFO, memory, &size) < 0:
        return CLEAR  # a kernel without that option, or a sandbox
    holds[0] = <long long>memory[RCVBUF] + MAX_SEND_BUFFER_BYTES
    return CROWDED if <long long>memory[RMEM] * RECEIVE_BUFFER_DIVISOR > memory[RCVBUF] else CLEAR


cdef long long settling_ns(int fd) noexcept nogil:
    """Returns for how many nanoseconds our kernel must have room until a peer's surely has sent everything."""
    return min(
        <long long>MIN_SETTLING_NS + SETTLING_ROUND_TRIPS * 1000 * <long long>round_trip_us(fd),
        <long long>FAST_STREAM_NS,
    )


cdef void set_low_water(int fd, int *before, int size) noexcept nogil:
    """Makes the kernel report bytes from *size* of them; any if 0. *before* is the current number."""
    if size != before[0] and fd >= 0:
        before[0] = size
        setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &size, sizeof(size))


cdef int unread_bytes(int fd) noexcept nogil:
    """Returns the number of bytes in the kernel that we have not read."""
    cdef int waiting = 0
    return waiting if ioctl(fd, FIONREAD, &waiting) == 0 else 0


@cython.final
cdef class CommandBacklog:
    """The waiting commands of one connection; created with the first, dropped with the last.

    Args:
        bytes_in: Bytes that have arrived so far.
    """

    def __init__(self, long long bytes_in) -> None:
        self.frames = []
        self.pong = b""
        self.bytes_in = bytes_in
        self.since = now_ns()

    cdef int add(self, bytes frame) except -1:
        """Adds a command. Of several PONGs only the newest is kept."""
        if frame[2:7] == b"\4PONG":
            self.pong = frame
        else:
            self.frames.append(frame)
            self.size += len(frame)
        return 0

    cdef bytes all(self):
        return self.pong + b"".join(self.frames)

    cdef bint outlived(self, long long bytes_in) noexcept:
        """Returns whether enough bytes have arrived that they cannot all come from a peer that had closed before.

        The peer may have closed since. Subscriptions take that risk: otherwise they would wait for ever in a stream
        that we never catch up with. A PONG takes it only if the stream is so quick that the peer may still wait for it.
        """
        if bytes_in - self.bytes_in <= self.room:
            return False
        if self.frames or now_ns() - self.since < FAST_STREAM_NS:
            return True
        self.bytes_in = bytes_in
        self.since = now_ns()
        return False
