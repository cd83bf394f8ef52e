"""A peer whose messages are Python objects already: each is bytes, or a tuple of them."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from libc.string cimport memcpy

from omq._core.queues.peer cimport TOO_LARGE, Peer
from omq._core.wire.send_buffer cimport Part


cdef class ObjectPeer(Peer):
    """A peer whose messages are Python objects already: each is bytes, or a tuple of them."""

    cdef object _message(self):
        """Returns the first message, which must exist."""
        raise AssertionError("the derived class must override _message()")

    cdef int _taken(self) except -1:
        """Drops the first message, which was taken."""
        raise AssertionError("the derived class must override _taken()")

    cdef bint head_more(self) noexcept:
        message = self._message()
        return type(message) is tuple and self._part < len(<tuple>message) - 1

    cdef const char *peek(self, Py_ssize_t *size) except NULL:
        message = self._message()
        body = <bytes>(<tuple>message)[self._part] if type(message) is tuple else <bytes>message
        size[0] = PyBytes_GET_SIZE(body)
        return PyBytes_AS_STRING(body)

    cdef Py_ssize_t view(self, Part *parts, Py_ssize_t room) except -1:
        message = self._message()
        cdef Py_ssize_t count = len(<tuple>message) if type(message) is tuple else 1
        cdef Py_ssize_t i
        for i in range(min(room, count)):
            body = <bytes>(<tuple>message)[i] if type(message) is tuple else <bytes>message
            parts[i].data = PyBytes_AS_STRING(body)
            parts[i].size = PyBytes_GET_SIZE(body)
            parts[i].owner = <PyObject *>body
        return count

    cdef object take_part(self):
        message = self._message()
        if type(message) is not tuple:
            self.more = False
            self._taken()
            return message
        part = (<tuple>message)[self._part]
        self.more = self._part < len(<tuple>message) - 1
        if self.more:
            self._part += 1
        else:
            self._taken()
        return part

    cdef object take_alone(self):
        message = self._message()
        if type(message) is tuple:
            return None if self.head_more() else self.take_part()
        self.more = False
        self._taken()
        return message

    cdef Py_ssize_t take_into(self, char *into, Py_ssize_t size) except -2:
        cdef Py_ssize_t has
        cdef const char *body = self.peek(&has)
        if has > size:
            return TOO_LARGE
        memcpy(into, body, has)
        self._taken()
        return has

    cdef int skip(self) except -1:
        self._message()
        return self._taken()
