# The frames of a WebSocket (RFC 6455) that carry ZMTP's (RFC 45).

cimport cython

from omq._core.wire.codec cimport Codec, WireFrame
from omq._core.wire.crypto cimport CurveCipher

cdef enum:
    MASK_BYTES = 4           # bytes of a mask
    MASK_POOL_BYTES = 256    # bytes of masks drawn at a time: getrandom is never interrupted up to that
    MAX_CONTROL_BYTES = 125  # largest payload of a control frame (RFC 6455, 5.5)


@cython.final
cdef class WebSocketCodec(Codec):
    cdef bint _as_client              # we mask our frames, and the peer does not
    cdef CurveCipher _cipher          # encrypts the frames' payload; None: plaintext
    cdef unsigned char _mask[MASK_BYTES]    # of the large frame that is being read
    cdef int _flags                   # FLAG_* of that frame
    cdef unsigned char _asked[MAX_CONTROL_BYTES]  # the payload of the peer's last PING or CLOSE, until it is answered
    cdef int _asked_size              # bytes of it; -1: nothing to answer
    cdef int _asked_opcode            # of the answer
    cdef bint _closed                 # the peer has sent CLOSE: nothing follows
    cdef unsigned char _masks[MASK_POOL_BYTES]  # unused bytes for our masks
    cdef int _masks_left              # number of those
    cdef bint _no_masks               # the system gave no bytes: nothing can be sent any more
    cdef int _next_mask(self, unsigned char *mask) noexcept nogil
    cdef int _parse(self, const unsigned char *p, Py_ssize_t available, bint masked, WireFrame *frame) noexcept nogil
    cdef int _unmask(self, const unsigned char *p, const WireFrame *frame, Py_ssize_t size, unsigned char *into) noexcept nogil
