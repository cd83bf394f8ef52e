# Memory that its sender lends, and the bodies of messages that wait.

cimport cython
from cpython.buffer cimport Py_buffer
from cpython.object cimport PyObject

cdef extern from "Python.h" nogil:
    # Macros that only read constant fields.
    bint PyBytes_CheckExact(PyObject *)
    const char *bytes_data "PyBytes_AS_STRING"(PyObject *)
    Py_ssize_t bytes_size "PyBytes_GET_SIZE"(PyObject *)


@cython.final
cdef class Loan:
    cdef object __weakref__
    cdef Py_buffer view
    cdef bint _opened
    cdef object _event
    cdef object _key


# A body that waits is `bytes` or a `Loan`.

cdef inline const char *body_data(PyObject *body) noexcept nogil:
    return bytes_data(body) if PyBytes_CheckExact(body) else <const char *>(<Loan>body).view.buf


cdef inline Py_ssize_t body_size(PyObject *body) noexcept nogil:
    return bytes_size(body) if PyBytes_CheckExact(body) else (<Loan>body).view.len
