# The inproc names of a context.

cimport cython


@cython.final
cdef class Names:
    cdef dict _bound                 # name to its listener
    cdef dict _open                  # the same, for listeners that accept
    cdef dict _waiting               # name to a list of the diallers that wait for it
