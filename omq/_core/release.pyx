"""A call that is made when an object is gone for good.

`__del__` comes too early: if objects that refer to each other are dropped together, all are finalized before it is
known which of them a finalizer has resurrected. The callback of a weak reference is too early, too.
"""

cimport cython


@cython.final
@cython.no_gc
cdef class OnRelease:
    """Calls a function when the last reference to this object is dropped; only one owner may hold it.

    Args:
        function: Called without arguments, in any thread; its exception is printed. It must not refer to the
            owner, which would never be released.
    """

    def __init__(self, function not None: Callable[[], object]) -> None:
        self._function = function

    def cancel(self) -> None:
        """Cancels the call."""
        self._function = None

    def __dealloc__(self):
        if self._function is not None:
            self._function()
