"""A socket in tornado's loop that calls functions for its messages."""

from __future__ import annotations

import asyncio
import pickle
import warnings
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from tornado.ioloop import IOLoop
from tornado.log import gen_log

from omq.zmq._future import _AsyncSocket
from omq.zmq.constants import Errno, Flag, PollEvent
from omq.zmq.error import ContextTerminated, ZMQError
from omq.zmq.loop_wait import LoopWait
from omq.zmq.socket import Socket
from omq.zmq.utils import jsonapi

_IN, _OUT = int(PollEvent.POLLIN), int(PollEvent.POLLOUT)
#: Messages in each direction between two turns of the loop.
_TURN_MESSAGES: Final = 64
_DELEGATED = ("bind", "bind_to_random_port", "connect", "setsockopt", "getsockopt")
_DELEGATED_TEXT = ("setsockopt_string", "getsockopt_string", "setsockopt_unicode", "getsockopt_unicode")


class ZMQStream:
    """A socket whose messages a loop passes to functions.

    Args:
        socket: The socket.
        io_loop: The loop; `None` for the current one.
    """

    socket: Any
    bind: Callable[..., Any]
    bind_to_random_port: Callable[..., int]
    connect: Callable[..., Any]
    setsockopt: Callable[..., None]
    getsockopt: Callable[..., Any]
    setsockopt_string: Callable[..., None]
    getsockopt_string: Callable[..., str]
    setsockopt_unicode: Callable[..., None]
    getsockopt_unicode: Callable[..., str]

    def __init__(self, socket: Any, io_loop: IOLoop | None = None) -> None:
        if isinstance(socket, _AsyncSocket):
            warnings.warn(
                f"ZMQStream: {socket!r} is asynchronous; its blocking face zmq.Socket(shadow=socket) is used",
                RuntimeWarning,
                stacklevel=2,
            )
            socket = Socket(shadow=socket)
        self.socket = socket
        self.io_loop: Any = io_loop or IOLoop.current()
        self._send_queue: deque[tuple[Any, dict[str, Any]]] = deque()
        self._recv_callback: Callable[[Any], Any] | None = None
        self._send_callback: Callable[[Any, Any], Any] | None = None
        self._close_callback: Callable[[], Any] | None = None
        self._recv_copy = False
        self._flushed = False
        self._scheduled = False
        self._watching = False
        self._wait = LoopWait(socket, self.close)
        self._watch()
        for name in (*_DELEGATED, *_DELEGATED_TEXT):
            setattr(self, name, getattr(socket, name))

    # ------------------------------------------------------------------ callbacks

    def on_recv(self, callback: Callable[[Any], Any] | None, copy: bool = True) -> None:
        """Calls a function with each message, a list of parts.

        Args:
            callback: The function, or coroutine function; `None` stops receiving.
            copy: Whether the parts are `bytes`; otherwise they are frames.
        """
        self._check_closed()
        assert callback is None or callable(callback)
        self._recv_callback = callback
        self._recv_copy = copy
        self._schedule()

    def on_recv_stream(self, callback: Callable[[ZMQStream, Any], Any] | None, copy: bool = True) -> None:
        """Calls a function with the stream and each message; see `on_recv`."""
        self.on_recv(None if callback is None else lambda message: callback(self, message), copy)

    def stop_on_recv(self) -> None:
        """Stops receiving."""
        self.on_recv(None)

    def on_send(self, callback: Callable[[Any, Any], Any] | None) -> None:
        """Calls a function with each message that has been sent, and what `send_multipart` has returned for it."""
        self._check_closed()
        assert callback is None or callable(callback)
        self._send_callback = callback

    def on_send_stream(self, callback: Callable[[ZMQStream, Any, Any], Any] | None) -> None:
        """Calls a function with the stream, each message that has been sent, and its result; see `on_send`."""
        self.on_send(None if callback is None else lambda message, status: callback(self, message, status))

    def stop_on_send(self) -> None:
        """Stops calling the function of `on_send`."""
        self.on_send(None)

    def on_err(self, callback: Callable[..., Any]) -> None:
        """Does nothing; deprecated."""
        gen_log.warning("ZMQStream.on_err does nothing")

    def stop_on_err(self) -> None:
        """Does nothing; deprecated."""
        gen_log.warning("ZMQStream.stop_on_err does nothing")

    def set_close_callback(self, callback: Callable[[], Any] | None) -> None:
        """Calls a function when the stream closes."""
        self._close_callback = callback

    # ------------------------------------------------------------------ sending

    def send(
        self,
        msg: Any,
        flags: int = 0,
        copy: bool = True,
        track: bool = False,
        callback: Callable[[Any, Any], Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Sends a message of one part in the loop; see `send_multipart`."""
        self.send_multipart([msg], flags=flags, copy=copy, track=track, callback=callback, **kwargs)

    def send_multipart(
        self,
        msg: Sequence[Any],
        flags: int = 0,
        copy: bool = True,
        track: bool = False,
        callback: Callable[[Any, Any], Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Sends a message in the loop.

        Args:
            msg: Its parts.
            flags: See `zmq.Socket.send_multipart`.
            copy: See `zmq.Socket.send_multipart`.
            track: See `zmq.Socket.send_multipart`.
            callback: A new function for `on_send`.
            **kwargs: See `zmq.Socket.send_multipart`.

        Raises:
            OSError: The stream is closed.
        """
        self._check_closed()
        if callback is not None:
            self.on_send(callback)
        self._send_queue.append((msg, {**kwargs, "flags": flags, "copy": copy, "track": track}))
        self._schedule()

    def send_string(
        self,
        u: str,
        flags: int = 0,
        encoding: str = "utf-8",
        callback: Callable[[Any, Any], Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Sends text in the loop."""
        if not isinstance(u, str):
            raise TypeError("unicode/str objects only")
        self.send(u.encode(encoding), flags=flags, callback=callback, **kwargs)

    send_unicode = send_string

    def send_json(
        self, obj: Any, flags: int = 0, callback: Callable[[Any, Any], Any] | None = None, **kwargs: Any
    ) -> None:
        """Sends an object as JSON in the loop."""
        self.send(jsonapi.dumps(obj), flags=flags, callback=callback, **kwargs)

    def send_pyobj(
        self,
        obj: Any,
        flags: int = 0,
        protocol: int = -1,
        callback: Callable[[Any, Any], Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Sends an object with `pickle` in the loop."""
        self.send(pickle.dumps(obj, protocol), flags, callback=callback, **kwargs)

    # ------------------------------------------------------------------ state

    def receiving(self) -> bool:
        """Returns whether a function gets messages."""
        return self._recv_callback is not None

    def sending(self) -> bool:
        """Returns whether messages wait to be sent."""
        return bool(self._send_queue)

    def closed(self) -> bool:
        """Returns whether the stream is closed."""
        if self.socket is not None and self.socket.closed:
            self.close()
        return self.socket is None

    def close(self, linger: int | None = None) -> None:
        """Closes the stream and its socket."""
        if self.socket is None:
            return
        if self.socket.closed:
            warnings.warn("ZMQStream: close() after closing socket; close the stream instead", stacklevel=2)
        self._unwatch()
        self._wait.release()
        socket, self.socket = self.socket, None
        socket.close(linger)
        if self._close_callback is not None:
            self._run_callback(self._close_callback)

    def _check_closed(self) -> None:
        if self.socket is None:
            raise OSError("Stream is closed")

    def flush(self, flag: int = _IN | _OUT, limit: int | None = None) -> int:
        """Receives and sends what can be received and sent now, without the loop.

        Args:
            flag: `POLLIN`, `POLLOUT` or both. Without a function of `on_recv`, received messages are lost.
            limit: Messages at most; `None` for no limit.

        Returns:
            The number of messages.
        """
        self._check_closed()
        already, self._flushed = self._flushed, False
        count = 0
        while self.socket is not None and not (limit and count >= limit):
            wanted = flag & (_IN | (_OUT if self.sending() else 0))
            ready = self.socket.events & wanted if wanted else 0
            if not ready:
                break
            if ready & _IN:
                self._handle_recv()
                count += 1
            if self.socket is not None and ready & _OUT and self.sending():
                self._handle_send()
                count += 1
        if count:
            self._flushed = True
            if not already:
                self.io_loop.add_callback(self._finish_flush)
        elif already:
            self._flushed = True
        if self.socket is not None:
            self._schedule()
        return count

    def _finish_flush(self) -> None:
        self._flushed = False

    # ------------------------------------------------------------------ the loop's side

    def _watch(self) -> None:
        if not self._watching:
            self._watching = True
            self.io_loop.add_handler(self._wait, self._handle_events, IOLoop.READ)

    def _unwatch(self) -> None:
        if self._watching:
            self._watching = False
            self.io_loop.remove_handler(self._wait)

    def _schedule(self) -> None:
        """Handles events in the next turn of the loop: some may be there already."""
        if not self._scheduled:
            self._scheduled = True
            self.io_loop.add_callback(self._handle_scheduled)

    def _handle_scheduled(self) -> None:
        self._scheduled = False
        if self.socket is not None:
            self._handle_events()

    def _handle_events(self, *_: Any) -> None:
        """Receives and sends in turn; the loop calls it."""
        if self.socket is None:
            return
        self._wait.end()
        if not (self.receiving() or self.sending()):
            self._unwatch()
            return
        try:
            ready = self._wait.ready()
        except ContextTerminated:
            gen_log.warning("Got events for stream %s after terminating context", self)
            self._unwatch()
            self.closed()
            return
        except ZMQError as error:
            gen_log.warning("Got events for stream %s attached to closed socket: %s", self, error)
            self.closed()
            return
        try:
            if ready & _IN:
                self._handle_many(self.receiving, self._handle_recv)
            if self.socket is not None and ready & _OUT:
                self._handle_many(self.sending, self._handle_send)
        except Exception:
            gen_log.error("Uncaught exception in zmqstream callback", exc_info=True)
            raise
        finally:
            if self.socket is not None:
                self._rearm()

    def _handle_many(self, goes_on: Callable[[], bool], handle: Callable[[], bool]) -> None:
        """Handles the messages of one direction, up to a limit."""
        for _ in range(_TURN_MESSAGES):
            if self.socket is None or not (goes_on() and handle()):
                return
        self._schedule()

    def _rearm(self) -> None:
        """Goes on waiting, or handles what has come meanwhile in the next turn."""
        if self.socket.closed:
            return
        wanted = (_IN if self.receiving() else 0) | (_OUT if self.sending() else 0)
        if wanted:
            self._watch()
            if self._wait.ready() & wanted:
                self._schedule()
            else:
                self._wait.begin()

    def _handle_recv(self) -> bool:
        """Receives a message; returns whether there was one."""
        if self._flushed:
            return False
        try:
            message = self.socket.recv_multipart(Flag.DONTWAIT, copy=self._recv_copy)
        except ZMQError as error:
            if error.errno == Errno.EAGAIN:
                return False
            raise
        if self._recv_callback is not None:
            self._run_callback(self._recv_callback, message)
        return True

    def _handle_send(self) -> bool:
        """Sends a message; returns whether it has left the queue."""
        if self._flushed:
            return False
        message, arguments = self._send_queue[0]
        status: Any
        try:
            status = self.socket.send_multipart(message, **{**arguments, "flags": arguments["flags"] | Flag.DONTWAIT})
        except ZMQError as error:
            if error.errno == Errno.EAGAIN and not arguments["flags"] & Flag.DONTWAIT:
                return False
            gen_log.error("SEND Error: %s", error)
            status = error
        self._send_queue.popleft()
        if self._send_callback is not None:
            self._run_callback(self._send_callback, message, status)
        return True

    def _run_callback(self, callback: Callable[..., Any], *args: Any) -> None:
        """Calls a function; logs its error. A coroutine becomes a task."""
        try:
            result = callback(*args)
            if not isinstance(result, Awaitable):
                return
            task = asyncio.ensure_future(result)
        except Exception:
            gen_log.error("Uncaught exception in ZMQStream callback", exc_info=True)
            raise
        task.add_done_callback(_log_error)


def _log_error(task: asyncio.Future[Any]) -> None:
    if not task.cancelled() and task.exception() is not None:
        gen_log.error("Uncaught exception in ZMQStream callback", exc_info=task.exception())


__all__ = ["ZMQStream"]
