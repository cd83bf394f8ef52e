"""System calls of handshakes that do not wait, and so keep the GIL.

Python's own release it around each call: a thread that waits for the GIL takes it then, and the I/O thread waits in
turn, several times for each new connection.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.string cimport memcmp
from libc.errno cimport EAGAIN, EINPROGRESS, EINTR, errno

from omq._core.kernel cimport (
    EPOLLIN,
    EPOLL_CLOEXEC,
    EPOLL_CTL_ADD,
    EPOLL_CTL_DEL,
    MSG_DONTWAIT,
    MSG_NOSIGNAL,
    MAX_EVENTS,
    NO_FD,
    epoll_create1,
    epoll_ctl,
    epoll_event,
    epoll_wait,
    recv,
    send,
)

import os

cdef extern from "<sys/socket.h>" nogil:
    struct sockaddr:
        unsigned short sa_family
    struct sockaddr_storage:
        pass
    ctypedef unsigned int socklen_t
    int accept4(int, sockaddr *, socklen_t *, int)
    int socket(int, int, int)
    int getsockname(int, sockaddr *, socklen_t *)
    int getpeername(int, sockaddr *, socklen_t *)
    int connect(int, const sockaddr *, socklen_t)
    int setsockopt(int, int, int, const void *, socklen_t)
    int getsockopt(int, int, int, void *, socklen_t *)
    int SOCK_STREAM, SOCK_CLOEXEC, SOCK_NONBLOCK, AF_INET, AF_INET6, SOL_SOCKET, SO_ERROR

cdef extern from "<poll.h>" nogil:
    struct pollfd:
        int fd
        short events
        short revents
    int poll(pollfd *, unsigned long, int)
    short POLLOUT

cdef extern from "<netdb.h>" nogil:
    int getnameinfo(const sockaddr *, socklen_t, char *, socklen_t, char *, socklen_t, int)
    int NI_NUMERICHOST, NI_NUMERICSERV

cdef extern from "<unistd.h>" nogil:
    int close(int)

cdef enum:
    HOST_BYTES = 128    # a numeric address, its zone included
    SERVICE_BYTES = 16  # a port in digits
    READ_BYTES = 4096   # more than any handshake message of libzmq's mechanisms


cdef object _failure(int code):
    return OSError(code, os.strerror(code))


def accept(int listening) -> tuple[int, tuple[str, int] | None] | None:
    """Accepts a connection; `None` if no connection waits.

    Returns:
        Its non-blocking descriptor, and the peer's address and port, or `None` if it has none.

    Raises:
        OSError: The connection is gone, or the system refuses it.
    """
    cdef sockaddr_storage peer
    cdef sockaddr *address = <sockaddr *>&peer
    cdef socklen_t size = sizeof(peer)
    cdef char host[HOST_BYTES]
    cdef char service[SERVICE_BYTES]
    cdef int fd
    address.sa_family = 0
    fd = accept4(listening, address, &size, SOCK_CLOEXEC | SOCK_NONBLOCK)
    if fd < 0:
        if errno in (EAGAIN, EINTR):
            return None
        raise _failure(errno)
    # A numeric address needs no lookup.
    if address.sa_family in (AF_INET, AF_INET6) and getnameinfo(
            address, size, host, HOST_BYTES, service, SERVICE_BYTES, NI_NUMERICHOST | NI_NUMERICSERV) == 0:
        return fd, ((<bytes>host).decode("ascii", "replace"), int(<bytes>service))
    return fd, None


def receive(int fd) -> bytes | None:
    """Reads 4 KiB at most; `None` if there is nothing to read, and empty bytes at the end of the stream.

    Raises:
        OSError: The connection is broken.
    """
    cdef char into[READ_BYTES]
    cdef Py_ssize_t size
    while True:
        size = recv(fd, into, READ_BYTES, MSG_DONTWAIT)
        if size >= 0:
            return PyBytes_FromStringAndSize(into, size)
        if errno == EAGAIN:
            return None
        if errno != EINTR:
            raise _failure(errno)


def transmit(int fd, bytes data not None) -> int:
    """Writes as many bytes as the kernel takes; returns their number.

    Raises:
        OSError: The connection is broken.
    """
    cdef Py_ssize_t size
    while True:
        size = send(fd, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), MSG_DONTWAIT | MSG_NOSIGNAL)
        if size >= 0:
            return size
        if errno == EAGAIN:
            return 0
        if errno != EINTR:
            raise _failure(errno)


def dial(int family, bytes name not None, tuple settings not None: tuple[tuple[int, int, int], ...]) -> tuple[int, int]:
    """Begins to connect a new non-blocking stream socket.

    Args:
        family: The socket's address family.
        name: The address to connect to, a `sockaddr`.
        settings: Options to set first: level, option, value.

    Returns:
        The descriptor and 0 if it is connected, else the descriptor and `EINPROGRESS`; or -1 and the errno.
    """
    cdef int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)
    cdef int code, level, option, value
    if fd < 0:
        return NO_FD, errno
    for level, option, value in settings:
        if setsockopt(fd, level, option, &value, sizeof(value)) < 0:
            code = errno
            close(fd)
            return NO_FD, code
    if connect(fd, <const sockaddr *>PyBytes_AS_STRING(name), <socklen_t>PyBytes_GET_SIZE(name)) == 0:
        return fd, 0
    code = errno
    if code == EINPROGRESS:
        code = progress(fd)
    if code != 0 and code != EINPROGRESS:
        close(fd)
        return NO_FD, code
    return fd, code


cpdef int progress(int fd):
    """Returns the state of a connection attempt: 0, `EINPROGRESS`, or the errno."""
    cdef pollfd look
    cdef int code = 0
    cdef socklen_t size = sizeof(code)
    look.fd = fd
    look.events = POLLOUT
    look.revents = 0
    if poll(&look, 1, 0) <= 0:
        return EINPROGRESS
    if getsockopt(fd, SOL_SOCKET, SO_ERROR, &code, &size) < 0:
        return errno
    return code


cdef class HeadStart:
    """A connection attempt that also sends our side of the handshake at once, without waiting.

    Args:
        family: As for `dial`.
        name: As for `dial`.
        settings: As for `dial`.
        greeting: Bytes to send if the connection is made at once.

    Attributes:
        fd: The descriptor; owned. -1 if the attempt has failed, or after `take` or `close`.
        sent: Bytes of the greeting that the kernel has taken; empty, too, if the connection leads to itself.
    """

    cdef readonly int fd             # owned; -1 if the attempt failed, or once it is given away
    cdef readonly bytes sent

    def __cinit__(self, *_):
        self.fd = NO_FD
        self.sent = b""

    def __init__(
        self,
        int family,
        bytes name not None,
        tuple settings not None: tuple[tuple[int, int, int], ...],
        bytes greeting not None,
    ) -> None:
        cdef Py_ssize_t size
        cdef int code
        if self.fd >= 0:
            raise RuntimeError("the attempt has already begun")
        self.fd, code = dial(family, name, settings)
        if code == 0 and not leads_to_itself(self.fd):
            size = send(self.fd, PyBytes_AS_STRING(greeting), PyBytes_GET_SIZE(greeting), MSG_DONTWAIT | MSG_NOSIGNAL)
            if size > 0:
                self.sent = greeting[:size]

    def __dealloc__(self):
        self.close()

    def take(self) -> int:
        """Gives up the descriptor to the caller."""
        cdef int fd = self.fd
        self.fd = NO_FD
        return fd

    # stub: def close(self) -> None: ...
    cpdef close(self):
        """Closes the descriptor, if it is still owned."""
        if self.fd >= 0:
            close(self.fd)
            self.fd = NO_FD


cdef bint leads_to_itself(int fd) noexcept:
    cdef sockaddr_storage ours, theirs
    cdef socklen_t size = sizeof(ours), other = sizeof(theirs)
    if getsockname(fd, <sockaddr *>&ours, &size) < 0 or getpeername(fd, <sockaddr *>&theirs, &other) < 0:
        return False
    return size == other and size > sizeof(unsigned short) and memcmp(&ours, &theirs, size) == 0


cdef class HandshakePoller:
    """One epoll set for the handshakes of all connections that a socket accepts.

    A connection is watched only during its handshake, and joins another epoll set afterwards. An event loop makes an
    object for each descriptor, and needs seven system calls to watch it and to stop; a set of our own needs two.

    Args:
        watch: Watches a descriptor, and calls the given function when it is readable.
        unwatch: Ends that.
        report: Called with an exception that a reader has raised.
    """

    cdef readonly int fd             # the epoll set; owned; -1 before open() and once closed
    cdef dict _readers               # by descriptor: the function to call when it can be read
    cdef object _watch, _unwatch     # start and stop calling `serve` when `fd` is readable
    cdef object _report              # called with an exception that a reader has raised

    def __cinit__(self, *_):
        self.fd = NO_FD
        self._readers = {}

    def __init__(
        self,
        watch not None: Callable[[int, Callable[[], None]], object],
        unwatch not None: Callable[[int], object],
        report not None: Callable[[Exception], object],
    ) -> None:
        self.call(watch, unwatch, report)

    def call(
        self,
        watch not None: Callable[[int, Callable[[], None]], object],
        unwatch not None: Callable[[int], object],
        report not None: Callable[[Exception], object],
    ) -> None:
        """Replaces the functions."""
        self._watch = watch
        self._unwatch = unwatch
        self._report = report

    def __dealloc__(self):
        if self.fd >= 0:
            close(self.fd)

    def open(self) -> None:
        """Opens the epoll set, unless it is open.

        Raises:
            OSError: The system has no descriptor left.
        """
        if self.fd >= 0:
            return
        self.fd = epoll_create1(EPOLL_CLOEXEC)
        if self.fd < 0:
            raise _failure(errno)
        try:
            self._watch(self.fd, self.serve)
        except BaseException:
            close(self.fd)
            self.fd = NO_FD
            raise

    def add(self, int fd, reader not None: Callable[[], None]) -> None:
        """Calls *reader* whenever a descriptor is readable; requires `open`.

        Raises:
            OSError: The system watches no more descriptors.
        """
        cdef epoll_event event
        event.events = EPOLLIN
        event.data.u64 = <unsigned long long>fd
        if epoll_ctl(self.fd, EPOLL_CTL_ADD, fd, &event) < 0:
            raise _failure(errno)
        self._readers[fd] = reader

    def remove(self, int fd) -> None:
        """Stops watching a descriptor; ignores one that is not watched."""
        cdef epoll_event event
        if self._readers.pop(fd, None) is not None and self.fd >= 0:
            epoll_ctl(self.fd, EPOLL_CTL_DEL, fd, &event)

    def serve(self) -> None:
        """Calls the readers of up to 64 readable descriptors."""
        cdef epoll_event events[MAX_EVENTS]
        cdef int i
        cdef int n = epoll_wait(self.fd, events, MAX_EVENTS, 0) if self.fd >= 0 else 0
        for i in range(n):
            reader = self._readers.get(<int>events[i].data.u64)  # None: another reader has ended it
            if reader is not None:
                try:
                    reader()
                except Exception as error:
                    self._report(error)

    def close_after_fork(self) -> None:
        """Closes the epoll set in a forked child; the parent keeps its own."""
        if self.fd >= 0:
            close(self.fd)
            self.fd = NO_FD

    def close(self) -> None:
        """Stops watching all descriptors and closes the set. Idempotent."""
        if self.fd >= 0:
            self._unwatch(self.fd)
            close(self.fd)
            self.fd = NO_FD
        self._readers.clear()
