# A peer of a socket, and the base classes of the two queues that peers are attached to.

cimport cython

from omq._core.queues.wait_queue cimport WaitQueue
from omq._core.wire.frame_reader cimport Run
from omq._core.wire.send_buffer cimport Part
from omq._core.wire.waiting cimport WaitingMessages

cdef enum:
    TURN_MESSAGES = 256  # messages that one peer may pass before the next one's turn
    TURN_BYTES = 524288  # bytes that one peer may pass before the next one's turn
    TURN_NS = 1000000    # nanoseconds of the owner's work after which a socket checks its descriptors
    ROUND_NS = 20000000  # nanoseconds that all peers with messages share, where there are more than twenty

cdef enum:                   # results of `take_into` if it takes nothing; -2 is an exception's
    TOO_LARGE = -1   # the message does not fit, and stays first in line
    NO_MESSAGE = -3  # there is no message


cdef class Peer:
    cdef object __weakref__
    cdef readonly object session     # the engine's owner of this peer
    cdef public bytes identity       # its routing id on a ROUTER
    cdef public object routing_id    # its number on SERVER and PEER (RFC 41), or None
    cdef public object origin        # where it comes from, the same after a reconnect; None: unknown
    cdef public int slot             # its number in a matcher; -1 none
    cdef public int asking           # the form in which it takes subscriptions (`Asking`)
    cdef RecvQueue recv_queue        # the queue that its messages are taken from; None: the send queue gets them
    cdef SendQueue send_queue        # the queue that writes to it
    cdef SendQueue home              # takes back unsent messages, also after the peer has left routing, or None
    cdef readonly bint lost          # the connection is over; messages that have arrived can be taken
    cdef readonly bint dismissed     # the user has closed it: it ends when it has all messages accepted for it
    cdef bint queued                 # it is in the receive queue's ring
    cdef Peer next_ready             # the next one in that ring
    cdef object box                  # subscriptions of it that an XPUB's user has not taken, or None
    cdef Peer heir                   # the next peer of the same origin; its turn comes when this one is finished
    cdef bint writable               # a message can be given to it now
    cdef bint attached               # the send queue counts it among its peers
    cdef bint dirty                  # the send queue will flush it when the turn ends
    cdef bint more                   # take_part: another part of the same message follows
    cdef Py_ssize_t parked           # messages counted in SendQueue.parked for it
    cdef readonly long long messages_in
    cdef readonly long long messages_out
    cdef readonly long long bytes_in
    cdef public long long dropped    # messages not sent to it because it was full
    cdef long long abandoned         # messages accepted for it that had not left at its end
    cdef int on_events(self, unsigned int events) except -1
    cdef bint only_reads(self) noexcept
    cdef bint sated(self) noexcept
    cdef bint has_ahead(self) noexcept
    cdef int log_error(self, object error) except -1
    cdef int fail(self, object error) except -1
    cdef int dismiss(self) except -1
    # receiving
    cdef Py_ssize_t ready(self) noexcept
    cdef bint head_more(self) noexcept
    cdef const char *peek(self, Py_ssize_t *size) except NULL
    cdef Py_ssize_t view(self, Part *parts, Py_ssize_t room) except -1
    cdef bint view_run(self, Run *run, Py_ssize_t limit) except -1
    cdef int skip_run(self, const Run *run) except -1
    cdef object take_part(self)
    cdef object take_alone(self)
    cdef object take_quickly(self)
    cdef Py_ssize_t take_into(self, char *into, Py_ssize_t size) except -2
    cdef bint aim(self, char *into, Py_ssize_t size) except -1
    cdef int withdraw(self) except -1
    cdef int skip(self) except -1
    cdef int refill(self) except -1
    # sending
    cdef int send(self, const Part *parts, Py_ssize_t count) except -1
    cdef bint send_quickly(self, const Part *part, Py_ssize_t hwm) except -1
    cdef bint send_encoded_quickly(self, const char *data, Py_ssize_t size, Py_ssize_t hwm) except -1
    cdef int send_encoded(self, const char *data, Py_ssize_t size, const Part *parts, Py_ssize_t count) except -1
    cdef Py_ssize_t send_run(self, list messages, Py_ssize_t start, Py_ssize_t limit) except -1
    cdef bint takes_frames(self) noexcept
    cdef int send_frames(self, const Run *run) except -1
    cdef int settle_at(self, SendQueue home) except -1
    cdef list reclaim(self)
    cdef int set_background_queue(self, WaitingMessages waiting) except -1
    cdef int note_waiting(self) except -1
    cdef int note_handed(self) except -1
    cdef Py_ssize_t pending(self) noexcept
    cdef long long sent_messages(self) noexcept
    cdef long long sent_bytes(self) noexcept
    cdef int end_turn(self) except -1
    cdef int flush(self) except -1
    cpdef int control(self, bytes frames) except -1
    cdef int ask(self, const char *prefix, Py_ssize_t size, bint subscribe) except -1
    cdef int ask_all(self, list prefixes) except -1
    cpdef int command(self, bytes name, bytes data) except -1


