"""The usher: one thread a context that has the I/O thread let in, where a busy main thread keeps it out.

A thread that waits for the GIL may ask for it after 5 ms in which it was not let go (sys.getswitchinterval()). Who lets
it go for a microsecond at a time, for a read, a write, a look at a descriptor, wakes that thread in vain each time, has
the GIL back before it has woken up, and the 5 ms begin anew: it can be kept out for a second. So this thread, which
needs no GIL, looks whether the I/O thread has something to do and waits, and has the main thread let the GIL go for long
enough. Python offers that for the main thread only (Py_AddPendingCall); others do it in their next call on a socket.
"""

cimport cython
from libc.errno cimport EEXIST, errno
from libc.string cimport memset
from posix.fcntl cimport O_CLOEXEC, O_RDONLY, open
from posix.time cimport nanosleep, timespec
from posix.unistd cimport close, getpid, write

from omq._core.kernel cimport (
    EFD_CLOEXEC,
    EFD_NONBLOCK,
    EPOLL_CLOEXEC,
    EPOLL_CTL_ADD,
    EPOLL_CTL_DEL,
    EPOLL_CTL_MOD,
    EPOLLIN,
    NO_FD,
    epoll_create1,
    epoll_ctl,
    epoll_event,
    epoll_wait,
    eventfd,
)

cdef extern from "<sys/epoll.h>" nogil:
    unsigned int EPOLLONESHOT

cdef extern from "<signal.h>" nogil:
    ctypedef struct sigset_t:
        pass
    int sigfillset(sigset_t *)
    int SIG_SETMASK

cdef extern from "<pthread.h>" nogil:
    int pthread_create(pthread_t *, void *, void *(*)(void *) noexcept nogil, void *)
    int pthread_join(pthread_t, void **)
    int pthread_sigmask(int, const sigset_t *, sigset_t *)

