"""Messages as columns: bodies one after the other in one buffer, and the offset of each end.

Arrow keeps a column of binary values in this form, so a batch for Arrow needs no Python object per message.
"""

from cpython.buffer cimport PyBuffer_Release
from libc.stdint cimport int32_t
from libc.string cimport memcpy

from omq._core.arrow cimport MAX_OFFSET
from omq._core.queues.recv_queue cimport ShapedRecvQueue
from omq._core.calls.attempt cimport count_of
from omq._core.calls.part cimport open_target
from omq._core.queues.peer cimport RecvQueue, Peer
from omq._core.wire.frame_reader cimport Run
from omq._core.wire.framing cimport FLAG_LONG, FLAG_MORE, LONG_HEADER_BYTES, SHORT_HEADER_BYTES, long_size

from omq.errors import MessageTooLarge, StateError


cdef Py_ssize_t take_columns(RecvQueue recv_queue, object data, object ends, object start) except -1:
    """Copies the messages that wait and fit, from *start* on; returns their number, 0 if no message waits."""
    cdef Py_buffer into, marks
    if isinstance(recv_queue, ShapedRecvQueue):
        raise StateError(
            "recv_columns() is for types that give messages as they came: PULL, SUB, XPUB, XSUB, PAIR, DEALER, GATHER, "
            "CLIENT, SERVER, PEER, CHANNEL"
        )
    open_target("data", data, &into)
    try:
        open_target("ends", ends, &marks)
        try:
            if marks.len < <Py_ssize_t>sizeof(int32_t):
                raise ValueError(f"ends: a buffer of {marks.len} bytes has no room for a single offset of 4 bytes")
            if not 0 <= count_of("start", start, 0) <= into.len:
                raise ValueError(f"start={start}: must be within the buffer of {into.len} bytes")
            return _copy(
                recv_queue,
                <char *>into.buf,
                min(into.len, <Py_ssize_t>MAX_OFFSET),
                start,
                <int32_t *>marks.buf,
                marks.len // <Py_ssize_t>sizeof(int32_t),
            )
        finally:
            PyBuffer_Release(&marks)
    finally:
        PyBuffer_Release(&into)


cdef Py_ssize_t _copy(
    RecvQueue recv_queue, char *into, Py_ssize_t size, Py_ssize_t at, int32_t *ends, Py_ssize_t limit
) except -1:
    cdef Py_ssize_t count = 0
    cdef Py_ssize_t has
    cdef Peer peer
    cdef const char *body
    cdef Run run
    while count < limit:
        if recv_queue.view_run(&run, limit - count):
            _copy_run(&run, into, size, at, ends + count)
            if run.count:
                recv_queue.drop_run(&run)
                at += run.body
                count += run.count
                continue
        peer = recv_queue._pick()
        if peer is None:
            break
        if peer.head_more():
            if count:
                break
            recv_queue._refuse(peer)
        body = peer.peek(&has)
        if has > size - at:
            if count:
                break
            error = MessageTooLarge(
                f"the next message, of {has} bytes, is larger than the {size - at} bytes left; it stays first in line"
            )
            error.size = has
            recv_queue._refused = peer
            raise error
        memcpy(into + at, body, has)
        peer.skip()
        recv_queue._taken(peer, has)
        at += has
        ends[count] = <int32_t>at
        count += 1
    return count


cdef void _copy_run(Run *run, char *into, Py_ssize_t size, Py_ssize_t at, int32_t *ends) noexcept nogil:
    """Copies messages of a run, up to the first that has several parts or does not fit; cuts the run there."""
    cdef const unsigned char *p = <const unsigned char *>run.data
    cdef Py_ssize_t count = 0
    cdef Py_ssize_t body = 0
    cdef Py_ssize_t has
    while count < run.count and not p[0] & FLAG_MORE:
        if p[0] & FLAG_LONG:
            has = <Py_ssize_t>long_size(p)
            if has > size - at - body:
                break
            p += LONG_HEADER_BYTES
        else:
            has = p[1]
            if has > size - at - body:
                break
            p += SHORT_HEADER_BYTES
        memcpy(into + at + body, p, has)
        p += has
        body += has
        ends[count] = <int32_t>(at + body)
        count += 1
    run.count = count
    run.body = body
    run.size = <const char *>p - run.data
