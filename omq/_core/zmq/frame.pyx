"""The memory of a frame of the pyzmq face: received, copied, or lent by the caller."""

from cpython.buffer cimport PyBUF_ANY_CONTIGUOUS, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject

from omq._core.wire.loan cimport Loan

from weakref import ref

from omq._core.calls.description import snapshot

cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(PyObject *)

cdef class FrameData:
    """The content of a frame, and what is known of its sender."""

    def _copy_from(self, data: object) -> None:
        """Copies the memory of an object."""
        cdef Py_buffer view
        PyObject_GetBuffer(data, &view, PyBUF_ANY_CONTIGUOUS)
        try:
            self._content = PyBytes_FromStringAndSize(<char *>view.buf, view.len)
        finally:
            PyBuffer_Release(&view)

    def _lend(self, data: object, event: object, tracker: object) -> None:
        """Shares the memory of an object until the last frame that does is gone; then sets *event*, if any."""
        self._loan = Loan(data, event)
        self._data = data
        self.tracker_event = event
        self.tracker = tracker

    def _share(self, FrameData other not None) -> None:
        """Shares the content and the properties of another frame."""
        self._data = other._data
        self._loan = other._loan
        self._content = other._content
        self._exported = other._exported
        self.tracker = other.tracker
        self.tracker_event = other.tracker_event
        self._group = other._group
        self._routing_id = other._routing_id
        self._session = other._session

    cdef int receive(self, bytes content, bint more) except -1:
        """Holds a received part."""
        self._content = content
        self.more = more
        return 0

    cdef int describe(self, object session, object group, object routing_id) except -1:
        """Notes the sender of a received part."""
        self._session = session
        self._group = group
        self._routing_id = routing_id
        return 0

    cdef object payload(self):
        """Returns the object for a socket to send: it is borrowed if it is lent, or cannot change."""
        if self._loan is not None:
            return self._loan
        return self if self._exported else (self._content or b"")

    @property
    def _payload(self) -> object:
        return self.payload()

    @property
    def _peer(self) -> object:
        """A snapshot of the sender; `None` if the frame was not received."""
        return None if self._session is None else snapshot(self._session)

    @property
    def _peer_address(self) -> str:
        return getattr(self._session, "remote_address", "")

    @property
    def _is_shared(self) -> bool:
        return self._loan is not None

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        cdef bint writable
        if self._loan is not None:
            buffer.buf = self._loan.view.buf
            buffer.len = self._loan.view.len
            writable = not self._loan.view.readonly
        else:
            if self._content is None:
                self._content = b""
            buffer.buf = PyBytes_AS_STRING(self._content)
            buffer.len = PyBytes_GET_SIZE(self._content)
            # Only memory that nothing else has. Objects of one byte, or none, are shared by the whole interpreter.
            writable = buffer.len > 1 and (self._exported or Py_REFCNT(<PyObject *>self._content) == 1)
            self._exported = writable
        if flags & PyBUF_WRITABLE == PyBUF_WRITABLE and not writable:
            raise BufferError("the frame is read-only: its memory has other users")
        buffer.obj = self
        buffer.readonly = not writable
        buffer.format = "B"
        buffer.ndim = 1
        buffer.itemsize = 1
        buffer.shape = &buffer.len
        buffer.strides = &buffer.itemsize
        buffer.suboffsets = NULL
        buffer.internal = NULL

    def __len__(self):
        if self._loan is not None:
            return self._loan.view.len
        return 0 if self._content is None else PyBytes_GET_SIZE(self._content)

    @property
    def buffer(self) -> memoryview:
        """A view of the content."""
        view = self._view and self._view()
        if view is None:
            view = memoryview(self)
            self._view = ref(view)
        return view

    @property
    def bytes(self) -> bytes:
        """The content."""
        if self._loan is None and not self._exported:
            return self._content or b""
        if type(self._data) is bytes:
            return self._data
        if self._copied is None:
            self._copied = memoryview(self).tobytes()
        return self._copied
