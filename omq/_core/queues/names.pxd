# The inproc names of a context.

cimport cython


@cython.final
cdef class Names:
    cdef dict _bound                 # name: its listener
    cdef dict _open                  # the same, of those that accept
    cdef dict _waiting               # name: a list of the diallers that wait for it
