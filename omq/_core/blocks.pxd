"""The message type that blocks are decoded to."""

from libc.stdint cimport uint64_t


cdef class Message:
    cdef readonly uint64_t id  # in its topic, from 1
    cdef readonly str topic
    cdef readonly bytes body
    cdef readonly bytes key  # None: none
    cdef bytes _headers  # as they stand in a record; None: none
    cdef uint64_t _timestamp  # microseconds since 1970
