"""The message type that blocks are decoded to, and what reads and writes records elsewhere in the core."""

from libc.stdint cimport uint32_t, uint64_t, uint8_t


cdef enum:
    HEADER_BYTES = 32
    PREFIX = 9  # bytes of a record that has nothing in it: size, checksum, flags
    HAS_KEY = 1
    HAS_HEADERS = 2
    ALONE = 1048576  # bytes: above this, some 50 us, the GIL is released
    WELL = 0  # nothing is wrong with a record


cdef struct Record:
    size_t whole  # bytes of all of it
    const uint8_t *key  # NULL: none
    size_t key_size
    const uint8_t *headers  # their number first; NULL: none
    size_t headers_size
    const uint8_t *body
    size_t body_size


cdef int parse(const uint8_t *at, size_t left, Record *out) noexcept nogil

cdef int complain(int fault, size_t index) except -1

cdef uint32_t checksum(const uint8_t *at, size_t size) noexcept nogil

cdef bint is_utf8(const uint8_t *at, size_t size) noexcept nogil


cdef class Message:
    cdef readonly uint64_t id  # in its topic, from 1
    cdef readonly str topic
    cdef readonly bytes body
    cdef readonly bytes key  # None: none
    cdef bytes _headers  # as they stand in a record; None: none
    cdef uint64_t _timestamp  # microseconds since 1970
