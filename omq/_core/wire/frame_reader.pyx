"""The bytes that a connection receives: slabs of small frames, and large frames on their own, in order of arrival.

`fill` reads bytes into a chain of slabs. `scan` parses them once (limits, commands, a count of whole messages).
`take_part` makes Python objects, one for each call, when the user asks. `fill` and `scan` need no GIL. A slab without a
message returns to the pool. One class does all this because frames stay in the slabs until they are taken.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF, Py_XDECREF
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memmove, memset

from omq._core.kernel cimport MSG_DONTWAIT, iovec, msghdr, recv, recvmsg
from omq._core.wire.codec cimport FLAG_OWN, Codec, WireFrame, measure_plain
from omq._core.wire.framing cimport (
    FLAG_COMMAND,
    FLAG_LONG,
    FLAG_MORE,
    LONG_HEADER_BYTES,
    SHORT_HEADER_BYTES,
    Header,
    long_size,
    parse_header,
)
from omq._core.wire.pool cimport BLOCK_BYTES, NODE_BYTES, Pool
from omq._core.wire.send_buffer cimport SEGMENT_BYTES, Part

from omq.errors import RemoteProtocolError

# The same macros as in cpython.bytes, for references that are held as pointers.
cdef extern from "Python.h" nogil:
    char *bytes_data "PyBytes_AS_STRING"(PyObject *)
    Py_ssize_t bytes_size "PyBytes_GET_SIZE"(PyObject *)

cdef extern from "Python.h":
    int resize_bytes "_PyBytes_Resize"(PyObject **, Py_ssize_t) except -1


cdef enum:
    MIN_ROOM_BYTES = 8192      # room below which nothing more is read into a slab
    READ_BEYOND_BYTES = 16384  # bytes read beyond a large frame: the next frame is most likely large too


cdef inline Node *slab(char *block) noexcept nogil:
    cdef Node *node = <Node *>block
    memset(node, 0, sizeof(Node))
    node.data = block + NODE_BYTES
    return node


@cython.final
@cython.no_gc  # its attributes cannot refer to it
cdef class FrameReader:
    """The frames that a connection has received and that have not been taken yet.

    Args:
        pool: The pool of slabs.
        max_size: Bytes that one message may have, all parts together; `None` for no limit.
        max_parts: Parts that one message may have; `None` for 1048576.
        ceiling: Bytes that may have arrived of an unfinished message while there is no *max_size*.
    """

    def __cinit__(
        self,
        Pool pool not None,
        max_size: int | None = None,
        max_parts: int | None = None,
        long long ceiling=MESSAGE_CEILING,
    ) -> None:
        self._pool = pool
        self._limit = self._portion = BLOCK_BYTES
        self.max_size = NO_LIMIT if max_size is None else max_size
        self.max_parts = DEFAULT_MAX_PARTS if max_parts is None else max_parts
        self._left = <uint64_t>self.max_size
        self.ceiling = ceiling if max_size is None else NO_LIMIT
        self._as_is = True

    cdef void decode_with(self, Codec codec) noexcept:
        """Decodes all arriving bytes with *codec*; None: they are plain frames. Call before anything arrives."""
        self.codec = codec
        self._limit = self._portion = BLOCK_BYTES
        if codec is not None:
            self._limit -= codec.growth
            self._lead = codec.lead
            self._portion = codec.portion or BLOCK_BYTES

    def __dealloc__(self):
        self.clear()

    cdef void clear(self):
        cdef Node *node = self._head
        cdef Node *after
        while node != NULL:
            after = node.next
            if node.data == NULL:
                Py_XDECREF(node.body)
                free(node)
            else:
                self._pool.put(<char *>node)
            node = after
        if self._spare != NULL:
            self._pool.put(self._spare)
            self._spare = NULL
        self._head = self._tail = NULL
        self._large = self._aimed = NULL
        self._left = <uint64_t>self.max_size
        self._scan = self._need = self._dead = self.complete = self._parts = 0

    cdef int slabs(self) noexcept nogil:
        """Returns the number of blocks that hold received bytes."""
        cdef Node *node = self._head
        cdef int count = 0
        while node != NULL:
            count += node.data != NULL
            node = node.next
        return count + (self._spare != NULL)

    # ------------------------------------------------------------------ bytes in

    cdef bint _make_room(self) noexcept nogil:
        """Makes sure that the tail is a slab with room for the rest of the frame at `_scan`."""
        cdef Node *tail = self._tail
        cdef Node *fresh
        cdef char *block
        cdef Py_ssize_t wanted = MIN_ROOM_BYTES
        cdef Py_ssize_t partial = 0
        if tail != NULL and tail.data != NULL:
            partial = tail.end - self._scan
            if self._need - partial > wanted:
                wanted = self._need - partial
            if self._limit - tail.end >= wanted:
                return True
            if tail == self._head and tail.pos == self._scan:
                memmove(tail.data, tail.data + self._scan, partial)
                tail.pos = self._scan = 0
                tail.end = partial
                return True
            if self._dead >= BLOCK_BYTES // 4:
                self._compact()
                if self._limit - tail.end >= wanted:
                    return True
        block = self._pool.get()
        if block == NULL:
            return False
        fresh = slab(block)
        if partial > 0:
            memcpy(fresh.data, tail.data + self._scan, partial)
            fresh.end = partial
            tail.end = self._scan
        self._scan = self._dead = 0
        if tail == NULL:
            self._head = fresh
        else:
            tail.next = fresh
        self._tail = fresh
        return True

    cdef void _compact(self) noexcept nogil:
        """Cuts the commands out of the tail slab: while messages wait there, commands would gather without end."""
        cdef Node *tail = self._tail
        cdef Py_ssize_t read = tail.pos
        cdef Py_ssize_t write = 0
        cdef Py_ssize_t whole
        cdef Header header
        memset(&header, 0, sizeof(header))  # the frames are whole, but the C compiler cannot know
        while read < self._scan:
            parse_header(<const unsigned char *>tail.data + read, self._scan - read, &header)
            whole = header.length + <Py_ssize_t>header.size
            if not header.flags & FLAG_COMMAND:
                memmove(tail.data + write, tail.data + read, whole)
                write += whole
            read += whole
        memmove(tail.data + write, tail.data + self._scan, tail.end - self._scan)
        tail.end = write + tail.end - self._scan
        tail.pos = self._dead = 0
        self._scan = write

    cdef void _after_message(self) noexcept nogil:
        """Drops the commands after the last message, which was just taken, so that they do not keep a slab."""
        self.complete -= 1
        if self._dead > 0 and self.complete == 0 and self._parts == 0 and self._head == self._tail:
            if self._head != NULL and self._head.data != NULL:
                self._head.pos = self._scan
                self._dead = 0
                self._settle()

    cdef Py_ssize_t fill(self, int fd) noexcept nogil:
        """Reads once from *fd*; returns the number of bytes (above 0), or FILL_*."""
        cdef Py_ssize_t got, rest, at
        cdef Node *node
        cdef iovec iov[2]
        cdef msghdr message
        if self._large == NULL:
            if not self._make_room():
                return FILL_NO_MEMORY
            node = self._tail
            at = node.end + self._lead
            self.asked = min(self._limit - at, self._portion)
            got = recv(fd, node.data + at, self.asked, MSG_DONTWAIT)
            while got < 0 and errno == EINTR:
                got = recv(fd, node.data + at, self.asked, MSG_DONTWAIT)
            if got > 0:
                node.end = at + got
                return got
            if got < 0:
                self.error = errno
            self._settle()
        else:
            if self._spare == NULL:
                self._spare = self._pool.get()
                if self._spare == NULL:
                    return FILL_NO_MEMORY
            rest = self._room - self._have
            iov[0].iov_base = self._memory + self._have
            iov[0].iov_len = rest
            iov[1].iov_base = self._spare + NODE_BYTES
            iov[1].iov_len = READ_BEYOND_BYTES
            memset(&message, 0, sizeof(message))
            message.msg_iov = iov
            # The next frame can follow only a body that has all its memory.
            message.msg_iovlen = 2 if <uint64_t>self._room == self._size else 1
            self.asked = rest + (READ_BEYOND_BYTES if message.msg_iovlen == 2 else 0)
            got = recvmsg(fd, &message, MSG_DONTWAIT)
            while got < 0 and errno == EINTR:
                got = recvmsg(fd, &message, MSG_DONTWAIT)
            if got > rest:
                node = slab(self._spare)
                self._spare = NULL
                node.end = got - rest
                self._tail.next = node
                self._tail = node
                self._scan = 0
                self._have = self._room
                return got
            if got > 0:
                self._have += got
                return got
            if got < 0:
                self.error = errno
        if got == 0:
            return FILL_EOF
        return FILL_EMPTY if self.error == EAGAIN else FILL_ERROR

    cdef long long boundary(self) noexcept nogil:
        """Returns the number of bytes to read before the next frame begins; -1: unknown, or its header is not whole."""
        cdef WireFrame frame
        cdef const unsigned char *p
        cdef Py_ssize_t partial
        cdef int state
        if self.codec is not None and not self.codec.watchable:
            return -1
        if self._large != NULL:
            return <long long>self._size - self._have
        if self._tail == NULL or self._tail.data == NULL:
            return 0
        partial = self._tail.end - self._scan
        if partial == 0:
            return 0
        p = <const unsigned char *>self._tail.data + self._scan
        state = measure_plain(p, partial, &frame) if self.codec is None else self.codec.measure(p, partial, &frame)
        return frame.length + <long long>frame.size - partial if state == 1 else -1

    cdef Py_ssize_t unscanned(self, char *into, Py_ssize_t room) noexcept nogil:
        """Copies the arrived part of a frame's header; returns 0 if no byte has arrived, or more than *room* bytes."""
        cdef Py_ssize_t size
        if (self.codec is not None and not self.codec.watchable) or self._large != NULL or self._tail == NULL:
            return 0
        size = self._tail.end - self._scan
        if self._tail.data == NULL or size > room:
            return 0
        memcpy(into, self._tail.data + self._scan, size)
        return size

    cdef Py_ssize_t absorb(self, const char *data, Py_ssize_t size) noexcept nogil:
        """Takes bytes that another thread has read, like `fill` the kernel's; returns how many, or FILL_NO_MEMORY."""
        cdef Node *node
        if self._large == NULL:
            if not self._make_room():
                return FILL_NO_MEMORY
            node = self._tail
            size = min(size, self._limit - node.end)
            memcpy(node.data + node.end, data, size)
            node.end += size
        else:
            size = min(size, self._room - self._have)
            memcpy(self._memory + self._have, data, size)
            self._have += size
        return size

    cdef int feed(self, const char *data, Py_ssize_t size) except -1:
        """Appends bytes that were read elsewhere; only while no large frame is in progress."""
        cdef Py_ssize_t chunk
        while size > 0:
            if not self._make_room():
                raise MemoryError()
            chunk = min(size, self._limit - self._tail.end)
            memcpy(self._tail.data + self._tail.end, data, chunk)
            self._tail.end += chunk
            data += chunk
            size -= chunk
        return 0

    cdef void _drop_head(self) noexcept nogil:
        """Removes the first node, a slab without unread bytes, from the chain."""
        cdef Node *node = self._head
        self._head = node.next
        if self._tail == node:
            self._tail = NULL
            self._scan = 0
        self._pool.put(<char *>node)

    cdef void _settle(self) noexcept nogil:
        """Returns an empty slab to the pool: an idle connection owns no block."""
        cdef Node *node = self._head
        if node != NULL and node.data != NULL and node.pos == node.end and node == self._tail:
            self._drop_head()

    # ------------------------------------------------------------------ parsing frames, once

    cdef Scan scan(self) noexcept nogil:
        """Parses whole frames, up to the first event or to the last byte."""
        cdef Node *tail
        cdef const unsigned char *p
        cdef Header header
        cdef Py_ssize_t available, whole
        cdef int state
        if self.codec is not None:
            return self._scan_coded()
        if self._large != NULL:
            return self._judge_large()
        tail = self._tail
        if tail == NULL or tail.data == NULL:
            return SCAN_STARVED
        while True:
            p = <const unsigned char *>tail.data + self._scan
            available = tail.end - self._scan
            state = parse_header(p, available, &header)
            if state <= 0:
                self._need = LONG_HEADER_BYTES
                if state < 0:
                    return SCAN_BAD_HEADER
                self._settle()
                return SCAN_STARVED
            if header.flags & FLAG_COMMAND:
                if header.size > MAX_COMMAND_BYTES:
                    return SCAN_COMMAND_TOO_LARGE
            elif header.size > self._left or self._parts >= self.max_parts:
                return self._refuse(header.size)
            if header.size > <uint64_t>(available - header.length):
                if header.size > LARGE_FRAME_BYTES:
                    self._header = header
                    return SCAN_LARGE
                self._need = header.length + <Py_ssize_t>header.size
                return SCAN_STARVED
            whole = header.length + <Py_ssize_t>header.size
            if header.flags & FLAG_COMMAND:
                # Commands are handled when they arrive and skipped when messages are taken.
                if tail == self._head and tail.pos == self._scan:
                    tail.pos += whole
                else:
                    self._dead += whole
                self._scan += whole
                self.command_data = <const char *>p + header.length
                self.command_size = <Py_ssize_t>header.size
                return SCAN_COMMAND
            self._scan += whole
            self._count(header.flags & FLAG_MORE, header.size)

    cdef Scan _refuse(self, uint64_t size) noexcept nogil:
        """Returns the fault of one more part, or SCAN_STARVED: limits on a message that recv_hwm does not count yet."""
        if size > self._left:
            return SCAN_ENDLESS if self._left == 0 and self.ceiling != NO_LIMIT else SCAN_TOO_LARGE
        return SCAN_TOO_MANY_PARTS if self._parts >= self.max_parts else SCAN_STARVED

    cdef Scan _judge_large(self) noexcept nogil:
        if self._have == self._room >= self.ceiling and <uint64_t>self._room < self._size:
            return SCAN_ENDLESS
        return SCAN_LARGE_DONE if self._have == self._room else SCAN_STARVED

    cdef inline void _count(self, bint more, uint64_t size) noexcept nogil:
        """Counts one more whole part."""
        if more:
            self._parts += 1
            self._left -= size
            if <uint64_t>self.max_size - self._left >= <uint64_t>self.ceiling:
                self._left = 0
        else:
            self.complete += 1
            self._parts = 0
            self._left = <uint64_t>self.max_size

    cdef Scan _scan_coded(self) noexcept nogil:
        """Parses like `scan`, for frames that the codec decodes, and replaces by plain ones in place."""
        cdef Node *tail = self._tail
        cdef unsigned char *p
        cdef WireFrame frame
        cdef Py_ssize_t available
        cdef int state, flags
        cdef Scan wrong
        if self._wrong != SCAN_STARVED:
            return self._wrong
        if self._large != NULL:
            return self._judge_large()
        if tail == NULL or tail.data == NULL:
            return SCAN_STARVED
        while True:
            p = <unsigned char *>tail.data + self._scan
            available = tail.end - self._scan
            state = self.codec.measure(p, available, &frame)
            if state < 0:
                self.found = state
                return SCAN_REFUSED
            if state == 0:
                self._need = LONG_HEADER_BYTES
                self._settle()
                return SCAN_STARVED
            if frame.flags >= 0 or frame.payload > self._left:
                wrong = self._judge(frame.flags, frame.payload)
                if wrong != SCAN_STARVED:
                    return wrong
            if frame.size > <uint64_t>(available - frame.length):
                if frame.size > LARGE_FRAME_BYTES:
                    self._header.length = <int>frame.length
                    self._header.size = frame.size
                    self._header.flags = frame.flags if frame.as_is else 0
                    self._as_is = frame.as_is
                    return SCAN_LARGE
                self._need = frame.length + <Py_ssize_t>frame.size
                return SCAN_STARVED
            flags = self.codec.decode(p, available, &frame)
            if flags < 0:
                self.found = flags
                return SCAN_REFUSED
            if flags & FLAG_COMMAND or frame.payload > self._left or self._parts >= self.max_parts:
                wrong = self._judge(flags, frame.payload)
                if wrong != SCAN_STARVED:
                    return wrong
            tail.end += frame.grown
            if tail == self._head and tail.pos == self._scan:
                tail.pos += frame.spare
            else:
                self._dead += frame.spare
            self._scan += frame.whole
            if flags & FLAG_COMMAND:
                if flags & FLAG_OWN:
                    return SCAN_OWN
                self.command_data = <const char *>p + frame.whole - <Py_ssize_t>frame.payload
                self.command_size = <Py_ssize_t>frame.payload
                return SCAN_COMMAND
            self._count(flags & FLAG_MORE, frame.payload)

    cdef Scan _judge(self, int flags, uint64_t size) noexcept nogil:
        """Checks a codec's frame against the limits; returns SCAN_STARVED, or the fault."""
        if flags < 0:
            # Only a decoded frame is known to be a command. A frame that is too large for both limits is rejected here.
            return self._refuse(size) if size > self._left and size > MAX_COMMAND_BYTES else SCAN_STARVED
        if flags & FLAG_COMMAND:
            return SCAN_COMMAND_TOO_LARGE if size > MAX_COMMAND_BYTES else SCAN_STARVED
        return self._refuse(size)

    cdef int start_large(self) except -1:
        """Allocates memory for the large frame at `_scan` and moves its first bytes there."""
        cdef Node *tail = self._tail
        cdef const unsigned char *header = <const unsigned char *>tail.data + self._scan
        cdef Py_ssize_t have = tail.end - self._scan - self._header.length
        # A frame may announce any size: memory follows the bytes that arrive (one step ahead), not the announcement.
        cdef Py_ssize_t room = LARGE_STEP_BYTES
        cdef Node *node
        cdef bint aimed
        if self._header.size <= LARGE_STEP_BYTES:
            room = <Py_ssize_t>self._header.size
        aimed = self._fits_target(self._header.flags & ~FLAG_LONG, self._header.size)
        body = None if aimed else PyBytes_FromStringAndSize(NULL, room)
        node = <Node *>malloc(sizeof(Node))
        if node == NULL:
            raise MemoryError()
        memset(node, 0, sizeof(Node))
        if aimed:
            room = <Py_ssize_t>self._header.size
            self._memory = self._target
            self._aimed = node
            self._aimed_size = room
        else:
            Py_INCREF(body)
            node.body = <PyObject *>body
            self._memory = PyBytes_AS_STRING(<bytes>body)
        if self.codec is not None:
            self.codec.begin_large(header, self._header.length)
        memcpy(self._memory, header + self._header.length, have)
        node.flags = self._header.flags & ~FLAG_LONG
        tail.end = self._scan
        tail.next = node
        self._tail = node
        if tail == self._head and tail.pos == tail.end:
            self._drop_head()
        self._large = node
        self._came_back = False
        self._have = have
        self._room = room
        self._size = self._header.size
        self._scan = self._need = self._dead = 0
        return 0

    cdef object finish_large(self):
        """Grows or completes the large frame. Returns its body if it is a command, else None."""
        cdef Node *node
        cdef Node *before
        cdef Py_ssize_t room
        cdef int flags
        node = self._head
        before = NULL
        while node != self._large:
            before = node
            node = node.next
        if <uint64_t>self._room < self._size:
            room = self._room * 2
            if <uint64_t>room > self._size:
                room = <Py_ssize_t>self._size
            self._resize(room)
            self._room = room
            return None
        self._large = NULL
        if self._spare != NULL:
            self._pool.put(self._spare)
            self._spare = NULL
        if not self._as_is:
            payload = self.codec.finish(<bytes>node.body, &self.found)
            self._wrong = SCAN_REFUSED if self.found < 0 else self._judge(self.found, PyBytes_GET_SIZE(payload))
            if self._wrong != SCAN_STARVED:
                return None
            Py_DECREF(<object>node.body)
            Py_INCREF(payload)
            node.body = <PyObject *>payload
            node.flags = self.found & (FLAG_MORE | FLAG_COMMAND)
        flags = node.flags
        if flags & FLAG_COMMAND:
            body = <object>node.body
            Py_DECREF(body)
            if before == NULL:
                self._head = node.next
            else:
                before.next = node.next
            if self._tail == node:
                self._tail = before
                # All bytes of the slab before it were parsed.
                if before != NULL and before.data != NULL:
                    self._scan = before.end
            free(node)
            return body
        self._count(flags & FLAG_MORE, self._aimed_size if node == self._aimed else bytes_size(node.body))
        return None

    cdef int _resize(self, Py_ssize_t room) except -1:
        # The reference moves into the call and out of it again: the call must have the only one.
        cdef PyObject *body = self._large.body
        self._large.body = NULL
        resize_bytes(&body, room)
        self._large.body = body
        self._memory = bytes_data(body)
        return 0

    cdef bint _fits_target(self, int flags, uint64_t size) noexcept nogil:
        """Returns whether a large frame fits the target: it must be the next message, and all of it."""
        return (self._target != NULL and self._aimed == NULL and self._as_is and self.complete == 0
                and self._parts == 0 and flags == 0 and size <= <uint64_t>self._target_size)

    cdef bint aim(self, char *into, Py_ssize_t size) noexcept:
        """Offers memory for the next message until `withdraw`; returns whether a large frame is already there."""
        cdef Node *node = self._large
        self._target = into
        self._target_size = size
        # Calls whose time runs out would move it to and fro: from here on it moves only once more, when it is whole.
        cdef bint stays = self._came_back and self._have > MAX_MOVED_BYTES
        if node != NULL and not stays and self._fits_target(node.flags, self._size):
            # The frame has begun: its bytes move now, as they would have to at the end.
            memcpy(into, self._memory, self._have)
            Py_DECREF(<object>node.body)
            node.body = NULL
            self._memory = into
            self._room = self._aimed_size = <Py_ssize_t>self._size
            self._aimed = node
        return self._aimed != NULL

    cdef int withdraw(self) except -1:
        """Withdraws the offer; bytes in the target move into memory of their own."""
        cdef Node *node = self._aimed
        cdef char *target = self._target
        self._target = NULL
        self._aimed = NULL
        if node != NULL:
            try:
                body = PyBytes_FromStringAndSize(NULL, self._aimed_size)
            except MemoryError:
                self.clear()
                raise
            memcpy(PyBytes_AS_STRING(body), target, self._have if node == self._large else PyBytes_GET_SIZE(body))
            Py_INCREF(body)
            node.body = <PyObject *>body
            if node == self._large:
                self._memory = PyBytes_AS_STRING(body)
                self._came_back = True
        return 0

    cdef object complaint(self, Scan found):
        """Returns the exception for a result of `scan`; None: the peer has announced that it ends the connection."""
        if found == SCAN_TOO_LARGE:
            return RemoteProtocolError(f"a message is larger than max_message_size={self.max_size} bytes")
        if found == SCAN_ENDLESS:
            return RemoteProtocolError(
                f"a message is larger than {self.ceiling} bytes: set max_message_size to allow more")
        if found == SCAN_TOO_MANY_PARTS:
            return RemoteProtocolError(f"a message has more than max_parts={self.max_parts} parts")
        if found == SCAN_COMMAND_TOO_LARGE:
            return RemoteProtocolError(f"a command is larger than {MAX_COMMAND_BYTES} bytes")
        if found == SCAN_REFUSED:
            return self.codec.explain(self.found)
        return RemoteProtocolError("bytes that are not a valid ZMTP frame (RFC 23, Framing)")

    # ------------------------------------------------------------------ messages out

    cdef const unsigned char *_front(self, Header *header) noexcept nogil:
        """Returns the body of a message's first unread frame; its node becomes the head. `complete` is above 0."""
        cdef Node *node
        cdef const unsigned char *p
        while True:
            node = self._head
            if node.data == NULL:
                header.flags = node.flags
                header.length = 0
                header.size = 0
                return NULL
            if node.pos == node.end:
                self._drop_head()
                continue
            p = <const unsigned char *>node.data + node.pos
            parse_header(p, node.end - node.pos, header)
            if header.flags & FLAG_COMMAND:
                node.pos += header.length + <Py_ssize_t>header.size
                continue
            return p + header.length

    cdef bint has_large(self, Py_ssize_t size) noexcept nogil:
        """Returns whether the first waiting message begins with a large frame of *size* bytes or more."""
        cdef Node *node = self._head
        if self.complete == 0 or node == NULL or node.data != NULL:
            return False
        return (self._aimed_size if node == self._aimed else bytes_size(node.body)) >= size

    cdef bint head_more(self) noexcept nogil:
        """Returns whether the next part is followed by another of the same message."""
        cdef Header header
        self._front(&header)
        return header.flags & FLAG_MORE

    cdef const char *peek(self, Py_ssize_t *size) noexcept nogil:
        """Returns the next part in place; valid until the next call."""
        cdef Header header
        cdef const unsigned char *body = self._front(&header)
        if body == NULL:
            if self._head == self._aimed:
                size[0] = self._aimed_size
                return self._target
            size[0] = bytes_size(self._head.body)
            return bytes_data(self._head.body)
        size[0] = <Py_ssize_t>header.size
        return <const char *>body

    cdef Py_ssize_t view(self, Part *parts, Py_ssize_t room) noexcept nogil:
        """Finds the parts of the first message in place, valid until the next take or read.

        Returns:
            Number of the message's parts; *parts* gets at most *room* of them.
        """
        cdef Node *node = self._head
        cdef Py_ssize_t pos = node.pos
        cdef Py_ssize_t n = 0
        cdef const unsigned char *p
        cdef const char *data
        cdef Py_ssize_t size
        cdef PyObject *owner
        cdef Header header
        memset(&header, 0, sizeof(header))  # the message is whole, but the C compiler cannot know
        while True:
            if node.data == NULL:
                header.flags = node.flags
                owner = node.body
                if node == self._aimed:
                    data, size = self._target, self._aimed_size
                else:
                    data, size = bytes_data(owner), bytes_size(owner)
            elif pos == node.end:
                node = node.next
                pos = node.pos
                continue
            else:
                p = <const unsigned char *>node.data + pos
                parse_header(p, node.end - pos, &header)
                owner = NULL
                data, size = <const char *>p + header.length, <Py_ssize_t>header.size
                pos += header.length + size
                if header.flags & FLAG_COMMAND:
                    continue
            if n < room:
                parts[n].data, parts[n].size, parts[n].owner = data, size, owner
            n += 1
            if not header.flags & FLAG_MORE:
                return n
            if node.data == NULL:
                node = node.next
                pos = node.pos

    cdef bint view_run(self, Run *run, Py_ssize_t limit) noexcept nogil:
        """Finds adjacent whole messages in the slab, up to *limit*; returns whether there are any."""
        cdef Node *node = self._head
        cdef Py_ssize_t pos
        cdef Py_ssize_t body = 0
        cdef Header header
        memset(run, 0, sizeof(Run))
        if node.data == NULL:
            return False
        pos = node.pos
        limit = min(limit, self.complete)
        while run.count < limit and run.size < SEGMENT_BYTES:
            if parse_header(<const unsigned char *>node.data + pos, node.end - pos, &header) <= 0:
                break  # the slab ends here
            if header.flags & FLAG_COMMAND or <uint64_t>(node.end - pos - header.length) < header.size:
                break
            pos += header.length + <Py_ssize_t>header.size
            body += <Py_ssize_t>header.size
            if not header.flags & FLAG_MORE:
                run.count += 1
                run.size = pos - node.pos
                run.body = body
        run.data = node.data + node.pos
        return run.count > 0

    cdef int skip_run(self, const Run *run) noexcept:
        """Drops the messages that `view_run` has found."""
        cdef Node *node = self._head
        node.pos += run.size
        if node.pos == node.end:
            self._settle()
        self.complete -= run.count - 1
        self._after_message()
        return 0

    cdef inline object take_short(self):
        """Serves the common case in as few steps as possible: a last frame in the slab; None in all other cases."""
        cdef Node *node = self._head
        cdef const unsigned char *p
        cdef Py_ssize_t size
        cdef int header = SHORT_HEADER_BYTES
        if node.data == NULL or node.pos == node.end:
            return None
        p = <const unsigned char *>node.data + node.pos
        if p[0] == 0:
            size = p[1]
        elif p[0] == FLAG_LONG:
            size = <Py_ssize_t>long_size(p)
            header = LONG_HEADER_BYTES
        else:
            return None
        part = PyBytes_FromStringAndSize(<const char *>p + header, size)
        node.pos += header + size
        self.more = False
        if node.pos == node.end:
            self._settle()
        if self._dead > 0:
            self._after_message()
        else:
            self.complete -= 1
        return part

    cdef object take_part(self):
        """Returns the next part of a whole message, as `bytes`; sets `more`."""
        cdef Node *node
        cdef const unsigned char *p
        cdef Header header
        part = self.take_short()
        if part is not None:
            return part
        p = self._front(&header)
        node = self._head
        if p == NULL:
            if node == self._aimed:
                self.withdraw()  # this call takes the message, and not the call whose memory it is in
            part = <object>node.body
            Py_DECREF(part)
            self._head = node.next
            if self._tail == node:
                self._tail = NULL
            free(node)
        else:
            part = PyBytes_FromStringAndSize(<const char *>p, <Py_ssize_t>header.size)
            node.pos += header.length + <Py_ssize_t>header.size
            if node.pos == node.end:
                self._settle()
        self.more = header.flags & FLAG_MORE
        if not self.more:
            self._after_message()
        return part

    cdef Py_ssize_t take_into(self, char *into, Py_ssize_t size) except -2:
        """Copies the next part, the last of its message, into *into*; returns -1 if the part does not fit and stays."""
        cdef Py_ssize_t has
        cdef const char *body = self.peek(&has)
        if has > size:
            return -1
        if body != into:
            memcpy(into, body, has)
        self.skip()
        return has

    cdef int skip(self) except -1:
        """Drops the rest of the first message."""
        cdef Header header
        cdef Node *node
        while True:
            if self._front(&header) == NULL:
                node = self._head
                if node == self._aimed:
                    self._aimed = NULL
                Py_XDECREF(node.body)
                self._head = node.next
                if self._tail == node:
                    self._tail = NULL
                free(node)
            else:
                node = self._head
                node.pos += header.length + <Py_ssize_t>header.size
                if node.pos == node.end:
                    self._settle()
            if not header.flags & FLAG_MORE:
                break
        self._after_message()
        return 0
