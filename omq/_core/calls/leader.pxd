# Waiting on a blocking socket: one thread leads, the others follow.

cimport cython

from cpython.object cimport PyObject

from omq._core.bell cimport Bell
from omq._core.lock cimport SocketLock, sem_t
from omq._core.queues.wait_queue cimport WaitQueue
from omq._core.queues.peer cimport RecvQueue, SendQueue
from omq._core.link.poller cimport Poller
from omq._core.calls.readable_event cimport ReadableEvent

cdef enum:
    MAX_ADAPTIVE_SPIN_NS = 50000  # "adaptive" spins at most this long
    SHORT_WAIT_NS = 40000         # a wait below this was worth spinning for
    YIELD_NS = 20000              # a busy thread sleeps this long to hand over the GIL
    IDLE_GAP_NS = 100000          # a pause in which other threads got the GIL anyway

cdef extern from *:
    """
    #define FOR_EVER 0x7fffffffffffffffLL

    /* Where lines are traced, Python code runs after each and may let other threads in: every step needs the lock. */
    #if defined(CYTHON_TRACE) && CYTHON_TRACE
    #define OMQ_TRACED 1
    #else
    #define OMQ_TRACED 0
    #endif
    """
    const long long FOR_EVER         # a deadline that never comes
    const bint OMQ_TRACED            # the build is for `make coverage`


cdef class ForkGuard:
    cdef readonly bint stale         # the process has forked: nothing inherited may be used
    cdef unsigned long _main         # ident of the thread that signals interrupt


cdef class BlockedCall:
    # One call that waits: either it leads (sleeps in the socket's epoll set) or it follows (sleeps on its semaphore).
    cdef sem_t _wake
    cdef bint leading
    cdef bint woken                  # something happened that the call waits for
    cdef bint in_handlers            # its thread runs signal handlers, however long they take, and can do nothing else
    cdef long long nap               # nanoseconds that the main thread sleeps at most before it checks for signals
    cdef long long fresh_nap         # likewise, of any thread while the socket has no connection
    cdef bint hurries                # the call has shortened the switch interval
    cdef long long spun              # nanoseconds that the call has spun
    cdef LeaderCore _core
    cdef int wake(self) except -1
    cdef int hurry(self) except -1
    cdef int hurry_no_more(self) except -1


cdef class SyncWaitQueue(WaitQueue):
    cdef PyObject *_core             # the LeaderCore, borrowed: a loop holds wait queues, but not sockets; NULL: freed
    cdef list _blocked_calls         # of BlockedCall, first come first
    cdef int count                   # calls in `_blocked_calls`
    cdef int enter(self, BlockedCall blocked_call) except -1
    cdef int leave(self, BlockedCall blocked_call) except -1
    cdef int pass_on(self) except -1
    cdef int wake_first(self) except -1
    cdef int wake_all(self) except -1
    cdef int _show(self) except -1
    cdef int look(self, long long spent) except -1
    cdef list _shown                 # ReadableEvents that a notification makes readable, for waits on several sockets
    cdef list _watchers              # Futures of the I/O thread's loop, with which closing waits for the queues


cdef class LeaderCore:
    cdef readonly RecvQueue recv_queue      # None: the type does not receive
    cdef readonly SendQueue send_queue      # None: the type does not send
    cdef readonly SyncWaitQueue readable
    cdef readonly SyncWaitQueue writable
    cdef readonly SocketLock lock
    cdef readonly Poller poller
    cdef readonly bint closed
    cdef ForkGuard _fork_guard
    cdef BlockedCall _leader                # the call that sleeps in the epoll set; None: no leader
    cdef int _event                         # eventfd in the epoll set: wakes the leader; owned
    cdef bint _signalled                    # `_event` has been written since it was last read
    cdef int _inside                        # threads that may be in a system call on the epoll set
    cdef bint _ending                       # the descriptors are closed once `_inside` is 0
    cdef ReadableEvent _readable_event      # readable while a message waits; None: no descriptor was requested
    cdef ReadableEvent _kept                # the same event, kept until the end of the socket: its descriptor stays valid
    cdef bint _given                        # `fileno` has given the descriptor to the user
    cdef bint _wanted                       # the user has the descriptor and has not released it
    cdef int _borrowers                     # waits for several sockets that include this one
    cdef Bell _bell                         # hands work to the I/O thread; None before that thread exists
    cdef readonly bint watched              # the I/O thread watches the epoll set
    cdef bint _dismissed                    # the I/O thread has been asked to stop watching
    cdef object _unwatch                    # run on the I/O thread: stops watching
    cdef readonly unsigned long long looks  # callers' checks of the epoll set: grows while they serve it
    cdef bint drowsy                        # the I/O thread checks rarely on callers: the end of a wait must notify it
    cdef object _attend                     # run on the I/O thread: watches, because a descriptor has to show messages
    cdef bint _called                       # `_attend` has been posted and has not begun
    cdef object _rouse                      # asks the I/O thread to check in a moment whether the owner comes back
    cdef object _calm                       # cancels `_rouse`
    cdef bint _roused                       # `_rouse` has been called because a wait has ended
    cdef long long _long_sleep              # nanoseconds
    cdef readonly bint sleeps_long          # the last sleep in the epoll set was long, so the next probably will be
    cdef long long _spin                    # nanoseconds to spin before sleeping; 0 never
    cdef bint _adaptive                     # spin only while recent waits were short
    cdef int _short_waits                   # above 0: waits have been short
    cdef int _refuse(self) except -1
    cdef int _signal(self) except -1
    cdef int look(self, long long spent) except -1
    cdef int _dismiss(self) except -1
    cdef int _update_descriptor(self) except -1
    cdef int _release_kept(self) except -1
    cdef int _sleep(self, BlockedCall blocked_call, long long deadline) except -1
    cdef int _wait_or_yield(self, BlockedCall blocked_call, long long deadline) except -1
    cdef int _let_go(self) except -1
    cdef int _look_for_signals(self, BlockedCall blocked_call) except -1
    cdef int _run_handlers(self) except -1
    cdef long long _until(self, BlockedCall blocked_call, long long deadline) except -1
    cdef int _lead(self, BlockedCall blocked_call, long long deadline) except -1
    cdef int _follow(self, BlockedCall blocked_call, long long deadline) except -1
    cdef int _wake_another(self) except -1
    cdef int _leave_awake(self) except -1
    cdef int _stand_up(self, SyncWaitQueue wait_queue, BlockedCall blocked_call) except -1

    @cython.final
    cdef inline int _enter(self) except -1:
        if self._fork_guard.stale or self.closed:
            self._refuse()
        self.lock.enter()
        if self.closed:
            # Closed while this call waited for the lock.
            self.lock.release()
            self._refuse()
        return 0

    @cython.final
    cdef inline bint _is_free(self) noexcept:
        """Returns whether no call holds the lock: then a step that keeps the GIL throughout needs no lock."""
        return not OMQ_TRACED and self.lock._owner == 0 and not (self.closed or self._fork_guard.stale)

    @cython.final
    cdef inline int _leave(self) except -1:
        return self.lock.release()
