# Functions that the I/O thread calls a little later, without waking it now.


cdef class DeferredCalls:
    cdef readonly int fd             # timerfd, readable when the time has come; owned, -1 before open() and once closed
    cdef list _calls                 # functions to call at that time
