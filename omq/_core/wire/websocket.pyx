"""ZMTP's frames in those of a WebSocket: each is one binary message whose first byte has the flags (RFC 45)."""

# stub: BINARY: int
# stub: CLOSE: int
# stub: PING: int
# stub: PONG: int

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint64_t
from libc.string cimport memcmp, memcpy

from omq._core.wire.codec cimport FLAG_OWN, FLAGS_UNKNOWN, MAX_GLANCE_BYTES, NO_GIL_BYTES, Codec, WireFrame, leave_plain
from omq._core.wire.crypto cimport SEALED_COMMAND, SEALED_EXTRA, SEALED_FLAGS, SEALED_MORE, SEALED_ROOM, CurveCipher
from omq._core.wire.framing cimport FLAG_COMMAND, FLAG_MORE, PING_BYTES, PONG_BYTES, Header, parse_header

from omq._core.wire.framing import encode_frame
from omq.errors import LocalProtocolError, RemoteProtocolError

cdef extern from "sys/random.h":
    Py_ssize_t getrandom(void *into, size_t size, unsigned int flags) noexcept nogil

cdef enum:
    # Opcodes (RFC 6455, 5.2).
    OPCODE_BINARY = 2
    OPCODE_CLOSE = 8
    OPCODE_PING = 9
    OPCODE_PONG = 10

cdef enum:
    # Statuses of CLOSE (RFC 6455, 7.4.1).
    NORMAL = 1000
    PROTOCOL_ERROR = 1002
    BAD_TEXT = 1007  # data does not match its type

cdef enum:
    FINAL = 0x80
    MASKED = 0x80
    ZWS_MORE = 1            # flags (RFC 45)
    ZWS_COMMAND = 2
    MAX_HEADER_BYTES = 15   # bytes of header, mask and flags at most
    GROWTH_BYTES = 1 << 15  # the shortest frame has three bytes, and grows by one: a quarter of a block
    PORTION_BYTES = 8192    # of one read, if frames grow: the bytes after a frame move each time

cdef enum:
    # Reasons to reject a frame.
    CLOSED = -101    # the peer has closed the WebSocket
    BAD_MASK = -102  # a mask from a server, or none from a client
    BAD_BITS = -103  # reserved bits are set
    BAD_FRAGMENT = -104
    BAD_OPCODE = -105
    BAD_SIZE = -106
    BAD_FLAGS = -107

BINARY = OPCODE_BINARY
CLOSE = OPCODE_CLOSE
PING = OPCODE_PING
PONG = OPCODE_PONG


cdef bytes answering_status(bytes asked):
    """Returns the status that answers a CLOSE: the peer's own, or one for the error in its CLOSE."""
    if not asked:
        return b""
    status = int.from_bytes(asked[:2], "big")
    # RFC 6455, 7.4.1 and 7.4.2: the others are reserved, or never on the wire.
    if not (1000 <= status <= 1003 or 1007 <= status <= 1014 or 3000 <= status <= 4999):
        status = PROTOCOL_ERROR
    try:
        asked[2:].decode()  # RFC 6455, 5.5.1: the reason is UTF-8
    except UnicodeDecodeError:
        status = BAD_TEXT
    return status.to_bytes(2, "big")


cdef inline void apply_mask(unsigned char *into, const unsigned char *data, Py_ssize_t size, const unsigned char *mask,
                     Py_ssize_t begin) noexcept nogil:
    """XORs *size* bytes with a mask of 4 bytes (RFC 6455, 5.3); *into* may be *data*.

    *begin*: offset of the first byte in the payload of its frame.
    """
    cdef unsigned char wide[8]
    cdef uint64_t word, eight
    cdef Py_ssize_t i
    for i in range(8):
        wide[i] = mask[(begin + i) & 3]
    memcpy(&word, wide, 8)
    i = 0
    while i + 8 <= size:
        memcpy(&eight, data + i, 8)
        eight ^= word
        memcpy(into + i, &eight, 8)
        i += 8
    while i < size:
        into[i] = data[i] ^ wide[i & 7]
        i += 1


