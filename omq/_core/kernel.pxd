# Linux calls that Cython has no declarations of: sendmsg(2), recvmsg(2), epoll(7), eventfd(2).

cdef enum:
    # Value of a descriptor that is not open. Cython begins with zeros, and 0 is the standard input, so an object that
    # closes its descriptor when it is freed sets this before anything can fail.
    NO_FD = -1
    MAX_EVENTS = 64  # events taken from an epoll set at once

cdef extern from "<sys/uio.h>" nogil:
    struct iovec:
        void *iov_base
        size_t iov_len

cdef extern from "<sys/socket.h>" nogil:
    struct msghdr:
        iovec *msg_iov
        size_t msg_iovlen
    Py_ssize_t send(int, const void *, size_t, int)
    Py_ssize_t sendmsg(int, const msghdr *, int)
    Py_ssize_t recv(int, void *, size_t, int)
    Py_ssize_t recvmsg(int, msghdr *, int)
    int MSG_DONTWAIT
    int MSG_NOSIGNAL

cdef extern from "<sys/epoll.h>" nogil:
    ctypedef union epoll_data:
        unsigned long long u64
    struct epoll_event:
        unsigned int events
        epoll_data data
    int epoll_create1(int)
    int epoll_ctl(int, int, int, epoll_event *)
    int epoll_wait(int, epoll_event *, int, int)
    int EPOLL_CLOEXEC
    int EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD
    unsigned int EPOLLIN, EPOLLOUT, EPOLLERR, EPOLLHUP, EPOLLRDHUP
    unsigned int EPOLLET, EPOLLONESHOT

cdef extern from "<sys/eventfd.h>" nogil:
    int eventfd(unsigned int, int)
    int EFD_CLOEXEC, EFD_NONBLOCK
