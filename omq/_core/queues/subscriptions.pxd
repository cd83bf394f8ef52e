# The subscriptions that a publisher knows, and those of a subscriber.

from omq._core.wire.send_buffer cimport Part
from omq._core.lock cimport SocketLock
from omq._core.queues.matcher cimport Matcher
from omq._core.queues.send_queue cimport Distributor
from omq._core.queues.wait_queue cimport WaitQueue
from omq._core.queues.mailbox cimport Mailbox
from omq._core.queues.peer cimport Peer


cdef struct Holding:         # the subscriptions of one peer
    Py_ssize_t number        # prefixes
    Py_ssize_t size          # bytes of them all


cdef class PublisherSendQueue(Distributor):
    cdef readonly Matcher wanted     # xpub_manual: the peers' subscriptions, in force or not; None: all are in force
    cdef readonly Mailbox mailbox    # messages for the XPUB's user; None: this is a PUB
    cdef public bint watched         # a call waits for subscriptions: the next change is reported
    cdef public bint monitored       # every change is reported
    cdef SocketLock _lock            # taken by the user's calls; None: one thread makes all calls
    cdef object _on_change           # called when subscriptions have changed, if a call waits for that
    cdef object _on_subscribed       # called with each change, if there is a monitor: session, prefix, subscribe
    cdef object _ask_report          # called without arguments: schedules a call of `report` in the engine's thread
    cdef bint _reporting             # that call is scheduled
    cdef object _news                # deque of changes to report: session, prefix, subscribe in turn
    cdef object _leaving             # deque: peers that are gone, and their slots, in turn
    cdef Holding *_holdings          # by slot; owned
    cdef Py_ssize_t _holdings_room   # slots that it has room for
    cdef Py_ssize_t _limit           # prefixes that one peer may have; -1 no bound
    cdef bint _verbose               # ZMQ_XPUB_VERBOSE: the user also gets subscriptions that are not new
    cdef bint _only_first            # ZMQ_ONLY_FIRST_SUBSCRIBE: only the first part of a message may be a subscription
    cdef bint _verboser              # ZMQ_XPUB_VERBOSER: likewise for ends
    cdef bint _last_value            # ZMQ_XPUB_MANUAL_LAST_VALUE: the next message is for the last sender alone
    cdef int _begin(self) except -1
    cdef int _finish(self) except -1
    cdef bint _may_hold(self, Matcher book, int slot, const char *prefix, Py_ssize_t size) noexcept
    cdef int _changed(self, Peer peer, const char *prefix, Py_ssize_t size, bint subscribe) except -1
    cdef int _report_soon(self) except -1
    cdef int _put_in_force(self, bytes prefix, bint subscribe) except -1
    cdef int _set_manual(self, bint manual) except -1
    cdef int _sweep(self, Py_ssize_t left) except -1
    cdef int _asked(self, Peer peer, const char *prefix, Py_ssize_t size, bint subscribe) except -1
    cdef Py_ssize_t _forget(self, Peer peer, int slot, Py_ssize_t limit) except -1


cdef class OwnSubscriptions:
    cdef readonly Matcher matcher    # the prefixes, and how often each was asked for; the slot is always 0
    cdef WaitQueue _wait_queue       # where calls wait for wanted messages; None: all are wanted
    cdef bint _verbose               # ZMQ_XSUB_VERBOSE_UNSUBSCRIBE: publishers get each request to end
    cdef tuple _peers                # the peers to notify: a new tuple at each change, as one may go meanwhile
    cdef SocketLock _lock            # taken by the user's calls; None: one thread makes all calls
    cdef int change(self, const char *prefix, Py_ssize_t size, bint subscribe) except -1
    cdef int _call(self, bytes prefix, bint subscribe) except -1


cdef class SubscriberSendQueue(Distributor):
    cdef OwnSubscriptions _own_subscriptions
    cdef bint _only_first            # like that of PublisherSendQueue
    cdef int _put_first(self, const Part *parts, Py_ssize_t count) except -1
    cdef int _put_mixed(self, const Part *parts, Py_ssize_t count) except -1
