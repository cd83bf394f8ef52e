# What the kernel knows of a peer, and the commands that wait until nothing that it has sent is on its way.

cdef enum Outlook:
    CLEAR = 0                # the peer's kernel has nothing left for us that a write could destroy
    CROWDED = 1              # it may have: ours has had no room for it
    ENDED = 2                # the peer sends nothing more, and our kernel has everything

cdef enum:
    LOOKS = 20               # looks in a row that find room in our kernel after which its peer's holds nothing
    HELD_BYTES = 8388608     # bytes of commands that wait at most
    QUICK_NS = 1000000000    # nanoseconds in which as much as two kernels hold has passed: a stream that does not pause

cdef bint can_reset(int fd) noexcept
cdef Outlook outlook(int fd, long long *holds) noexcept nogil
cdef bint has_unread(int fd) noexcept nogil


cdef class CommandBacklog:
    cdef list frames                 # commands that wait, in their order
    cdef bytes pong                  # the newest PONG
    cdef Py_ssize_t size             # bytes of the commands
    cdef long long bytes_in          # what had arrived when the first one was held back, or since when the time counts
    cdef long long since             # when that was: nanoseconds on the monotonic clock
    cdef long long seen              # what had arrived at the last look
    cdef long long room              # bytes that both kernels hold at most
    cdef int looks                   # in a row, that have found room in our kernel
    cdef bint asked                  # the session is going to look
    cdef int add(self, bytes frame) except -1
    cdef bytes all(self)
    cdef bint outlived(self, long long bytes_in) noexcept
