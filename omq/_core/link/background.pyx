"""The background thread: one for each context that reads and writes while no thread with the GIL does.

An owner that runs Python code, or a C function that keeps the GIL, keeps its event loop or the I/O thread from the
descriptors. The background thread needs neither. It watches the epoll sets of all sockets of its context. If an event
has waited for some 10 ms without a check by the owner, the owner counts as away. Checks by the I/O thread do not count:
that thread acts for the owner, and gets the GIL only every 5 ms while the owner runs Python code. For an owner that is
away:

- bytes in the kernel are read ahead (`read_ahead.pyx`), and PINGs among them are answered;
- messages accepted beyond the kernel's room are written as soon as there is room, and so is a batch in which messages
  gather until the loop's turn ends.

When the owner checks again the thread withdraws. While an owner serves its socket in time this thread wakes
up a few times a second at most, and never without traffic.
"""

cimport cython
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memset
from posix.time cimport nanosleep, timespec
from posix.unistd cimport close, getpid, read, write

from omq._core.clock cimport now_ns
from omq._core.kernel cimport (
    EFD_CLOEXEC,
    EFD_NONBLOCK,
    EPOLL_CLOEXEC,
    EPOLL_CTL_ADD,
    EPOLL_CTL_DEL,
    EPOLL_CTL_MOD,
    EPOLLERR,
    EPOLLET,
    EPOLLHUP,
    EPOLLIN,
    EPOLLONESHOT,
    EPOLLOUT,
    MAX_EVENTS,
    NO_FD,
    epoll_create1,
    epoll_ctl,
    epoll_event,
    epoll_wait,
    eventfd,
)
from omq._core.link.pointers cimport PointerArray, append_entry, remove_entry, wait_while
from omq._core.link.read_ahead cimport FIRST_CHECK_NS, NEVER, VIEW_BYTES, ReadAhead, Stillness
from omq._core.lock cimport (
    hold_mutex,
    load,
    pthread_mutex_destroy,
    pthread_mutex_init,
    pthread_mutex_lock,
    pthread_mutex_unlock,
    store,
)
from omq._core.thread cimport pthread_join, start_thread
from omq._core.wire.send_buffer cimport SendBuffer

cdef extern from *:
    """
    #include <poll.h>
    #include <unistd.h>

    static inline int omq_is_readable(int epoll_fd) {
        struct pollfd one = {epoll_fd, POLLIN, 0};
        return poll(&one, 1, 0) > 0;
    }

    static inline long long omq_memory(void) {
        return (long long)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
    }
    """
    bint omq_is_readable(int) noexcept nogil
    long long omq_memory() noexcept nogil

cdef enum:
    MAX_EVENT_ROUNDS = 16                  # times that one set is asked for more of them in a row
    GRACE_NS = 10000000                    # see Background.grace_ns
    REST_NS = 20000000                     # see Background.rest_ns
    AWAY_CHECK_INTERVAL_NS = 50000000      # between two checks while the owner is away and no event comes
    CONTENDED_CHECK_INTERVAL_NS = 1000000  # likewise, where another thread was reading
    STREAM_BYTES = 65536                   # bytes in one go after which more are probably waiting
    PAUSE_NS = 200000                      # wait after fewer bytes than that: together they cost one wake-up...
    SMALL_READ_BYTES = 4096                # ...and after fewer than this...
    LONG_PAUSE_NS = 1000000                # ...this wait: small messages come one by one, and each would cost a wake-up
    MIN_ROUND_INTERVAL_NS = 2000000        # between two checks of connections that their owners do not read...
    ROUND_INTERVAL_FACTOR = 32             # ...or this many times the last check's duration...
    MAX_ROUND_INTERVAL_NS = 10000000       # ...but no more than this
    MEMORY_DIVISOR = 4                     # fraction of the machine's memory that may be read ahead: one quarter
    WAKE_TICKET = 0                        # ticket of _wake's events; the sets' tickets are above


cdef void *run(void *background) noexcept nogil:
    (<Background>background)._loop()
    return NULL


