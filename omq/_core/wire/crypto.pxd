# libsodium, called in place: secret keys, and the two directions of a CURVE connection.

cimport cython
from libc.stdint cimport uint64_t

from omq._core.wire.codec cimport Codec, WireFrame

cdef enum:
    KEY_BYTES = 32    # bytes of a key, public or secret
    NONCE_BYTES = 24  # bytes of a nonce
    MAC_BYTES = 16    # bytes by which a box is longer than its content

cdef enum:
    # A sealed frame's body (RFC 26, The MESSAGE Command): name, short nonce, and a box of flags and payload.
    SEALED_BOX = 16     # offset of the box: after the counted name and the short nonce, 8 bytes each
    SEALED_FLAGS = 32   # offset of the flags, where the box is opened in place
    SEALED_EXTRA = 33   # bytes by which a sealed body is longer than its payload
    SEALED_MORE = 1     # flag: more parts of this message follow
    SEALED_COMMAND = 2  # flag: a command (libzmq; the RFC has none)
    SEALED_ROOM = 512   # bytes from a body's start that sealing may write to, however short the body is

cdef enum:
    # Reasons to reject a body.
    OPEN_NO_MESSAGE = -1  # not a MESSAGE command
    OPEN_REPLAYED = -2    # its nonce is not above the last nonce
    OPEN_FORGED = -3      # the box does not open
    OPEN_BAD_FLAGS = -4   # reserved flags are set
    OPEN_NO_FRAME = -5    # not a frame of ZMTP

ctypedef int (*box_call)(unsigned char *, const unsigned char *, unsigned long long,
                         const unsigned char *, const unsigned char *) noexcept nogil
ctypedef int (*multiply_call)(unsigned char *, const unsigned char *, const unsigned char *) noexcept nogil
ctypedef int (*base_call)(unsigned char *, const unsigned char *) noexcept nogil
ctypedef int (*stream_call)(unsigned char *, const unsigned char *, unsigned long long,
                            const unsigned char *, const unsigned char *) noexcept nogil
ctypedef int (*stream_from_call)(unsigned char *, const unsigned char *, unsigned long long,
                                 const unsigned char *, uint64_t, const unsigned char *) noexcept nogil
ctypedef int (*auth_call)(unsigned char *, const unsigned char *, unsigned long long,
                          const unsigned char *) noexcept nogil
ctypedef int (*verify_call)(const unsigned char *, const unsigned char *, unsigned long long,
                            const unsigned char *) noexcept nogil
ctypedef int (*core_call)(unsigned char *, const unsigned char *, const unsigned char *,
                          const unsigned char *) noexcept nogil
ctypedef void (*random_call)(unsigned char *, unsigned long long) noexcept nogil
ctypedef void (*wipe_call)(void *, size_t) noexcept nogil


@cython.final
cdef class Sodium:
    # Addresses of functions in the libsodium that PyNaCl's module holds.
    cdef object _module                # keeps it loaded
    cdef box_call seal                 # crypto_box_easy_afternm, which is crypto_secretbox_easy
    cdef box_call open                 # crypto_box_open_easy_afternm
    cdef multiply_call shared          # crypto_box_beforenm
    cdef base_call public              # crypto_scalarmult_base
    cdef random_call random            # randombytes
    cdef wipe_call wipe                # sodium_memzero
    # The steps of a box; all five are NULL where PyNaCl's libsodium does not export them.
    cdef core_call core                # crypto_core_hsalsa20
    cdef stream_call stream            # crypto_stream_salsa20_xor
    cdef stream_from_call stream_from  # crypto_stream_salsa20_xor_ic
    cdef auth_call auth                # crypto_onetimeauth_poly1305
    cdef verify_call verify            # crypto_onetimeauth_poly1305_verify


@cython.final
cdef class Secret:
    cdef Sodium _sodium
    cdef unsigned char _content[KEY_BYTES]  # wiped when the object goes


@cython.final
cdef class CurveCipher(Codec):
    cdef Sodium _sodium
    cdef unsigned char _key[KEY_BYTES]      # wiped when the object goes
    cdef unsigned char _out_key[KEY_BYTES]  # made of the key and this side's prefix (XSalsa20); wiped likewise
    cdef unsigned char _in_key[KEY_BYTES]   # likewise, for the peer's nonces
    cdef unsigned char _out[NONCE_BYTES]    # 16 bytes of prefix, 8 of counter
    cdef unsigned char _in[NONCE_BYTES]     # likewise
    cdef readonly uint64_t sent       # the last short nonce that this side used
    cdef readonly uint64_t received   # the last short nonce that the peer used
    cdef int seal_frame(self, unsigned char *body, int flags, const char *payload, Py_ssize_t size) noexcept nogil
    cdef void _encrypt(self, unsigned char *body, const char *payload, Py_ssize_t size) noexcept nogil
    cdef int open_frame(self, unsigned char *body, Py_ssize_t size, Py_ssize_t room,
                        unsigned char *into) noexcept nogil
    cdef int _open_box(self, unsigned char *body, Py_ssize_t size, Py_ssize_t room, unsigned char *into) noexcept nogil