cdef class RecvQueue:
    cdef readonly WaitQueue wait_queue
    cdef Peer _head                  # first of the peers that have messages
    cdef Peer _tail
    cdef Py_ssize_t _count           # number of peers in that line
    cdef Py_ssize_t _turn            # messages left of the head's turn
    cdef Py_ssize_t _turn_bytes      # bytes left of it
    cdef Py_ssize_t _quota           # messages in a turn: as many as its owner handles in a millisecond, 256 at most
    cdef Py_ssize_t _sight           # messages left until the next check of the descriptors
    cdef Py_ssize_t _sight_bytes     # bytes left until then
    cdef bint ticks                  # check the kernel's clock, too: nothing else shows that an owner works for long
    cdef long long _tick             # that clock at the last check of the descriptors, or when the first peer came
    cdef long long _looked           # nanoseconds on the monotonic clock, at the last check of the descriptors
    cdef list _paused                # peers that stopped reading because recv_hwm messages wait
    cdef char *_target               # memory of a call that waits for one message; NULL: none
    cdef Py_ssize_t _target_size     # bytes of that memory
    cdef Peer _aiming                # the peer that reads into that memory
    cdef Peer _growing               # the peer that last began a large frame, while the frame is not whole
    cdef bint newest_only            # of each peer only the newest message counts
    cdef bint unfinished             # many waiting messages were dropped, and more are still to be checked
    cdef Peer last                   # the peer that the last message came from
    cdef Peer _refused               # the peer whose first message a call could not take: the next call gets it
    cdef Peer _viewed                # the peer whose message `view` or `view_run` has shown last
    cdef long long dropped           # messages that arrived, and that neither a call nor a filter takes
    cdef int _refuse(self, Peer peer) except -1
    cdef list _known(self)
    cdef bint offer(self, char *into, Py_ssize_t size) except -1
    cdef int withdraw(self) except -1
    cdef int arrived(self, Peer peer) except -1
    cdef int paused(self, Peer peer) except -1
    cdef Peer _pick(self)
    cpdef int hurry(self) except -1
    cdef Peer _front(self)
    cdef int _look(self) except -1
    cdef int _enqueue(self, Peer peer) except -1
    cdef bint _waits_for(self, Peer peer) except -1
    cdef void _taken(self, Peer peer, Py_ssize_t size)
    cdef int _resume(self, Peer peer) except -1
    cdef int _pop(self) except -1
    cdef bint has_message(self) except -1
    cdef object take(self)
    cdef object take_quickly(self)
    cdef object take_any(self)
    cdef object last_group(self)
    cdef list take_many(self, Py_ssize_t limit)
    cdef list take_message(self)
    cdef Py_ssize_t view(self, Part *parts, Py_ssize_t room) except -1
    cdef int drop(self, Py_ssize_t size) except -1
    cdef bint view_run(self, Run *run, Py_ssize_t limit) except -1
    cdef int drop_run(self, const Run *run) except -1
    cdef Py_ssize_t waiting(self) noexcept
    cdef Py_ssize_t take_into(self, char *into, Py_ssize_t size) except -2
    cdef list _whole(self, Peer peer)

    @cython.final
    cdef inline bint look_if_due(self) except -1:
        """Checks the descriptors now if taking the next message would begin with that; returns whether it has."""
        if self._sight > 0 and self._sight_bytes > 0:
            return False
        self._look()
        return True

    @cython.final
    cdef inline bint has_ready(self) noexcept:
        """Returns whether the peer whose turn it is has a message."""
        return self._head is not None and self._head.ready() > 0

    @cython.final
    cdef inline bint is_idle(self) noexcept:
        """Returns whether no peer in line has a message. A peer without messages stays in line until the next check."""
        return self._head is None or (self._count == 1 and self._head.ready() == 0 and self._head.heir is None)


cdef class SendQueue:
    cdef readonly WaitQueue wait_queue
    cdef public Py_ssize_t hwm       # messages; 0 no bound
    cdef object _schedule            # called without arguments: schedules a call of flush_turn at the end of this turn
    cdef bint _scheduled
    cdef Peer _dirty                 # a peer with a batch that waits for the end of the turn, or None
    cdef list _others                # more such peers; most turns have one, for which no list is made
    cdef public bint draining        # closing waits for batches: they leave with the loop's turns, which report that
    cdef bint quick                  # `put_quickly` may be of use
    cdef Py_ssize_t most             # messages at which a peer's batch leaves
    cdef bint gathers                # a burst is under way: idle peers are not written through
    cdef bint more                   # likewise: the call that puts messages has more of them
    cdef long long _ran_out          # when such a call had no more, last
    cdef bint _was_idle              # that was a while ago when this one began
    cdef bint led                    # the caller of `put` ends each turn itself: no batch is left to another thread
    cdef Py_ssize_t parked           # messages held by peers that cannot be written
    cdef long long dropped           # messages that no peer gets, apart from those that a peer counts
    cdef readonly bint heeds         # it handles peers' commands: see `heed`
    cdef public bint single_part     # a call may put messages of one part only
    cdef int put(self, const Part *parts, Py_ssize_t count) except -1
    cdef int put_to(self, object route, const Part *parts, Py_ssize_t count) except -1
    cdef bint put_quickly(self, const Part *part) except -1
    cdef Py_ssize_t put_run(self, list messages, Py_ssize_t start) except -1
    cdef Py_ssize_t room_for_run(self) except -1
    cdef int put_frames(self, const Run *run) except -1
    cdef bint can_put(self) except -1
    cdef int attach(self, Peer peer) except -1
    cdef int detach(self, Peer peer) except -1
    cdef int opened(self, Peer peer) except -1
    cdef int blocked(self, Peer peer) except -1
    cdef int lost(self, Peer peer) except -1
    cdef int recall(self, Peer peer) except -1
    cdef bint heed(self, Peer peer, const char *body, Py_ssize_t size) except -1
    cdef int on_message(self, Peer peer, object message) except -1
    cdef Py_ssize_t waiting(self) noexcept
    cdef int note(self, Peer peer) except -1
    cdef int defer(self, Peer peer) except -1
    cdef int _flush_turn(self) except -1
    cdef void begin_many(self) noexcept
    cdef int end_many(self) except -1

    @cython.final
    cdef inline int flush_pending(self) except -1:
        """Writes gathered messages, if any, before the socket does something else."""
        return 0 if self._dirty is None else self._flush_turn()
