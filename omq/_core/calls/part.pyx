"""The data that users pass to `send`: bytes and loans are borrowed, other contiguous buffers used within the call."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.memoryview cimport PyMemoryView_Check
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdlib cimport free, malloc

from omq._core.wire.loan cimport Loan

from collections.abc import Iterable

from omq.errors import MultipartError


cdef str short(object value):
    cdef str text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


cdef int open_part(object data, Part *part, Py_buffer *view) except -1:
    """Points *part* at the content of *data*; returns 1 if *view* is held and must be released."""
    if type(data) is bytes:
        part.data = PyBytes_AS_STRING(data)
        part.size = PyBytes_GET_SIZE(data)
        part.owner = <PyObject *>data
        return 0
    if type(data) is Loan:
        part.data = <const char *>(<Loan>data).view.buf
        part.size = (<Loan>data).view.len
        part.owner = <PyObject *>data
        return 0
    try:
        if isinstance(data, str):  # NumPy's has a buffer, of UTF-32
            raise TypeError
        PyObject_GetBuffer(data, view, PyBUF_SIMPLE)
    except (BufferError, TypeError, ValueError):  # NumPy raises the last
        raise TypeError(
            f"data={short(data)}: a part must be bytes or another contiguous buffer, not {type(data).__name__}"
        ) from None
    part.data = <const char *>view.buf
    part.size = view.len
    # The content of a view over bytes cannot change: it is borrowed like bytes. Other memory is used within the call.
    part.owner = NULL
    if PyMemoryView_Check(data):
        base = data.obj
        if type(base) is bytes:
            part.owner = <PyObject *>base
    return 1


cdef tuple parts_of(object data):
    """Returns the parts of a message as a tuple."""
    if type(data) is tuple:
        return data
    if type(data) is not list and (
        isinstance(data, (bytes, bytearray, memoryview, str)) or not isinstance(data, Iterable)
    ):
        raise TypeError(f"parts={short(data)}: must be a sequence of parts, not {type(data).__name__}")
    return tuple(data)


cdef int open_parts(Parts *parts, object data, bint several) except -1:
    """Opens a message: *data* is its only part, or a sequence of its parts. `close_parts` must follow."""
    cdef Py_ssize_t i
    parts.parts = parts.few_parts
    parts.views = parts.few_views
    parts.held = parts.few_held
    parts.opened = 0
    parts.keep = NULL
    if not several:
        parts.count = 1
        parts.held[0] = open_part(data, parts.parts, parts.views)
        parts.opened = 1
        return 0
    sequence = parts_of(data)
    parts.count = len(sequence)
    if parts.count == 0:
        raise ValueError(f"parts={short(data)}: a message has at least one part")
    if parts.count > STACK_PARTS:
        parts.parts = <Part *>malloc(parts.count * sizeof(Part))
        parts.views = <Py_buffer *>malloc(parts.count * sizeof(Py_buffer))
        parts.held = <bint *>malloc(parts.count * sizeof(bint))
    try:
        if parts.parts == NULL or parts.views == NULL or parts.held == NULL:
            raise MemoryError()
        for i in range(parts.count):
            parts.held[i] = open_part(sequence[i], parts.parts + i, parts.views + i)
            parts.opened = i + 1
    except BaseException:
        close_parts(parts)
        raise
    Py_INCREF(sequence)
    parts.keep = <void *>sequence
    return 0


cdef list messages_of(object messages):
    """Returns the messages that `send_many` is given as a list."""
    if type(messages) is list:
        return messages
    if isinstance(messages, (bytes, bytearray, memoryview, str)) or not isinstance(messages, Iterable):
        raise TypeError(f"messages={short(messages)}: must be a sequence of messages, not {type(messages).__name__}")
    return list(messages)


cdef void close_parts(Parts *parts):
    cdef Py_ssize_t i
    for i in range(parts.opened):
        if parts.held[i]:
            PyBuffer_Release(parts.views + i)
    parts.opened = 0
    if parts.parts != parts.few_parts:
        free(parts.parts)
        free(parts.views)
        free(parts.held)
        parts.parts = parts.few_parts
    if parts.keep != NULL:
        Py_DECREF(<object>parts.keep)
        parts.keep = NULL


cdef int refuse_several(str name, Py_ssize_t count) except -1:
    """Raises MultipartError: the message has too many parts."""
    raise MultipartError(f"a {name} socket sends messages of one part, and this one has {count}")


cdef int open_target(str name, object buffer, Py_buffer *view) except -1:
    """Opens the buffer for a received message, the argument *name*; *view* must be released."""
    try:
        PyObject_GetBuffer(buffer, view, PyBUF_WRITABLE)
    except (BufferError, TypeError, ValueError):
        raise TypeError(
            f"{name}={short(buffer)}: must be a writable contiguous buffer, not {type(buffer).__name__}"
        ) from None
    return 0
