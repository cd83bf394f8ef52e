"""A shorter switch interval (`sys.setswitchinterval`) while threads wait for the I/O thread.

A call that needs the I/O thread waits for the GIL twice: the I/O thread first, the caller after it. Next to busy
threads, each of the two waits for several of them, and each of those keeps the GIL for the whole interval, 5 ms by
default. A shorter interval lets both run soon. It holds only for the first milliseconds of a wait, while the I/O
thread has work for the call, so the busy threads lose very little.
"""

import sys

cdef enum:
    SHORT_INTERVAL_US = 500  # the shorter interval

cdef int waiting             # calls that need it now
cdef long replaced           # microseconds of the interval that it has replaced; 0: not replaced


cdef long _interval() except -1:
    return <long>(<double>sys.getswitchinterval() * 1e6 + 0.5)


cpdef int shorten() except -1:
    """Begins a wait; `restore` must follow."""
    global waiting, replaced
    cdef long now
    waiting += 1
    if waiting == 1:
        now = _interval()
        if now > SHORT_INTERVAL_US:
            sys.setswitchinterval(SHORT_INTERVAL_US * 1e-6)
            replaced = now
    return 0


cpdef int restore() except -1:
    """Ends a wait."""
    global waiting, replaced
    if waiting == 0:
        return 0  # a fork came in between
    waiting -= 1
    if waiting == 0 and replaced:
        if _interval() == SHORT_INTERVAL_US:  # otherwise the program has set another one meanwhile
            sys.setswitchinterval(replaced * 1e-6)
        replaced = 0
    return 0


cpdef int reset() except -1:
    """Restores the interval in a forked child, where the threads that shortened it do not exist."""
    global waiting
    if waiting:
        waiting = 1
        restore()
    return 0
