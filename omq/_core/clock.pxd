# The monotonic clock, as one number, and how long a call may wait.

from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec


cdef inline long long now_ns() noexcept nogil:
    """Nanoseconds on the monotonic clock."""
    cdef timespec ts
    clock_gettime(CLOCK_MONOTONIC, &ts)
    return <long long>ts.tv_sec * 1000000000 + ts.tv_nsec


cdef inline object seconds(object timeout):
    """A timeout that somebody gives: seconds, or None."""
    if timeout is not None and not (<double>timeout >= 0):
        raise ValueError(f"timeout={timeout!r}: must be seconds, 0 or more, or None")
    return timeout
