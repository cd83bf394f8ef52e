# The kernel's state of a connection, and the commands that wait while bytes of the peer may be on their way.

cdef enum Outlook:
    CLEAR = 0    # the peer's kernel has no bytes for us that a write could destroy
    CROWDED = 1  # the peer's kernel may have some: ours had no room for them
    ENDED = 2    # the peer sends nothing more, and our kernel has everything

cdef enum:
    MIN_CLEAR_CHECKS = 20        # checks in a row that find room in our kernel, after which the peer's holds nothing
    MAX_HELD_BYTES = 8388608     # bytes of waiting commands at most
    FAST_STREAM_NS = 1000000000  # a stream that moves the content of two kernels within this time has no pause

cdef bint can_reset(int fd) noexcept
cdef Outlook outlook(int fd, long long *holds) noexcept nogil
cdef int unread_bytes(int fd) noexcept nogil
cdef void set_low_water(int fd, int *before, int size) noexcept nogil
cdef long long settling_ns(int fd) noexcept nogil


cdef class CommandBacklog:
    cdef list frames                 # waiting commands, in their order
    cdef bytes pong                  # the newest PONG
    cdef Py_ssize_t size             # bytes of the commands
    cdef long long bytes_in          # bytes that had arrived when the first one was held back, or at `since`
    cdef long long since             # nanoseconds on the monotonic clock, when that was
    cdef long long seen              # bytes that had arrived at the last check
    cdef long long room              # bytes that both kernels hold at most
    cdef int looks                   # checks in a row that have found room in our kernel
    cdef bint asked                  # the session has been asked to check
    cdef int add(self, bytes frame) except -1
    cdef bytes all(self)
    cdef bint outlived(self, long long bytes_in) noexcept
