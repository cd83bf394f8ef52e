# The thread that reads and writes while no thread with the GIL does. It never takes the GIL.

from omq._core.kernel cimport epoll_event
from omq._core.link.pointers cimport PointerArray
from omq._core.link.read_ahead cimport Budget, ReadAhead
from omq._core.lock cimport pthread_mutex_t
from omq._core.thread cimport pthread_t
from omq._core.wire.send_buffer cimport SendBuffer

cdef struct Place:
    unsigned long long ticket  # that of the events; 0: the place is free
    void *read_ahead           # borrowed


cdef enum:
    AHEAD_TICKET = 1  # in a socket's epoll set: bytes of its connections were read ahead


cdef enum Mode:
    QUIET    # the next event is reported, once
    FIRED    # an event was reported: the owner has a moment to handle it
    RESTING  # the owner handled it: no event is reported for a while
    AWAY     # the owner did not: all events are reported


cdef class Background


cdef class WatchedSet:
    cdef Background _background      # the thread that watches it
    cdef int fd                      # the epoll set of a socket, owned; -1 once closed
    cdef long long _serves           # how often the owner has checked it; atomic
    cdef long long _away             # whether the thread serves it, as the owner is away; atomic
    cdef long long _ahead            # whether bytes were read ahead and not yet announced to such a thread; atomic
    # Guarded by the thread's mutex.
    cdef int _event                  # eventfd in the set, owned: readable while `_ahead`; -1: nothing read ahead yet
    cdef int _slot                   # its number; -1: no longer watched
    cdef unsigned int _serial        # differs between users of a reused number
    cdef Place *_places              # its connections, by the slots of their tickets; owned
    cdef int _room                   # places that there is memory for
    # The thread's alone.
    cdef Mode _mode
    cdef long long _due              # nanoseconds on the monotonic clock, when to check it; NEVER: after an event
    cdef long long _seen             # `_serves` at the event, or a while ago
    cdef long long _seen_at          # likewise on the clock, when that was
    cdef bint _contended             # another thread was reading one of its connections at the last check
    cdef void close(self) noexcept
    cdef bint _open_event(self) noexcept nogil
    cdef void signal(self) noexcept
    cdef void _raise(self) noexcept nogil
    cdef void clear(self) noexcept


cdef class Background:
    cdef pthread_t _thread
    cdef bint _running               # the thread exists
    cdef int _pid                    # the process that it exists in
    cdef int _epoll                  # epoll set, owned: the sockets' own sets, and _wake
    cdef int _wake                   # eventfd, owned: wakes the thread after a change of its work
    cdef Budget _budget
    cdef public long long grace_ns   # nanoseconds that an event may wait before the owner counts as away
    cdef public long long rest_ns    # nanoseconds for which a set is left alone after its owner handled it
    cdef unsigned char *_view        # memory for bytes that are peeked at; the thread's
    cdef pthread_mutex_t _mutex      # guards the following fields; no other lock is taken under it
    cdef PointerArray _sets          # WatchedSets by slot; NULL where one is free
    cdef unsigned int _serial        # that of the last one
    cdef PointerArray _readers       # ReadAheads, for periodic checks
    cdef void *_reader               # the ReadAhead that the thread works on after an event
    cdef PointerArray _gathering     # SendBuffers in which messages gather until their loop's turn ends
    cdef long long _look_due         # nanoseconds on the monotonic clock, of the next ReadAhead's check; atomic
    cdef long long _gathering_due    # likewise, for the SendBuffers; NEVER: no SendBuffer; atomic
    cdef bint _over                  # stopped for good: asyncio sockets may outlive their context
    cdef bint _start(self) noexcept
    cdef int _call(self) noexcept nogil
    cdef WatchedSet begin(self, int fd)
    cdef int end(self, WatchedSet watched) noexcept
    cdef int attach(self, WatchedSet watched, unsigned long long ticket, ReadAhead read_ahead) except -1
    cdef int detach(self, WatchedSet watched, unsigned long long ticket, ReadAhead read_ahead) except -1
    cdef int note(self, SendBuffer send_buffer) noexcept
    cdef int forget(self, SendBuffer send_buffer) except -1
    cdef void _loop(self) noexcept nogil
    cdef int _left(self) noexcept nogil
    cdef bint _ended(self) noexcept nogil
    cdef void _report(self, unsigned long long number, long long now) noexcept nogil
    cdef Py_ssize_t _attend_all(self, long long now) noexcept nogil
    cdef Py_ssize_t _attend(self, void *watched, long long now) noexcept nogil
    cdef void _set_mode(self, void *watched, Mode mode, long long due) noexcept nogil
    cdef Py_ssize_t _serve(self, void *watched, long long now) noexcept nogil
    cdef Py_ssize_t _handle(self, void *watched, const epoll_event *event, long long now) noexcept nogil
    cdef void _write_gathered(self, long long now) noexcept nogil
    cdef void _look_after(self, long long now) noexcept nogil
