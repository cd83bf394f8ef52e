# Where the calls of a socket wait, and where its events are handled together.


cdef class WaitQueue:
    # A place where calls wait: the blocking and the asyncio socket wait in their own ways.
    cdef bint apart                  # calls wait for different peers: a call does not wait for another peer's calls
    cdef bint proxied                # a proxy serves the socket
    cdef int notify(self) except -1
    cdef bint is_quiet(self) noexcept
    cdef int look(self, long long spent) except -1


cdef class Turn:
    # Calls that woke up while descriptors were served. They run when all descriptors are done.
    cdef bint open                   # events are being handled
    cdef int finish(self) except -1
