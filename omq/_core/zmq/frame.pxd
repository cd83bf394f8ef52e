# Message parts with pyzmq's interface.

from omq._core.wire.loan cimport Loan


cdef class FrameData:
    cdef object __weakref__
    cdef public bint more            # another part of the same message follows
    cdef readonly object _data       # the object that the frame was made from, or None
    cdef public object tracker       # a MessageTracker, or None
    cdef public object tracker_event # set once nothing uses the lent memory any more, or None
    cdef Loan _loan                  # the object's memory, which the frame shares; None: `_content` has the content
    cdef bytes _content
    cdef bint _exported              # a writable view of `_content` has been given out
    cdef object _copied              # `bytes`, once made from memory that may change
    cdef object _view                # a weak reference to the view that `buffer` has returned
    cdef public object _group        # a str, or None
    cdef public object _routing_id   # an int, or None
    cdef object _session             # of the sender, for its properties; None: not received
    cdef int receive(self, bytes content, bint more) except -1
    cdef int describe(self, object session, object group, object routing_id) except -1
    cdef object payload(self)
