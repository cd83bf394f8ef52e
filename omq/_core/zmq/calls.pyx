"""The calls of the pyzmq face that run for every message: parts, and the flags of libzmq.

A call with its usual arguments goes straight to the omq socket; the classes of `omq.zmq` handle all others.
"""

from cpython.buffer cimport (
    PyBUF_ANY_CONTIGUOUS,
    PyBUF_WRITABLE,
    PyBuffer_Release,
    PyObject_CheckBuffer,
    PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.string cimport memcpy

from omq._core.calls.attempt cimport READY_IN, READY_OUT, TAKE_MANY
from omq._core.calls.leader cimport BlockedCall
from omq._core.calls.sync cimport SyncCore
from omq._core.clock cimport now_ns
from omq._core.zmq.frame cimport FrameData
from omq._core.queues.peer cimport RecvQueue

import errno

from omq.errors import OmqError
from omq.types import TRAITS, UNSET, SocketType

cdef object _frame_class = None
cdef object _release_class = None    # of the event that a tracked frame has
cdef object _tracker_class = None
cdef object _finished_tracker = None
cdef object _error_of = None         # returns the error with a number
cdef object _translate = None        # returns the error of the face for one of omq


def configure(
    frame_class: type[FrameData],
    release_class: type[Any],
    tracker_class: type[Any],
    finished_tracker: Any,
    error_of: Callable[[int], BaseException],
    translate: Callable[[Exception, Handle], BaseException],
) -> None:
    """Sets what the face makes of frames and errors, before the first call.

    Args:
        frame_class: The class of frames.
        release_class: The class of the event that a tracked frame has; `add` notes each send of its memory.
        tracker_class: The class of trackers, which are made with an event.
        finished_tracker: The tracker of memory that is free at once.
        error_of: Returns the error with a number.
        translate: Returns the error to raise for one of omq's.
    """
    global _frame_class, _release_class, _tracker_class, _finished_tracker, _error_of, _translate
    _frame_class = frame_class
    _release_class = release_class
    _tracker_class = tracker_class
    _finished_tracker = finished_tracker
    _error_of = error_of
    _translate = translate


cdef bint _is_small(object data, Py_ssize_t threshold) except -1:
    """Returns whether a part with `copy=False` is below the size from which memory is lent."""
    if type(data) is bytes:
        return PyBytes_GET_SIZE(data) < threshold
    view = memoryview(data)
    if view.nbytes >= threshold:
        return False
    if not view.contiguous:
        raise BufferError("memoryview: underlying buffer is not contiguous")  # an array itself raises ValueError
    return True


cdef class Handle:
    """An omq socket with the message that is being received, and the one that is being sent, part by part.

    All faces of one socket (`Socket.shadow`) share it.

    Args:
        core: The omq socket.
        context: The state of its context.
    """

    def __init__(self, SyncCore core not None, context: object) -> None:
        self._core = core
        self.context = context
        self._plain = TRAITS[core.socket_type].route is None
        self._always = not self._plain or core.socket_type is SocketType.STREAM
        self._addressed = core.socket_type in (SocketType.ROUTER, SocketType.STREAM)
        self._single = self._plain and not self._addressed
        self._several = not TRAITS[core.socket_type].single_part
        self._paired = core.socket_type in (SocketType.REQ, SocketType.REP)

    @property
    def omq(self) -> Any:
        """The omq socket."""
        return self._core

    @property
    def receives(self) -> bool:
        """Returns whether its type receives."""
        return self._core.recv_queue is not None

    @property
    def sends(self) -> bool:
        """Returns whether its type sends."""
        return self._core.send_queue is not None

    @property
    def has_more(self) -> bool:
        """Returns whether more parts of the message that is being received follow."""
        return self._rest is not None

    def ready(self, int events) -> int:
        """Returns which of the events, as libzmq numbers them, hold now."""
        cdef int ready = 0
        if events & 1 and self._core.recv_queue is not None and (self._rest is not None or self._poll(READY_IN)):
            ready |= 1
        if events & 2 and self._core.send_queue is not None:
            if self._always or self.begun is not None or self._poll(READY_OUT):
                ready |= 2
        return ready

    def _poll(self, int events):
        return SyncCore.poll(self._core, 0, events)

    cdef int fail(self, object error) except -1:
        """Raises the face's error for one of omq's."""
        raise _translate(error, self) from None

    cdef object take(self, int flags):
        """Takes the next message: `bytes`, or a list of several parts."""
        cdef RecvQueue queue
        if self.closed or _translate is None:
            self.fail(None)
        try:
            message = self._core._take_now(True)
            if message is None:
                message = (<list>self._core._take(TAKE_MANY, 1, 0 if flags & DONTWAIT else UNSET))[0]
            if self._keeps:
                queue = self._core.recv_queue
                self._sender = queue.last.session
                self._group = queue.last_group()
                self._routing_id = queue.last.routing_id
            return message
        except OmqError as error:
            self.fail(error)

    cdef object take_now(self):
        """Takes the next message if one has arrived, else None; raises omq's errors."""
        if self._rest is not None or self._keeps or self.closed:
            return None
        return self._core._take_now(True)

    cdef int keep(self, list parts) except -1:
        """Keeps the parts of a message that is received part by part."""
        parts.reverse()
        self._rest = parts
        return 0

    cdef bint put_now(self, object data) except -1:
        """Sends `bytes` if that completes a message and there is room for it; raises omq's errors."""
        return self._is_between_messages() and self._single and self._core._put_bytes(data)

    def take_part(self, int flags) -> Any:
        """Takes the next part."""
        cdef list rest = self._rest
        if rest is None:
            message = self.take(flags)
            if type(message) is not list:
                return message
            rest = <list>message
            self.keep(rest)
        part = rest.pop()
        if not rest:
            self._rest = None
        return part

    def take_frame(self, int flags, bint track) -> Any:
        """Takes the next part as a frame that knows its sender."""
        cdef bint kept = self._keeps
        self._keeps = True
        try:
            part = self.take_part(flags)
        finally:
            self._keeps = kept
        frame = self._received(part, self._rest is not None, track)
        if self._rest is None:
            self._sender = None
        return frame

    def take_frames(self, int flags, bint track) -> list[Any]:
        """Takes the next message, or the rest of one, as frames that know their sender."""
        cdef bint kept = self._keeps
        cdef list parts = self._rest
        self._keeps = True
        try:
            message = self.take(flags) if parts is None else None
        finally:
            self._keeps = kept
        if parts is not None:
            self._rest = None
            parts.reverse()
        elif type(message) is list:
            parts = message
        else:
            parts = [message]
        last = len(parts) - 1
        frames = [self._received(part, i < last, track) for i, part in enumerate(parts)]
        self._sender = None
        return frames

    cdef FrameData _received(self, object part, bint more, bint track):
        """Makes the frame of a received part."""
        cdef FrameData frame = _frame_class.__new__(_frame_class)
        frame.receive(part, more)
        frame.describe(self._sender, self._group, self._routing_id)
        if track:
            frame.tracker = _finished_tracker
        return frame

    cdef object put(self, object data, int flags):
        """Sends a message: `bytes` or another buffer, or a list or tuple of several parts."""
        cdef bint several = type(data) is list or type(data) is tuple
        if self.closed:
            self.fail(None)
        try:
            if not several and type(data) is bytes and self._core._put_bytes(data):
                return None
            self._core._put(data, several, None, 0 if flags & DONTWAIT else UNSET)
        except OmqError as error:
            self.fail(error)

    def serve_until(self, event: Any, double timeout) -> bool:
        """Sends what waits, in this thread, until *event* is set; returns whether it is.

        Args:
            event: Something that the socket sets, such as the end of a loan.
            timeout: Seconds.

        Raises:
            OmqError: The socket is closed, or belongs to the parent process.
        """
        cdef SyncCore core = self._core
        cdef BlockedCall blocked_call = None
        cdef long long deadline = now_ns() + <long long>(timeout * 1e9)
        cdef bint in_time = True
        core._enter()
        try:
            core.send_queue.flush_pending()
            core.looks += 1
            core.poller.serve()
            try:
                while in_time and not core.closed and not event.is_set():
                    if blocked_call is None:
                        blocked_call = BlockedCall(core)
                        core.writable.enter(blocked_call)
                    in_time = core._sleep(blocked_call, deadline)
            finally:
                if blocked_call is not None:
                    core._stand_up(core.writable, blocked_call)
        finally:
            core._leave()
        return event.is_set()

    cdef bint _has_room(self) except -1:
        """Returns whether a message can begin now, for certain."""
        if self._core.send_queue is None or self._paired:
            return False
        if self._addressed:
            return self._core.socket_type is SocketType.ROUTER and not self.state.values.get(ROUTER_MANDATORY)
        # Unlike `poll`, this leaves the messages before it in their batch.
        self._core._enter()
        try:
            return self._core.send_queue.can_put()
        finally:
            self._core._leave()

    cdef FrameData _frame_of(self, SocketCalls socket, object data, bint copy, bint track):
        """Returns the frame that lends the memory of a part; None if the part is used within the call."""
        cdef FrameData frame
        if isinstance(data, FrameData):
            frame = data
            if track and not frame.tracker:
                raise ValueError("Not a tracked message")
        elif copy or _is_small(data, socket.threshold()):
            return None
        else:
            frame = _frame_class.__new__(_frame_class)
            release = _release_class() if track else None
            frame._lend(data, release, _tracker_class(release) if track else None)
        if type(frame.tracker_event) is _release_class:
            frame.tracker_event.add(self)
        return frame

    cdef object _payload_of(self, FrameData frame, object data):
        """Returns the object for the omq socket to send."""
        if frame is not None:
            return frame.payload()
        if type(data) is bytes or type(data) is bytearray or (type(data) is memoryview and data.c_contiguous):
            return data
        if data is None:
            memoryview(data)  # raises, as for any other object without memory: `Frame(None)` is an empty part
        return _frame_class(data, False, False)  # memory in Fortran's order is contiguous for it

    def send_part(self, SocketCalls socket, data: Any, int flags, bint copy, bint track) -> Any:
        """Sends the last part of a message with all its parts, or keeps a part until the last one comes.

        Args:
            socket: The socket that is called.
            data: A frame, or another object with contiguous memory.
            flags: See `SocketCalls.send`, also for the other arguments, the result and the errors.
        """
        cdef FrameData frame = self._frame_of(socket, data, copy, track)
        cdef FrameData kept
        cdef list parts
        payload = self._payload_of(frame, data)
        if self._rest is not None and self._paired:
            raise _error_of(EFSM)
        if flags & SNDMORE:
            if not self._several:
                raise _error_of(errno.EINVAL)
            if frame is None and type(payload) is not bytes:
                kept = _frame_class.__new__(_frame_class)
                kept._copy_from(payload)  # it waits for the other parts, and must not change
                payload = kept.payload()
            if self.begun is None:
                if not self._has_room():
                    socket._await_room(flags, payload)
                self.begun = []
            self.begun.append(payload)
        elif self.begun is not None:
            parts = [*self.begun, payload]
            self.begun = None
            self.put(parts, flags)
        elif self._plain and not self._addressed:
            self.put(payload, flags)
        elif not self._addressed:
            socket._send_routed(payload, flags, frame)
        # A ROUTER or STREAM drops a message without a receiver.
        if frame is not None:
            return frame.tracker
        return None if copy else _finished_tracker

    cdef object send_whole(self, SocketCalls socket, object msg_parts, int flags, bint copy, bint track):
        """Sends a list or tuple of all parts of a message; see `SocketCalls.send_multipart`.

        Returns:
            The tracker or None; NotImplemented: nothing is sent, and each part has to be sent by itself.
        """
        cdef FrameData frame = None
        cdef list parts = []
        cdef bint lends = not copy
        cdef Py_ssize_t least = 1 if self._single else 2  # ROUTER and STREAM drop a part without a message
        if flags & ~DONTWAIT or not self._plain or not self._is_between_messages():
            return NotImplemented
        if type(msg_parts) is not list and type(msg_parts) is not tuple:
            return NotImplemented
        if len(msg_parts) < least or not (self._several or len(msg_parts) == 1):
            return NotImplemented
        for part in msg_parts:
            if type(part) is not bytes:
                lends = True
                if isinstance(part, str) or not PyObject_CheckBuffer(part):
                    return NotImplemented
        if not lends:
            return self.put(msg_parts, flags)
        if socket._closed:
            return NotImplemented
        for part in msg_parts:
            frame = self._frame_of(socket, part, copy, track)
            parts.append(self._payload_of(frame, part))
        self.put(parts, flags)
        if frame is not None:
            return frame.tracker
        return None if copy else _finished_tracker


cdef class SocketCalls:
    """The base of `omq.zmq.Socket`: the calls that run for every message."""

    def send(
        self,
        data: Any,
        int flags=0,
        bint copy=True,
        bint track=False,
        routing_id: int | None = None,
        group: str | None = None,
    ) -> Any:
        """Sends a part, the last one of its message unless *flags* has `SNDMORE`.

        Args:
            data: `bytes`, a `Frame`, or another object with contiguous memory.
            flags: 0, `DONTWAIT` (raise `Again` if there is no room), `SNDMORE` (more parts follow), or both.
            copy: Whether the memory of *data* is free to change after the call.
            track: Whether to return a tracker that reports when the memory is free, if not *copy*.
            routing_id: The receiver, on SERVER and PEER.
            group: The group, on RADIO.

        Returns:
            A `MessageTracker` for a `Frame`, or if not *copy*; otherwise `None`.

        Raises:
            Again: There is no room, and *flags* has `DONTWAIT`, or the time of `SNDTIMEO` has passed.
            ZMQError: See `errno`.
            TypeError: *data* is text, or has no contiguous memory.
        """
        cdef Handle handle = self._handle
        if handle is None or routing_id is not None or group is not None:
            return self._send_part(data, flags, copy, track, routing_id, group)
        if type(data) is bytes and flags & ~DONTWAIT == 0 and copy and handle._single and handle._is_between_messages():
            if handle._core._put_at_once(data):
                return None
            return handle.put(data, flags)
        if isinstance(data, str) or handle.closed or self._closed or handle.context.terminating:
            return self._send_part(data, flags, copy, track, routing_id, group)
        return handle.send_part(self, data, flags, copy, track)

    cdef Py_ssize_t threshold(self) except -1:
        """Returns the size in bytes from which memory is lent."""
        return self.copy_threshold

    def recv(self, int flags=0, bint copy=True, bint track=False) -> Any:
        """Takes the next part.

        Args:
            flags: 0, or `DONTWAIT`: raise `Again` if no message has arrived.
            copy: Whether to return `bytes`; otherwise a `Frame`.
            track: Whether that frame has a tracker.

        Raises:
            Again: No message has arrived, and *flags* has `DONTWAIT`, or the time of `RCVTIMEO` has passed.
            ZMQError: See `errno`.
        """
        cdef Handle handle = self._handle
        if copy and handle is not None:
            if handle._rest is None:
                if not handle._keeps and not handle.closed:
                    part = handle._core._take_at_once()
                    if part is not None:
                        return part
                part = handle.take(flags)
                if type(part) is bytes:
                    return part
                handle.keep(<list>part)
            return handle.take_part(flags)
        self._check()
        return handle.take_frame(flags, track)

    def send_multipart(
        self, msg_parts: Any, int flags=0, bint copy=True, bint track=False, **kwargs: Any
    ) -> Any:
        """Sends a whole message.

        Args:
            msg_parts: Its parts: a list, or another sequence; see `send`.
            flags: See `send`.
            copy: See `send`.
            track: See `send`.
            **kwargs: Ignored.

        Returns:
            A tracker, as `send` of the last part.

        Raises:
            ZMQError: As `send`.
            TypeError: As `send`.
        """
        cdef Handle handle = self._handle
        if handle is not None:
            sent = handle.send_whole(self, msg_parts, flags, copy, track)
            if sent is not NotImplemented:
                return sent
        return self._send_parts(msg_parts, flags, copy, track)

    def recv_multipart(self, int flags=0, bint copy=True, bint track=False) -> Any:
        """Takes the next message whole, or the rest of one of which `recv` has taken a part.

        Args:
            flags: See `recv`.
            copy: See `recv`.
            track: See `recv`.

        Raises:
            ZMQError: As `recv`.
        """
        cdef Handle handle = self._handle
        if copy and handle is not None:
            if handle._rest is None:
                message = handle.take(flags)
                return [message] if type(message) is bytes else message
            parts = handle._rest
            handle._rest = None
            parts.reverse()
            return parts
        self._check()
        return handle.take_frames(flags, track)

    def recv_into(self, buffer: Any, /, *, nbytes: int = 0, int flags=0) -> int:
        """Takes the next part into a buffer; what does not fit is lost.

        Args:
            buffer: Writable and contiguous.
            nbytes: Bytes to write at most; 0 for the size of the buffer.
            flags: See `recv`.

        Returns:
            The size of the part in bytes, also if it is larger than the buffer.

        Raises:
            ZMQError: As `recv`.
            BufferError: The buffer is not writable, or not contiguous.
            ValueError: *nbytes* is negative, or larger than the buffer.
        """
        cdef Py_buffer view
        cdef Py_ssize_t room
        cdef bytes part
        self._check()
        if nbytes < 0:
            raise ValueError(f"{nbytes=} must be non-negative")
        # Of the view, not of the object: arrays raise ValueError where it raises BufferError.
        PyObject_GetBuffer(memoryview(buffer), &view, PyBUF_WRITABLE | PyBUF_ANY_CONTIGUOUS)
        try:
            if nbytes > view.len:
                raise ValueError(f"{nbytes=} too big for memoryview of {view.len}B")
            part = self._handle.take_part(flags)
            room = min(<Py_ssize_t>(nbytes or view.len), PyBytes_GET_SIZE(part))
            memcpy(view.buf, PyBytes_AS_STRING(part), room)
        finally:
            PyBuffer_Release(&view)
        return PyBytes_GET_SIZE(part)
