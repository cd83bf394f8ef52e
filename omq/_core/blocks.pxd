"""The message type that blocks are decoded to, and the functions that the rest of the core uses on records."""

from libc.stdint cimport uint32_t, uint64_t, uint8_t


cdef enum:
    HEADER_BYTES = 32
    EMPTY_RECORD_BYTES = 9  # bytes of an empty record: size, checksum, flags
    HAS_KEY = 1
    HAS_HEADERS = 2
    RELEASE_GIL_BYTES = 1048576  # a call on more bytes, some 50 us of work, releases the GIL
    VALID = 0  # the record is valid


cdef struct Record:
    size_t whole  # bytes of the whole record
    const uint8_t *key  # NULL: no key
    size_t key_size
    const uint8_t *headers  # starts with their number; NULL: no headers
    size_t headers_size
    const uint8_t *body
    size_t body_size


cdef int parse(const uint8_t *at, size_t left, Record *out) noexcept nogil

cdef int raise_fault(int fault, size_t index) except -1

cdef uint32_t checksum(const uint8_t *at, size_t size) noexcept nogil

cdef bint is_utf8(const uint8_t *at, size_t size) noexcept nogil


cdef class Message:
    cdef readonly uint64_t id  # in its topic, from 1
    cdef readonly str topic
    cdef readonly bytes body
    cdef readonly bytes key  # None: no key
    cdef bytes _headers  # as encoded in the record; None: no headers
    cdef uint64_t _timestamp  # microseconds since 1970
