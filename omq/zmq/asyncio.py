"""Sockets for asyncio: their calls return Futures. With any loop that has `add_reader`."""

from __future__ import annotations

import asyncio
import warnings
from typing import TYPE_CHECKING, Any

from omq.zmq import _future
from omq.zmq.constants import PollEvent
from omq.zmq.context import Context as _SyncContext
from omq.zmq.loop_wait import LoopWait


class _AsyncIO:
    """The running loop of asyncio."""

    _READ = 1  # as in `selectors`
    _WRITE = 2

    def _default_loop(self) -> Any:
        try:
            return asyncio.get_running_loop()
        except RuntimeError:
            warnings.warn("no loop runs: call sockets of zmq.asyncio in a coroutine", RuntimeWarning, stacklevel=4)
        return asyncio.get_event_loop()


class Poller(_AsyncIO, _future._AsyncPoller):
    """A poller whose `poll` returns a Future."""

    def _watch_raw_socket(self, loop: Any, socket: Any, evt: int, f: Any) -> None:
        if evt & PollEvent.POLLIN:
            loop.add_reader(socket, f)
        if evt & PollEvent.POLLOUT:
            loop.add_writer(socket, f)

    def _unwatch_raw_sockets(self, loop: Any, *sockets: Any) -> None:
        for socket in sockets:
            loop.remove_reader(socket)
            loop.remove_writer(socket)


class Socket(_AsyncIO, _future._AsyncSocket):
    """A socket whose `send`, `recv` and `poll` return Futures; `Context.socket` makes one."""

    _poller_class = Poller

    def _watch(self, loop: Any, wait: LoopWait) -> None:
        loop.add_reader(wait.fileno(), self._handle_events)

    def _unwatch(self, loop: Any, wait: LoopWait) -> None:
        if not loop.is_closed():
            loop.remove_reader(wait.fileno())


Poller._socket_class = Socket


class Context(_SyncContext[Socket]):
    """A context that makes sockets for asyncio."""

    _socket_class = Socket
    _instance = None

    if TYPE_CHECKING:

        def __init__(self, io_threads: int | _SyncContext[Any] = 1, shadow: _SyncContext[Any] | int = 0) -> None: ...


class ZMQEventLoop(asyncio.SelectorEventLoop):
    """A loop of asyncio; deprecated: any loop will do."""

    def __init__(self, selector: Any = None) -> None:
        _deprecated()
        super().__init__(selector)


def install() -> None:
    """Does nothing; deprecated: any loop will do."""
    _deprecated()


def _deprecated() -> None:
    warnings.warn(
        "ZMQEventLoop and zmq.asyncio.install are deprecated: any loop will do", DeprecationWarning, stacklevel=3
    )


__all__ = ["Context", "Poller", "Socket", "ZMQEventLoop", "install"]
