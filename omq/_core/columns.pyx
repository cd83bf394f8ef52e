"""Records from and to columns, in the layout of Apache Arrow: no Python object for a message.

A column of strings or bytes has ends (one more than rows: the start of each row and its end), data, and a validity
bit for each row. Headers are such a column of maps: ends, then the columns of names and values.
"""

# stub: _Strings = tuple[bytes, bytes, bytes | None, int]
# stub: _Maps = tuple[bytes, _Strings, _Strings, bytes | None, int]

cimport cython
from cpython.buffer cimport (
    PyBUF_SIMPLE,
    PyBUF_WRITABLE,
    PyBuffer_Release,
    PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport UINT32_MAX, int32_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset

from omq._core.arrow cimport MAX_OFFSET
from omq._core.blocks cimport (
    EMPTY_RECORD_BYTES,
    HAS_HEADERS,
    HAS_KEY,
    VALID,
    Record,
    checksum,
    raise_fault,
    is_utf8,
    parse,
)
from omq._core.blocks import MAX_BODY, BodyTooLarge, read_header

cdef extern from * nogil:
    """
    static inline uint16_t omq_column_get16(const uint8_t *at) { return (uint16_t)(at[0] << 8 | at[1]); }
    static inline uint32_t omq_column_get32(const uint8_t *at) {
        uint32_t value;
        memcpy(&value, at, 4);
        return __builtin_bswap32(value);
    }
    static inline void omq_column_put16(uint8_t *at, uint16_t value) {
        at[0] = (uint8_t)(value >> 8);
        at[1] = (uint8_t)value;
    }
    static inline void omq_column_put32(uint8_t *at, uint32_t value) {
        value = __builtin_bswap32(value);
        memcpy(at, &value, 4);
    }
    """
    uint16_t omq_column_get16(const uint8_t *) noexcept
    uint32_t omq_column_get32(const uint8_t *) noexcept
    void omq_column_put16(uint8_t *, uint16_t) noexcept
    void omq_column_put32(uint8_t *, uint32_t) noexcept


cdef enum:
    DONE = 0  # the block is used up
    FULL = 1  # a record of the block does not fit
    NO_MEMORY = 2
    FAULT = 3  # a record is not valid


# ---------------------------------------------------------------------- from records


cdef struct Growing:
    uint8_t *data
    size_t size  # bytes in use
    size_t room  # bytes allocated


cdef int grow(Growing *one, size_t more) noexcept nogil:
    """Makes room for *more* bytes; -1: no memory."""
    cdef size_t room
    cdef uint8_t *data
    if one.room - one.size >= more:
        return 0
    room = max(2 * one.room, one.size + more, <size_t>4096)
    data = <uint8_t *>realloc(one.data, room)
    if data is NULL:
        return -1
    one.data, one.room = data, room
    return 0


cdef inline int put(Growing *one, const void *data, size_t size) noexcept nogil:
    if grow(one, size):
        return -1
    if size:  # an empty value may come before any memory is allocated
        memcpy(one.data + one.size, data, size)
    one.size += size
    return 0


cdef inline int put_int32(Growing *one, size_t value) noexcept nogil:
    cdef int32_t number = <int32_t>value
    return put(one, &number, 4)


cdef inline int put_int64(Growing *one, uint64_t value) noexcept nogil:
    return put(one, &value, 8)


cdef bytes taken(Growing *one):
    """Returns the gathered bytes, and begins again with none."""
    found = PyBytes_FromStringAndSize(<const char *>one.data, one.size)
    one.size = 0
    return found


@cython.final
cdef class Gatherer:
    """Gathers the records of blocks into columns, checksums verified. One thread at a time.

    Args:
        limit: Bytes of bodies, keys and headers to gather, about; the first record is taken whatever its size.
        bodies: Whether bodies are wanted.
        keys: Whether keys are wanted.
        headers: Whether headers are wanted.
    """

    cdef bint _with_bodies
    cdef bint _with_keys
    cdef bint _with_headers
    cdef size_t _limit  # bytes of bodies, keys and headers, about
    cdef size_t _used  # of them
    cdef size_t _count  # rows
    cdef Py_buffer _memory  # for the bodies; held while _has_memory
    cdef bint _has_memory
    cdef size_t _body  # bytes of it that are used
    cdef Py_buffer _records  # of the block that is being read; held while _has_records
    cdef bint _has_records
    cdef size_t _offset  # in them
    cdef uint32_t _index  # of the record there
    cdef uint32_t _rows  # of the block
    cdef uint64_t _first  # its first id
    cdef uint64_t _timestamp  # microseconds since 1970
    cdef bint _busy  # a thread uses the object
    cdef Growing _ids
    cdef Growing _times
    cdef Growing _ends
    cdef Growing _key_ends
    cdef Growing _keys
    cdef Growing _key_valid  # a byte for each row
    cdef Growing _header_ends
    cdef Growing _header_valid  # a byte for each row
    cdef Growing _name_ends
    cdef Growing _names
    cdef Growing _value_ends
    cdef Growing _values

    def __cinit__(self):
        memset(&self._ids, 0, sizeof(Growing))
        memset(&self._times, 0, sizeof(Growing))
        memset(&self._ends, 0, sizeof(Growing))
        memset(&self._key_ends, 0, sizeof(Growing))
        memset(&self._keys, 0, sizeof(Growing))
        memset(&self._key_valid, 0, sizeof(Growing))
        memset(&self._header_ends, 0, sizeof(Growing))
        memset(&self._header_valid, 0, sizeof(Growing))
        memset(&self._name_ends, 0, sizeof(Growing))
        memset(&self._names, 0, sizeof(Growing))
        memset(&self._value_ends, 0, sizeof(Growing))
        memset(&self._values, 0, sizeof(Growing))

    def __init__(self, size_t limit, *, bint bodies=True, bint keys=True, bint headers=True) -> None:
        self._limit = min(limit, <size_t>MAX_OFFSET)
        self._with_bodies = bodies
        self._with_keys = keys
        self._with_headers = headers

    def __dealloc__(self):
        if self._has_memory:
            PyBuffer_Release(&self._memory)
        if self._has_records:
            PyBuffer_Release(&self._records)
        free(self._ids.data)
        free(self._times.data)
        free(self._ends.data)
        free(self._key_ends.data)
        free(self._keys.data)
        free(self._key_valid.data)
        free(self._header_ends.data)
        free(self._header_valid.data)
        free(self._name_ends.data)
        free(self._names.data)
        free(self._value_ends.data)
        free(self._values.data)

    @property
    def count(self) -> int:
        """Rows that have been gathered."""
        return self._count

    def begin(self, memory: Buffer) -> None:
        """Sets the memory for the bodies of the next rows: a writable buffer, which is held until `take`."""
        if self._busy or self._count:
            raise RuntimeError("begin: rows wait; call take() first")
        if self._has_memory:
            PyBuffer_Release(&self._memory)
            self._has_memory = False
        PyObject_GetBuffer(memory, &self._memory, PyBUF_WRITABLE)
        self._has_memory = True

    def load(self, header: Buffer, records: Buffer) -> None:
        """Sets the block to gather records from; `ValueError` if its header is not valid, or of other records."""
        cdef uint64_t first, timestamp
        cdef uint32_t count, size
        if self._busy or self._has_records:
            raise RuntimeError("load: the previous block has records left; call fill() first")
        first, count, timestamp, size = read_header(header)
        PyObject_GetBuffer(records, &self._records, PyBUF_SIMPLE)
        if <size_t>self._records.len != size or <size_t>count * EMPTY_RECORD_BYTES > size:
            text = (
                f"the block has {self._records.len} bytes of records, "
                f"and its header announces {count} records of {size} bytes"
            )
            PyBuffer_Release(&self._records)
            raise ValueError(text)
        self._has_records = True
        self._first, self._rows, self._timestamp = first, count, timestamp
        self._offset = self._index = 0

    def fill(self) -> int | None:
        """Gathers records of the block.

        Returns:
            `None` once the block is used up. Else the size of the next body, which does not fit: `take` the gathered
            rows or, without any, `begin` with more memory, and call this again.

        Raises:
            ValueError: A record is damaged. The rest of the block is dropped.
        """
        cdef size_t wanted = 0
        cdef int fault = VALID
        cdef int found
        if self._busy or not self._has_records:
            raise RuntimeError("fill: no block is loaded; call load() first")
        if self._with_bodies and not self._has_memory:
            raise RuntimeError("fill: there is no memory for bodies; call begin() first")
        self._busy = True
        try:
            with nogil:
                found = self._fill(&wanted, &fault)
        finally:
            self._busy = False
        if found == NO_MEMORY:
            raise MemoryError
        if found == FAULT:
            index = self._index
            self._drop_block()
            raise_fault(fault, index)
        if found == FULL:
            return wanted
        if self._offset != <size_t>self._records.len:
            rows = self._rows
            self._drop_block()
            raise ValueError(f"the block has more records than the {rows} in its header")
        self._drop_block()
        return None

    cdef void _drop_block(self) noexcept:
        PyBuffer_Release(&self._records)
        self._has_records = False

    cdef int _fill(self, size_t *wanted, int *fault) noexcept nogil:
        """Gathers records of the block as long as they fit; *wanted*: size of the body of the first that does not."""
        cdef const uint8_t *at = <const uint8_t *>self._records.buf
        cdef size_t size = self._records.len
        cdef size_t room = self._memory.len if self._with_bodies else 0
        cdef size_t more
        cdef Record record
        if grow(&self._ids, 8 * <size_t>self._rows) or grow(&self._times, 8 * <size_t>self._rows):
            return NO_MEMORY
        while self._index < self._rows:
            fault[0] = parse(at + self._offset, size - self._offset, &record)
            if fault[0] != VALID:
                return FAULT
            more = record.body_size if self._with_bodies else 0
            if self._with_keys:
                more += record.key_size
            if self._with_headers:
                more += record.headers_size
            if self._count and self._used + more > self._limit:
                wanted[0] = record.body_size
                return FULL
            if self._with_bodies and room - self._body < record.body_size:
                wanted[0] = record.body_size
                return FULL
            if self._take(&record):
                return NO_MEMORY
            self._used += more
            self._count += 1
            self._offset += record.whole
            self._index += 1
        return DONE

    cdef int _take(self, Record *record) noexcept nogil:
        """Adds a row; -1: no memory."""
        cdef uint8_t valid
        if put_int64(&self._ids, self._first + self._index) or put_int64(&self._times, self._timestamp):
            return -1
        if self._with_bodies:
            if not self._count and put_int32(&self._ends, 0):
                return -1
            memcpy(<uint8_t *>self._memory.buf + self._body, record.body, record.body_size)
            self._body += record.body_size
            if put_int32(&self._ends, self._body):
                return -1
        if self._with_keys:
            valid = record.key is not NULL
            if not self._count and put_int32(&self._key_ends, 0):
                return -1
            if valid and put(&self._keys, record.key, record.key_size):
                return -1
            if put(&self._key_valid, &valid, 1) or put_int32(&self._key_ends, self._keys.size):
                return -1
        if self._with_headers:
            valid = record.headers is not NULL
            if not self._count and (
                put_int32(&self._header_ends, 0) or put_int32(&self._name_ends, 0) or put_int32(&self._value_ends, 0)
            ):
                return -1
            if valid and self._take_headers(record.headers):
                return -1
            if put(&self._header_valid, &valid, 1) or put_int32(&self._header_ends, self._name_ends.size // 4 - 1):
                return -1
        return 0

    cdef int _take_headers(self, const uint8_t *at) noexcept nogil:
        cdef size_t size
        cdef uint16_t i
        cdef uint16_t count = omq_column_get16(at)
        at += 2
        for i in range(count):
            size = omq_column_get16(at)
            if put(&self._names, at + 2, size) or put_int32(&self._name_ends, self._names.size):
                return -1
            at += 2 + size
            size = omq_column_get32(at)
            if put(&self._values, at + 4, size) or put_int32(&self._value_ends, self._values.size):
                return -1
            at += 4 + size
        return 0

    def take(self) -> tuple[int, bytes, bytes, bytes, int, _Strings | None, _Maps | None]:
        """Returns the gathered rows.

        Returns:
            Number of rows; their ids and timestamps (microseconds since 1970), 64 bits each; the ends of their bodies,
            32 bits each; bytes of the memory that the bodies take; keys; headers.
        """
        if self._busy or not self._count:
            raise RuntimeError("take: there are no rows; call fill() first")
        count, body = self._count, self._body
        keys = headers = None
        if self._with_keys:
            nulls, valid = packed(&self._key_valid)
            keys = (taken(&self._key_ends), taken(&self._keys), valid, nulls)
        if self._with_headers:
            nulls, valid = packed(&self._header_valid)
            names = (taken(&self._name_ends), taken(&self._names), None, 0)
            values = (taken(&self._value_ends), taken(&self._values), None, 0)
            headers = (taken(&self._header_ends), names, values, valid, nulls)
        found = (count, taken(&self._ids), taken(&self._times), taken(&self._ends), body, keys, headers)
        self._count = self._used = self._body = 0
        if self._has_memory:
            PyBuffer_Release(&self._memory)
            self._has_memory = False
        return found


cdef tuple packed(Growing *flags):
    """Returns the number of null rows, and the validity bits, or `None` if no row is null."""
    cdef size_t i
    cdef size_t count = flags.size
    cdef size_t nulls = 0
    cdef uint8_t *bits
    flags.size = 0
    for i in range(count):
        nulls += not flags.data[i]
    if not nulls:
        return 0, None
    found = PyBytes_FromStringAndSize(NULL, (count + 7) // 8)
    bits = <uint8_t *>PyBytes_AS_STRING(found)
    memset(bits, 0, (count + 7) // 8)
    for i in range(count):
        if flags.data[i]:
            bits[i >> 3] |= <uint8_t>(1 << (i & 7))
    return nulls, found


# ---------------------------------------------------------------------- to records


@cython.final
cdef class Strings:
    """A column to read from: strings or bytes, or the number of headers of each row.

    Args:
        ends: Start of each row, and the end of the last one; in native byte order.
        data: The bytes, or `None`.
        rows: Number of rows.
        valid: A validity bit for each row; `None`: no row is null.
        start: The first row's index in *ends* and *valid*.
        wide: Whether ends have 64 bits instead of 32.
        counts: Whether ends count rows of other columns, as those of headers do.

    Raises:
        ValueError: There are too few ends or bits, or ends beyond the data.
    """

    cdef Py_buffer _ends  # of 4 or 8 bytes each
    cdef Py_buffer _data
    cdef Py_buffer _valid  # held while _has_valid
    cdef bint _has_ends
    cdef bint _has_data
    cdef bint _has_valid
    cdef bint _wide  # ends have 8 bytes
    cdef bint _counts  # they count rows of other columns
    cdef size_t _start  # of the first row, in ends and bits
    cdef size_t _rows

    def __init__(
        self,
        ends: Buffer,
        data: Buffer | None,
        size_t rows,
        *,
        valid: Buffer | None = None,
        size_t start=0,
        bint wide=False,
        bint counts=False,
    ) -> None:
        cdef size_t i
        cdef size_t width = 8 if wide else 4
        if self._has_ends:
            raise RuntimeError("the column is already initialized")
        PyObject_GetBuffer(ends, &self._ends, PyBUF_SIMPLE)
        self._has_ends = True
        if data is not None:
            PyObject_GetBuffer(data, &self._data, PyBUF_SIMPLE)
            self._has_data = True
        if valid is not None:
            PyObject_GetBuffer(valid, &self._valid, PyBUF_SIMPLE)
            self._has_valid = True
        if <size_t>self._ends.len // width < start + rows + 1:
            raise ValueError(f"ends: must cover {rows} rows from start={start} on")
        if valid is not None and <size_t>self._valid.len * 8 < start + rows:
            raise ValueError(f"valid: must cover {rows} rows from start={start} on")
        self._wide, self._counts, self._start, self._rows = wide, counts, start, rows
        for i in range(rows):
            if self._end(i) > self._end(i + 1):
                raise ValueError(f"ends: row {i} ends before it begins")
        if not counts and self._end(rows) > <uint64_t>(self._data.len if self._has_data else 0):
            raise ValueError("ends: the last row ends beyond the data")

    def __dealloc__(self):
        if self._has_ends:
            PyBuffer_Release(&self._ends)
        if self._has_data:
            PyBuffer_Release(&self._data)
        if self._has_valid:
            PyBuffer_Release(&self._valid)

    def __len__(self) -> int:
        return self._rows

    cdef inline uint64_t _end(self, size_t row) noexcept nogil:
        """Returns the start of a row."""
        if self._wide:
            return (<const uint64_t *>self._ends.buf)[self._start + row]
        return (<const uint32_t *>self._ends.buf)[self._start + row]

    cdef inline const uint8_t *_at(self, size_t row) noexcept nogil:
        if not self._has_data:
            return <const uint8_t *>self._ends.buf  # no bytes, but a valid address
        return <const uint8_t *>self._data.buf + self._end(row)

    cdef inline size_t _size(self, size_t row) noexcept nogil:
        return self._end(row + 1) - self._end(row)

    cdef inline bint _has(self, size_t row) noexcept nogil:
        """Returns whether a row has a value."""
        cdef size_t bit = self._start + row
        return not self._has_valid or (<const uint8_t *>self._valid.buf)[bit >> 3] >> (bit & 7) & 1


cdef struct Sized:
    size_t whole  # bytes of a record
    size_t headers  # bytes of its headers; 0: none
    int fault  # fault of the record, see FAULTS


cdef enum:
    LARGE_BODY = 1
    LARGE_RECORD = 2
    NO_BODY = 3
    MANY_HEADERS = 4
    LONG_NAME = 5
    NO_UTF8 = 6
    NO_HEADER = 7


cdef tuple FAULTS = (
    "",
    "its body is too large",
    "its size is 4 GiB or more",
    "its body is null",
    "it has more than 65,535 headers",
    "the name of a header has more than 65,535 bytes",
    "the name of a header is not UTF-8",
    "a header's name or value is null",
)


cdef Sized sized(size_t row, size_t limit, Strings bodies, Strings keys, Strings maps, Strings names,
                 Strings values) noexcept nogil:
    """Returns the sizes of a row's record."""
    cdef Sized found
    cdef size_t i, begin, end
    found.headers = found.whole = 0
    found.fault = 0
    if not bodies._has(row):
        found.fault = NO_BODY
        return found
    found.whole = EMPTY_RECORD_BYTES + bodies._size(row)
    if bodies._size(row) > limit:
        found.fault = LARGE_BODY
        return found
    if keys is not None and keys._has(row):
        found.whole += 4 + keys._size(row)
    if maps is not None and maps._has(row) and maps._size(row):
        begin, end = maps._end(row), maps._end(row + 1)
        if end - begin > 0xFFFF:
            found.fault = MANY_HEADERS
            return found
        found.headers = 2
        for i in range(begin, end):
            if not names._has(i) or not values._has(i):
                found.fault = NO_HEADER
                return found
            if names._size(i) > 0xFFFF:
                found.fault = LONG_NAME
                return found
            if not is_utf8(names._at(i), names._size(i)):
                found.fault = NO_UTF8
                return found
            found.headers += 6 + names._size(i) + values._size(i)
        found.whole += found.headers
    if found.whole > UINT32_MAX:
        found.fault = LARGE_RECORD
    return found


cdef uint8_t *write(uint8_t *at, size_t row, Sized about, Strings bodies, Strings keys, Strings maps, Strings names,
                    Strings values) noexcept nogil:
    """Writes the record of a row; returns the address after it."""
    cdef uint8_t *begin = at
    cdef size_t i, size
    omq_column_put32(at, <uint32_t>(about.whole - 4))
    at[8] = 0
    at += EMPTY_RECORD_BYTES
    if keys is not None and keys._has(row):
        begin[8] |= HAS_KEY
        size = keys._size(row)
        omq_column_put32(at, <uint32_t>size)
        memcpy(at + 4, keys._at(row), size)
        at += 4 + size
    if about.headers:
        begin[8] |= HAS_HEADERS
        omq_column_put16(at, <uint16_t>maps._size(row))
        at += 2
        for i in range(maps._end(row), maps._end(row + 1)):
            size = names._size(i)
            omq_column_put16(at, <uint16_t>size)
            memcpy(at + 2, names._at(i), size)
            at += 2 + size
            size = values._size(i)
            omq_column_put32(at, <uint32_t>size)
            memcpy(at + 4, values._at(i), size)
            at += 4 + size
    size = bodies._size(row)
    memcpy(at, bodies._at(row), size)
    omq_column_put32(begin + 4, checksum(begin + 8, about.whole - 8))
    return at + size


def encode_columns(
    Strings bodies not None,
    size_t start,
    size_t target,
    *,
    Strings keys: Strings | None = None,
    headers: tuple[Strings, Strings, Strings] | None = None,
    size_t limit=MAX_BODY,
    size_t most=65536,
) -> tuple[bytes, int]:
    """Encodes the rows from *start* on as records, one after the other.

    Args:
        bodies: The bodies.
        start: The first row.
        target: Bytes of records to return, about; the first row is taken whatever its size.
        keys: The keys, or `None`.
        headers: The number of headers of each row, the headers' names and their values; or `None`.
        limit: The largest body allowed, in bytes.
        most: The largest number of records.

    Returns:
        The records, and the row after the last of them.

    Raises:
        BodyTooLarge: The body of the first row is above the limit. For a later row the next call raises this.
        ValueError: The first row cannot become a record: its body or a header is null, a name is too long or not UTF-8.
    """
    cdef Strings maps = None
    cdef Strings names = None
    cdef Strings values = None
    cdef size_t rows = bodies._rows
    cdef size_t row = start
    cdef size_t total = 0
    cdef Sized about
    cdef uint8_t *at
    if headers is not None:
        maps, names, values = headers
        if maps is None or names is None or values is None or not maps._counts or names._counts or values._counts:
            raise TypeError("headers: must be three columns: counting ends, names and values")
        if maps._rows < rows:
            raise ValueError(f"headers: there are {maps._rows} rows of headers for {rows} rows")
        if maps._end(maps._rows) > min(names._rows, values._rows):
            raise ValueError(
                f"headers: the ends count {maps._end(maps._rows)} headers; "
                f"there are {names._rows} names and {values._rows} values"
            )
    if keys is not None and keys._rows < rows:
        raise ValueError(f"keys: there are {keys._rows} keys for {rows} rows")
    if bodies._counts or (keys is not None and keys._counts):
        raise TypeError("bodies, keys: must be columns of data, not of counts")
    about.fault = 0
    with nogil:
        while row < rows and row - start < most:
            about = sized(row, limit, bodies, keys, maps, names, values)
            if about.fault or (row > start and total + about.whole > target):
                break
            total += about.whole
            row += 1
    if about.fault and row == start:
        kind = BodyTooLarge if about.fault == LARGE_BODY else ValueError
        raise kind(f"row {row}: {FAULTS[about.fault]}")
    records = PyBytes_FromStringAndSize(NULL, total)
    at = <uint8_t *>PyBytes_AS_STRING(records)
    cdef size_t end = row
    with nogil:
        for row in range(start, end):
            about = sized(row, limit, bodies, keys, maps, names, values)
            at = write(at, row, about, bodies, keys, maps, names, values)
    return records, end
