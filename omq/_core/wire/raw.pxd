# The traffic of a connection whose peer does not use ZMTP.

cimport cython

from omq._core.wire.codec cimport Codec


@cython.final
cdef class RawCodec(Codec):
    pass
