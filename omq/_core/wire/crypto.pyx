"""libsodium, called in place: secret keys, and the two directions of a CURVE connection.

Every algorithm is libsodium's, in the copy that PyNaCl's compiled module contains: its cffi handle has the functions'
addresses, and this module calls them without Python in between. OMQ_LIBSODIUM may name another copy. Secrets are in the
memory of these objects, and are wiped when the objects are freed.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.stdint cimport uintptr_t
from libc.string cimport memcmp, memcpy, memset

from omq._core.wire.codec cimport FLAGS_UNKNOWN, MAX_GLANCE_BYTES, NO_GIL_BYTES, Codec, WireFrame
from omq._core.wire.framing cimport (
    FLAG_COMMAND,
    FLAG_MORE,
    LONG_HEADER_BYTES,
    SHORT_HEADER_BYTES,
    MAX_SHORT_BYTES,
    Header,
    parse_header,
    write_header,
)

import os

from omq.errors import LocalProtocolError, RemoteProtocolError, UsageError

cdef extern from *:
    """
    /* Through a pointer: for a copy that gcc knows to be small it makes `rep movsq`, which takes 30 ns to begin. */
    static void *(*volatile copy_bytes)(void *, const void *, size_t) = memcpy;
    """
    void *copy_bytes(void *into, const void *data, size_t size) noexcept nogil

cdef enum:
    COUNTER_OFFSET = 16      # offset of the counter in a nonce
    CIPHER_BLOCK_BYTES = 64  # bytes that the cipher makes at a time
    SMALL_BODY_BYTES = 4096  # bytes of a body up to which its box is made in steps
    KEY_CHARACTERS = 40      # characters of a key in Z85


cdef inline void put_counter(unsigned char *p, uint64_t value) noexcept nogil:
    cdef int i
    for i in range(8):
        p[i] = <unsigned char>(value >> (56 - 8 * i))


cdef inline uint64_t get_counter(const unsigned char *p) noexcept nogil:
    cdef int i
    cdef uint64_t value = 0
    for i in range(8):
        value = value << 8 | p[i]
    return value


@cython.final
@cython.auto_pickle(False)
cdef class Sodium:
    """The addresses of libsodium's functions. One object serves all callers."""

    def __init__(self):
        import ctypes

        path = os.environ.get(LIBRARY)
        if path:
            library = self._module = open_library(path)
        else:
            import nacl._sodium as module
            import nacl.bindings  # noqa: F401 - it initialises libsodium

            self._module = module
            library = ctypes.CDLL(module.__file__)

        def address(name):
            if path:
                return ctypes.cast(getattr(library, name), ctypes.c_void_p).value
            return int(module.ffi.cast("uintptr_t", module.ffi.addressof(module.lib, name)))

        self.seal = <box_call><uintptr_t>address("crypto_box_easy_afternm")
        self.open = <box_call><uintptr_t>address("crypto_box_open_easy_afternm")
        self.shared = <multiply_call><uintptr_t>address("crypto_box_beforenm")
        self.public = <base_call><uintptr_t>address("crypto_scalarmult_base")
        self.random = <random_call><uintptr_t>address("randombytes")
        self.wipe = <wipe_call><uintptr_t>address("sodium_memzero")
        try:
            parts = [ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in PARTS]
        except AttributeError:
            return  # whole boxes work as well, in more time
        self.core = <core_call><uintptr_t>parts[0]
        self.stream = <stream_call><uintptr_t>parts[1]
        self.auth = <auth_call><uintptr_t>parts[2]
        self.verify = <verify_call><uintptr_t>parts[3]
        self.stream_from = <stream_from_call><uintptr_t>parts[4]


#: The environment variable that names another libsodium than PyNaCl's.
LIBRARY = "OMQ_LIBSODIUM"


def open_library(path):
    """Opens and initialises a libsodium of the user's choice."""
    import ctypes

    try:
        library = ctypes.CDLL(path)
        started = library.sodium_init()
        library.crypto_box_easy_afternm
    except (OSError, AttributeError) as error:
        raise UsageError(f"{LIBRARY}={path!r}: not a valid libsodium: {error}") from None
    if started < 0:
        raise UsageError(f"{LIBRARY}={path!r}: libsodium cannot be initialised")
    return library


#: Functions that libsodium exports and PyNaCl does not list.
PARTS = (
    "crypto_core_hsalsa20",
    "crypto_stream_salsa20_xor",
    "crypto_onetimeauth_poly1305",
    "crypto_onetimeauth_poly1305_verify",
    "crypto_stream_salsa20_xor_ic",
)

