"""Waiting on a blocking socket: one thread leads, the others follow.

The leader is the waiting thread that sleeps in the socket's own epoll set, which holds every connection and one eventfd
for everything else. It handles the events. Every other waiting thread sleeps on a semaphore of its own until the leader
or the I/O thread wakes it, or the leader's place is free. No thread holds the lock while it sleeps.
"""

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from cpython.object cimport PyObject
from cpython.pythread cimport PyThread_get_thread_ident
from cpython.ref cimport Py_INCREF
from libc.errno cimport EINTR, errno
from posix.time cimport nanosleep, timespec
from posix.unistd cimport close, read, write

from omq._core.bell cimport Bell
from omq._core.clock cimport FIRST_SLEEP_NS, MAX_SLEEP_NS, now_ns
from omq._core.kernel cimport (
    EFD_CLOEXEC,
    EFD_NONBLOCK,
    EPOLL_CTL_ADD,
    EPOLLIN,
    MAX_EVENTS,
    NO_FD,
    epoll_ctl,
    epoll_event,
    epoll_wait,
    eventfd,
)
from omq._core.lock cimport SocketLock, sem_destroy, sem_init, sem_post, sem_t, sem_wait, sem_wait_until
from omq._core.switch_interval cimport reset, restore, shorten
from omq._core.queues.wait_queue cimport WaitQueue
from omq._core.queues.peer cimport RecvQueue, SendQueue
from omq._core.link.poller cimport NO_TICKET, Poller
from omq._core.calls.readable_event cimport ReadableEvent

import os

from omq.errors import ClosedError, StateError, TransportError
from omq.unpatched import threading

cdef extern from "<sched.h>" nogil:
    int sched_yield()

cdef extern from "<sys/ioctl.h>" nogil:
    int ioctl(int, unsigned long, ...)
    unsigned long FIONREAD

cdef extern from *:
    """
    #include <errno.h>
    #include <sys/epoll.h>
    #include <sys/syscall.h>
    #include <time.h>
    #include <unistd.h>
    #ifndef SYS_epoll_pwait2
    #define SYS_epoll_pwait2 441
    #endif

    /* Whether epoll_pwait2 has failed here: the kernel and a sandbox's filter stay the same while the process runs. */
    static int milliseconds_only;

    /* epoll_wait with a bound in nanoseconds. Old kernels know milliseconds only, and for long waits those are exact
       enough. A sandbox may answer a system call that it does not know, as this one of 2021, with any error
       (seccomp_rule_add(3)). So every error leads to the old call, which reports a real fault again. */
    static int wait_for_events(int fd, struct epoll_event *events, int count, long long left) {
        if (left < 10000000 && !__atomic_load_n(&milliseconds_only, __ATOMIC_RELAXED)) {
            struct timespec rest = {left / 1000000000, left % 1000000000};
            int n = (int)syscall(SYS_epoll_pwait2, fd, events, count, &rest, NULL, 8);
            if (n >= 0 || errno == EINTR)
                return n;
            __atomic_store_n(&milliseconds_only, 1, __ATOMIC_RELAXED);
        }
        left = (left + 999999) / 1000000;
        return epoll_wait(fd, events, count, left > 1000000000 ? 1000000000 : (int)left);
    }
    """
    int wait_for_events(int, epoll_event *, int, long long) nogil

cdef extern from *:
    """
    /* Some ten nanoseconds a turn: asking the kernel without a pause would keep the sender out of the socket. */
    static void relax(void) {
    #if defined(__x86_64__)
        for (int i = 0; i < 10; i++)
            __builtin_ia32_pause();
    #endif
    }
    """
    void relax() nogil

