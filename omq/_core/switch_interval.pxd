# A shorter switch interval while threads wait for the I/O thread.

cpdef int shorten() except -1
cpdef int restore() except -1
cpdef int reset() except -1