cdef inline int write_web_header(unsigned char *p, int opcode, Py_ssize_t size, int masked) noexcept nogil:
    """Writes the header up to the mask, which is not written; returns its size in bytes."""
    cdef int i
    p[0] = <unsigned char>(FINAL | opcode)
    if size < 126:
        p[1] = <unsigned char>(masked | size)
        return 2
    if size < 1 << 16:
        p[1] = <unsigned char>(masked | 126)
        p[2] = <unsigned char>(size >> 8)
        p[3] = <unsigned char>size
        return 4
    p[1] = <unsigned char>(masked | 127)
    for i in range(8):
        p[2 + i] = <unsigned char>(<uint64_t>size >> (56 - 8 * i))
    return 10


cdef inline int zws_flags(int flags) noexcept nogil:
    return (ZWS_MORE if flags & FLAG_MORE else 0) | (ZWS_COMMAND if flags & FLAG_COMMAND else 0)


@cython.final
@cython.auto_pickle(False)
cdef class WebSocketCodec(Codec):
    """The frames of one WebSocket.

    A heartbeat's PING and PONG are the WebSocket's own, outside of encryption, as libzmq has them: every peer answers a
    PING (RFC 6455, 5.5.2). The body of ZMTP's PING is the payload, so that a time to live gets through to one of ours.

    Args:
        as_client: Whether this side has dialled: then it masks its frames (RFC 6455, 5.3).
    """

    def __init__(self, *, bint as_client) -> None:
        self.overhead = MAX_HEADER_BYTES
        self.growth = GROWTH_BYTES
        self.borrows = not as_client
        self.portion = PORTION_BYTES if as_client else 0
        self._as_client = as_client
        self._asked_size = -1

    def encrypt_with(self, CurveCipher cipher: CurveCipher | None) -> None:
        """Encrypts the payload of all later messages and commands; `None` leaves them in plaintext."""
        self._cipher = cipher
        if cipher is not None:
            self.overhead = MAX_HEADER_BYTES + SEALED_EXTRA + SEALED_ROOM
            self.sight = SEALED_EXTRA
            self.borrows = False

    # ------------------------------------------------------------------ out

    cdef int _next_mask(self, unsigned char *mask) noexcept nogil:
        """Takes a mask that the peer's network cannot predict (RFC 6455, 5.3); returns -1 if the system gives none."""
        if self._masks_left == 0:
            if getrandom(self._masks, MASK_POOL_BYTES, 0) != MASK_POOL_BYTES:
                self._no_masks = True
                return -1
            self._masks_left = MASK_POOL_BYTES
        self._masks_left -= MASK_BYTES
        memcpy(mask, self._masks + self._masks_left, MASK_BYTES)
        return 0

    cdef Py_ssize_t encode(self, unsigned char *into, int flags, const char *payload, Py_ssize_t size) noexcept nogil:
        cdef unsigned char pong[MAX_CONTROL_BYTES]
        cdef unsigned char *p
        cdef unsigned char *mask
        cdef int opcode = OPCODE_BINARY, prefix = 1, inside
        cdef int masked = MASKED if self._as_client else 0
        cdef Py_ssize_t extra = 0 if self._cipher is None else SEALED_EXTRA
        if flags & FLAG_COMMAND and size >= 2:
            if payload[0] == 0:
                opcode = payload[1]  # a frame of the WebSocket's own: see `answer`
                payload += 2
                size -= 2
            elif size >= PING_BYTES and memcmp(payload, b"\4PING", 5) == 0:
                opcode = OPCODE_PING
            elif PONG_BYTES <= size <= MAX_CONTROL_BYTES - 2 and memcmp(payload, b"\4PONG", 5) == 0:
                # RFC 6455, 5.5.3: a PONG has the PING's payload. The time to live, if there was one, is unknown here.
                memcpy(pong, b"\4PING\0\0", PING_BYTES)
                memcpy(pong + PING_BYTES, payload + PONG_BYTES, size - PONG_BYTES)
                opcode = OPCODE_PONG
                payload = <const char *>pong
                size += PING_BYTES - PONG_BYTES
            if opcode != OPCODE_BINARY:
                prefix = 0
                extra = 0
        p = into + write_web_header(into, opcode, size + prefix + extra, masked)
        mask = p
        if masked:
            if self._next_mask(mask) < 0:
                return -1
            p += MASK_BYTES
        if extra:
            # libzmq has the flags of a sealed frame inside of it, and none outside; the RFC calls MESSAGE a command.
            p[0] = 0
            inside = (SEALED_MORE if flags & FLAG_MORE else 0) | (SEALED_COMMAND if flags & FLAG_COMMAND else 0)
            if self._cipher.seal_frame(p + 1, inside, payload, size) < 0:
                return -1
            size += extra
            if masked:
                apply_mask(p, p, size + 1, mask, 0)
        else:
            if prefix:
                p[0] = <unsigned char>zws_flags(flags)
            if masked:
                if prefix:
                    p[0] ^= mask[0]
                apply_mask(p + prefix, <const unsigned char *>payload, size, mask, prefix)
            elif size:
                memcpy(p + prefix, payload, size)
        return (p - into) + prefix + size

    cdef Py_ssize_t head(self, unsigned char *into, int flags, Py_ssize_t size) noexcept nogil:
        cdef int length = write_web_header(into, OPCODE_BINARY, size + 1, 0)
        into[length] = <unsigned char>zws_flags(flags)
        return length + 1

    cdef object exhausted(self):
        if self._no_masks:
            return LocalProtocolError("the system gave no random bytes for a mask (RFC 6455, 5.3)")
        return None if self._cipher is None else self._cipher.exhausted()

    cdef bytes closing_frame(self, bint failed):
        # RFC 6455, 7.1.1: an endpoint closes a WebSocket with CLOSE, and a status (7.4.1).
        if self._closed:
            return None
        return encode_frame(bytes([0, OPCODE_CLOSE]) + (PROTOCOL_ERROR if failed else NORMAL).to_bytes(2, "big"), command=True)

    cdef int measure_own(self, const unsigned char *p, Py_ssize_t available, WireFrame *frame) noexcept nogil:
        return self._parse(p, available, self._as_client, frame)

    cdef bytes reopen(self, const unsigned char *p, const WireFrame *frame, int *flags):
        cdef bytes body = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>frame.size)
        cdef unsigned char *into = <unsigned char *>PyBytes_AS_STRING(body)
        cdef WireFrame sealed = frame[0]
        cdef bint opened = self._unmask(p, frame, <Py_ssize_t>frame.size, into)
        if not opened:
            flags[0] = frame.flags
            return body
        sealed.length = 0
        return self._cipher.reopen(into, &sealed, flags)

    # ------------------------------------------------------------------ in

    cdef int _parse(self, const unsigned char *p, Py_ssize_t available, bint masked, WireFrame *frame) noexcept nogil:
        """Measures a frame of the side that masks its frames, or of the other one; returns the same as `measure`."""
        cdef uint64_t size
        cdef int opcode, wide, length, flags, i
        cdef bint data
        if available < 2:
            return 0
        opcode = p[0] & 0xF
        data = opcode == OPCODE_BINARY
        size = p[1] & 0x7F
        if opcode == 0 or not p[0] & FINAL:
            return BAD_FRAGMENT
        if p[0] & 0x70:
            return BAD_BITS
        if not data and not OPCODE_CLOSE <= opcode <= OPCODE_PONG:
            return BAD_OPCODE
        if (p[1] & MASKED != 0) != masked:
            return BAD_MASK
        if not data and (size > MAX_CONTROL_BYTES or (opcode == OPCODE_CLOSE and size == 1)):
            return BAD_SIZE
        wide = 2 if size == 126 else 8 if size == 127 else 0
        length = 2 + wide + (MASK_BYTES if masked else 0) + data
        if wide == 8 and available >= 3 and p[2] & 0x80:
            return BAD_SIZE  # RFC 6455, 5.2: the most significant bit is 0
        if data and size == 0:
            return BAD_SIZE  # no flags
        if wide and available >= 2 + wide:
            size = 0
            for i in range(wide):
                size = (size << 8) | p[2 + i]
            if size < (126 if wide == 2 else 1 << 16):
                return BAD_SIZE  # RFC 6455, 5.2: the minimal number of bytes
        if available < length:
            return 0
        frame.length = length
        frame.size = size - data
        frame.payload = frame.size
        frame.as_is = not masked
        frame.flags = FLAG_COMMAND | FLAG_OWN
        if data:
            flags = p[length - 1]
            if masked:
                flags ^= p[2 + wide]
            if flags > ZWS_COMMAND:
                return BAD_FLAGS
            frame.flags = FLAG_COMMAND if flags & ZWS_COMMAND else FLAG_MORE if flags & ZWS_MORE else 0
            if self._cipher is not None:
                if flags & ZWS_MORE or frame.size < SEALED_EXTRA:
                    return BAD_FLAGS
                frame.payload = frame.size - SEALED_EXTRA
                frame.flags = FLAGS_UNKNOWN
                frame.as_is = False
        return 1

    cdef int _unmask(self, const unsigned char *p, const WireFrame *frame, Py_ssize_t size, unsigned char *into) noexcept nogil:
        """Copies the first *size* bytes after a frame's header without their mask.

        Returns:
            Whether they are still sealed.
        """
        cdef bint data = p[0] & 0xF == OPCODE_BINARY
        if p[1] & MASKED:
            apply_mask(into, p + frame.length, size, p + frame.length - data - MASK_BYTES, data)
        else:
            memcpy(into, p + frame.length, size)
        return data and self._cipher is not None

    cdef int measure(self, const unsigned char *p, Py_ssize_t available, WireFrame *frame) noexcept nogil:
        if self._closed:
            return CLOSED
        return self._parse(p, available, not self._as_client, frame)

    cdef int decode(self, unsigned char *p, Py_ssize_t available, WireFrame *frame) noexcept nogil:
        cdef unsigned char *payload = p + frame.length
        cdef Py_ssize_t size = <Py_ssize_t>frame.size
        cdef int opcode = p[0] & 0xF
        cdef bint data = opcode == OPCODE_BINARY
        cdef int flags = frame.flags, inside
        if p[1] & MASKED:
            apply_mask(payload, payload, size, payload - data - MASK_BYTES, data)
        if data and self._cipher is not None:
            inside = self._cipher.open_frame(payload, size, available - frame.length, payload + SEALED_FLAGS)
            if inside < 0:
                return inside
            flags = FLAG_COMMAND if inside & SEALED_COMMAND else FLAG_MORE if inside & SEALED_MORE else 0
            payload += SEALED_EXTRA
            size -= SEALED_EXTRA
        elif opcode == OPCODE_PING and size >= PING_BYTES and memcmp(payload, b"\4PING", 5) == 0:
            flags = FLAG_COMMAND
        elif opcode == OPCODE_PING or opcode == OPCODE_CLOSE:
            memcpy(self._asked, payload, size)
            self._asked_size = <int>size
            self._asked_opcode = OPCODE_CLOSE if opcode == OPCODE_CLOSE else OPCODE_PONG
            self._closed = opcode == OPCODE_CLOSE
            size = 0
        elif not data:
            size = 0  # PONG
        leave_plain(p, available, payload, size, flags, frame)
        return flags

    cdef void begin_large(self, const unsigned char *p, Py_ssize_t length) noexcept nogil:
        cdef WireFrame frame
        frame.flags = 0
        self._parse(p, length, not self._as_client, &frame)  # as `measure` did: it is good
        self._flags = frame.flags
        if not self._as_client:
            memcpy(self._mask, p + length - 1 - MASK_BYTES, MASK_BYTES)

    cdef bytes finish(self, bytes body, int *found):
        cdef unsigned char *p = <unsigned char *>PyBytes_AS_STRING(body)
        cdef Py_ssize_t size = PyBytes_GET_SIZE(body)
        if self._as_client:
            pass
        elif size > NO_GIL_BYTES:
            with nogil:
                apply_mask(p, p, size, self._mask, 1)
        else:
            apply_mask(p, p, size, self._mask, 1)
        if self._cipher is not None:
            return self._cipher.finish(body, found)
        found[0] = self._flags
        return body

    cdef int glance(self, const unsigned char *p, const WireFrame *frame, unsigned char *into) noexcept nogil:
        cdef unsigned char body[MAX_GLANCE_BYTES + SEALED_EXTRA]
        cdef WireFrame sealed = frame[0]
        if self._unmask(p, frame, <Py_ssize_t>frame.size, body):
            sealed.length = 0
            return self._cipher.glance(body, &sealed, into)
        memcpy(into, body, <size_t>frame.payload)
        return FLAG_COMMAND if p[0] & 0xF == OPCODE_PING else frame.flags

    cdef int flags_of(self, const unsigned char *p, const WireFrame *frame) noexcept nogil:
        cdef unsigned char body[SEALED_EXTRA]
        cdef WireFrame sealed = frame[0]
        if frame.flags != FLAGS_UNKNOWN:
            return frame.flags
        self._unmask(p, frame, SEALED_EXTRA, body)
        sealed.length = 0
        return self._cipher.flags_of(body, &sealed)

    cdef object answer(self):
        cdef int size = self._asked_size
        if size < 0:
            return None
        self._asked_size = -1
        # RFC 6455, 5.5.1 and 5.5.3: a PONG has the PING's payload, and a CLOSE that answers one repeats its status.
        payload = PyBytes_FromStringAndSize(<const char *>self._asked, size)
        if self._asked_opcode == OPCODE_CLOSE:
            payload = answering_status(payload)
        return encode_frame(bytes([0, self._asked_opcode]) + payload, command=True)

    cdef object explain(self, int found):
        if found == CLOSED:
            return None
        if found > CLOSED:
            return self._cipher.explain(found)
        return RemoteProtocolError({
            BAD_MASK: "a WebSocket frame with a mask from a server, or without one from a client (RFC 6455, 5.1)",
            BAD_BITS: "a WebSocket frame with reserved bits: compression was not negotiated (RFC 6455, 5.2)",
            BAD_FRAGMENT: "a fragment of a WebSocket message: a frame of ZMTP is one frame of the WebSocket here (RFC 45)",
            BAD_OPCODE: "a WebSocket frame that is neither binary nor a control frame (RFC 45)",
            BAD_SIZE: "a WebSocket frame whose size is not allowed (RFC 6455, 5.2 and 5.5)",
            BAD_FLAGS: "a WebSocket frame with reserved ZMTP flags (RFC 45)",
        }[found])

    # ------------------------------------------------------------------ for Python

    def wrap(self, bytes frames not None) -> bytes:
        """Returns the WebSocket frames of plain ZMTP frames, which are whole."""
        cdef const unsigned char *p = <const unsigned char *>PyBytes_AS_STRING(frames)
        cdef Py_ssize_t left = PyBytes_GET_SIZE(frames), length
        cdef bytes frame
        cdef list wrapped = []
        cdef Header header
        while left:
            if parse_header(p, left, &header) != 1 or header.size > <uint64_t>(left - header.length):
                raise ValueError(frames)
            frame = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>header.size + self.overhead)
            length = self.encode(<unsigned char *>PyBytes_AS_STRING(frame), header.flags, <const char *>p + header.length,
                                 <Py_ssize_t>header.size)
            if length < 0:
                raise self.exhausted()
            wrapped.append(frame[:length])
            p += header.length + <Py_ssize_t>header.size
            left -= header.length + <Py_ssize_t>header.size
        return b"".join(wrapped)

    def unwrap(self, bytes data not None, Py_ssize_t limit) -> tuple[int, int, bytes, int] | None:
        """Takes one frame from the beginning of *data*, before anything is encrypted.

        Args:
            data: The bytes that have arrived.
            limit: Bytes of payload that are allowed.

        Returns:
            Opcode, ZMTP flags, payload, and the size of the frame in bytes; `None` while the frame is not whole.

        Raises:
            RemoteProtocolError: The bytes are not a valid frame, or the frame is too large.
        """
        cdef const unsigned char *p = <const unsigned char *>PyBytes_AS_STRING(data)
        cdef WireFrame frame
        cdef int state = self._parse(p, PyBytes_GET_SIZE(data), not self._as_client, &frame)
        cdef bytes body
        if state < 0:
            raise self.explain(state)
        if state == 0:
            return None
        if frame.size > <uint64_t>limit:
            raise RemoteProtocolError(
                f"a WebSocket frame in the handshake has {frame.size} bytes, more than the {limit} allowed"
            )
        if frame.size > <uint64_t>(PyBytes_GET_SIZE(data) - frame.length):
            return None
        body = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>frame.size)
        self._unmask(p, &frame, <Py_ssize_t>frame.size, <unsigned char *>PyBytes_AS_STRING(body))
        return p[0] & 0xF, frame.flags & ~FLAG_OWN, body, frame.length + <Py_ssize_t>frame.size