@cython.final
@cython.no_gc  # its attributes cannot refer to it
cdef class WatchedSet:
    """One socket's epoll set in the background thread. Lives as long as any connection in it."""

    def __cinit__(self):
        self._slot = -1
        self.fd = self._event = NO_FD

    def __dealloc__(self):
        self.close()
        free(self._places)

    cdef void close(self) noexcept:
        """Closes the epoll set, after the thread has forgotten it."""
        if self.fd >= 0:
            self._background.end(self)
            close(self.fd)
            self.fd = NO_FD
        if self._event >= 0:
            close(self._event)
            self._event = NO_FD

    cdef bint _open_event(self) noexcept nogil:
        """Adds the event to the set, under the thread's mutex.

        Returns:
            Whether the event exists; without it nothing may be read ahead.
        """
        cdef epoll_event event
        if self._event < 0:
            self._event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
            event.events = EPOLLIN
            event.data.u64 = AHEAD_TICKET
            if self._event >= 0 and epoll_ctl(self.fd, EPOLL_CTL_ADD, self._event, &event) < 0:
                close(self._event)
                self._event = NO_FD
        return self._event >= 0

    cdef void signal(self) noexcept:
        """Makes the set readable: bytes were read ahead, and are still there."""
        hold_mutex(&self._background._mutex)
        self._raise()
        pthread_mutex_unlock(&self._background._mutex)

    cdef void _raise(self) noexcept nogil:
        """Sends it under the thread's mutex: `_ahead` and the event change together, or a signal would be lost."""
        cdef unsigned long long one = 1
        if self._event >= 0 and not load(&self._ahead):
            store(&self._ahead, 1)
            write(self._event, &one, sizeof(one))

    cdef void clear(self) noexcept:
        """Clears the signal, before the bytes are taken."""
        cdef unsigned long long count
        hold_mutex(&self._background._mutex)
        if load(&self._ahead):
            store(&self._ahead, 0)
            read(self._event, &count, sizeof(count))
        pthread_mutex_unlock(&self._background._mutex)