_loaded = []


cdef Sodium sodium():
    # PyNaCl is imported when the first key is made: programs without CURVE do not wait for it.
    if not _loaded:
        _loaded.append(Sodium())
    return <Sodium>_loaded[0]


cdef inline Py_ssize_t padded(Py_ssize_t size) noexcept nogil:
    """Returns how many bytes to encrypt at once: libsodium is quick with 256, and slow block by block."""
    if size <= CIPHER_BLOCK_BYTES or size > SEALED_ROOM:
        return size
    return SEALED_ROOM // 2 if size <= SEALED_ROOM // 2 else SEALED_ROOM


cdef int decode_key(const char *text, unsigned char *key) noexcept nogil:
    """Decodes Z85 without a trace in Python's memory (RFC 32); returns -1 for an invalid character or group."""
    cdef const char *alphabet = (
        b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    )
    cdef uint64_t number
    cdef int group, i, value, bad = 0
    for group in range(KEY_CHARACTERS // 5):
        number = 0
        for i in range(5):
            value = 0
            while value < 85 and alphabet[value] != text[5 * group + i]:
                value += 1
            bad |= value == 85
            number = number * 85 + value
        bad |= (number >> 32) != 0
        for i in range(4):
            key[4 * group + i] = <unsigned char>(number >> (24 - 8 * i))
    return -1 if bad else 0


@cython.final
@cython.no_gc  # the collector would clear the fields that the wiping needs
@cython.auto_pickle(False)
cdef class Secret:
    """32 secret bytes: a secret key, or the shared secret of two keys."""

    def __cinit__(self, key: bytes | str | None = None) -> None:
        cdef const char *text
        cdef Py_ssize_t size
        self._sodium = sodium()
        if key is None:
            self._sodium.random(self._content, KEY_BYTES)
            return
        if isinstance(key, str):
            text = PyUnicode_AsUTF8AndSize(key, &size)
        elif isinstance(key, bytes):
            text = PyBytes_AS_STRING(key)
            size = PyBytes_GET_SIZE(key)
        else:
            raise UsageError(f"secret_key: must be bytes or str, not {type(key).__name__}")
        if size == KEY_BYTES and isinstance(key, bytes):
            memcpy(self._content, text, KEY_BYTES)
        elif size != KEY_CHARACTERS or decode_key(text, self._content) < 0:
            # The text is a secret, or was meant to be one: the message does not repeat it.
            raise UsageError(f"secret_key: must be 32 bytes, or 40 characters of Z85; this {type(key).__name__} is neither")

    def __dealloc__(self):
        if self._sodium is not None:
            self._sodium.wipe(self._content, KEY_BYTES)

    def __reduce__(self):
        raise TypeError("a secret is not pickled or copied")

    def public(self) -> bytes:
        """Returns the public key of this secret key, 32 bytes."""
        cdef bytes key = PyBytes_FromStringAndSize(NULL, KEY_BYTES)
        self._sodium.public(<unsigned char *>PyBytes_AS_STRING(key), self._content)
        return key

    def shared(self, bytes public not None) -> Secret | None:
        """Returns the key that this secret key and the other side's public key make; None for a key of low order."""
        cdef Secret both = Secret()
        if PyBytes_GET_SIZE(public) != KEY_BYTES:
            raise ValueError(PyBytes_GET_SIZE(public))
        # libsodium returns an error when the product is all zero: the other side chose a point that makes it public.
        if self._sodium.shared(both._content, <const unsigned char *>PyBytes_AS_STRING(public), self._content) != 0:
            return None
        return both

    def reveal(self) -> bytes:
        """Returns the bytes of the secret, for the file that stores them."""
        return PyBytes_FromStringAndSize(<char *>self._content, KEY_BYTES)

    def seal(self, bytes nonce not None, bytes data not None, Secret tail: Secret | None = None) -> bytes:
        """Makes a box: *data*, followed by a secret, encrypted and authenticated with this key."""
        cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
        cdef Py_ssize_t whole = size if tail is None else size + KEY_BYTES
        cdef bytes box = PyBytes_FromStringAndSize(NULL, MAC_BYTES + whole)
        cdef unsigned char *p = <unsigned char *>PyBytes_AS_STRING(box)
        if PyBytes_GET_SIZE(nonce) != NONCE_BYTES:
            raise ValueError(PyBytes_GET_SIZE(nonce))
        memcpy(p + MAC_BYTES, PyBytes_AS_STRING(data), size)
        if tail is not None:
            memcpy(p + MAC_BYTES + size, tail._content, KEY_BYTES)
        self._sodium.seal(p, p + MAC_BYTES, whole, <const unsigned char *>PyBytes_AS_STRING(nonce), self._content)
        return box

    def open(self, bytes nonce not None, bytes box not None) -> bytes | None:
        """Returns the content of a box; None if it does not open with this key."""
        cdef Py_ssize_t size = PyBytes_GET_SIZE(box) - MAC_BYTES
        cdef bytes data
        if PyBytes_GET_SIZE(nonce) != NONCE_BYTES:
            raise ValueError(PyBytes_GET_SIZE(nonce))
        if size < 0:
            return None
        data = PyBytes_FromStringAndSize(NULL, size)
        if self._sodium.open(<unsigned char *>PyBytes_AS_STRING(data), <const unsigned char *>PyBytes_AS_STRING(box),
                             size + MAC_BYTES, <const unsigned char *>PyBytes_AS_STRING(nonce), self._content) != 0:
            return None
        return data

    def open_pair(self, bytes nonce not None, bytes box not None) -> tuple[bytes, Secret] | None:
        """Opens a box of 32 bytes and a secret; None if it does not open."""
        cdef unsigned char both[2 * KEY_BYTES]
        cdef Secret tail
        if PyBytes_GET_SIZE(nonce) != NONCE_BYTES or PyBytes_GET_SIZE(box) != MAC_BYTES + 2 * KEY_BYTES:
            return None
        if self._sodium.open(both, <const unsigned char *>PyBytes_AS_STRING(box), MAC_BYTES + 2 * KEY_BYTES,
                             <const unsigned char *>PyBytes_AS_STRING(nonce), self._content) != 0:
            return None
        head = PyBytes_FromStringAndSize(<char *>both, KEY_BYTES)
        tail = Secret()
        memcpy(tail._content, both + KEY_BYTES, KEY_BYTES)
        self._sodium.wipe(both, 2 * KEY_BYTES)
        return head, tail


@cython.final
@cython.no_gc
@cython.auto_pickle(False)
cdef class CurveCipher(Codec):
    """The traffic of a CURVE connection (RFC 26, The MESSAGE Command): frames are sealed and opened in place.

    Args:
        key: The key that the two transient keys make together.
        as_server: Whether this side is the server, which decides the prefixes of the nonces.
        sent: The last short nonce that this side has used.
        received: The last short nonce that the peer has used.
    """

    def __init__(self, Secret key not None, bint as_server, uint64_t sent, uint64_t received) -> None:
        cdef const char *ours = b"CurveZMQMESSAGES" if as_server else b"CurveZMQMESSAGEC"
        cdef const char *theirs = b"CurveZMQMESSAGEC" if as_server else b"CurveZMQMESSAGES"
        self._sodium = key._sodium
        memcpy(self._key, key._content, KEY_BYTES)
        memcpy(self._out, ours, COUNTER_OFFSET)
        memcpy(self._in, theirs, COUNTER_OFFSET)
        if self._sodium.core != NULL:
            # The first half of XSalsa20 depends on the prefix alone: it is done once, not for each frame.
            self._sodium.core(self._out_key, self._out, self._key, NULL)
            self._sodium.core(self._in_key, self._in, self._key, NULL)
        self.sent = sent
        self.received = received
        self.overhead = LONG_HEADER_BYTES + SEALED_EXTRA + SEALED_ROOM
        self.sight = SEALED_EXTRA
        self.borrows = False

    def __dealloc__(self):
        if self._sodium is not None:
            self._sodium.wipe(self._key, KEY_BYTES)
            self._sodium.wipe(self._out_key, KEY_BYTES)
            self._sodium.wipe(self._in_key, KEY_BYTES)

    def __reduce__(self):
        raise TypeError("a cipher is not pickled or copied")

    cdef int seal_frame(self, unsigned char *body, int flags, const char *payload, Py_ssize_t size) noexcept nogil:
        """Writes a sealed frame's body of `SEALED_EXTRA + size` bytes; returns -1: no nonce is left.

        A box is the output of crypto_secretbox_xsalsa20poly1305: the cipher over 32 zero bytes and the text. The first
        32 bytes are the key of the authenticator, over the rest. libsodium makes a box in four steps, this method in
        two, with libsodium's functions; the 32 bytes make room for name, nonce and authenticator.
        """
        cdef unsigned char mac[MAC_BYTES]
        # RFC 26: no more than 2^64-1 commands in one connection, each with a nonce of its own.
        if self.sent == <uint64_t>-1:
            return -1
        self.sent += 1
        put_counter(self._out + COUNTER_OFFSET, self.sent)
        body[SEALED_FLAGS] = <unsigned char>flags
        if self._sodium.core == NULL:
            memcpy(body + SEALED_EXTRA, payload, size)
            self._sodium.seal(body + SEALED_BOX, body + SEALED_FLAGS, size + 1, self._out, self._key)
        else:
            self._encrypt(body, payload, size)
            self._sodium.auth(mac, body + SEALED_FLAGS, size + 1, body)
            memcpy(body + SEALED_BOX, mac, MAC_BYTES)
        memcpy(body, b"\x07MESSAGE", 8)
        memcpy(body + 8, self._out + COUNTER_OFFSET, 8)
        return 0

    cdef void _encrypt(self, unsigned char *body, const char *payload, Py_ssize_t size) noexcept nogil:
        """Runs the cipher over 32 zero bytes, the flags after them, and the payload."""
        cdef Py_ssize_t first = size
        if size > SMALL_BODY_BYTES:
            # Bytes that do not fit into the cipher's first block are encrypted on their way, without a copy.
            first = CIPHER_BLOCK_BYTES - SEALED_EXTRA
            self._sodium.stream_from(body + CIPHER_BLOCK_BYTES, <const unsigned char *>payload + first, size - first,
                                     self._out + COUNTER_OFFSET, 1, self._out_key)
        memset(body, 0, SEALED_FLAGS)
        copy_bytes(body + SEALED_EXTRA, payload, first)
        self._sodium.stream(body, body, CIPHER_BLOCK_BYTES if size > SMALL_BODY_BYTES else padded(SEALED_EXTRA + size),
                            self._out + COUNTER_OFFSET, self._out_key)

    cdef int _open_box(self, unsigned char *body, Py_ssize_t size, Py_ssize_t room,
                       unsigned char *into) noexcept nogil:
        """Opens the box of a body with the nonce in `_in`; returns 0, or another number if it does not open."""
        cdef unsigned char text[SEALED_EXTRA + SMALL_BODY_BYTES]
        cdef unsigned char mac[MAC_BYTES]
        cdef Py_ssize_t sealed = size - SEALED_FLAGS
        cdef int wrong
        if self._sodium.core == NULL or sealed > SMALL_BODY_BYTES:
            return self._sodium.open(into, body + SEALED_BOX, size - SEALED_BOX, self._in, self._key)
        memcpy(mac, body + SEALED_BOX, MAC_BYTES)
        if padded(size) <= room:
            # The bytes in front of the sealed ones have been read: 32 zero bytes take their place.
            memset(body, 0, SEALED_FLAGS)
            self._sodium.stream(text, body, padded(size), self._in + COUNTER_OFFSET, self._in_key)
        else:
            memset(text, 0, SEALED_FLAGS)
            copy_bytes(text + SEALED_FLAGS, body + SEALED_FLAGS, sealed)
            self._sodium.stream(text, text, padded(size), self._in + COUNTER_OFFSET, self._in_key)
        # The text must not be used before this proves it genuine.
        wrong = self._sodium.verify(mac, body + SEALED_FLAGS, sealed, text)
        if wrong == 0:
            copy_bytes(into, text + SEALED_FLAGS, sealed)
        self._sodium.wipe(text, SEALED_FLAGS)
        return wrong

    cdef int open_frame(self, unsigned char *body, Py_ssize_t size, Py_ssize_t room,
                        unsigned char *into) noexcept nogil:
        """Opens a body of *size* bytes, at least SEALED_EXTRA: flags, payload go to *into*. Returns flags or OPEN_*.

        *room* bytes from its start on may be read, and the first 32 written to; 0: the body stays as it is.
        """
        cdef uint64_t counter
        if memcmp(body, b"\x07MESSAGE", 8) != 0:
            return OPEN_NO_MESSAGE
        counter = get_counter(body + 8)
        # RFC 26: "SHALL verify ... correctly incrementing short nonces, and SHALL disconnect".
        if counter <= self.received:
            return OPEN_REPLAYED
        memcpy(self._in + COUNTER_OFFSET, body + 8, 8)
        if self._open_box(body, size, room, into) != 0:
            return OPEN_FORGED
        self.received = counter
        if into[0] > SEALED_COMMAND:
            return OPEN_BAD_FLAGS
        return into[0]

    # ------------------------------------------------------------------ the codec

    cdef Py_ssize_t encode(self, unsigned char *into, int flags, const char *payload, Py_ssize_t size) noexcept nogil:
        # libzmq sends MESSAGE in a message frame: the frame itself has no flags.
        cdef int length = write_header(into, 0, SEALED_EXTRA + size)
        cdef int inside = (SEALED_MORE if flags & FLAG_MORE else 0) | (SEALED_COMMAND if flags & FLAG_COMMAND else 0)
        if self.seal_frame(into + length, inside, payload, size) < 0:
            return -1
        return length + SEALED_EXTRA + size

    cdef object exhausted(self):
        if self.sent != <uint64_t>-1:
            return None
        return LocalProtocolError("the nonces of this connection are used up (RFC 26, The MESSAGE Command)")

    cdef bytes reopen(self, const unsigned char *p, const WireFrame *frame, int *flags):
        # The key is the same both ways: the boxes of this side open with its own nonces.
        cdef const unsigned char *body = p + frame.length
        cdef unsigned char nonce[NONCE_BYTES]
        cdef bytes text = PyBytes_FromStringAndSize(NULL, 1 + <Py_ssize_t>frame.payload)
        cdef unsigned char *into = <unsigned char *>PyBytes_AS_STRING(text)
        memcpy(nonce, self._out, COUNTER_OFFSET)
        memcpy(nonce + COUNTER_OFFSET, body + 8, 8)
        if self._sodium.open(into, body + SEALED_BOX, frame.size - SEALED_BOX, nonce, self._key) != 0:
            return None
        flags[0] = FLAG_COMMAND if into[0] & SEALED_COMMAND else FLAG_MORE if into[0] & SEALED_MORE else 0
        return PyBytes_FromStringAndSize(PyBytes_AS_STRING(text) + 1, <Py_ssize_t>frame.payload)

    cdef int measure(self, const unsigned char *p, Py_ssize_t available, WireFrame *frame) noexcept nogil:
        cdef Header header
        cdef int state = parse_header(p, available, &header)
        if state <= 0:
            return OPEN_NO_FRAME if state < 0 else 0
        # libzmq sends MESSAGE in a message frame, the RFC calls it a command: both are accepted.
        if header.size < SEALED_EXTRA or header.flags & FLAG_MORE:
            return OPEN_NO_MESSAGE
        frame.length = header.length
        frame.size = header.size
        frame.payload = header.size - SEALED_EXTRA
        frame.flags = FLAGS_UNKNOWN
        frame.as_is = False
        return 1

    cdef int decode(self, unsigned char *p, Py_ssize_t available, WireFrame *frame) noexcept nogil:
        """Decodes like `Codec.decode`. A sealed frame is longer: bytes in front of the plain one become a command."""
        cdef unsigned char *body = p + frame.length
        cdef Py_ssize_t size = <Py_ssize_t>frame.payload
        cdef int inside = self.open_frame(body, <Py_ssize_t>frame.size, available - frame.length, body + SEALED_FLAGS)
        cdef int flags
        if inside < 0:
            return inside
        frame.grown = 0
        frame.whole = frame.length + <Py_ssize_t>frame.size
        if inside & SEALED_COMMAND:
            p[0] |= FLAG_COMMAND
            frame.spare = frame.whole
            return FLAG_COMMAND
        flags = FLAG_MORE if inside & SEALED_MORE else 0
        body += SEALED_EXTRA - (SHORT_HEADER_BYTES if size <= MAX_SHORT_BYTES else LONG_HEADER_BYTES)
        write_header(body, flags, size)
        frame.spare = body - p
        write_header(p, FLAG_COMMAND, frame.spare - SHORT_HEADER_BYTES)
        return flags

    cdef bytes finish(self, bytes body, int *found):
        """Finishes like `Codec.finish`. Other threads may run meanwhile."""
        cdef Py_ssize_t size = PyBytes_GET_SIZE(body)
        cdef bytes payload = PyBytes_FromStringAndSize(NULL, size - SEALED_EXTRA)
        # The flags come out in front of the payload. The byte there is the end of the object's own header: it is not
        # read before the object is returned, and by then it has its value back.
        cdef unsigned char *into = <unsigned char *>PyBytes_AS_STRING(payload) - 1
        cdef unsigned char before = into[0]
        cdef unsigned char *p = <unsigned char *>PyBytes_AS_STRING(body)
        cdef int inside
        if size > NO_GIL_BYTES:
            with nogil:
                inside = self.open_frame(p, size, 0, into)
        else:
            inside = self.open_frame(p, size, 0, into)
        into[0] = before
        if inside > 0:
            inside = FLAG_COMMAND if inside & SEALED_COMMAND else FLAG_MORE
        found[0] = inside
        return payload

    cdef int glance(self, const unsigned char *p, const WireFrame *frame, unsigned char *into) noexcept nogil:
        cdef const unsigned char *body = p + frame.length
        cdef unsigned char nonce[NONCE_BYTES]
        cdef unsigned char text[1 + MAX_GLANCE_BYTES]
        if memcmp(body, b"\x07MESSAGE", 8) != 0:
            return OPEN_NO_MESSAGE
        if get_counter(body + 8) <= self.received:
            return OPEN_REPLAYED
        memcpy(nonce, self._in, COUNTER_OFFSET)
        memcpy(nonce + COUNTER_OFFSET, body + 8, 8)
        if self._sodium.open(text, body + SEALED_BOX, frame.size - SEALED_BOX, nonce, self._key) != 0:
            return OPEN_FORGED
        memcpy(into, text + 1, <size_t>frame.payload)
        return FLAG_COMMAND if text[0] & SEALED_COMMAND else FLAG_MORE if text[0] & SEALED_MORE else 0

    cdef int flags_of(self, const unsigned char *p, const WireFrame *frame) noexcept nogil:
        cdef const unsigned char *body = p + frame.length
        cdef unsigned char text[SEALED_FLAGS + 1]
        if self._sodium.core == NULL or frame.size < SEALED_EXTRA:
            return FLAGS_UNKNOWN
        # The cipher's first 32 bytes are the authenticator's key; the flags come next.
        memset(text, 0, SEALED_FLAGS)
        text[SEALED_FLAGS] = body[SEALED_FLAGS]
        self._sodium.stream(text, text, SEALED_FLAGS + 1, body + 8, self._in_key)
        return (FLAG_COMMAND if text[SEALED_FLAGS] & SEALED_COMMAND
                else FLAG_MORE if text[SEALED_FLAGS] & SEALED_MORE else 0)

    cdef object explain(self, int found):
        return RemoteProtocolError({
            OPEN_NO_MESSAGE: "a frame that is not a MESSAGE command (RFC 26, The MESSAGE Command)",
            OPEN_REPLAYED: "a MESSAGE whose nonce is not above the last one's: replayed or reordered (RFC 26)",
            OPEN_FORGED: "a MESSAGE whose box does not open: altered on its way, or of another connection (RFC 26)",
            OPEN_BAD_FLAGS: "a MESSAGE with reserved flags (RFC 26, The MESSAGE Command)",
            OPEN_NO_FRAME: "bytes that are not a valid ZMTP frame (RFC 23, Framing)",
        }[found])

    # ------------------------------------------------------------------ for Python

    def seal(self, bytes payload not None, int flags=0) -> bytes | None:
        """Seals a frame's body, for tests and for callers that can wait; returns None when no nonce is left."""
        cdef Py_ssize_t size = PyBytes_GET_SIZE(payload)
        cdef bytes body = PyBytes_FromStringAndSize(NULL, max(SEALED_EXTRA + size, <Py_ssize_t>SEALED_ROOM))
        cdef unsigned char *p = <unsigned char *>PyBytes_AS_STRING(body)
        return None if self.seal_frame(p, flags, PyBytes_AS_STRING(payload), size) < 0 else body[:SEALED_EXTRA + size]

    def open(self, bytes body not None) -> tuple[int, bytes] | int:
        """Returns the flags and the payload of a sealed frame's body; a negative number if the body is invalid."""
        cdef Py_ssize_t size = PyBytes_GET_SIZE(body)
        cdef bytes data
        cdef int flags
        if size < SEALED_EXTRA:
            return OPEN_NO_MESSAGE
        data = PyBytes_FromStringAndSize(NULL, size - SEALED_FLAGS)
        flags = self.open_frame(<unsigned char *>PyBytes_AS_STRING(body), size, 0,
                                <unsigned char *>PyBytes_AS_STRING(data))
        return flags if flags < 0 else (flags, data[1:])


def random_bytes(int count) -> bytes:
    """Returns unpredictable bytes."""
    cdef bytes data = PyBytes_FromStringAndSize(NULL, count)
    sodium().random(<unsigned char *>PyBytes_AS_STRING(data), count)
    return data
