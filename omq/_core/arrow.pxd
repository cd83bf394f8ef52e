# The layout of Apache Arrow's columns.

cdef enum:
    MAX_OFFSET = 2147483647  # the largest offset in a column of binary values, in bytes