cdef enum:
    LONG_SLEEP_NS = 1000000              # a sleep that is long compared with the cost of reporting its end
    CHECKS_PER_POLL = 8                  # checks of the only descriptor by a spin between two checks of the epoll set
    OWNER_PRESENT_NS = 5000000           # between two checks by the owner, below which the I/O thread need not watch
    MAX_SHORT_WAITS = 8                  # short waits in a row that are counted at most
    MAX_SPIN_NS = 1000000                # a long spin continues for this long without checking for signals
    MAX_IO_WORK_NS = 500000              # work on the I/O thread after which other threads get the GIL
    FIRST_UNCONNECTED_SLEEP_NS = 200000  # the first sleep of a call on a socket without a connection; see `_until`


cdef long long worked            # nanoseconds that the I/O thread has worked without a rest
cdef long long worked_until      # on the monotonic clock, when the I/O thread last worked


cdef int yield_gil(long long begun) except -1:
    """Gives other threads the GIL: the I/O thread, at work since *begun*, rests after each half millisecond of work.

    The loop releases the GIL often, but only for a moment: too short for a waiting thread to wake up. Each time that
    thread restarts its count of how long it has waited.
    """
    global worked, worked_until
    cdef long long now = now_ns()
    cdef timespec moment
    worked = now - begun + (worked if begun - worked_until < IDLE_GAP_NS else 0)
    if worked > MAX_IO_WORK_NS:
        worked = 0
        moment.tv_sec = 0
        moment.tv_nsec = YIELD_NS
        with nogil:
            nanosleep(&moment, NULL)
        now = now_ns()
    worked_until = now
    return 0


cdef class ForkGuard:
    """Remembers whether the process has forked since its sockets were made.

    Attributes:
        stale: Whether the process has forked: nothing inherited may be used.
    """

    def __cinit__(self):
        self._main = threading.main_thread().ident

    def expire(self, inherited: object) -> None:
        """Notes that the process has forked; *inherited* is kept for ever, because its end would disturb the parent."""
        self.stale = True
        reset()
        # The reference is never released: a destructor would change epoll sets that the parent uses.
        Py_INCREF(inherited)


@cython.final
cdef class BlockedCall:
    def __cinit__(self, LeaderCore core):
        self._core = core
        self.nap = FIRST_SLEEP_NS
        self.fresh_nap = FIRST_UNCONNECTED_SLEEP_NS
        sem_init(&self._wake, 0, 0)

    def __dealloc__(self):
        sem_destroy(&self._wake)

    cdef int wake(self) except -1:
        if not self.woken:
            self.woken = True
            if self.leading:
                self._core._signal()
            else:
                sem_post(&self._wake)
        return 0

    cdef int hurry(self) except -1:
        """Makes threads hand over the GIL sooner: the I/O thread needs it to bring the first connection."""
        if not self.hurries:
            self.hurries = True
            shorten()
        return 0

    cdef int hurry_no_more(self) except -1:
        if self.hurries:
            self.hurries = False
            restore()
        return 0


