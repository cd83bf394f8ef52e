"""Operations that threads, and signal handlers that interrupt them, do in one step each.

A lock does not work here: a handler deadlocks if the thread that it has interrupted holds the lock. It also deadlocks
if it waits for a thread that needs the lock. Under the GIL a method is one step as long as it runs no bytecode.

`Latch` is the one-way latch of other libraries: it closes once and stays closed. `Slot` has room for one object.
"""

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from posix.time cimport timespec

from omq._core.clock cimport FIRST_SLEEP_NS, MAX_SLEEP_NS, now_ns, seconds
from omq._core.lock cimport sem_destroy, sem_init, sem_post, sem_t, sem_wait_until
from omq._core.switch_interval cimport restore, shorten


@cython.final
cdef class Latch:
    """A one-way event: it happens once and stays, like a latch that has closed.

    Attributes:
        is_set: Whether it has happened.
    """

    def __cinit__(self):
        sem_init(&self._wake, 0, 0)

    def __dealloc__(self):
        sem_destroy(&self._wake)

    def set(self) -> None:
        """Marks the event as happened. Idempotent."""
        cdef int _
        self.is_set = True
        for _ in range(self._waiters):
            sem_post(&self._wake)

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until it has happened; signal handlers run meanwhile, may raise, and may wait here themselves.

        Args:
            timeout: Seconds; `None` for ever.

        Returns:
            Whether it has happened.
        """
        cdef long long now, until
        cdef long long nap = FIRST_SLEEP_NS
        cdef long long deadline = 0x7fffffffffffffff
        cdef double timeout_s
        cdef bint hurries = False
        cdef timespec when
        timeout = seconds(timeout)
        if timeout is not None:
            timeout_s = timeout
            deadline = now_ns() + <long long>(timeout_s * 1e9)
        self._waiters += 1
        try:
            while not self.is_set:
                PyErr_CheckSignals()
                now = now_ns()
                if self.is_set or now >= deadline:
                    break
                until = min(now + nap, deadline)
                if nap == FIRST_SLEEP_NS:
                    hurries = True
                    shorten()  # another thread needs the GIL to set the latch
                elif hurries:
                    hurries = False
                    restore()
                nap = min(2 * nap, <long long>MAX_SLEEP_NS)
                when.tv_sec = until // 1000000000
                when.tv_nsec = until % 1000000000
                with nogil:
                    sem_wait_until(&self._wake, &when)
            return self.is_set
        finally:
            self._waiters -= 1
            if hurries:
                restore()


# stub: _T = TypeVar("_T")
# stub: class Slot(Generic[_T]):
@cython.final
cdef class Slot:
    """A place for one value, which is exchanged in one step (compare and swap).

    Attributes:
        value: The current value.
    """
    # stub: value: _T | None

    def put(self, value: _T | None, instead: _T | None) -> _T | None:
        """Compare-and-swap: stores *value* if *instead* is stored; returns the value that is stored afterwards."""
        if self.value is instead:
            self.value = value
        return self.value
