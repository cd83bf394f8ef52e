"""The flusher: one thread for each context that writes the batches that callers left.

A caller that sends a little and then computes holds the GIL; this thread does not need it. The thread wakes
when a batch is left, writes it once the last write is some 20 us old, and parks after a while without work. If the
kernel takes no more, the socket's epoll set reports when it does, and the thread that serves the set writes the
rest: its owner, the I/O thread, or the background thread.
"""

cimport cython
from libc.stdlib cimport free
from posix.time cimport nanosleep, timespec
from posix.unistd cimport getpid

from omq._core.wire.send_buffer cimport SendBuffer
from omq._core.clock cimport now_ns
from omq._core.link.pointers cimport PointerArray, append_entry, remove_entry
from omq._core.lock cimport (
    hold_mutex,
    pthread_mutex_destroy,
    pthread_mutex_init,
    pthread_mutex_lock,
    pthread_mutex_unlock,
    sem_t,
    sem_destroy,
    sem_init,
    sem_post,
    sem_wait,
)
from omq._core.thread cimport pthread_join, start_thread

cdef extern from "<sys/prctl.h>" nogil:
    int prctl(int, ...)
    int PR_SET_TIMERSLACK

cdef extern from *:
    """
    #include <stdint.h>
    #include <sys/syscall.h>
    #include <unistd.h>

    /* sched_setattr(2): a thread of the usual policy may ask for a shorter slice (Linux 6.12), and so for an earlier
       deadline: it then runs at once where it wakes next to a busy thread. Older kernels ignore the request. */
    static void be_prompt(uint64_t slice) {
        struct {
            uint32_t size, policy;
            uint64_t flags;
            int32_t nice;
            uint32_t priority;
            uint64_t runtime, deadline, period;
        } wish;
        if (syscall(SYS_sched_getattr, 0, &wish, sizeof(wish), 0) == 0 && wish.policy == 0) {
            wish.size = sizeof(wish);
            wish.runtime = slice;
            syscall(SYS_sched_setattr, 0, &wish, 0);
        }
    }
    """
    void be_prompt(unsigned long long slice) nogil

cdef enum:
    TIME_SLICE_NS = 100000             # the shortest time slice that the kernel gives
    CHECK_INTERVAL_NS = 50000          # between the first two checks: a burst of a few messages is over by then
    LONG_CHECK_INTERVAL_NS = 100000    # between later checks: a stream writes most batches by itself
    STREAM_CHECK_INTERVAL_NS = 400000  # between checks during a stream: each takes a core from its sender or receiver
    STREAM_CHECKS = 20                 # checks in a row that found only working callers: a stream
    TIMER_SLACK_NS = 1000              # tolerance of a nap: the kernel's usual 50 us would double it
    MAX_IDLE_CHECKS = 10               # checks without work before parking
    WRITE_COST_NS = 40000              # total cost of a write to one of many: the call, and a core for a receiver
    MAX_WAITED_BATCHES = 100           # batches of those many that are waited for
    CHECK_COST_NS = 8000               # extra nap for each batch to be checked...
    MAX_CHECK_INTERVAL_NS = 500000     # ...and the longest nap


cdef void *run(void *flusher) noexcept nogil:
    prctl(PR_SET_TIMERSLACK, TIMER_SLACK_NS)
    be_prompt(TIME_SLICE_NS)
    (<Flusher>flusher)._loop()
    return NULL