@cython.final
cdef class SyncWaitQueue(WaitQueue):
    """Wakes the first call that waits (all, where calls wait apart); passes the wake-up on if there is more."""

    def __cinit__(self, LeaderCore core):
        self._core = <PyObject *>core
        self._blocked_calls = []
        self._shown = []
        self._watchers = []

    @property
    def waiting(self) -> int:
        """Calls that wait here."""
        return self.count

    def watch(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        """Returns a Future of *loop*, the I/O thread's loop, that is done at the next notification from any thread."""
        watcher = loop.create_future()
        self._watchers.append(watcher)
        return watcher

    def show(self, ReadableEvent readable_event not None) -> None:
        """Makes every notification also make *readable_event* readable, until `hide`."""
        self._shown.append(readable_event)

    def hide(self, ReadableEvent readable_event not None) -> None:
        """Makes notifications leave *readable_event* alone again."""
        if readable_event in self._shown:
            self._shown.remove(readable_event)

    cdef int _show(self) except -1:
        cdef ReadableEvent readable_event
        for readable_event in self._shown:
            readable_event.show(True)
        return 0

    cdef int look(self, long long spent) except -1:
        return 0 if self._core == NULL else (<LeaderCore>self._core).look(spent)

    cdef int notify(self) except -1:
        if self.count:
            if self.apart:
                self.wake_all()
            else:
                self.wake_first()
        if self._core != NULL and (<LeaderCore>self._core)._readable_event is not None:
            (<LeaderCore>self._core)._update_descriptor()
        if self._shown:
            self._show()
        if self._watchers:
            watchers = self._watchers
            self._watchers = []
            if self._core != NULL:
                (<LeaderCore>self._core)._bell.request(settle, watchers)
        return 0

    cdef int enter(self, BlockedCall blocked_call) except -1:
        """Adds a call that waits here, after earlier calls."""
        self._blocked_calls.append(blocked_call)
        self.count += 1
        return 0

    cdef int leave(self, BlockedCall blocked_call) except -1:
        """Removes a call that waits here; `pass_on` must follow."""
        if self._blocked_calls[self.count - 1] is blocked_call:
            self._blocked_calls.pop()
        else:
            self._blocked_calls.remove(blocked_call)
        self.count -= 1
        return 0

    cdef int pass_on(self) except -1:
        """Wakes the next call: a call has left and may not have used its wake-up."""
        return self.notify() if self.count else 0

    cdef int wake_first(self) except -1:
        """Wakes the calls up to the first whose thread runs no signal handlers: that one can act at once."""
        cdef BlockedCall blocked_call
        cdef int i
        for i in range(self.count):
            blocked_call = <BlockedCall>self._blocked_calls[i]
            blocked_call.wake()
            if not blocked_call.in_handlers:
                break
        return 0

    cdef int wake_all(self) except -1:
        for blocked_call in self._blocked_calls:
            (<BlockedCall>blocked_call).wake()
        return self._show()


def settle(watchers):
    for watcher in watchers:
        if not watcher.done() and not watcher.get_loop().is_closed():
            watcher.set_result(None)


@cython.no_gc_clear  # __dealloc__ needs the wait queues; cycles are broken in the attributes that derived classes add
cdef class LeaderCore:
    """Lets the threads that call on one socket wait.

    The derived class attaches the queues (`_assemble`) and the I/O thread (`_set_thread`), and marks the end.

    Attributes:
        closed: Whether the socket is closed, or closing.
        lock: Held while queues and peers are used; never while a thread sleeps.
        watched: Whether the I/O thread watches the epoll set.
        looks: How often callers have checked the epoll set: the number grows while they serve it.
        sleeps_long: Whether the last sleep in the epoll set was a long one.
    """
    # stub: recv_queue: RecvQueue | None
    # stub: send_queue: SendQueue | None
    # stub: looks: int

    def __cinit__(self, *_, **__):
        cdef epoll_event event
        self._event = NO_FD
        self._long_sleep = LONG_SLEEP_NS
        self.lock = SocketLock()
        self.readable = SyncWaitQueue(self)
        self.writable = SyncWaitQueue(self)
        self.poller = Poller()
        self._event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
        if self._event < 0:
            raise TransportError(errno, os.strerror(errno))
        event.events = EPOLLIN
        event.data.u64 = NO_TICKET
        if epoll_ctl(self.poller.fd, EPOLL_CTL_ADD, self._event, &event) < 0:
            raise TransportError(errno, os.strerror(errno))

    def __dealloc__(self):
        if self.readable is not None:
            self.readable._core = NULL
        if self.writable is not None:
            self.writable._core = NULL
        if self._event >= 0:
            close(self._event)

    def _assemble(
        self, recv_queue: RecvQueue | None, send_queue: SendQueue | None, ForkGuard fork_guard not None
    ) -> None:
        self.recv_queue = recv_queue
        self.send_queue = send_queue
        self._fork_guard = fork_guard

    def _set_thread(
        self,
        Bell bell not None,
        unwatch: Callable[[], None],
        attend: Callable[[], None],
        rouse: Callable[[], None],
        calm: Callable[[], None],
    ) -> None:
        self._bell = bell
        self.poller.set_bell(bell)
        self._unwatch = unwatch
        self._attend = attend
        self._rouse = rouse
        self._calm = calm

    def _set_spin(self, long long nanoseconds, bint adaptive) -> None:
        self._spin = nanoseconds
        self._adaptive = adaptive

    def _set_long_sleep(self, long long nanoseconds) -> None:
        """Sets how many nanoseconds make a sleep in the epoll set a long one. For tests."""
        self._long_sleep = nanoseconds
        self.sleeps_long = nanoseconds == 0

    def _name(self):
        return type(self).__name__

    # ------------------------------------------------------------------ the I/O thread's side

    def set_watched(self, bint watched) -> None:
        """Notes that the I/O thread has begun, or stopped, to watch the epoll set."""
        self.watched = watched
        self._dismissed = False

    def set_drowsy(self, bint drowsy) -> None:
        """Sets whether the next call that ends a wait notifies the I/O thread."""
        self.drowsy = drowsy
        self._roused = False

    def cease_watching(self) -> bool:
        """Stops watching the epoll set, unless a descriptor has to show messages; returns whether it has stopped."""
        self.lock.acquire()
        try:
            self._dismissed = False
            if self._readable_event is None:
                self.watched = False
            return not self.watched
        finally:
            self.lock.release()

    def heed_call(self) -> None:
        """Notes that the I/O thread runs `_attend`, which may be requested again from now on."""
        self._called = False

    @property
    def published(self) -> bool:
        """Returns whether a descriptor that the user has must show what arrives."""
        return self._readable_event is not None

    @property
    def attended(self) -> bool:
        """Returns whether a caller sleeps in the epoll set, and so handles its events."""
        return self._leader is not None

    def dispatch(self) -> None:
        """Handles events while no caller sleeps in the epoll set; mostly on the I/O thread."""
        cdef long long begun = now_ns()
        self.lock.acquire()
        try:
            if self.poller.fd >= 0 and self._leader is None:
                self._drain()
                if self.recv_queue is not None:
                    self.recv_queue.hurry()
                self.poller.stand_in()
                self._update_descriptor()
        finally:
            self.lock.release()
        yield_gil(begun)

    def flush_turn(self) -> None:
        """Gives waiting messages to peers that have become free; on the I/O thread."""
        cdef long long begun = now_ns()
        self.lock.acquire()
        try:
            self.send_queue._flush_turn()
        finally:
            self.lock.release()
        yield_gil(begun)

    def _mark_closed(self) -> None:
        """Wakes every call: each raises ClosedError."""
        self.lock.acquire()
        try:
            self.closed = True
            self.readable.wake_all()
            self.writable.wake_all()
            if self._readable_event is not None:
                # A thread that selects on the descriptor must wake up and find the socket closed.
                self._readable_event.show(True)
        finally:
            self.lock.release()

    def _close_descriptors(self) -> None:
        """Closes the epoll set once no thread can be in a system call on it."""
        self.lock.acquire()
        try:
            self._ending = True
            if self._inside == 0:
                self._end()
        finally:
            self.lock.release()

    def _abandon(self) -> None:
        """Closes the inherited descriptors in a forked child; the epoll set stays as it is, for the parent."""
        self.poller.close()
        if self._event >= 0:
            close(self._event)
            self._event = NO_FD
        self._readable_event = self._kept = None

    def _end(self):
        self.poller.close()
        if self._event >= 0:
            close(self._event)
            self._event = NO_FD
        self._release_kept()

    cdef int _release_kept(self) except -1:
        """Closes the user's descriptor at the end of the socket, unless a thread may still select on it."""
        if self._event == NO_FD and self._kept is not None and not self._wanted and self._borrowers == 0:
            self._readable_event = None
            self._kept.close()
            self._kept = None
        return 0

    # ------------------------------------------------------------------ entering and leaving

    cdef int _refuse(self) except -1:
        """Raises the error with the reason why the socket cannot be used."""
        if self._fork_guard.stale:
            raise StateError(f"the {self._name()} socket belongs to the parent process: make a new one after fork()")
        raise ClosedError(f"the {self._name()} socket is closed")

    cdef int _signal(self) except -1:
        cdef unsigned long long one = 1
        if not self._signalled and self._event >= 0:
            self._signalled = True
            write(self._event, &one, sizeof(one))
        return 0

    def _drain(self):
        cdef unsigned long long count
        # Not while another caller is inside: the signal may be for one that leads no longer, and has not woken up yet.
        if self._signalled and self._inside == 0:
            self._signalled = False
            read(self._event, &count, sizeof(count))

    cdef int _update_descriptor(self) except -1:
        """Makes the user's descriptor readable if a message waits, else unreadable."""
        if self._readable_event is not None and not self.closed:
            self._readable_event.follow(self.recv_queue)
            if self.recv_queue.unfinished and self._bell is not None:
                self._bell.post(self._continue_update)
        return 0

    def _continue_update(self):
        """Continues after many dropped messages, when more messages wait; on the I/O thread."""
        cdef long long begun = now_ns()
        self.lock.acquire()
        try:
            self._update_descriptor()
        finally:
            self.lock.release()
        yield_gil(begun)

    cdef int look(self, long long spent) except -1:
        """Checks the epoll set for a caller while messages wait; *spent*: nanoseconds since the last check."""
        self.looks += 1
        if spent < OWNER_PRESENT_NS:
            self._dismiss()
        return self.poller.look()

    cdef int _dismiss(self) except -1:
        """Makes the I/O thread stop watching: callers serve the epoll set."""
        if self.watched and not self._dismissed and self._readable_event is None:
            self._dismissed = True
            self._bell.post(self._unwatch)
        return 0

    # ------------------------------------------------------------------ waiting

    cdef int _sleep(self, BlockedCall blocked_call, long long deadline) except -1:
        """Releases the lock and sleeps until something may have happened; returns 0 if the time is up, else 1."""
        cdef bint in_time
        blocked_call.woken = False
        self._look_for_signals(blocked_call)
        if blocked_call.woken or self.closed:
            # Releasing the lock runs calls that other threads deferred until then: one may have woken this call.
            return 1
        if self._leader is None:
            self._leader = blocked_call
            blocked_call.leading = True
            self._dismiss()
        in_time = self._lead(blocked_call, deadline) if blocked_call.leading else self._follow(blocked_call, deadline)
        # A signal may have come meanwhile, or while this thread waited for the GIL. Its handler may raise, so it runs
        # before the call takes what it has waited for.
        if PyThread_get_thread_ident() == self._fork_guard._main:
            self._look_for_signals(blocked_call)
        return in_time

    cdef int _wait_or_yield(self, BlockedCall blocked_call, long long deadline) except -1:
        """Waits in a receiving call: sleeps, or if messages are unfinished after many drops, lets other threads run."""
        if self.recv_queue is None or not self.recv_queue.unfinished:
            return self._sleep(blocked_call, deadline)
        self.lock.release()
        with nogil:
            sched_yield()
        self.lock.acquire()
        self.looks += 1
        self.poller.look()
        self._look_for_signals(blocked_call)
        return now_ns() < deadline

    cdef int _let_go(self) except -1:
        """Releases the lock for a sleep; if that raises, the lock is held again."""
        try:
            self.lock.release()
        except BaseException:
            self.lock.acquire()
            raise
        return 0

    cdef int _look_for_signals(self, BlockedCall blocked_call) except -1:
        """Runs signal handlers without the lock, because they may call the socket.

        A handler may take long, or wait for work that this thread would do as leader. So the thread gives up its lead
        meanwhile, and passes a wake-up that it has received to another call. A later signal ends the sleep.
        """
        cdef bint alone = self.readable.count + self.writable.count == 1
        blocked_call.in_handlers = True
        if blocked_call.leading:
            blocked_call.leading = False
            self._leader = None
            if PyThread_get_thread_ident() == self._fork_guard._main:
                # Handlers run in this thread only.
                if not alone:
                    self._wake_another()
                self._leave_awake()
        if blocked_call.woken and not alone:
            # The event that woke this call must not wait for the handler's end: another call handles it.
            self.readable.wake_first()
            self.writable.wake_first()
        try:
            self.lock.release()
            PyErr_CheckSignals()
        finally:
            self.lock.acquire()
            blocked_call.in_handlers = False
        return 0

    cdef int _run_handlers(self) except -1:
        """Runs signal handlers without the lock, after a check of the descriptors and before a message is taken.

        The check may read for long. A handler may raise, or close the socket.
        """
        if PyThread_get_thread_ident() == self._fork_guard._main:
            try:
                self.lock.release()
                PyErr_CheckSignals()
            finally:
                self.lock.acquire()
            if self.closed:
                self._refuse()
        return 0

    cdef long long _until(self, BlockedCall blocked_call, long long deadline) except -1:
        """Returns when to wake up in any case, in nanoseconds on the monotonic clock.

        A signal that comes between the check for signals and the system call, or in another thread, interrupts nothing.
        So the thread that runs the handlers checks again, soon at first and then once a second.
        """
        cdef long long until
        if blocked_call.fresh_nap < FIRST_SLEEP_NS and (blocked_call.hurries or self.poller.is_empty()):
            # The I/O thread brings the first connection, and needs the GIL for that. Next to busy threads both would
            # wait for it one after the other. So this thread queues for the GIL while the I/O thread does.
            blocked_call.hurry()
            until = now_ns() + blocked_call.fresh_nap
            blocked_call.fresh_nap *= 2
            if until < deadline:
                return until
        else:
            blocked_call.hurry_no_more()  # the peer takes its time
        if PyThread_get_thread_ident() == self._fork_guard._main:
            until = now_ns() + blocked_call.nap
            if until < deadline:
                blocked_call.nap = min(2 * blocked_call.nap, <long long>MAX_SLEEP_NS)
                return until
        return deadline

    cdef int _lead(self, BlockedCall blocked_call, long long deadline) except -1:
        cdef epoll_event events[MAX_EVENTS]
        cdef long long left, spin
        cdef long long until = self._until(blocked_call, deadline)
        cdef bint on = False
        cdef long long begun
        cdef int n = 0
        cdef int failure = 0
        cdef int fd = self.poller.fd
        cdef int only, turn, unread
        cdef bint found = False
        spin = self._spin
        if self._adaptive:
            spin = MAX_ADAPTIVE_SPIN_NS if self._short_waits > 0 else 0
        elif spin > MAX_SPIN_NS:
            # In pieces, because no signal interrupts a spin.
            spin = min(spin - blocked_call.spun, <long long>MAX_SPIN_NS)
            blocked_call.spun += spin
            on = spin > 0
        if self._roused and self.sleeps_long:
            # The owner is back and about to sleep for long again: the I/O thread need not wake up to check.
            self._roused = False
            self.drowsy = True
            self._calm()
        only = self.poller.only_fd() if spin else NO_FD
        begun = now_ns()
        self._let_go()
        self._inside += 1
        with nogil:
            if spin:
                if begun + spin > deadline:
                    spin = deadline - begun
                while True:
                    if only >= 0:
                        # Quicker than the epoll set, which reports everything else: ended connections, and signals from
                        # other threads. If a thread has closed the descriptor meanwhile, its number may belong to
                        # another file by now: at worst that file's bytes end the spin.
                        for turn in range(CHECKS_PER_POLL):
                            relax()
                            if ioctl(only, FIONREAD, &unread) == 0 and unread > 0:
                                found = True
                                break
                        if found:
                            break
                    n = epoll_wait(fd, events, MAX_EVENTS, 0)
                    if n != 0 or now_ns() - begun >= spin:
                        break
            if n == 0 and not (on or found):
                if until == FOR_EVER:
                    n = epoll_wait(fd, events, MAX_EVENTS, -1)
                else:
                    left = until - now_ns()
                    if left < 0:
                        left = 0
                    n = wait_for_events(fd, events, MAX_EVENTS, left)
            if n < 0:
                failure = errno
        self.lock.acquire()
        self._inside -= 1
        self.sleeps_long = now_ns() - begun >= self._long_sleep
        if self._adaptive:
            if now_ns() - begun < SHORT_WAIT_NS:
                if self._short_waits < MAX_SHORT_WAITS:
                    self._short_waits += 1
            elif self._short_waits > -MAX_SHORT_WAITS:
                self._short_waits -= 2 if spin else 1
                if self._short_waits <= 0:
                    self._short_waits = -MAX_SHORT_WAITS
        if self._ending:
            if self._inside == 0:
                self._end()
            return 1
        if n < 0:
            if failure != EINTR:
                raise TransportError(failure, os.strerror(failure))
            # Ctrl-C, for example: before a message is taken. During its handler possibly no caller serves the set.
            self._leave_awake()
            self._look_for_signals(blocked_call)
            return 1
        if n == 0 and not found:
            # The thread may have waited for the GIL since, next to busy threads: another sleep would be one more
            # such wait.
            n = epoll_wait(fd, events, MAX_EVENTS, 0) if fd == self.poller.fd else 0
            if n <= 0:
                return now_ns() < deadline
        self._drain()
        self.looks += 1
        blocked_call.woken = True  # this call is awake: it needs no signal for what it finds
        if found:
            self.poller.serve()
        else:
            self.poller.handle(events, n)
        return 1

    cdef int _follow(self, BlockedCall blocked_call, long long deadline) except -1:
        cdef timespec when
        cdef int failure = 0
        cdef long long until = self._until(blocked_call, deadline)
        when.tv_sec = until // 1000000000
        when.tv_nsec = until % 1000000000
        self._let_go()
        with nogil:
            if until == FOR_EVER:
                if sem_wait(&blocked_call._wake) < 0:
                    failure = errno
            elif sem_wait_until(&blocked_call._wake, &when) < 0:
                failure = errno
        self.lock.acquire()
        if failure == EINTR:
            self._look_for_signals(blocked_call)
        return failure == 0 or failure == EINTR or now_ns() < deadline

    cdef int _stand_up(self, SyncWaitQueue wait_queue, BlockedCall blocked_call) except -1:
        """Ends a wait: other calls get the place in the wait queue, the leader's place and an unused wake-up."""
        blocked_call.hurry_no_more()
        wait_queue.leave(blocked_call)
        if blocked_call.leading:
            blocked_call.leading = False
            self._leader = None
        if self._leader is None:
            self._wake_another()
        wait_queue.pass_on()
        self._leave_awake()
        return 0

    cdef int _leave_awake(self) except -1:
        """Ends a sleep: the I/O thread checks in a moment whether the owner comes back."""
        if self.drowsy:
            self.drowsy = False
            self._roused = True
            self._rouse()
        return 0

    cdef int _wake_another(self) except -1:
        """Wakes a call that can lead. A call whose thread runs signal handlers looks for the free place by itself."""
        cdef SyncWaitQueue wait_queue
        cdef BlockedCall blocked_call
        if self.readable.count == 0 and self.writable.count == 0:
            return 0
        for wait_queue in (self.readable, self.writable):
            for blocked_call in wait_queue._blocked_calls:
                if not blocked_call.in_handlers:
                    return blocked_call.wake()
        return 0
