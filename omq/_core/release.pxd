# A call that is made when an object is gone for good.

cimport cython


@cython.final
cdef class OnRelease:
    cdef object _function            # must not refer back to the owner: the garbage collector does not see it
