"""Sockets for tornado's coroutines: their calls return Futures."""

from __future__ import annotations

import warnings
from typing import Any

from tornado.concurrent import Future
from tornado.ioloop import IOLoop

from omq.zmq._future import _AsyncPoller, _AsyncSocket, _Cancels
from omq.zmq.context import Context as _SyncContext
from omq.zmq.loop_wait import LoopWait


class CancelledError(Exception):
    """The call has been cancelled."""


class _TornadoFuture(Future):  # type: ignore[misc]
    """A Future that raises the `CancelledError` of this module."""

    def cancel(self, msg: Any = None) -> bool:
        if self.done():
            return False
        self.set_exception(CancelledError())
        return True

    def cancelled(self) -> bool:
        return self.done() and isinstance(self.exception(), CancelledError)


class _LoadedTornadoFuture(_Cancels, _TornadoFuture):
    """A Future with what is made of another one's result."""


class _Timer:
    """A timer of tornado that can be cancelled like one of asyncio."""

    def __init__(self, loop: Any, timeout: Any) -> None:
        self._loop = loop
        self._timeout = timeout

    def cancel(self) -> None:
        """Cancels the timer."""
        self._loop.remove_timeout(self._timeout)


class _AsyncTornado:
    """tornado's current loop."""

    _Future: Any = _TornadoFuture
    _READ = IOLoop.READ
    _WRITE = IOLoop.WRITE

    def _default_loop(self) -> Any:
        return IOLoop.current()

    def _call_later(self, loop: Any, delay: float, callback: Any) -> Any:
        return _Timer(loop, loop.call_later(delay, callback))


class Poller(_AsyncTornado, _AsyncPoller):
    """A poller whose `poll` returns a Future."""

    def _watch_raw_socket(self, loop: Any, socket: Any, evt: int, f: Any) -> None:
        loop.add_handler(socket, f, (self._READ if evt & 1 else 0) | (self._WRITE if evt & 2 else 0))

    def _unwatch_raw_sockets(self, loop: Any, *sockets: Any) -> None:
        for socket in sockets:
            loop.remove_handler(socket)


class Socket(_AsyncTornado, _AsyncSocket):
    """A socket whose `send`, `recv` and `poll` return Futures; `Context.socket` makes one."""

    _poller_class = Poller
    _LoadedFuture = _LoadedTornadoFuture

    def _init_io_state(self, loop: Any = None) -> None:
        if self._loop_wait is None:
            self._loop_wait = LoopWait(self, self.close)
        self._await_events()

    def _watch(self, loop: Any, wait: LoopWait) -> None:
        loop.add_handler(wait, self._handle_events, self._READ)

    def _unwatch(self, loop: Any, wait: LoopWait) -> None:
        loop.remove_handler(wait)


Poller._socket_class = Socket


class Context(_SyncContext[Socket]):
    """A context that makes sockets for tornado."""

    _instance = None
    _socket_class = Socket
    io_loop: Any = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if kwargs.pop("io_loop", None) is not None:
            warnings.warn("Context: io_loop is deprecated; the running loop is used", DeprecationWarning, stacklevel=2)
        super().__init__(*args, **kwargs)  # type: ignore[misc]


__all__ = ["CancelledError", "Context", "Poller", "Socket"]
