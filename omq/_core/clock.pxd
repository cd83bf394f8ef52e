# The monotonic clock, as one number.

from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec


cdef inline long long now_ns() noexcept nogil:
    """Nanoseconds on the monotonic clock."""
    cdef timespec ts
    clock_gettime(CLOCK_MONOTONIC, &ts)
    return <long long>ts.tv_sec * 1000000000 + ts.tv_nsec
