"""Memory that its sender lends: batches and queues keep it by reference, whatever object has it."""

cimport cython
from cpython.buffer cimport PyBUF_ANY_CONTIGUOUS, PyBuffer_Release, PyObject_GetBuffer

#: The loans in force: their events, or None, by number.
# stub: loans: dict[int, Any]
loans = {}


@cython.final
@cython.no_gc_clear  # its end needs the attributes
cdef class Loan:
    """Memory of the caller until the last reference to this object is gone; its content must not change before.

    Args:
        data: The object that has the memory.
        event: Set at the end of the loan; `None` for no event.
    """

    def __init__(self, data: object, event: object) -> None:
        PyObject_GetBuffer(data, &self.view, PyBUF_ANY_CONTIGUOUS)
        self._opened = True
        self._event = event
        self._key = id(self)
        loans[self._key] = event

    def __dealloc__(self):
        if self._opened:
            PyBuffer_Release(&self.view)
            loans.pop(self._key, None)
            if self._event is not None:
                self._event.set()
