"""Records and blocks: the codec of messages that the broker stores and sends.

docs/reference/broker-protocol.md defines the layout. A record is one message without its id; a block is records with
consecutive ids. Broker and store parse records only here, many at a time and without the GIL.
"""

# stub: HEADER_SIZE: Final[int]
# stub: MAX_BODY: Final[int]
# stub: FASTEST: Final[str]
# stub: _Message = TypeVar("_Message", bound=Message)

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE, PyList_New, PyList_SET_ITEM
from cpython.ref cimport Py_INCREF
from cpython.unicode cimport PyUnicode_AsUTF8AndSize, PyUnicode_DecodeUTF8
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef extern from "crc32c.h" nogil:
    uint32_t (*omq_crc)(uint32_t, const uint8_t *, size_t) noexcept
    uint32_t omq_crc_by_table(uint32_t, const uint8_t *, size_t) noexcept
    bint omq_crc_choose() noexcept

cdef extern from * nogil:
    """
    static inline uint16_t omq_get16(const uint8_t *at) { return (uint16_t)(at[0] << 8 | at[1]); }
    static inline uint32_t omq_get32(const uint8_t *at) {
        uint32_t value;
        memcpy(&value, at, 4);
        return __builtin_bswap32(value);
    }
    static inline uint64_t omq_get64(const uint8_t *at) {
        uint64_t value;
        memcpy(&value, at, 8);
        return __builtin_bswap64(value);
    }
    static inline void omq_put16(uint8_t *at, uint16_t value) { at[0] = (uint8_t)(value >> 8); at[1] = (uint8_t)value; }
    static inline void omq_put32(uint8_t *at, uint32_t value) {
        value = __builtin_bswap32(value);
        memcpy(at, &value, 4);
    }
    static inline void omq_put64(uint8_t *at, uint64_t value) {
        value = __builtin_bswap64(value);
        memcpy(at, &value, 8);
    }
    #if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
    #error "written for little-endian processors"
    #endif
    """
    uint16_t omq_get16(const uint8_t *) noexcept
    uint32_t omq_get32(const uint8_t *) noexcept
    uint64_t omq_get64(const uint8_t *) noexcept
    void omq_put16(uint8_t *, uint16_t) noexcept
    void omq_put32(uint8_t *, uint32_t) noexcept
    void omq_put64(uint8_t *, uint64_t) noexcept


HEADER_SIZE = 32
MAX_BODY = 67_108_864
#: How the checksum is computed: by the processor's own instruction, or by a table.
FASTEST = "instruction" if omq_crc_choose() else "table"

cdef enum:
    VERSION = 1
    NAME_DIGITS = 12  # hexadecimal digits at the end of a name

cdef const char *HEX = b"0123456789abcdef"

#: The faults of a record, by number; 0: valid.
cdef tuple FAULTS = (
    "",
    "it ends too early",
    "its size is too small",
    "its checksum is wrong",
    "it has unknown flags",
    "its key is longer than the record",
    "its headers are longer than the record",
    "the name of a header is not UTF-8",
    "its body is too large",
)

cdef enum:
    SHORT = 1
    SMALL = 2
    CHECKSUM = 3
    FLAGS = 4
    KEY = 5
    HEADERS = 6
    NAME = 7
    LARGE = 8


class BodyTooLarge(ValueError):
    """A record's body is above the limit."""


cdef uint32_t checksum(const uint8_t *at, size_t size) noexcept nogil:
    """Returns the CRC-32C of *size* bytes."""
    return omq_crc(0, at, size)


cdef bint is_utf8(const uint8_t *at, size_t size) noexcept nogil:
    """Returns whether the text is UTF-8 by RFC 3629: no surrogates, nothing overlong, nothing above U+10FFFF."""
    cdef size_t i = 0
    cdef size_t more
    cdef uint32_t point
    cdef uint8_t byte
    while i < size:
        byte = at[i]
        i += 1
        if byte < 0x80:
            continue
        if 0xC2 <= byte <= 0xDF:
            more, point = 1, byte & 0x1F
        elif byte & 0xF0 == 0xE0:
            more, point = 2, byte & 0x0F
        elif 0xF0 <= byte <= 0xF4:
            more, point = 3, byte & 0x07
        else:
            return False
        if size - i < more:
            return False
        for _ in range(more):
            if at[i] & 0xC0 != 0x80:
                return False
            point = point << 6 | at[i] & 0x3F
            i += 1
        if more == 2 and (point < 0x800 or 0xD800 <= point <= 0xDFFF):
            return False
        if more == 3 and (point < 0x10000 or point > 0x10FFFF):
            return False
    return True


