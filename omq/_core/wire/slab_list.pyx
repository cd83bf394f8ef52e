"""The memory of what a connection receives: a chain of slabs with small frames and of large frames of their own.

Nothing here knows a message: bytes come in, and what holds none of them is given back. No call needs the GIL but
those that take or drop a Python object.
"""

cimport cython
from cpython.ref cimport Py_XDECREF
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memmove, memset

from omq._core.kernel cimport MSG_DONTWAIT, iovec, msghdr, recv, recvmsg
from omq._core.wire.codec cimport Codec, WireFrame, measure_plain
from omq._core.wire.framing cimport FLAG_COMMAND, Header, parse_header
from omq._core.wire.pool cimport BLOCK_SIZE, NODE_SIZE, Pool

cdef enum:
    MIN_ROOM = 8192                         # bytes below which a slab is not read into again
    BEHIND_LARGE = 16384                    # bytes read beyond a large frame: what follows is most likely large too


cdef inline Node *slab(char *block) noexcept nogil:
    cdef Node *node = <Node *>block
    memset(node, 0, sizeof(Node))
    node.data = block + NODE_SIZE
    return node


@cython.no_gc_clear  # its end needs the pool
cdef class SlabList:
    def __cinit__(self, Pool pool not None, *_, **__):
        self._pool = pool
        self._limit = BLOCK_SIZE

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
        self._large = NULL
        self._scan = self._need = self._dead = self.complete = self._parts = 0

    cdef int slabs(self) noexcept nogil:
        """Blocks that hold what has arrived."""
        cdef Node *node = self._head
        cdef int count = 0
        while node != NULL:
            count += node.data != NULL
            node = node.next
        return count + (self._spare != NULL)

    # ------------------------------------------------------------------ bytes in

    cdef bint _make_room(self) noexcept nogil:
        """Sees to it that the tail is a slab with room for the rest of the frame at `_scan`."""
        cdef Node *tail = self._tail
        cdef Node *fresh
        cdef char *block
        cdef Py_ssize_t wanted = MIN_ROOM
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
            if self._dead >= BLOCK_SIZE // 4:
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
        """Cuts the commands out of the tail slab: while messages wait there they would gather without end."""
        cdef Node *tail = self._tail
        cdef Py_ssize_t read = tail.pos
        cdef Py_ssize_t write = 0
        cdef Py_ssize_t whole
        cdef Header header
        memset(&header, 0, sizeof(header))  # the frames are whole, which the C compiler cannot know
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
        """A whole message is taken: commands behind the last one keep no slab."""
        self.complete -= 1
        if self._dead > 0 and self.complete == 0 and self._parts == 0 and self._head == self._tail:
            if self._head != NULL and self._head.data != NULL:
                self._head.pos = self._scan
                self._dead = 0
                self._settle()

    cdef Py_ssize_t fill(self, int fd) noexcept nogil:
        """Reads once from *fd*: the number of bytes (above 0), or FILL_*."""
        cdef Py_ssize_t got, rest
        cdef Node *node
        cdef iovec iov[2]
        cdef msghdr message
        if self._large == NULL:
            if not self._make_room():
                return FILL_NO_MEMORY
            node = self._tail
            self.asked = self._limit - node.end
            got = recv(fd, node.data + node.end, self.asked, MSG_DONTWAIT)
            while got < 0 and errno == EINTR:
                got = recv(fd, node.data + node.end, self.asked, MSG_DONTWAIT)
            if got > 0:
                node.end += got
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
            iov[1].iov_base = self._spare + NODE_SIZE
            iov[1].iov_len = BEHIND_LARGE
            memset(&message, 0, sizeof(message))
            message.msg_iov = iov
            # Only a body that has all its memory can be followed by the next frame.
            message.msg_iovlen = 2 if <uint64_t>self._room == self._size else 1
            self.asked = rest + (BEHIND_LARGE if message.msg_iovlen == 2 else 0)
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
        """Bytes still to be read before the next frame begins; -1: its header is not whole, or nobody can know."""
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

    cdef int feed(self, const char *data, Py_ssize_t size) except -1:
        """Appends bytes that somebody else has read; only while no large frame is under way."""
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
        """Takes the first node, which is a slab without unread bytes, out of the chain."""
        cdef Node *node = self._head
        self._head = node.next
        if self._tail == node:
            self._tail = NULL
            self._scan = 0
        self._pool.put(<char *>node)

    cdef void _settle(self) noexcept nogil:
        """Gives the slab back if it holds nothing: an idle connection owns no block."""
        cdef Node *node = self._head
        if node != NULL and node.data != NULL and node.pos == node.end and node == self._tail:
            self._drop_head()