cdef extern from *:
    """
    #include <poll.h>
    #include <stdlib.h>
    #include <sys/syscall.h>
    #include <time.h>
    #include <unistd.h>

    #define OMQ_GIVEN_NS 100000       /* nanoseconds for which a thread lets the GIL go */
    #define OMQ_STALE_NS 5000000      /* nanoseconds after which it need not any more */
    #define OMQ_MUCH_NS 5000000       /* nanoseconds that it takes to get the GIL back where a third thread is at work, too */
    #define OMQ_PAUSE_NS 10000000000  /* nanoseconds, the longest, before it lets it go again then */
    #define OMQ_FORGOTTEN_NS 1000000000  /* nanoseconds after which the main thread is told once more, at first */

    static long long omq_asked;       /* on the monotonic clock, when somebody was asked to; 0: nobody is */
    static long long omq_queued;      /* when the main thread was told, which has not come to it yet; 0: it has */
    static long long omq_patience = OMQ_FORGOTTEN_NS;  /* twice as long each time that it is told in vain */
    static long long omq_not_before;  /* when somebody may be asked again */
    static long omq_handovers;

    static long long omq_now(void) {
        struct timespec moment;
        clock_gettime(CLOCK_MONOTONIC, &moment);
        return moment.tv_sec * 1000000000LL + moment.tv_nsec;
    }

    /* Lets the GIL go for long enough that another thread comes in, if that was asked for lately.

       Whoever comes in may be a third thread that works in such small pieces, too, and keeps the GIL: what that costs is
       a tenth of the time at most. */
    static int omq_let_go(void) {
        struct timespec rest = {0, OMQ_GIVEN_NS};
        long long asked = __atomic_exchange_n(&omq_asked, 0, __ATOMIC_RELAXED);
        long long begun = omq_now(), took;
        if (asked && begun - asked < OMQ_STALE_NS) {
            omq_handovers++;
            Py_BEGIN_ALLOW_THREADS
            nanosleep(&rest, NULL);
            Py_END_ALLOW_THREADS
            took = omq_now() - begun;
            if (took > OMQ_MUCH_NS)
                __atomic_store_n(&omq_not_before, begun + took + (10 * took < OMQ_PAUSE_NS ? 10 * took : OMQ_PAUSE_NS),
                                 __ATOMIC_RELAXED);
        }
        return 0;
    }

    /* On the main thread, between two bytecodes. */
    static int omq_on_main(void *nothing) {
        (void)nothing;
        __atomic_store_n(&omq_patience, OMQ_FORGOTTEN_NS, __ATOMIC_RELAXED);
        __atomic_store_n(&omq_queued, 0, __ATOMIC_RELAXED);
        return omq_let_go();
    }

    /* Asks whoever is at work to let the GIL go. Needs no GIL. */
    static void omq_ask(void) {
        long long now = omq_now();
        long long queued = __atomic_load_n(&omq_queued, __ATOMIC_RELAXED);
        if (!Py_IsInitialized() || now < __atomic_load_n(&omq_not_before, __ATOMIC_RELAXED))
            return;
        __atomic_store_n(&omq_asked, now, __ATOMIC_RELAXED);
        if (queued != 0) {
            /* Python 3.11 gives it to a subinterpreter that happens to have the GIL, and that may end. Or the main thread
               sleeps: the few places for such calls are not to be filled by this. */
            long long patience = __atomic_load_n(&omq_patience, __ATOMIC_RELAXED);
            if (now - queued < patience)
                return;
            __atomic_store_n(&omq_patience, 2 * patience, __ATOMIC_RELAXED);
        }
        if (__atomic_compare_exchange_n(&omq_queued, &queued, now, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED) &&
            Py_AddPendingCall(omq_on_main, NULL) < 0)
            __atomic_store_n(&omq_queued, 0, __ATOMIC_RELAXED);
    }

    static int omq_is_asked(void) { return __atomic_load_n(&omq_asked, __ATOMIC_RELAXED) != 0; }

    enum omq_whereabouts { OMQ_UNKNOWN, OMQ_AT_WORK, OMQ_WAITING, OMQ_IDLE };

    /* What a thread is about, by the system call that it is in (proc_pid_syscall(5)). */
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
    long omq_handovers
    int omq_let_go()
    void omq_ask() nogil
    bint omq_is_asked()
    bint omq_is_readable(int) nogil
    ctypedef enum Whereabouts "enum omq_whereabouts":
        UNKNOWN "OMQ_UNKNOWN"
        AT_WORK "OMQ_AT_WORK"
        WAITING "OMQ_WAITING"
        IDLE "OMQ_IDLE"
    Whereabouts omq_whereabouts(int) nogil

cdef enum:
    PATIENCE_NS = 1000000    # nanoseconds between two looks at a thread that has something to do
    LONG_NS = 20000000       # nanoseconds between two of them where it waits for something else, as it turns out
    IN_VAIN = 500            # looks in a row that found it waiting, after which that is so
    LOOP = 1                 # in the epoll set: the event loop's own
    END = 2                  # the thread is to end


def handovers():
    return omq_handovers


cdef int give_way() except -1:
    """Lets the GIL go for a moment, where the I/O thread is kept out; without any lock."""
    return omq_let_go() if omq_is_asked() else 0


cdef void *run(void *usher) noexcept nogil:
    (<Usher>usher)._loop()
    return NULL


cdef bint is_watched(int fd, int epoll_fd) noexcept:
    """Whether an epoll set has this very descriptor in it."""
    cdef epoll_event event
    memset(&event, 0, sizeof(event))
    if epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0:
        epoll_ctl(epoll_fd, EPOLL_CTL_DEL, fd, &event)
        return False
    return errno == EEXIST


@cython.final
@cython.no_gc_clear  # the thread may be looking at it
cdef class Usher:
    def __cinit__(self):
        self._set = self._end = self._state = NO_FD
        self._pid = getpid()

    def __dealloc__(self):
        self.stop()

    def start(self, int thread, int watched, candidates):
        cdef epoll_event event
        cdef sigset_t every, before
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
        event.data.u64 = END
        if (self._state >= 0 and self._set >= 0 and self._end >= 0
                and epoll_ctl(self._set, EPOLL_CTL_ADD, self._end, &event) == 0
                and self._arm(EPOLL_CTL_ADD) == 0 and omq_whereabouts(self._state) != UNKNOWN):
            # Our threads take no signals: they are the main thread's.
            sigfillset(&every)
            pthread_sigmask(SIG_SETMASK, &every, &before)
            self._running = pthread_create(&self._thread, NULL, run, <void *>self) == 0
            pthread_sigmask(SIG_SETMASK, &before, NULL)
        if not self._running:
            self._close()

    def stop(self):
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
        """Has the event loop's next event wake this thread, once."""
        cdef epoll_event event
        memset(&event, 0, sizeof(event))
        event.events = EPOLLIN | EPOLLONESHOT
        event.data.u64 = LOOP
        return epoll_ctl(self._set, how, self._loop_fd, &event)

    cdef bint _ended(self, int milliseconds) noexcept nogil:
        """Waits for an event, -1: without a bound; whether this thread is to end."""
        cdef epoll_event events[2]
        cdef int i
        for i in range(epoll_wait(self._set, events, 2, milliseconds)):
            if events[i].data.u64 == END:
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
                nap.tv_nsec = PATIENCE_NS if waits < IN_VAIN else LONG_NS
                nanosleep(&nap, NULL)
                now = omq_whereabouts(self._state)
                if now == UNKNOWN or (now == IDLE and not omq_is_readable(self._loop_fd)):
                    break
                waits = waits + 1 if now == WAITING else 0
                if waits > 1:
                    omq_ask()
            self._arm(EPOLL_CTL_MOD)
