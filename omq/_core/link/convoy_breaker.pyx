"""The convoy breaker: one thread for each context that gets the GIL for the I/O thread from a busy main thread.

The name comes from the "convoy effect" of the GIL. A thread that waits for the GIL may request it after 5 ms in which
it was not released (sys.getswitchinterval()). A main thread that releases it for a microsecond at a time, for a read, a
write, a check of a descriptor, wakes the waiting thread in vain each time: it has the GIL back before that thread runs,
and the 5 ms begin again. The I/O thread can be kept out for a second. So this thread, which needs no GIL, checks
whether the I/O thread waits with work to do, and then makes the main thread release the GIL for long enough. Python
offers that for the main thread only (Py_AddPendingCall); other threads release it in their next call on a socket.
"""

cimport cython
from libc.errno cimport EEXIST, errno
from libc.string cimport memset
from posix.fcntl cimport O_CLOEXEC, O_RDONLY, open
from posix.time cimport nanosleep, timespec
from posix.unistd cimport close, getpid, write

from omq._core.clock cimport now_ns
from omq._core.kernel cimport (
    EFD_CLOEXEC,
    EFD_NONBLOCK,
    EPOLL_CLOEXEC,
    EPOLL_CTL_ADD,
    EPOLL_CTL_DEL,
    EPOLL_CTL_MOD,
    EPOLLIN,
    EPOLLONESHOT,
    NO_FD,
    epoll_create1,
    epoll_ctl,
    epoll_event,
    epoll_wait,
    eventfd,
)
from omq._core.thread cimport pthread_join, start_thread

cdef extern from "Python.h":
    int Py_AddPendingCall(int (*)(void *) noexcept, void *) noexcept nogil
    int Py_IsInitialized() noexcept nogil

cdef extern from *:
    """
    #include <poll.h>
    #include <stdlib.h>
    #include <sys/syscall.h>
    #include <unistd.h>

    static inline long long omq_load(const long long *from) { return __atomic_load_n(from, __ATOMIC_RELAXED); }
    static inline void omq_store(long long *to, long long value) { __atomic_store_n(to, value, __ATOMIC_RELAXED); }
    static inline int omq_swap(long long *in, long long old, long long value) {
        return __atomic_compare_exchange_n(in, &old, value, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    }

    enum omq_whereabouts { OMQ_UNKNOWN, OMQ_AT_WORK, OMQ_WAITING, OMQ_IDLE };

    /* The state of a thread, by the system call that it is in (proc_pid_syscall(5)). */
    static enum omq_whereabouts omq_whereabouts(int fd) {
        char text[32];
        ssize_t size = pread(fd, text, sizeof(text) - 1, 0);
        long call;
        if (size <= 0)
            return OMQ_UNKNOWN;
        text[size] = 0;
        if (text[0] < '0' || text[0] > '9')
            return OMQ_AT_WORK;
        call = strtol(text, NULL, 10);
        if (call == SYS_futex)
            return OMQ_WAITING;  /* for the GIL, or for a lock */
    #ifdef SYS_epoll_wait
        if (call == SYS_epoll_wait)
            return OMQ_IDLE;
    #endif
        return call == SYS_epoll_pwait ? OMQ_IDLE : OMQ_AT_WORK;
    }

    static int omq_is_readable(int fd) {
        struct pollfd one = {fd, POLLIN, 0};
        return poll(&one, 1, 0) > 0 && one.revents & POLLIN;
    }
    """
    long long omq_load(const long long *) noexcept nogil
    void omq_store(long long *, long long) noexcept nogil
    bint omq_swap(long long *, long long, long long) noexcept nogil
    bint omq_is_readable(int) noexcept nogil
    ctypedef enum Whereabouts "enum omq_whereabouts":
        UNKNOWN "OMQ_UNKNOWN"
        AT_WORK "OMQ_AT_WORK"
        WAITING "OMQ_WAITING"
        IDLE "OMQ_IDLE"
    Whereabouts omq_whereabouts(int) noexcept nogil

cdef enum:
    CHECK_INTERVAL_NS = 1000000        # between two checks of a thread that has something to do
    LONG_CHECK_INTERVAL_NS = 20000000  # between two checks if the thread turns out to wait for something else
    MAX_VAIN_CHECKS = 500              # checks in a row that found it waiting, after which it waits for something else
    RELEASE_NS = 100000                # how long a thread releases the GIL
    REQUEST_TIMEOUT_NS = 5000000       # after which a request is too old to follow
    SLOW_RETURN_NS = 5000000           # time to get the GIL back that shows a third thread at work
    PAUSE_FACTOR = 10                  # then the next request comes after this many times that time...
    MAX_PAUSE_NS = 10000000000         # ...but no later than this
    FIRST_RETRY_DELAY_NS = 1000000000  # before the main thread is asked again, at first
    LOOP_TICKET = 1                    # in the epoll set: the event loop's own
    END_TICKET = 2                     # stops the thread

# Shared by all contexts of a process: there is one main thread. Times are nanoseconds on the monotonic clock.
cdef long long asked                    # when a thread was asked to release the GIL; 0: no request
cdef long long main_asked                     # when the main thread was asked; 0: it has handled the request
cdef long long retry_delay_ns = FIRST_RETRY_DELAY_NS  # until it is asked again: twice as long each time
cdef long long not_before               # when a thread may be asked again
cdef long times_given                   # how often a thread has released it


def handovers() -> int:
    """Returns how often threads of this process have released the GIL at a convoy breaker's request."""
    return times_given


