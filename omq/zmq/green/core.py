"""Sockets and contexts for gevent."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

from omq.zmq.constants import Flag, PollEvent, SocketOption
from omq.zmq.context import Context as _OriginalContext
from omq.zmq.error import Again
from omq.zmq.green.poll import _Poller, wait
from omq.zmq.socket import Socket as _OriginalSocket

_TIMEOUTS = (SocketOption.RCVTIMEO, SocketOption.SNDTIMEO)
_DONTWAIT = int(Flag.DONTWAIT)


class _Socket(_OriginalSocket[Any]):
    """A socket whose calls let other greenlets run while they wait."""

    _poller_class = _Poller
    _repr_cls = "zmq.green.Socket"

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing() and not self._shadow:
            self.close()

    def _retry(self, events: int, name: str, args: tuple[Any, ...], flags: int, kwargs: dict[str, Any]) -> Any:
        """Calls a method until it need not wait."""
        call = getattr(super(), name)
        begun = self._handle.begun
        while True:
            try:
                return call(*args, flags=flags | _DONTWAIT, **kwargs)
            except Again:
                if flags & _DONTWAIT:
                    raise
            if name == "send":
                self._handle.begun = begun  # the earlier parts of the message, for the next attempt
            wait([(self, events)], [], None)

    def send(
        self,
        data: Any,
        flags: int = 0,
        copy: bool = True,
        track: bool = False,
        routing_id: int | None = None,
        group: str | None = None,
    ) -> Any:
        """Sends a part; see `omq.zmq.Socket.send`."""
        kwargs = {"copy": copy, "track": track, "routing_id": routing_id, "group": group}
        return self._retry(PollEvent.POLLOUT, "send", (data,), flags, kwargs)

    def recv(self, flags: int = 0, copy: bool = True, track: bool = False) -> Any:
        """Takes the next part; see `omq.zmq.Socket.recv`."""
        return self._retry(PollEvent.POLLIN, "recv", (), flags, {"copy": copy, "track": track})

    def recv_into(self, buffer: Any, /, *, nbytes: int = 0, flags: int = 0) -> int:
        """Takes the next part into a buffer; see `omq.zmq.Socket.recv_into`."""
        size: int = self._retry(PollEvent.POLLIN, "recv_into", (buffer,), flags, {"nbytes": nbytes})
        return size

    def send_multipart(
        self, msg_parts: Any, flags: int = 0, copy: bool = True, track: bool = False, **kwargs: Any
    ) -> Any:
        """Sends a whole message; see `omq.zmq.Socket.send_multipart`."""
        kwargs = {"copy": copy, "track": track, **kwargs}
        return self._retry(PollEvent.POLLOUT, "send_multipart", (msg_parts,), flags, kwargs)

    def recv_multipart(self, flags: int = 0, copy: bool = True, track: bool = False) -> Any:
        """Takes the next message whole; see `omq.zmq.Socket.recv_multipart`."""
        return self._retry(PollEvent.POLLIN, "recv_multipart", (), flags, {"copy": copy, "track": track})

    def get(self, option: int) -> Any:
        """Returns an option; see `omq.zmq.Socket.get`."""
        _warn_of(option)
        return super().get(option)

    def set(self, option: int, optval: Any) -> None:
        """Sets an option; see `omq.zmq.Socket.set`."""
        _warn_of(option)
        super().set(option, optval)


def _warn_of(option: int) -> None:
    if option in _TIMEOUTS:
        warnings.warn("TIMEO socket options have no effect in zmq.green", UserWarning, stacklevel=3)


class _Context(_OriginalContext[_Socket]):
    """A context that makes sockets for gevent."""

    _socket_class = _Socket
    _repr_cls = "zmq.green.Context"
    _instance = None
