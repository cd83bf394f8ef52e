"""What users hand to `send`: bytes are borrowed, any other contiguous buffer is used within the call."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.memoryview cimport PyMemoryView_Check
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdlib cimport free, malloc

from omq.errors import MultipartError


cdef str short(object value):
    cdef str text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


cdef int open_part(object data, Part *part, Py_buffer *view) except -1:
    """Points *part* at the content of *data*; 1 if *view* is held and must be released."""
    if type(data) is bytes:
        part.data = PyBytes_AS_STRING(data)
        part.size = PyBytes_GET_SIZE(data)
        part.owner = <PyObject *>data
        return 0
    try:
        PyObject_GetBuffer(data, view, PyBUF_SIMPLE)
    except (BufferError, TypeError):
        raise TypeError(
            f"a part is bytes or another contiguous buffer, not {type(data).__name__}: {short(data)}"
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
    if isinstance(data, (bytes, bytearray, memoryview, str)):
        raise TypeError(f"a message is a sequence of parts, not {type(data).__name__}")
    sequence = data if type(data) is tuple else tuple(data)
    parts.count = len(sequence)
    if parts.count == 0:
        raise ValueError("a message has at least one part")
    if parts.count > FEW_PARTS:
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
    """Says that a message has too many parts."""
    raise MultipartError(f"a {name} socket sends messages of one part, and this one has {count}")


cdef int open_target(object buffer, Py_buffer *view) except -1:
    """Opens the buffer that a message is to be received into; *view* must be released."""
    try:
        PyObject_GetBuffer(buffer, view, PyBUF_WRITABLE)
    except (BufferError, TypeError):
        raise TypeError(
            f"a message is received into a writable contiguous buffer, not {type(buffer).__name__}: {short(buffer)}"
        ) from None
    return 0
