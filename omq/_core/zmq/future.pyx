"""The calls of pyzmq's asyncio sockets that run for every message.

A call that can be completed at once makes nothing but its Future; the classes of `omq.zmq` handle all others.
"""

from cpython.object cimport PyObject_Call
from cpython.pythread cimport PyThread_get_thread_ident

from omq._core.zmq.calls cimport DONTWAIT, Handle, SocketCalls

from omq.errors import OmqError

cdef object _future_class = None
cdef object _get_running_loop = None


def configure(future_class: type[Any], get_running_loop: Callable[[], Any]) -> None:
    """Sets the class of Futures, and the function that returns the running loop or `None`, before the first call."""
    global _future_class, _get_running_loop
    _future_class = future_class
    _get_running_loop = get_running_loop


cdef class FutureCalls(SocketCalls):
    """The base of sockets whose calls return Futures."""

    cdef object _finished(self, object result):
        """Returns a Future that has its result. (asyncio's check of the running loop costs a getpid.)"""
        if self._thread != PyThread_get_thread_ident() or self._is_running is None or self._is_running() is not True:
            loop = _get_running_loop()
            if loop is None:
                future = _future_class()
                future.set_result(result)
                return future
            self._of_loop = {"loop": loop}
            self._is_running = loop.is_running
            self._thread = PyThread_get_thread_ident()
        future = PyObject_Call(_future_class, (), self._of_loop)
        future.set_result(result)
        return future

    def send(
        self,
        data: Any,
        int flags=0,
        bint copy=True,
        bint track=False,
        routing_id: int | None = None,
        group: str | None = None,
    ) -> Any:
        """Sends a part; see `omq.zmq.Socket.send`.

        Returns:
            A Future with what `omq.zmq.Socket.send` returns; done at once if there is room.
        """
        cdef Handle handle = self._handle
        cdef bint plain = type(data) is bytes and flags & ~DONTWAIT == 0 and copy and routing_id is None
        if plain and group is None and not self._send_futures:
            try:
                if handle is not None and handle.put_now(data):
                    return self._finished(None)
            except OmqError:
                pass  # the other path raises it again, as an error of the face
        kwargs = {"flags": flags, "copy": copy, "track": track, "routing_id": routing_id, "group": group}
        return self._send_soon("send", data, kwargs)

    def recv(self, int flags=0, bint copy=True, bint track=False) -> Any:
        """Takes the next part; see `omq.zmq.Socket.recv`.

        Returns:
            A Future with what `omq.zmq.Socket.recv` returns; done at once if a message has arrived.
        """
        cdef Handle handle = self._handle
        if copy and handle is not None and not self._recv_futures:
            try:
                message = handle.take_now()
                if type(message) is bytes:
                    return self._finished(message)
                if message is not None:
                    handle.keep(message)
                    return self._finished(handle.take_part(flags))
            except OmqError:
                pass
        return self._recv_soon("recv", (), {"flags": flags, "copy": copy, "track": track})

    def send_multipart(
        self, msg_parts: Any, int flags=0, bint copy=True, bint track=False, **kwargs: Any
    ) -> Any:
        """Sends a whole message; see `omq.zmq.Socket.send_multipart`.

        Returns:
            A Future with what `omq.zmq.Socket.send_multipart` returns; done at once if there is room.
        """
        cdef Handle handle = self._handle
        if handle is not None and not self._send_futures and not kwargs:
            try:
                sent = handle.send_whole(self, msg_parts, flags | DONTWAIT, copy, track)
            except Exception:
                sent = NotImplemented  # nothing is sent: the other path raises it again, or waits for room
            if sent is not NotImplemented:
                return self._finished(sent)
        return self._send_soon("send_multipart", msg_parts, dict(kwargs, flags=flags, copy=copy, track=track))

    def recv_multipart(self, int flags=0, bint copy=True, bint track=False) -> Any:
        """Takes the next message whole; see `omq.zmq.Socket.recv_multipart`.

        Returns:
            A Future with what `omq.zmq.Socket.recv_multipart` returns; done at once if a message has arrived.
        """
        cdef Handle handle = self._handle
        if copy and handle is not None and not self._recv_futures:
            try:
                message = handle.take_now()
                if message is not None:
                    return self._finished([message] if type(message) is bytes else message)
            except OmqError:
                pass
        return self._recv_soon("recv_multipart", (), {"flags": flags, "copy": copy, "track": track})
