"""A shorter switch interval (`sys.setswitchinterval`) while threads wait for the I/O thread.

A call that needs the I/O thread waits for the GIL twice: the I/O thread first, the caller after it. Next to threads that
compute, each of the two waits for several of them, and each of those keeps the GIL for the whole interval, 5 ms by
default. A shorter one lets both in soon. It holds for the first milliseconds of a wait only, which is when the I/O
thread has something to do for it, so threads that compute lose next to nothing.
"""

import sys

cdef enum:
    SHORT_US = 500           # microseconds of the shorter interval

cdef int waiting             # calls that want it now
cdef long replaced           # microseconds of the interval that it has replaced; 0: it has replaced none


cdef long _interval() except -1:
    return <long>(<double>sys.getswitchinterval() * 1e6 + 0.5)


cpdef int shorten() except -1:
    """Begins a wait; `restore` must follow."""
    global waiting, replaced
    cdef long now
    waiting += 1
    if waiting == 1:
        now = _interval()
        if now > SHORT_US:
            sys.setswitchinterval(SHORT_US * 1e-6)
            replaced = now
    return 0


cpdef int restore() except -1:
    """Ends a wait."""
    global waiting, replaced
    if waiting == 0:
        return 0  # a fork came in between
    waiting -= 1
    if waiting == 0 and replaced:
        if _interval() == SHORT_US:  # else the program has set another one meanwhile
            sys.setswitchinterval(replaced * 1e-6)
        replaced = 0
    return 0


cpdef int reset() except -1:
    """Restores the interval in a forked child, where the threads that shortened it are not."""
    global waiting
    if waiting:
        waiting = 1
        restore()
    return 0