cdef int let_go() noexcept:
    """Releases the GIL for long enough that another thread gets it, if that was requested lately.

    That may be a third thread, which also releases it only for moments, and so keeps it: that costs a
    tenth of the time at most.
    """
    global times_given
    cdef timespec rest
    cdef long long begun = now_ns()
    cdef long long since = begun - omq_load(&asked)
    cdef long long took
    omq_store(&asked, 0)
    if since < REQUEST_TIMEOUT_NS:
        times_given += 1
        rest.tv_sec = 0
        rest.tv_nsec = RELEASE_NS
        with nogil:
            nanosleep(&rest, NULL)
        took = now_ns() - begun
        if took > SLOW_RETURN_NS:
            omq_store(&not_before, begun + took + min(PAUSE_FACTOR * took, <long long>MAX_PAUSE_NS))
    return 0


cdef int yield_if_requested() except -1:
    """Releases the GIL for a moment if the I/O thread is kept out; the caller must not hold a lock."""
    return let_go() if omq_load(&asked) else 0


cdef int on_main(void *nothing) noexcept:
    """Runs on the main thread, between two bytecodes."""
    omq_store(&retry_delay_ns, FIRST_RETRY_DELAY_NS)
    omq_store(&main_asked, 0)
    return let_go()


cdef void ask() noexcept nogil:
    """Asks the working thread to release the GIL. Needs no GIL."""
    cdef long long now = now_ns()
    cdef long long before = omq_load(&main_asked)
    if not Py_IsInitialized() or now < omq_load(&not_before):
        return
    omq_store(&asked, now)
    if before:
        # Python 3.11 asks a subinterpreter that happens to have the GIL, and that may end. Or the main thread sleeps:
        # repeated requests must not fill the few places for pending calls.
        if now - before < omq_load(&retry_delay_ns):
            return
        omq_store(&retry_delay_ns, 2 * omq_load(&retry_delay_ns))
    if omq_swap(&main_asked, before, now) and Py_AddPendingCall(on_main, NULL) < 0:
        omq_store(&main_asked, 0)


cdef void *run(void *convoy_breaker) noexcept nogil:
    (<ConvoyBreaker>convoy_breaker)._loop()
    return NULL


cdef bint is_watched(int fd, int epoll_fd) noexcept:
    """Returns whether an epoll set contains this very descriptor."""
    cdef epoll_event event
    memset(&event, 0, sizeof(event))
    if epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0:
        epoll_ctl(epoll_fd, EPOLL_CTL_DEL, fd, &event)
        return False
    return errno == EEXIST


@cython.final
@cython.no_gc_clear  # the thread may be using it
cdef class ConvoyBreaker:
    """Makes a busy main thread release the GIL when the I/O thread waits for it."""

    def __cinit__(self):
        self._set = self._end = self._state = NO_FD
        self._pid = getpid()

    def __dealloc__(self):
        self.stop()

    def start(self, int thread, int watched, candidates: Iterable[int]) -> None:
        """Begins to watch the I/O thread. Does nothing if the system gives no thread, no descriptor or no /proc.

        Args:
            thread: The I/O thread's native id (`threading.get_native_id`).
            watched: A descriptor that its event loop watches.
            candidates: Descriptors, one of which is the loop's epoll set. It stays open until `stop`.
        """
        cdef epoll_event event
        if self._running:
            return
        for candidate in candidates:
            if is_watched(watched, candidate):
                self._loop_fd = candidate
                break
        else:
            return
        self._state = open(b"/proc/self/task/%d/syscall" % thread, O_RDONLY | O_CLOEXEC)
        self._set = epoll_create1(EPOLL_CLOEXEC)
        self._end = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
        memset(&event, 0, sizeof(event))
        event.events = EPOLLIN
        event.data.u64 = END_TICKET
        if (self._state >= 0 and self._set >= 0 and self._end >= 0
                and epoll_ctl(self._set, EPOLL_CTL_ADD, self._end, &event) == 0
                and self._arm(EPOLL_CTL_ADD) == 0 and omq_whereabouts(self._state) != UNKNOWN):
            self._running = start_thread(&self._thread, run, <void *>self)
        if not self._running:
            self._close()

    def stop(self) -> None:
        """Ends the thread. Idempotent."""
        cdef unsigned long long one = 1
        if self._running and self._pid == getpid():
            self._running = False
            write(self._end, &one, sizeof(one))
            with nogil:
                pthread_join(self._thread, NULL)
        self._close()

    def _close(self):
        for fd in (self._state, self._set, self._end):
            if fd >= 0:
                close(fd)
        self._state = self._set = self._end = NO_FD

    cdef int _arm(self, int how) noexcept nogil:
        """Makes the event loop's next event wake this thread, once."""
        cdef epoll_event event
        memset(&event, 0, sizeof(event))
        event.events = EPOLLIN | EPOLLONESHOT
        event.data.u64 = LOOP_TICKET
        return epoll_ctl(self._set, how, self._loop_fd, &event)

    cdef bint _ended(self, int milliseconds) noexcept nogil:
        """Waits for an event (-1: without a bound); returns whether this thread stops."""
        cdef epoll_event events[2]
        cdef int i
        for i in range(epoll_wait(self._set, events, 2, milliseconds)):
            if events[i].data.u64 == END_TICKET:
                return True
        return False

    cdef void _loop(self) noexcept nogil:
        cdef timespec nap
        cdef Whereabouts now
        cdef int waits
        nap.tv_sec = 0
        while not self._ended(-1):
            waits = 0
            while not self._ended(0):
                nap.tv_nsec = CHECK_INTERVAL_NS if waits < MAX_VAIN_CHECKS else LONG_CHECK_INTERVAL_NS
                nanosleep(&nap, NULL)
                now = omq_whereabouts(self._state)
                if now == UNKNOWN or (now == IDLE and not omq_is_readable(self._loop_fd)):
                    break
                waits = waits + 1 if now == WAITING else 0
                if waits > 1:
                    ask()
            self._arm(EPOLL_CTL_MOD)
