"""Monitors: the events of a socket as messages of a PAIR, as libzmq sends them."""

from __future__ import annotations

import errno
import struct
from typing import Any, Final

import omq
from omq import errors
from omq._core.zmq.calls import Handle
from omq.event import Event as OmqEvent
from omq.event import EventKind, HandshakeFailure
from omq.unpatched import threading
from omq.zmq.constants import Errno, Event
from omq.zmq.error import error_of

#: The scheme of the endpoints of monitors.
SCHEME: Final = "inproc"
_FRAME: Final = struct.Struct("=hi")
_NUMBERS: Final = {
    EventKind.LISTENING: Event.LISTENING,
    EventKind.BIND_FAILED: Event.BIND_FAILED,
    EventKind.ACCEPTED: Event.ACCEPTED,
    EventKind.ACCEPT_FAILED: Event.ACCEPT_FAILED,
    EventKind.CLOSED: Event.CLOSED,
    EventKind.CONNECT_DELAYED: Event.CONNECT_DELAYED,
    EventKind.CONNECT_FAILED: Event.CLOSED,  # libzmq reports the descriptor that it closes
    EventKind.CONNECT_RETRIED: Event.CONNECT_RETRIED,
    EventKind.CONNECTED: Event.CONNECTED,
    EventKind.HANDSHAKE_SUCCEEDED: Event.HANDSHAKE_SUCCEEDED,
    EventKind.DISCONNECTED: Event.DISCONNECTED,
    EventKind.MONITOR_STOPPED: Event.MONITOR_STOPPED,
}
_FAILURES: Final = {
    HandshakeFailure.PROTOCOL: (Event.HANDSHAKE_FAILED_PROTOCOL, Event.PROTOCOL_ERROR_ZMTP_UNSPECIFIED),
    HandshakeFailure.MECHANISM: (Event.HANDSHAKE_FAILED_PROTOCOL, Event.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH),
}
_OF_DESCRIPTORS: Final = frozenset(
    {
        *(EventKind.LISTENING, EventKind.ACCEPTED, EventKind.CONNECTED),
        *(EventKind.CLOSED, EventKind.CONNECT_FAILED, EventKind.DISCONNECTED),
    }
)
_NO_DETAIL: Final = (Event.HANDSHAKE_FAILED_NO_DETAIL, errno.EPIPE)


class SocketMonitor:
    """Sends the events of one socket to a PAIR, from a thread, until `stop` or the end of the socket.

    Args:
        handle: The socket.
        endpoint: The endpoint of the PAIR that it binds.
        events: The events that it sends.

    Raises:
        ZMQError: The endpoint cannot be bound.
    """

    def __init__(self, handle: Handle, endpoint: str, events: int) -> None:
        scheme, separator, _ = endpoint.partition("://")
        if not separator:
            raise error_of(Errno.EINVAL)
        if scheme != SCHEME:
            raise error_of(Errno.EPROTONOSUPPORT)
        self._events = events
        self._pair = omq.PAIR(handle.context.omq, linger=0)
        try:
            self._pair.bind(endpoint)
            self._monitor = handle.omq.monitor()
        except errors.OmqError:
            self._pair.stop()
            raise error_of(Errno.EADDRINUSE) from None
        self._thread = threading.Thread(target=self._run, name="omq-zmq-monitor", daemon=True)
        self._thread.start()

    @staticmethod
    def endpoint_of(handle: Handle) -> str:
        """Returns an endpoint for the monitor of a socket."""
        return f"{SCHEME}://monitor.s-{id(handle)}"

    def stop(self) -> None:
        """Stops the monitor: its last event is `MONITOR_STOPPED`."""
        self._monitor.close()
        self._thread.join()

    def _run(self) -> None:
        try:
            for event in self._monitor:
                self._send(event)
                if event.kind is EventKind.MONITOR_STOPPED:
                    return
            self._put(Event.MONITOR_STOPPED, 0, "")
        except errors.OmqError:
            pass  # the context is terminated
        finally:
            self._pair.begin_close(0.1)

    def _send(self, event: OmqEvent) -> None:
        if event.kind is EventKind.DISCONNECTED and event.error is None:
            return  # libzmq does not report connections that this side ends
        number = _NUMBERS.get(event.kind)
        if event.kind is EventKind.HANDSHAKE_FAILED:
            number, value = _failure(event)
        elif number is None:
            return
        else:
            value = _value(event)
        self._put(number, int(value), event.endpoint)

    def _put(self, number: int, value: int, endpoint: str) -> None:
        if not number & self._events:
            return
        head = _FRAME.pack(number - 0x10000 if number > 0x7FFF else number, value)
        try:
            self._pair.send_multipart([head, endpoint.encode()], timeout=0.0)
        except errors.Timeout:
            pass  # the reader is too slow: the event is lost, and the socket does not wait


def _failure(event: OmqEvent) -> tuple[Event, int]:
    """Returns the number and the value of the event of a handshake that has failed."""
    if isinstance(event.error, errors.AuthenticationError):
        return Event.HANDSHAKE_FAILED_AUTH, event.error.status
    return _FAILURES.get(event.category, _NO_DETAIL)  # type: ignore[arg-type]


def _value(event: OmqEvent) -> int:
    """Returns the value of an event: a number of milliseconds, of an error, or a descriptor; -1 without one."""
    if event.kind is EventKind.CONNECT_RETRIED:
        return int((event.delay or 0) * 1000)
    if event.kind is EventKind.CONNECT_DELAYED:
        return errno.EINPROGRESS
    if event.kind in _OF_DESCRIPTORS:
        return -1 if event.descriptor is None else event.descriptor
    number: Any = getattr(event.error, "errno", None)
    return number or 0