cdef int parse(const uint8_t *at, size_t left, Record *out) noexcept nogil:
    """Parses the record at *at*, of which *left* bytes are available; returns its fault, or VALID.

    Sets `whole` unless the fault is SHORT or SMALL.
    """
    cdef size_t size, offset
    cdef uint8_t flags
    cdef uint16_t headers, name
    if left < EMPTY_RECORD_BYTES:
        return SHORT
    size = omq_get32(at)
    if size < EMPTY_RECORD_BYTES - 4:
        return SMALL
    if size > left - 4:
        return SHORT
    out.whole = size + 4
    if omq_crc(0, at + 8, size - 4) != omq_get32(at + 4):
        return CHECKSUM
    flags = at[8]
    out.key = NULL
    out.key_size = 0
    out.headers = NULL
    out.headers_size = 0
    offset = EMPTY_RECORD_BYTES
    if flags:
        if flags & ~(HAS_KEY | HAS_HEADERS):
            return FLAGS
        if flags & HAS_KEY:
            if out.whole - offset < 4:
                return KEY
            out.key_size = omq_get32(at + offset)
            offset += 4
            if out.key_size > out.whole - offset:
                return KEY
            out.key = at + offset
            offset += out.key_size
        if flags & HAS_HEADERS:
            if out.whole - offset < 2:
                return HEADERS
            out.headers = at + offset
            headers = omq_get16(at + offset)
            offset += 2
            for _ in range(headers):
                if out.whole - offset < 2:
                    return HEADERS
                name = omq_get16(at + offset)
                offset += 2
                if out.whole - offset < <size_t>name + 4:
                    return HEADERS
                if not is_utf8(at + offset, name):
                    return NAME
                offset += name
                size = omq_get32(at + offset)
                offset += 4
                if out.whole - offset < size:
                    return HEADERS
                offset += size
            out.headers_size = at + offset - out.headers
    out.body = at + offset
    out.body_size = out.whole - offset
    return VALID


cdef int check_all(const uint8_t *at, size_t size, size_t limit, size_t *count) noexcept nogil:
    """Parses all records; returns the fault of record number *count*, or VALID."""
    cdef Record record
    cdef int fault
    cdef size_t offset = 0
    count[0] = 0
    while offset < size:
        fault = parse(at + offset, size - offset, &record)
        if fault == VALID and record.body_size > limit:
            fault = LARGE
        if fault != VALID:
            return fault
        offset += record.whole
        count[0] += 1
    return VALID


cdef int find(const uint8_t *at, size_t size, size_t index, size_t *offset) noexcept nogil:
    """Moves *offset* over *index* records, by their sizes alone; returns 0, or -1 if there are fewer."""
    cdef size_t whole
    for _ in range(index):
        if size - offset[0] < EMPTY_RECORD_BYTES:
            return -1
        whole = <size_t>omq_get32(at + offset[0]) + 4
        if whole < EMPTY_RECORD_BYTES or whole > size - offset[0]:
            return -1
        offset[0] += whole
    return 0


@cython.no_gc  # it holds nothing that could refer back to it
@cython.freelist(4096)
cdef class Message:
    """One message of a topic.

    Attributes:
        id: Its number in the topic; 1 is the first.
        topic: The topic's name.
        body: Its content.
        key: Its key; `None` for none.
        headers: The publisher's headers by name; a new dict each time.
        timestamp: When the broker accepted it, in seconds since 1970.
    """
    # stub: key: bytes | None

    def __init__(
        self,
        uint64_t id,
        str topic not None,
        bytes body not None,
        bytes key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        double timestamp=0.0,
    ) -> None:
        self.id = id
        self.topic = topic
        self.body = body
        self.key = key
        self._headers = None if not headers else encode_headers(headers)
        self._timestamp = <uint64_t>(timestamp * 1e6 + 0.5)

    @property
    def timestamp(self) -> float:
        return self._timestamp / 1e6

    @property
    def headers(self) -> dict[str, bytes]:
        return {} if self._headers is None else decode_headers(self._headers)

    def __eq__(self, other):
        if not isinstance(other, Message):
            return NotImplemented
        cdef Message that = other
        return (
            self.id == that.id and self._timestamp == that._timestamp and self.topic == that.topic
            and self.body == that.body and self.key == that.key and self._headers == that._headers
        )

    def __hash__(self):
        return hash((self.id, self.topic, self._timestamp))

    def __reduce__(self):
        return type(self), (self.id, self.topic, self.body, self.key, self.headers, self.timestamp)

    def __repr__(self):
        body = repr(self.body) if len(self.body) <= 40 else f"<{len(self.body)} bytes>"
        more = "".join(
            f" {name}={value!r}"
            for name, value in (("key", self.key), ("headers", self.headers or None))
            if value is not None
        )
        return f"<{type(self).__name__} {self.topic} {self.id} {body}{more}>"


