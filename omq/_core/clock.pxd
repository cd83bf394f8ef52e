# The monotonic clock as one number, and the check of timeouts.

from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec


cdef extern from "time.h" nogil:
    int CLOCK_MONOTONIC_COARSE
    int CLOCK_THREAD_CPUTIME_ID


cdef inline long long read_ns(int clock) noexcept nogil:
    cdef timespec ts
    clock_gettime(clock, &ts)
    return <long long>ts.tv_sec * 1000000000 + ts.tv_nsec


cdef inline long long now_ns() noexcept nogil:
    """Returns nanoseconds on the monotonic clock."""
    return read_ns(CLOCK_MONOTONIC)


cdef inline long long tick() noexcept nogil:
    """Returns the time of the kernel's last tick on that clock, up to ten milliseconds ago: much cheaper to read."""
    return read_ns(CLOCK_MONOTONIC_COARSE)


cdef inline long long worked_ns() noexcept nogil:
    """Returns nanoseconds that this thread has worked; costs a system call."""
    return read_ns(CLOCK_THREAD_CPUTIME_ID)


cdef enum:
    FIRST_SLEEP_NS = 10000000   # first sleep of a thread that must check for signals; each further one is twice as long
    MAX_SLEEP_NS = 1000000000   # its longest sleep: a signal that comes just before a sleep interrupts nothing
    MAX_TIMEOUT_S = 1000000000  # some thirty years: a timer of the system may not be able to count more


cdef inline double number_of(object timeout) except? -1:
    if type(timeout) is not bool:
        try:
            return timeout
        except OverflowError:  # an integer that no float holds
            return 2.0 * MAX_TIMEOUT_S if timeout > 0 else -1.0
        except TypeError:
            pass
    raise TypeError(f"timeout={timeout!r}: must be seconds, 0 or more, or None, not {type(timeout).__name__}")


cdef inline object seconds(object timeout):
    """Checks a timeout; returns seconds, MAX_TIMEOUT_S at most, or None for ever, also where the timeout is longer."""
    cdef double seconds_given
    if timeout is None:
        return None
    seconds_given = <double>timeout if type(timeout) is float else number_of(timeout)
    if not seconds_given >= 0:  # true for "not a number", too
        raise ValueError(f"timeout={timeout!r}: must be seconds, 0 or more, or None")
    return timeout if seconds_given <= MAX_TIMEOUT_S else None