@cython.final
cdef class Flusher:
    """Writes batches that callers left, without the GIL. The first batch starts the thread, and `stop` ends it."""

    def __cinit__(self):
        pthread_mutex_init(&self._mutex, NULL)
        sem_init(&self._work, 0, 0)
        self._parked = True
        self._pid = getpid()

    def __dealloc__(self):
        if self._pid == getpid():
            self.stop()
            sem_destroy(&self._work)
            pthread_mutex_destroy(&self._mutex)
        free(self._left.entries)

    def stop(self) -> None:
        """Ends the thread for good; batches that are left stay where they are."""
        if self._pid != getpid():
            return
        hold_mutex(&self._mutex)
        self._over = True
        pthread_mutex_unlock(&self._mutex)
        if self._running:
            self._running = False
            sem_post(&self._work)
            with nogil:
                pthread_join(self._thread, NULL)

    cdef bint _start(self) noexcept:
        self._running = not self._over and start_thread(&self._thread, run, <void *>self)
        return self._running

    cdef bint leave(self, SendBuffer send_buffer) noexcept:
        """Notes that *send_buffer*, which the caller holds, has a batch to write soon. Wakes the thread once a burst.

        False: the batch will not be written, for lack of a thread or of memory.
        """
        cdef bint wake
        if send_buffer.queued:
            return True
        if not self._running and not self._start():
            return False
        hold_mutex(&self._mutex)
        if not append_entry(&self._left, <void *>send_buffer):
            pthread_mutex_unlock(&self._mutex)
            return False
        send_buffer.queued = True
        wake = self._parked
        self._parked = False
        pthread_mutex_unlock(&self._mutex)
        if wake:
            sem_post(&self._work)
        return True

    cdef int forget(self, SendBuffer send_buffer) except -1:
        """Removes *send_buffer* before it ends: afterwards the thread does not touch it."""
        if self._pid == getpid():
            remove_entry(&self._mutex, &self._left, <void *>send_buffer)
        return 0

    cdef bint _rest(self) noexcept nogil:
        """Sleeps until there is a batch to write; False: the thread is to end."""
        sem_wait(&self._work)
        return not self._ended()

    cdef bint _ended(self) noexcept nogil:
        cdef bint over
        pthread_mutex_lock(&self._mutex)
        over = self._over
        pthread_mutex_unlock(&self._mutex)
        return over

    cdef void _loop(self) noexcept nogil:
        cdef timespec nap
        cdef long long interval
        cdef int idle, needless
        cdef bint parked
        nap.tv_sec = 0
        while self._rest():
            idle = needless = 0
            interval = CHECK_INTERVAL_NS
            while not self._ended():
                # The first check is at once: waking up has taken long enough.
                if self._round():
                    idle = 0
                else:
                    idle += 1
                needless = needless + 1 if self._needless else 0
                if needless > STREAM_CHECKS:
                    interval = STREAM_CHECK_INTERVAL_NS
                else:
                    if needless:
                        interval = CHECK_INTERVAL_NS  # the next check may find the end of a burst
                    interval = min(max(interval, self._left.count * <long long>CHECK_COST_NS),
                                   <long long>MAX_CHECK_INTERVAL_NS)
                nap.tv_nsec = interval
                nanosleep(&nap, NULL)
                interval = LONG_CHECK_INTERVAL_NS
                if idle >= MAX_IDLE_CHECKS:
                    pthread_mutex_lock(&self._mutex)
                    self._parked = parked = self._left.count == 0
                    pthread_mutex_unlock(&self._mutex)
                    if parked:
                        break

    cdef bint _round(self) noexcept nogil:
        """Checks every batch that was left; returns whether there was one."""
        cdef int i = 0
        cdef bint worked = False
        cdef bint keep
        cdef void *send_buffer
        cdef long long delay
        pthread_mutex_lock(&self._mutex)
        self._needless = self._left.count > 0
        while i < self._left.count:
            worked = True
            send_buffer = self._left.current = self._left.entries[i]
            delay = min(self._left.count, <int>MAX_WAITED_BATCHES) * <long long>WRITE_COST_NS
            pthread_mutex_unlock(&self._mutex)
            keep = (<SendBuffer>send_buffer).flush_late(now_ns(), delay)
            pthread_mutex_lock(&self._mutex)
            self._left.current = NULL
            self._needless = self._needless and keep
            if keep or i >= self._left.count or self._left.entries[i] != send_buffer:
                i += 1
            else:
                # The batch may have been left again meanwhile; then it has a second entry further on.
                self._left.count -= 1
                self._left.entries[i] = self._left.entries[self._left.count]
        pthread_mutex_unlock(&self._mutex)
        return worked