cdef bytes encode_headers(headers):
    """Returns headers as they are encoded in a record: their number, then each."""
    cdef list parts = [b""]
    for name, value in headers.items():
        name, value = name.encode(), memoryview(value).tobytes()
        if len(name) > 0xFFFF:
            raise ValueError(f"the name of a header has {len(name)} bytes, more than 65,535")
        parts += (len(name).to_bytes(2, "big"), name, len(value).to_bytes(4, "big"), value)
    if len(parts) // 4 > 0xFFFF:
        raise ValueError(f"{len(parts) // 4} headers, more than 65,535")
    parts[0] = (len(parts) // 4).to_bytes(2, "big")
    return b"".join(parts)


cdef dict decode_headers(bytes data):
    """Decodes the result of `encode_headers`, or the headers of a checked record."""
    cdef const uint8_t *at = <const uint8_t *>PyBytes_AS_STRING(data)
    cdef size_t offset = 2
    cdef size_t size
    cdef dict headers = {}
    for _ in range(omq_get16(at)):
        size = omq_get16(at + offset)
        name = PyUnicode_DecodeUTF8(<const char *>at + offset + 2, size, NULL)
        offset += 2 + size
        size = omq_get32(at + offset)
        headers[name] = PyBytes_FromStringAndSize(<const char *>at + offset + 4, size)
        offset += 4 + size
    return headers


def crc32c(data: Buffer, uint32_t start=0) -> int:
    """Returns the CRC-32C of `data`; `start` is the checksum of the bytes before it."""
    cdef Py_buffer view
    cdef uint32_t crc
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if view.len > RELEASE_GIL_BYTES:
            with nogil:
                crc = omq_crc(start, <const uint8_t *>view.buf, view.len)
        else:
            crc = omq_crc(start, <const uint8_t *>view.buf, view.len)
    finally:
        PyBuffer_Release(&view)
    return crc


def crc32c_by_table(data: Buffer, uint32_t start=0) -> int:
    """Computes the same checksum with a table, for processors without the instruction and for tests."""
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        return omq_crc_by_table(start, <const uint8_t *>view.buf, view.len)
    finally:
        PyBuffer_Release(&view)


cdef uint8_t *put_record(uint8_t *at, const uint8_t *body, size_t size) noexcept nogil:
    """Writes the record of a body; returns the address after it."""
    omq_put32(at, <uint32_t>(size + EMPTY_RECORD_BYTES - 4))
    at[8] = 0
    memcpy(at + EMPTY_RECORD_BYTES, body, size)
    omq_put32(at + 4, omq_crc(0, at + 8, size + 1))
    return at + EMPTY_RECORD_BYTES + size


def encode(bodies: Iterable[Buffer]) -> bytes:
    """Encodes the records of bodies without key and headers, one after the other."""
    cdef list some = bodies if type(bodies) is list else list(bodies)
    cdef Py_ssize_t i
    cdef size_t size = 0
    for i in range(PyList_GET_SIZE(some)):
        if type(<object>PyList_GET_ITEM(some, i)) is not bytes:
            # From here on there are only bytes objects, which no other code can change.
            some = [body if type(body) is bytes else memoryview(body).tobytes() for body in some]
            break
    for i in range(PyList_GET_SIZE(some)):
        if PyBytes_GET_SIZE(<object>PyList_GET_ITEM(some, i)) > 0xFFFF_FFFF - (EMPTY_RECORD_BYTES - 4):
            raise ValueError("a body has 4 GiB or more")
        size += PyBytes_GET_SIZE(<object>PyList_GET_ITEM(some, i)) + EMPTY_RECORD_BYTES
    records = PyBytes_FromStringAndSize(NULL, size)
    cdef uint8_t *at = <uint8_t *>PyBytes_AS_STRING(records)
    for i in range(PyList_GET_SIZE(some)):
        body = <object>PyList_GET_ITEM(some, i)
        at = put_record(at, <const uint8_t *>PyBytes_AS_STRING(body), PyBytes_GET_SIZE(body))
    return records


def encode_record(body: Buffer, bytes key: bytes | None = None, headers: Mapping[str, Buffer] | None = None) -> bytes:
    """Encodes one record. `ValueError` for more than 65,535 headers, a name above 65,535 bytes, or 4 GiB in all."""
    cdef Py_buffer view
    cdef bytes some = encode_headers(headers) if headers else b""
    cdef size_t size, key_size = 0 if key is None else PyBytes_GET_SIZE(key)
    cdef uint8_t *at
    PyObject_GetBuffer(body, &view, PyBUF_SIMPLE)
    try:
        size = EMPTY_RECORD_BYTES + (0 if key is None else 4 + key_size) + len(some) + view.len
        if size > 0xFFFF_FFFF:
            raise ValueError("a record has 4 GiB or more")
        record = PyBytes_FromStringAndSize(NULL, size)
        at = <uint8_t *>PyBytes_AS_STRING(record)
        omq_put32(at, <uint32_t>(size - 4))
        at[8] = (0 if key is None else HAS_KEY) | (HAS_HEADERS if some else 0)
        at += EMPTY_RECORD_BYTES
        if key is not None:
            omq_put32(at, <uint32_t>key_size)
            memcpy(at + 4, PyBytes_AS_STRING(key), key_size)
            at += 4 + key_size
        memcpy(at, PyBytes_AS_STRING(some), PyBytes_GET_SIZE(some))
        memcpy(at + PyBytes_GET_SIZE(some), view.buf, view.len)
        at = <uint8_t *>PyBytes_AS_STRING(record)
        omq_put32(at + 4, omq_crc(0, at + 8, size - 8))
        return record
    finally:
        PyBuffer_Release(&view)


def header(uint64_t first, uint32_t count, uint64_t timestamp_us, uint32_t size) -> bytes:
    """Encodes the header of a block.

    Args:
        first: Id of its first record.
        count: Number of its records.
        timestamp_us: Microseconds since 1970.
        size: Bytes of its records.
    """
    cdef uint8_t at[HEADER_BYTES]
    at[0] = VERSION
    at[1] = 0
    omq_put16(at + 2, 0)
    omq_put32(at + 4, count)
    omq_put64(at + 8, first)
    omq_put64(at + 16, timestamp_us)
    omq_put32(at + 24, size)
    omq_put32(at + 28, omq_crc(0, at, 28))
    return PyBytes_FromStringAndSize(<const char *>at, HEADER_BYTES)


cdef int look_at_header(const uint8_t *at, Py_ssize_t size) except -1:
    """Raises ValueError if the bytes are not a valid header."""
    if size < HEADER_BYTES:
        raise ValueError(f"the header of a block has {HEADER_BYTES} bytes, not {size}")
    if omq_crc(0, at, 28) != omq_get32(at + 28):
        raise ValueError("the checksum of a block's header is wrong")
    if at[0] != VERSION:
        raise ValueError(f"the block has version {at[0]}, expected {VERSION}")
    if at[1] or at[2] or at[3]:
        raise ValueError("the header of a block has unknown flags")
    return 0


def read_header(data: Buffer) -> tuple[int, int, int, int]:
    """Decodes the header at the beginning of `data`: `first, count, timestamp_us, size`. `ValueError` if invalid."""
    cdef Py_buffer view
    cdef const uint8_t *at
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        at = <const uint8_t *>view.buf
        look_at_header(at, view.len)
        return omq_get64(at + 8), omq_get32(at + 4), omq_get64(at + 16), omq_get32(at + 24)
    finally:
        PyBuffer_Release(&view)


cdef int raise_fault(int fault, size_t index) except -1:
    """Raises the exception for a fault of a record."""
    kind = BodyTooLarge if fault == LARGE else ValueError
    raise kind(f"record {index}: {FAULTS[fault]}")


def check(records: Buffer, size_t limit=MAX_BODY) -> int:
    """Verifies every field and checksum; returns the number of records.

    Args:
        records: Records, one after the other, and nothing else.
        limit: The largest body allowed, in bytes.

    Raises:
        BodyTooLarge: A body is above the limit.
        ValueError: A record is not valid; the text names it by its index.
    """
    cdef Py_buffer view
    cdef size_t count
    cdef int fault
    PyObject_GetBuffer(records, &view, PyBUF_SIMPLE)
    try:
        if view.len > RELEASE_GIL_BYTES:
            with nogil:
                fault = check_all(<const uint8_t *>view.buf, view.len, limit, &count)
        else:
            fault = check_all(<const uint8_t *>view.buf, view.len, limit, &count)
    finally:
        PyBuffer_Release(&view)
    if fault != VALID:
        raise_fault(fault, count)
    return count


def named(bytes records not None, bytes head not None, uint64_t first, size_t count) -> bytes:
    """Returns the records with one more part in front of the others: a name for each.

    A record of one part has no key. The key of several parts lists their ends (32 bits each, little-endian).

    Args:
        records: The records.
        head: The common beginning of all names.
        first: Number of the first record: 12 hexadecimal digits at the end of its name. Later records count up.
        count: How many records there are.

    Raises:
        ValueError: A record is damaged or has no valid parts, or there are fewer records than *count*.
    """
    cdef const uint8_t *begin = <const uint8_t *>PyBytes_AS_STRING(records)
    cdef size_t left = PyBytes_GET_SIZE(records)
    cdef const uint8_t *at = begin
    cdef uint8_t *out
    cdef uint8_t *name
    cdef Record record
    cdef size_t shared = PyBytes_GET_SIZE(head)
    cdef size_t length = shared + NAME_DIGITS
    cdef size_t i, j, ends, whole
    cdef size_t most = MAX_BODY
    cdef uint64_t number
    cdef uint32_t end
    cdef int fault
    if count > left // EMPTY_RECORD_BYTES:
        raise ValueError(f"there are fewer records than {count}")
    # A record of one part grows most: by its name, the sizes of two parts, and the size of these.
    made = PyBytes_FromStringAndSize(NULL, left + (length + 12) * count)
    out = <uint8_t *>PyBytes_AS_STRING(made)
    for i in range(count):
        fault = parse(at, left, &record)
        if fault == VALID and record.body_size > most:
            fault = LARGE
        if fault != VALID:
            raise_fault(fault, i)
        if record.headers_size or record.key_size & 3:
            raise ValueError(f"record {i}: its key is not a valid list of the ends of its parts")
        ends = record.key_size if record.key_size else 4
        whole = EMPTY_RECORD_BYTES + 4 + 4 + ends + length + record.body_size
        if whole > 0xFFFF_FFFF:
            raise ValueError("a record has 4 GiB or more")
        omq_put32(out, <uint32_t>(whole - 4))
        out[8] = HAS_KEY
        omq_put32(out + EMPTY_RECORD_BYTES, <uint32_t>(ends + 4))
        end = <uint32_t>length
        memcpy(out + EMPTY_RECORD_BYTES + 4, &end, 4)
        if record.key_size:
            for j in range(0, ends, 4):
                memcpy(&end, record.key + j, 4)
                end += <uint32_t>length
                memcpy(out + EMPTY_RECORD_BYTES + 8 + j, &end, 4)
        else:
            end += <uint32_t>record.body_size
            memcpy(out + EMPTY_RECORD_BYTES + 8, &end, 4)
        name = out + EMPTY_RECORD_BYTES + 8 + ends
        memcpy(name, PyBytes_AS_STRING(head), shared)
        number = first + i
        for j in range(<size_t>NAME_DIGITS):
            name[length - 1 - j] = <uint8_t>HEX[(number >> (4 * j)) & 15]
        memcpy(name + length, record.body, record.body_size)
        omq_put32(out + 4, omq_crc(0, out + 8, whole - 8))
        out += whole
        at += record.whole
        left -= record.whole
    if left:
        raise ValueError(f"there are more records than {count}")
    return made[: out - <uint8_t *>PyBytes_AS_STRING(made)]


def damaged(records: Buffer, size_t count) -> list[tuple[int, int]]:
    """Returns the index ranges `[start, stop)` of damaged records, out of `count`; empty if all are valid."""
    cdef Py_buffer view
    cdef const uint8_t *at
    cdef Record record
    cdef size_t size, offset = 0
    cdef size_t index = 0
    cdef int fault
    cdef size_t begin = 0  # of the damage under the cursor
    cdef size_t end = 0
    cdef list found = []
    PyObject_GetBuffer(records, &view, PyBUF_SIMPLE)
    try:
        at = <const uint8_t *>view.buf
        size = view.len
        while offset < size and index < count:
            fault = parse(at + offset, size - offset, &record)
            if fault in (SHORT, SMALL):
                break
            if fault != VALID:
                if end != index and begin < end:
                    found.append((begin, end))
                if end != index or begin == end:
                    begin = index
                end = index + 1
            offset += record.whole
            index += 1
    finally:
        PyBuffer_Release(&view)
    if begin < end:
        found.append((begin, end))
    if index != count or offset != size:
        # A size is wrong: from the first damage on the boundaries of the records are unknown.
        if found:
            return [(found[0][0], count)]
        return [(min(index, count - 1), count)] if count else []
    return found


def slice(records: Buffer, size_t start, size_t stop) -> memoryview:
    """Returns records `[start, stop)`, by index, of well-formed records: a view, not a copy."""
    cdef Py_buffer view
    cdef size_t begin = 0
    cdef size_t end
    cdef int fault
    if start > stop:
        raise ValueError(f"start={start}, stop={stop}: must be a range of records")
    PyObject_GetBuffer(records, &view, PyBUF_SIMPLE)
    try:
        fault = find(<const uint8_t *>view.buf, view.len, start, &begin)
        end = begin
        if fault == 0:
            fault = find(<const uint8_t *>view.buf, view.len, stop - start, &end)
    finally:
        PyBuffer_Release(&view)
    if fault:
        raise ValueError(f"there are fewer than {stop} records")
    return memoryview(records)[begin:end]


def cuts(records: Buffer, size_t target) -> list[tuple[int, int]]:
    """Returns where to cut well-formed records into pieces of at most `target` bytes; only one record may exceed it.

    Each cut is `(bytes, records)`, counted from the beginning; the last cut is the end.
    """
    cdef Py_buffer view
    cdef size_t offset = 0
    cdef size_t begin = 0
    cdef size_t before
    cdef size_t index = 0
    cdef list ends = []
    PyObject_GetBuffer(records, &view, PyBUF_SIMPLE)
    try:
        while offset < <size_t>view.len:
            before = offset
            if find(<const uint8_t *>view.buf, view.len, 1, &offset):
                raise ValueError(f"record {index}: its size is wrong")
            if offset - begin > target and before > begin:
                ends.append((before, index))
                begin = before
            index += 1
        if offset > begin:
            ends.append((offset, index))
    finally:
        PyBuffer_Release(&view)
    return ends


def decode(header: Buffer, records: Buffer, str topic not None, kind: type[_Message] = Message) -> list[_Message]:
    """Decodes the messages of a block and verifies their checksums.

    Args:
        header: Its header.
        records: Its records.
        topic: The messages' topic.
        kind: `Message`, or a subclass; attributes that it adds are not set, and its `__init__` is not called.

    Raises:
        ValueError: The header or a record is damaged.
    """
    cdef Py_buffer view
    cdef const uint8_t *at
    cdef Record record
    cdef uint64_t first, timestamp
    cdef uint32_t count, size, i
    cdef Message message
    cdef list messages
    cdef int fault
    cdef bint plain = kind is Message
    if not plain and not issubclass(kind, Message):
        raise TypeError(f"kind={kind!r}: must be Message or a subclass")
    first, count, timestamp, size = read_header(header)
    PyObject_GetBuffer(records, &view, PyBUF_SIMPLE)
    try:
        if <size_t>view.len != size or <size_t>count * EMPTY_RECORD_BYTES > size:
            raise ValueError(
                f"the block has {view.len} bytes of records, and its header announces {count} records of {size} bytes"
            )
        at = <const uint8_t *>view.buf
        messages = PyList_New(count)
        for i in range(count):
            fault = parse(at, size, &record)
            if fault != VALID:
                raise_fault(fault, i)
            message = Message.__new__(Message) if plain else kind.__new__(kind)
            message.id = first + i
            message.topic = topic
            message._timestamp = timestamp
            message.body = PyBytes_FromStringAndSize(<const char *>record.body, record.body_size)
            if record.key is not NULL:
                message.key = PyBytes_FromStringAndSize(<const char *>record.key, record.key_size)
            if record.headers is not NULL:
                message._headers = PyBytes_FromStringAndSize(<const char *>record.headers, record.headers_size)
            Py_INCREF(message)
            PyList_SET_ITEM(messages, i, message)
            at += record.whole
            size -= <uint32_t>record.whole
        if size:
            raise ValueError(f"the block has more records than the {count} in its header")
        return messages
    finally:
        PyBuffer_Release(&view)
