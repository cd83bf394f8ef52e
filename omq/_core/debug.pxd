# Measurements of a build with OMQ_DEBUG=1.


cdef class Allocations:
    cdef bint _counting
    cdef readonly long long calls    # malloc, calloc and realloc, until `stop`
