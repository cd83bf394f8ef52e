# A shorter switch interval while threads wait for the I/O thread.

cdef int shorten() except -1
cdef int restore() except -1
cpdef int reset() except -1
