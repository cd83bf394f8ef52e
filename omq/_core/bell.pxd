# Function calls that any thread can request in an event loop.

cimport cython


@cython.final
cdef class Bell:
    cdef readonly int fd              # eventfd, owned; -1 before `open` and after `close`
    cdef public unsigned long thread  # ident of the thread that the loop was last seen in; 0 before
    cdef object _orders               # deque: functions and their arguments in turn
    cdef bint _rung                   # the descriptor has been written since it was last read
    cdef bint _over                   # closed: requests are ignored
    cdef int post(self, object function) except -1
    cdef int request(self, object function, object argument) except -1
    cdef int _ring(self) except -1