@cython.final
cdef class Background:
    """Reads and writes for owners that are away, without the GIL. The first set starts the thread, `stop` ends it.

    Attributes:
        grace_ns: Nanoseconds that an event may wait before the owner counts as away. For tests.
        rest_ns: Nanoseconds for which a set is left alone after its owner handled it. For tests.
    """

    def __cinit__(self):
        self._epoll = self._wake = NO_FD
        pthread_mutex_init(&self._mutex, NULL)
        self._look_due = self._gathering_due = NEVER
        self._pid = getpid()
        self._budget.most = omq_memory() // MEMORY_DIVISOR
        self.grace_ns, self.rest_ns = GRACE_NS, REST_NS

    def __dealloc__(self):
        if self._pid == getpid():
            self.stop()
            pthread_mutex_destroy(&self._mutex)
        if self._epoll >= 0:
            close(self._epoll)
        if self._wake >= 0:
            close(self._wake)
        free(self._sets.entries)
        free(self._readers.entries)
        free(self._gathering.entries)
        free(self._view)

    @property
    def read_ahead_bytes(self) -> int:
        """Bytes that the thread has read and their owners have not taken yet."""
        return load(&self._budget.used)

    @property
    def descriptors(self) -> list[int]:
        """The thread's own descriptors, which stay open once there is a connection. For tests."""
        return [fd for fd in (self._epoll, self._wake) if fd >= 0]

    def stop(self) -> None:
        """Ends the thread for good; owners can still take the bytes that it has read."""
        if self._pid != getpid():
            return
        hold_mutex(&self._mutex)
        self._over = True
        pthread_mutex_unlock(&self._mutex)
        if self._running:
            self._running = False
            self._call()
            with nogil:
                pthread_join(self._thread, NULL)

    cdef bint _start(self) noexcept:
        cdef epoll_event event
        if self._over:
            return False
        if self._epoll < 0:
            self._epoll = epoll_create1(EPOLL_CLOEXEC)
        if self._wake < 0 <= self._epoll:
            self._wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
            event.events = EPOLLIN
            event.data.u64 = WAKE_TICKET
            if self._wake >= 0 and epoll_ctl(self._epoll, EPOLL_CTL_ADD, self._wake, &event) < 0:
                close(self._wake)
                self._wake = NO_FD
        if self._view == NULL:
            self._view = <unsigned char *>malloc(VIEW_BYTES)
        self._running = (self._epoll >= 0 and self._wake >= 0 and self._view != NULL
                         and start_thread(&self._thread, run, <void *>self))
        return self._running

    cdef int _call(self) noexcept nogil:
        """Wakes the thread: its work has changed."""
        cdef unsigned long long one = 1
        write(self._wake, &one, sizeof(one))
        return 0

    # ------------------------------------------------------------------ the sets and connections; with the GIL held

    cdef WatchedSet begin(self, int fd):
        """Watches an epoll set until `end`; None: no thread, or no memory."""
        cdef WatchedSet watched
        cdef epoll_event event
        cdef int slot
        if self._pid != getpid() or not (self._running or self._start()):
            return None
        watched = WatchedSet()
        hold_mutex(&self._mutex)
        for slot in range(self._sets.count):
            if self._sets.entries[slot] == NULL:
                break
        else:
            slot = self._sets.count
            if not append_entry(&self._sets, NULL):
                pthread_mutex_unlock(&self._mutex)
                return None
        self._serial += 1
        watched._serial = self._serial or 1
        watched._due = NEVER
        event.events = EPOLLIN | EPOLLONESHOT
        event.data.u64 = <unsigned long long>watched._serial << 32 | <unsigned long long>slot
        if epoll_ctl(self._epoll, EPOLL_CTL_ADD, fd, &event) == 0:
            watched.fd = fd
            watched._background = self
            watched._slot = slot
            self._sets.entries[slot] = <void *>watched
        pthread_mutex_unlock(&self._mutex)
        return watched if watched._slot >= 0 else None

    cdef int end(self, WatchedSet watched) noexcept:
        """Removes an epoll set before it is closed: afterwards the thread does not touch it."""
        cdef epoll_event event
        if self._pid != getpid() or watched._slot < 0:
            return 0
        memset(&event, 0, sizeof(event))
        hold_mutex(&self._mutex)
        wait_while(&self._mutex, &self._sets.current, <void *>watched)
        self._sets.entries[watched._slot] = NULL
        watched._slot = -1
        epoll_ctl(self._epoll, EPOLL_CTL_DEL, watched.fd, &event)
        pthread_mutex_unlock(&self._mutex)
        return 0

    cdef int attach(self, WatchedSet watched, unsigned long long ticket, ReadAhead read_ahead) except -1:
        """Serves a connection in *watched*, whose events carry *ticket*, until `detach`."""
        cdef int slot = <int><unsigned int>ticket
        cdef int room
        cdef void *memory
        cdef bint done = False
        cdef bint sooner = False
        if self._pid != getpid():
            return 0
        read_ahead.budget = &self._budget
        hold_mutex(&self._mutex)
        if slot >= watched._room:
            room = max(2 * watched._room, slot + 1)
            memory = realloc(watched._places, room * sizeof(Place))
            if memory != NULL:
                watched._places = <Place *>memory
                memset(watched._places + watched._room, 0, (room - watched._room) * sizeof(Place))
                watched._room = room
        if slot < watched._room and append_entry(&self._readers, <void *>read_ahead):
            done = True
            watched._places[slot].ticket = ticket
            watched._places[slot].read_ahead = <void *>read_ahead
            read_ahead.send_buffer.watched = <void *>watched
            sooner = read_ahead.read + FIRST_CHECK_NS < self._look_due
            if sooner:
                store(&self._look_due, read_ahead.read + FIRST_CHECK_NS)
        pthread_mutex_unlock(&self._mutex)
        if not done:
            raise MemoryError()
        if sooner:
            self._call()  # the thread may sleep longer than that
        return 0

    cdef int detach(self, WatchedSet watched, unsigned long long ticket, ReadAhead read_ahead) except -1:
        """Removes a connection before it leaves its epoll set: afterwards the thread does not touch it."""
        cdef int slot = <int><unsigned int>ticket
        if self._pid != getpid():
            return 0
        hold_mutex(&self._mutex)
        wait_while(&self._mutex, &self._reader, <void *>read_ahead)
        if slot < watched._room and watched._places[slot].ticket == ticket:
            watched._places[slot].ticket = 0
        read_ahead.send_buffer.watched = NULL
        pthread_mutex_unlock(&self._mutex)
        remove_entry(&self._mutex, &self._readers, <void *>read_ahead)
        return 0

    cdef int note(self, SendBuffer send_buffer) noexcept:
        """Notes that messages gather in *send_buffer*, which the caller holds, until their loop's turn ends."""
        cdef bint wake
        if send_buffer.noted or not self._running:
            return 0
        hold_mutex(&self._mutex)
        send_buffer.noted = append_entry(&self._gathering, <void *>send_buffer)
        wake = self._gathering_due == NEVER
        if wake:
            store(&self._gathering_due, now_ns() + self.grace_ns)
        pthread_mutex_unlock(&self._mutex)
        if wake:
            self._call()
        return 0

    cdef int forget(self, SendBuffer send_buffer) except -1:
        """Removes *send_buffer* before it ends: afterwards the thread does not touch it."""
        if self._pid == getpid():
            remove_entry(&self._mutex, &self._gathering, <void *>send_buffer)
        return 0

    # ------------------------------------------------------------------ the thread

    cdef bint _ended(self) noexcept nogil:
        cdef bint over
        pthread_mutex_lock(&self._mutex)
        over = self._over
        pthread_mutex_unlock(&self._mutex)
        return over

    cdef void _loop(self) noexcept nogil:
        cdef epoll_event events[MAX_EVENTS]
        cdef unsigned long long count
        cdef long long now
        cdef timespec pause
        cdef Py_ssize_t moved
        cdef int i, n
        pause.tv_sec = 0
        while not self._ended():
            n = epoll_wait(self._epoll, events, MAX_EVENTS, self._left())
            now = now_ns()
            for i in range(n):
                if events[i].data.u64 == WAKE_TICKET:
                    read(self._wake, &count, sizeof(count))
                else:
                    self._report(events[i].data.u64, now)
            moved = self._attend_all(now)
            if 0 < moved < STREAM_BYTES:
                pause.tv_nsec = LONG_PAUSE_NS if moved < SMALL_READ_BYTES else PAUSE_NS
                nanosleep(&pause, NULL)
            if now >= load(&self._gathering_due):
                self._write_gathered(now)
            if now >= load(&self._look_due):
                self._look_after(now)

    cdef int _left(self) noexcept nogil:
        """Returns the milliseconds until something is due; -1: only an event or a call can wake the thread."""
        cdef long long due
        cdef void *watched
        cdef int i
        pthread_mutex_lock(&self._mutex)
        due = min(self._look_due, self._gathering_due)
        for i in range(self._sets.count):
            watched = self._sets.entries[i]
            if watched != NULL:
                due = min(due, (<WatchedSet>watched)._due)
        pthread_mutex_unlock(&self._mutex)
        if due == NEVER:
            return -1
        due -= now_ns()
        return <int>min((due + 999999) // 1000000, 1000000) if due > 0 else 0

    cdef void _report(self, unsigned long long number, long long now) noexcept nogil:
        """Handles an event of an epoll set."""
        cdef int slot = <int><unsigned int>number
        cdef void *watched
        pthread_mutex_lock(&self._mutex)
        watched = self._sets.entries[slot] if slot < self._sets.count else NULL
        if watched != NULL and (<WatchedSet>watched)._serial == number >> 32:
            if (<WatchedSet>watched)._mode == QUIET:
                (<WatchedSet>watched)._mode = FIRED
                (<WatchedSet>watched)._seen = load(&(<WatchedSet>watched)._serves)
                (<WatchedSet>watched)._due = now + self.grace_ns
                (<WatchedSet>watched)._seen_at = now
            elif (<WatchedSet>watched)._mode == AWAY:
                (<WatchedSet>watched)._due = now
        pthread_mutex_unlock(&self._mutex)

    cdef Py_ssize_t _attend_all(self, long long now) noexcept nogil:
        """Checks the sets that are due; returns the number of bytes moved."""
        cdef Py_ssize_t moved = 0
        cdef void *watched
        cdef int i
        pthread_mutex_lock(&self._mutex)
        for i in range(self._sets.count):
            if i >= self._sets.count:
                break
            watched = self._sets.entries[i]
            if watched != NULL and (<WatchedSet>watched)._due <= now:
                self._sets.current = watched
                pthread_mutex_unlock(&self._mutex)
                moved += self._attend(watched, now)
                pthread_mutex_lock(&self._mutex)
                self._sets.current = NULL
        pthread_mutex_unlock(&self._mutex)
        return moved

    cdef void _set_mode(self, void *watched, Mode mode, long long due) noexcept nogil:
        cdef epoll_event event
        (<WatchedSet>watched)._mode = mode
        store(&(<WatchedSet>watched)._away, mode == AWAY)
        (<WatchedSet>watched)._due = due
        event.events = EPOLLIN | EPOLLONESHOT if mode == QUIET else EPOLLIN | EPOLLET if mode == AWAY else 0
        event.data.u64 = (<unsigned long long>(<WatchedSet>watched)._serial << 32
                          | <unsigned long long>(<WatchedSet>watched)._slot)
        epoll_ctl(self._epoll, EPOLL_CTL_MOD, (<WatchedSet>watched).fd, &event)

    cdef Py_ssize_t _attend(self, void *watched, long long now) noexcept nogil:
        """Checks a set; returns the number of bytes moved."""
        cdef long long serves = load(&(<WatchedSet>watched)._serves)
        cdef bint served = serves != (<WatchedSet>watched)._seen
        cdef Py_ssize_t moved
        if (<WatchedSet>watched)._mode == RESTING:
            self._set_mode(watched, QUIET, NEVER)
        elif served or ((<WatchedSet>watched)._mode == FIRED and not omq_is_readable((<WatchedSet>watched).fd)):
            self._set_mode(watched, RESTING, now + self.rest_ns)
        else:
            if (<WatchedSet>watched)._mode == FIRED:
                self._set_mode(watched, AWAY, NEVER)
            if now - (<WatchedSet>watched)._seen_at > self.grace_ns:
                (<WatchedSet>watched)._seen, (<WatchedSet>watched)._seen_at = serves, now
            moved = self._serve(watched, now)
            # An owner that has read and is away again may have made room that no event shows. A thread that reads in
            # its place may wait for the GIL meanwhile.
            (<WatchedSet>watched)._due = now + (
                0
                if moved >= STREAM_BYTES
                else CONTENDED_CHECK_INTERVAL_NS
                if (<WatchedSet>watched)._contended
                else AWAY_CHECK_INTERVAL_NS
            )
            return moved
        return 0

    cdef Py_ssize_t _serve(self, void *watched, long long now) noexcept nogil:
        """Handles the events of a set whose owner is away; returns the number of bytes moved."""
        cdef epoll_event events[MAX_EVENTS]
        cdef Py_ssize_t moved = 0
        cdef int i, n
        cdef int turn
        (<WatchedSet>watched)._contended = False
        for turn in range(MAX_EVENT_ROUNDS):
            n = epoll_wait((<WatchedSet>watched).fd, events, MAX_EVENTS, 0)
            for i in range(n):
                moved += self._handle(watched, events + i, now)
            if n < MAX_EVENTS:
                break
        return moved

    cdef Py_ssize_t _handle(self, void *watched, const epoll_event *event, long long now) noexcept nogil:
        cdef int slot = <int><unsigned int>event.data.u64
        cdef Py_ssize_t moved = 0, taken = 0
        cdef void *reader = NULL
        cdef bint readable = False, handed = False
        pthread_mutex_lock(&self._mutex)
        if slot < (<WatchedSet>watched)._room and event.data.u64 == (<WatchedSet>watched)._places[slot].ticket != 0:
            reader = self._reader = (<WatchedSet>watched)._places[slot].read_ahead
            readable = event.events & (EPOLLIN | EPOLLHUP | EPOLLERR) and (<WatchedSet>watched)._open_event()
        pthread_mutex_unlock(&self._mutex)
        if reader != NULL:
            if event.events & EPOLLOUT:
                moved += (<ReadAhead>reader).send_buffer.flush_on()
                handed = load(&(<ReadAhead>reader).send_buffer.handed) != 0
            if readable:
                taken = (<ReadAhead>reader).take(now, self._view)
                if taken < 0:
                    (<WatchedSet>watched)._contended = True
                    taken = 0
                moved += taken
            pthread_mutex_lock(&self._mutex)
            if taken or (handed and (<WatchedSet>watched)._open_event()):
                (<WatchedSet>watched)._raise()
            if (<ReadAhead>reader).due < self._look_due:
                store(&self._look_due, (<ReadAhead>reader).due)
            self._reader = NULL
            pthread_mutex_unlock(&self._mutex)
        return moved

    cdef void _write_gathered(self, long long now) noexcept nogil:
        """Writes the batches whose loop's turn does not end."""
        cdef int i = 0
        cdef bint keep
        cdef void *send_buffer
        cdef void *watched
        pthread_mutex_lock(&self._mutex)
        while i < self._gathering.count:
            send_buffer = self._gathering.current = self._gathering.entries[i]
            pthread_mutex_unlock(&self._mutex)
            keep = (<SendBuffer>send_buffer).flush_gathered()
            pthread_mutex_lock(&self._mutex)
            watched = (<SendBuffer>send_buffer).watched
            if watched != NULL and load(&(<SendBuffer>send_buffer).handed) and (<WatchedSet>watched)._open_event():
                (<WatchedSet>watched)._raise()  # the queue has room, and a call may sleep until there is
            self._gathering.current = NULL
            if keep or i >= self._gathering.count or self._gathering.entries[i] != send_buffer:
                i += 1
            else:
                # It may have been noted again meanwhile; then it has a second entry further on.
                self._gathering.count -= 1
                self._gathering.entries[i] = self._gathering.entries[self._gathering.count]
        store(&self._gathering_due, now + self.grace_ns if self._gathering.count else NEVER)
        pthread_mutex_unlock(&self._mutex)

    cdef void _look_after(self, long long now) noexcept nogil:
        """Checks the connections that were not read for long, for the sake of their PINGs."""
        cdef long long due = NEVER
        cdef long long next_look, soonest
        cdef void *reader
        cdef Stillness last
        cdef int i = 0
        last.poll_fd = -1
        pthread_mutex_lock(&self._mutex)
        while i < self._readers.count:
            reader = self._readers.entries[i]
            next_look = (<ReadAhead>reader).due
            if next_look <= now:
                self._readers.current = reader
                pthread_mutex_unlock(&self._mutex)
                next_look = (<ReadAhead>reader).look(now, self._view, &last)
                pthread_mutex_lock(&self._mutex)
                self._readers.current = NULL
            if next_look < due:
                due = next_look
            # If an entry was removed meanwhile, another one has taken its place: check all of them once more.
            i = i + 1 if i < self._readers.count and self._readers.entries[i] == reader else 0
        # Several connections are checked together.
        soonest = now + max(
            <long long>MIN_ROUND_INTERVAL_NS,
            min(ROUND_INTERVAL_FACTOR * (now_ns() - now), <long long>MAX_ROUND_INTERVAL_NS),
        )
        store(&self._look_due, max(due, soonest))  # NEVER is later than all
        pthread_mutex_unlock(&self._mutex)
