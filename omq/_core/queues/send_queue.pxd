# Send queues: the socket types' choice of the peers that get a message.

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject

from omq._core.wire.loan cimport Loan, PyBytes_CheckExact, body_data, body_size, bytes_size
from omq._core.wire.send_buffer cimport Part
from omq._core.wire.waiting cimport WaitingMessages
from omq._core.queues.recv_queue cimport RequestRecvQueue
from omq._core.queues.matcher cimport Matcher
from omq._core.queues.peer cimport SendQueue, Peer

cdef enum:
    MAX_BATCH_MESSAGES = 1024  # messages at which the largest batches leave; most leave earlier, for their bytes


cdef inline object part_bytes(const Part *part):
    if part.owner != NULL:
        if not PyBytes_CheckExact(part.owner):
            body = (<Loan>part.owner).view.obj
            if type(body) is bytes:
                return body
        elif bytes_size(part.owner) == part.size:
            return <object>part.owner
    return PyBytes_FromStringAndSize(part.data, part.size)


cdef inline object part_body(const Part *part):
    """Returns a part as an object that outlives the call: `bytes` or a `Loan`."""
    if part.owner != NULL and not PyBytes_CheckExact(part.owner):
        return <object>part.owner
    return part_bytes(part)


cdef inline int fill_part(Part *part, bytes body) except -1:
    part.data = PyBytes_AS_STRING(body)
    part.size = PyBytes_GET_SIZE(body)
    part.owner = <PyObject *>body
    return 0


cdef inline int fill_held(Part *part, object body) except -1:
    part.data = body_data(<PyObject *>body)
    part.size = body_size(<PyObject *>body)
    part.owner = <PyObject *>body
    return 0


cdef object hold(const Part *parts, Py_ssize_t count)
cdef object message_bytes(const Part *parts, Py_ssize_t count)


cdef class RoundRobin(SendQueue):
    cdef list _open                  # peers that can be written; one that is alone may be blocked
    cdef Py_ssize_t _next            # index in _open of the peer whose turn is next
    cdef int _burst                  # messages for one of several peers, since the last pause
    cdef long long _last             # nanoseconds on the monotonic clock, after the last of them
    cdef readonly WaitingMessages queue  # accepted, not yet given to a peer
    cdef Py_ssize_t _attached        # number of peers, writable or not
    cdef Py_ssize_t _returns         # how often a peer has given messages back
    cdef bint _conflate
    cdef public bint immediate
    cdef bint _background_sends      # the background thread gives waiting messages to peers that get room
    cdef int _enqueue(self, const Part *parts, Py_ssize_t count) except -1
    cdef int _pump(self) except -1
    cdef Peer _choose(self)
    cdef bint _give(self, Peer peer) except -1
    cdef bint _has_open(self) except -1
    cdef bint _has_room(self) noexcept
    cdef int given(self, Peer peer) except -1
    cdef int _put_back(self, Peer peer, list messages) except -1


cdef class RequestSendQueue(RoundRobin):
    cdef RequestRecvQueue _recv_queue
    cdef bint _relaxed
    cdef bint _correlate
    cdef unsigned int _serial        # number of the last request


cdef class Distributor(SendQueue):
    cdef readonly Matcher matcher    # None: every peer gets every message
    cdef list peers                  # by slot; None where a slot is free
    cdef list _free                  # slots to use again
    cdef long long _last             # nanoseconds on the monotonic clock, when the last message was given to all
    cdef bint _nodrop
    cdef bint _invert
    cdef dict _newest                # WaitingMessages by Peer, sent once it can be written; None: no conflate
    cdef bint _hold(self, Peer peer, const Part *parts, Py_ssize_t count) except -1
    cdef char *_scratch              # a message encoded once; owned
    cdef int *_targets               # slots; owned
    cdef Py_ssize_t _room            # entries of _targets
    cdef int _adapt(self, Py_ssize_t hwm) except -1
    cdef Py_ssize_t _number(self) except -1
    cdef Py_ssize_t _select(self, const Part *first) except -1
    cdef bint _full(self, Peer peer) except -1
    cdef Py_ssize_t _encode(self, const Part *parts, Py_ssize_t count) noexcept
