"""A call that is made when an object is gone for good.

`__del__` comes too early: where objects that name each other are dropped together, all of them are told before anybody
knows which of them one of those calls has brought back to life. So does the callback of a weak reference.
"""

cimport cython


@cython.final
@cython.no_gc
cdef class OnRelease:
    """Calls a function when the last reference to this object is dropped; to be held by nobody but one owner.

    Args:
        function: Is called without arguments, in whatever thread; what it raises is printed. It must not lead to the
            owner, who would never be released.
    """

    def __init__(self, function not None: Callable[[], object]) -> None:
        self._function = function

    def cancel(self) -> None:
        """Has nothing called any more."""
        self._function = None

    def __dealloc__(self):
        if self._function is not None:
            self._function()
