# The data that users pass to `send`, as memory.

from cpython.buffer cimport Py_buffer

from omq._core.wire.send_buffer cimport STACK_PARTS, Part


cdef struct Parts:
    Part *parts              # owned memory if `count` is above STACK_PARTS
    Py_buffer *views
    bint *held               # by part: its view must be released
    Py_ssize_t count         # parts
    Py_ssize_t opened        # parts opened so far, to be closed
    void *keep               # the sequence that the parts are borrowed from; strong reference
    Part few_parts[STACK_PARTS]
    Py_buffer few_views[STACK_PARTS]
    bint few_held[STACK_PARTS]


cdef int open_part(object data, Part *part, Py_buffer *view) except -1
cdef tuple parts_of(object data)
cdef int open_parts(Parts *parts, object data, bint several) except -1
cdef void close_parts(Parts *parts)
cdef int refuse_several(str name, Py_ssize_t count) except -1
cdef int open_target(str name, object buffer, Py_buffer *view) except -1
cdef list messages_of(object messages)
cdef str short(object value)
