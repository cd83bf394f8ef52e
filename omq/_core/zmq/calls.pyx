"""The calls of the pyzmq face that run for every message: parts, and the flags of libzmq.

A call with its usual arguments goes straight to the omq socket; the classes of `omq.zmq` handle all others.
"""

from omq._core.calls.attempt cimport READY_IN, READY_OUT, TAKE_MANY
from omq._core.calls.leader cimport BlockedCall
from omq._core.calls.sync cimport SyncCore
from omq._core.clock cimport now_ns
from omq._core.zmq.frame cimport FrameData
from omq._core.queues.peer cimport RecvQueue

from omq.errors import OmqError
from omq.types import TRAITS, UNSET, SocketType

cdef object _new_frame = None        # makes an empty frame
cdef object _translate = None        # returns the error of the face for one of omq


def configure(new_frame: Callable[[], FrameData], translate: Callable[[Exception, Handle], BaseException]) -> None:
    """Sets what the face makes of frames and errors, before the first call.

    Args:
        new_frame: Returns a new frame.
        translate: Returns the error to raise for one of omq's.
    """
    global _new_frame, _translate
    _new_frame = new_frame
    _translate = translate


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
        self._single = self._plain and core.socket_type not in (SocketType.ROUTER, SocketType.STREAM)

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

    cdef bint _sends_now(self):
        """Returns whether no message is being sent or received part by part, and the socket is open."""
        return self.begun is None and self._rest is None and not self.closed

    cdef bint put_now(self, object data) except -1:
        """Sends `bytes` if that completes a message and there is room for it; raises omq's errors."""
        return self._sends_now() and self._single and self._core._put_bytes(data)

    cdef bint put_parts_now(self, list parts) except -1:
        """Sends a message if all its parts are `bytes`; raises omq's errors, also if there is no room for it."""
        if not self._plain or not self._sends_now() or not (self._single or len(parts) > 1):
            return False
        for part in parts:
            if type(part) is not bytes:
                return False
        self._core._put(parts, True, None, 0)
        return True

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

    def take_frame(self, int flags) -> Any:
        """Takes the next part as a frame that knows its sender."""
        cdef FrameData frame = _new_frame()
        cdef bint kept = self._keeps
        self._keeps = True
        try:
            part = self.take_part(flags)
        finally:
            self._keeps = kept
        frame.receive(part, self._rest is not None)
        frame.describe(self._sender, self._group, self._routing_id)
        if self._rest is None:
            self._sender = None
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

    def send_message(self, data: object, int flags) -> None:
        """Sends a message: `bytes` or another buffer, or a list or tuple of parts."""
        self.put(data, flags)


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
        if (
            type(data) is bytes and flags & ~DONTWAIT == 0 and copy and routing_id is None and group is None
            and handle is not None and handle._single and handle.begun is None and handle._rest is None
        ):
            return handle.put(data, flags)
        return self._send_part(data, flags, copy, track, routing_id, group)

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
                part = handle.take(flags)
                if type(part) is bytes:
                    return part
                handle.keep(<list>part)
            return handle.take_part(flags)
        return self._recv_frame(flags, track)

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
        cdef bint plain = flags & ~DONTWAIT == 0 and copy and handle is not None and handle._plain
        cdef Py_ssize_t least = 1 if plain and handle._single else 2  # ROUTER and STREAM drop a part without a message
        plain = plain and handle.begun is None and handle._rest is None
        if plain and (type(msg_parts) is list or type(msg_parts) is tuple) and len(msg_parts) >= least:
            for part in msg_parts:
                if type(part) is not bytes:
                    break
            else:
                return handle.put(msg_parts, flags)
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
        frames = [self._recv_frame(flags, track)]
        while handle.has_more:
            frames.append(self._recv_frame(flags, track))
        return frames
