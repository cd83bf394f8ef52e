"""Recovers the messages of a batch that must not leave: parses frames, and finds large payloads by reference."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE

from omq._core.wire.codec cimport FLAGS_UNKNOWN, Codec, WireFrame, measure_plain
from omq._core.wire.framing cimport FLAG_COMMAND, FLAG_MORE
from omq._core.wire.segment cimport Segment


cdef bint recall(const Segment *segments, int count, const char *arena, Codec codec, list messages,
                 int *at, Py_ssize_t *end) except -1:
    """Appends the messages of a batch of which nothing has left to *messages*: bytes, or tuples of their parts.

    Args:
        segments: The batch, *count* segments; at least one. Bytes of the first one that have left are still there.
        arena: The memory of segments without a base.
        codec: The codec that made the frames; None: they are plain.
        messages: Gets the messages, up to a frame that the codec cannot recover.
        at: Set to the index of the segment where the rest of a partly sent message or command ends.
        end: Set to the offset of that end, from the segment's beginning, which may have left.

    Returns:
        Whether a message ends there, and not a command.
    """
    cdef const Segment *segment
    cdef const unsigned char *p
    cdef WireFrame frame
    cdef Py_ssize_t whole, step
    cdef Py_ssize_t offset = 0
    cdef int i = 0
    cdef int flags, state
    cdef bint midst = segments.inside  # the frame continues a message
    cdef bint begun = midst            # a part of the message has left
    cdef bint is_message = False
    cdef list parts = None
    at[0] = 0
    end[0] = segments.sent
    if segments.payload:
        # Its header has left with an earlier segment.
        end[0] = segments.sent + segments.size
        is_message = True
        i = 1
        midst = begun = count > 1 and segments[1].inside
    while i < count:
        segment = segments + i
        p = <const unsigned char *>(<const char *>segment.base if segment.base != NULL else arena + segment.offset) - segment.sent
        whole = segment.sent + segment.size
        if offset >= whole:
            i += 1
            offset = 0
            continue
        if not midst:
            begun = i == 0 and offset < segment.sent
            parts = None
        if codec is None:
            state = measure_plain(p + offset, whole - offset, &frame)
        else:
            state = codec.measure_own(p + offset, whole - offset, &frame)
        if state != 1:
            break
        step = frame.length + <Py_ssize_t>frame.size
        if offset + step <= whole:
            body = reopened(p + offset, &frame, codec, &flags)
            offset += step
        elif offset + frame.length == whole and i + 1 < count and segments[i + 1].payload and frame.as_is:
            flags = frame.flags
            i += 1
            segment = segments + i
            body = borrowed(segment) if flags != FLAGS_UNKNOWN else None
            offset = segment.sent + segment.size
        else:
            break
        if body is None:
            break
        midst = flags & FLAG_MORE
        if begun:
            at[0] = i
            end[0] = offset
            is_message = not flags & FLAG_COMMAND
        elif flags & FLAG_COMMAND:
            pass
        elif parts is None and not midst:
            messages.append(body)
        else:
            if parts is None:
                parts = []
            parts.append(body)
            if not midst:
                messages.append(tuple(parts))
    return is_message


cdef bytes reopened(const unsigned char *p, const WireFrame *frame, Codec codec, int *flags):
    """Returns the payload of a frame inside one segment; None: the codec cannot recover it."""
    if codec is not None:
        return codec.reopen(p, frame, flags)
    flags[0] = frame.flags
    return PyBytes_FromStringAndSize(<const char *>p + frame.length, <Py_ssize_t>frame.payload)


cdef bytes borrowed(const Segment *segment):
    """Returns a payload that was put by reference."""
    # The last part of a message may have the whole of it as owner.
    cdef object owner = <object>segment.owner if segment.owner != NULL else None
    if type(owner) is bytes and segment.sent == 0 and PyBytes_GET_SIZE(owner) == segment.size:
        return owner
    return PyBytes_FromStringAndSize(segment.base - segment.sent, segment.sent + segment.size)
