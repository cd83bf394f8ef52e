# The inproc names of a context.

cimport cython


@cython.final
cdef class Names:
    cdef dict _bound                 # listener by name
    cdef dict _open                  # the same, for listeners that accept
    cdef dict _waiting               # list of waiting diallers by name
