"""Sockets and pollers whose calls return Futures, without the event loop: its classes add that."""

from __future__ import annotations

import contextlib
import pickle
import sys
import warnings
from asyncio import Future, _get_running_loop
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, Self, cast, overload

from omq._core.zmq.future import FutureCalls
from omq._core.zmq.future import configure as _configure
from omq.zmq.constants import Errno, PollEvent, SocketOption
from omq.zmq.constants import Flag as _Flag
from omq.zmq.error import Again, ZMQError, error_of
from omq.zmq.frame import Frame
from omq.zmq.loop_wait import LoopWait
from omq.zmq.poll import Poller
from omq.zmq.socket import Socket
from omq.zmq.tracker import MessageTracker

_IN, _OUT = int(PollEvent.POLLIN), int(PollEvent.POLLOUT)
_DONTWAIT = int(_Flag.DONTWAIT)
_POLL = "poll"

_configure(Future, _get_running_loop)


class _Cancels:
    """A Future whose `cancel` cancels another one, too, at once: that one takes no message any more."""

    source: Any = None

    def cancel(self, msg: Any = None) -> bool:
        """Cancels both."""
        if self.source is not None:
            _cancel(self.source)
        return super().cancel(msg)  # type: ignore[misc, no-any-return]


class _LoadedFuture(_Cancels, Future[Any]):
    """A Future with what is made of another one's result."""


class _Async:
    """The event loop of a socket or poller."""

    _current_loop: Any = None
    _Future: type[Future[Any]] = Future

    def _get_loop(self) -> Any:
        """Returns the loop that runs; prepares the object for another one than before."""
        loop = self._default_loop()
        if loop is not self._current_loop:
            self._clear_io_state()
            self._current_loop = loop
            self._init_io_state(loop)
        return loop

    def _default_loop(self) -> Any:
        raise NotImplementedError("override in subclass")

    def _call_later(self, loop: Any, delay: float, callback: Callable[[], None]) -> Any:
        """Calls a function after *delay* seconds; returns a timer to cancel."""
        return loop.call_later(delay, callback)

    def _init_io_state(self, loop: Any = None) -> None:
        """Prepares the object for a loop."""

    def _clear_io_state(self) -> None:
        """Undoes `_init_io_state`."""


class _FutureEvent:
    """A call that waits.

    Args:
        future: Its Future.
        kind: The name of the method; `poll` waits for readiness only.
        args: The arguments of the method.
        kwargs: Its keyword arguments.
    """

    __slots__ = ("args", "future", "kind", "kwargs", "timer")

    def __init__(self, future: Future[Any], kind: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.future = future
        self.kind = kind
        self.args = args
        self.kwargs = kwargs
        self.timer: Any = None

    def attempt(self, socket: Socket[Any]) -> bool:
        """Completes the Future, unless the call must wait; returns whether it is complete."""
        if self.future.done():
            return True
        flags = self.kwargs.get("flags", 0)
        begun = socket._handle.begun
        try:
            result = None
            if self.kind != _POLL:
                result = getattr(socket, self.kind)(*self.args, **{**self.kwargs, "flags": flags | _DONTWAIT})
        except Again as error:
            if not flags & _DONTWAIT:
                if self.kind == "send":
                    socket._handle.begun = begun  # the earlier parts of the message, for the next attempt
                return False
            self.future.set_exception(error)
        except Exception as error:
            self.future.set_exception(error)
        else:
            self.future.set_result(result)
        return True

    def expire(self) -> None:
        """Ends the call after `RCVTIMEO` or `SNDTIMEO`."""
        if not self.future.done():
            self.future.set_exception(Again())


def _cancel(future: Future[Any]) -> None:
    """Cancels a Future, also if its loop is closed."""
    with contextlib.suppress(RuntimeError):
        future.cancel()


class _AsyncPoller(_Async, Poller):
    """A poller whose `poll` returns a Future."""

    _socket_class: type[_AsyncSocket]

    def _watch_raw_socket(self, loop: Any, socket: Any, evt: int, f: Callable[..., None]) -> None:
        """Calls *f* when a descriptor is ready."""
        raise NotImplementedError("override in subclass")

    def _unwatch_raw_sockets(self, loop: Any, *sockets: Any) -> None:
        """Undoes `_watch_raw_socket`."""
        raise NotImplementedError("override in subclass")

    def poll(self, timeout: float | None = -1) -> Awaitable[list[tuple[Any, int]]]:  # type: ignore[override]
        """Waits until something is ready; see `omq.zmq.Poller.poll`.

        Args:
            timeout: Milliseconds; `None` or a negative number waits for ever.

        Returns:
            A Future with what `omq.zmq.Poller.poll` returns.
        """
        found: Future[Any] = self._Future()
        if timeout == 0:
            self._settle(found)
            return found
        loop = self._get_loop()
        watcher: Future[Any] = self._Future()
        raw: list[Any] = []
        shadows: list[_AsyncSocket] = []

        def wake(*_: Any) -> None:
            if not watcher.done():
                watcher.set_result(None)

        for socket, events in self.sockets:
            if not isinstance(socket, Socket):
                raw.append(socket)
                self._watch_raw_socket(loop, socket, events, wake)
                continue
            if not isinstance(socket, self._socket_class):
                socket = self._socket_class.from_socket(socket)
                shadows.append(socket)
            if events & _IN:
                socket._add_recv_event(_POLL, future=watcher)
            if events & _OUT:
                socket._add_send_event(_POLL, future=watcher)

        timer = self._call_later(loop, timeout / 1000, wake) if timeout is not None and timeout > 0 else None

        def finish(_: Any) -> None:
            self._unwatch_raw_sockets(loop, *raw)
            for shadow in shadows:
                shadow._clear_io_state()
            if timer is not None:
                timer.cancel()
            if found.done():
                return
            if watcher.cancelled():
                _cancel(found)
            elif watcher.exception() is not None:
                found.set_exception(cast(BaseException, watcher.exception()))
            else:
                self._settle(found)

        watcher.add_done_callback(finish)
        found.add_done_callback(lambda _: None if watcher.done() else _cancel(watcher))
        return found

    def _settle(self, found: Future[Any]) -> None:
        """Completes a Future with what is ready now."""
        try:
            found.set_result(super().poll(0))
        except Exception as error:
            found.set_exception(error)


class _AsyncSocket(_Async, FutureCalls, Socket[Future[Any]]):
    """A socket whose calls return Futures.

    While calls wait, the loop reads for the socket, as a thread in a blocking call does.
    """

    _shadow_sock: Socket[Any]
    _poller_class: Any = _AsyncPoller
    _LoadedFuture: Any = _LoadedFuture
    _loop_wait: LoopWait | None = None
    _watching: bool = False

    if TYPE_CHECKING:

        def send(  # type: ignore[override]
            self,
            data: Any,
            flags: int = 0,
            copy: bool = True,
            track: bool = False,
            routing_id: int | None = None,
            group: str | None = None,
        ) -> Awaitable[MessageTracker | None]: ...

        def send_multipart(  # type: ignore[override]
            self, msg_parts: Sequence[Any], flags: int = 0, copy: bool = True, track: bool = False, **kwargs: Any
        ) -> Awaitable[MessageTracker | None]: ...

        @overload  # type: ignore[override]
        def recv(self, flags: int = 0, copy: Literal[True] = True, track: bool = False) -> Awaitable[bytes]: ...

        @overload
        def recv(self, flags: int = 0, *, copy: Literal[False], track: bool = False) -> Awaitable[Frame]: ...

        @overload
        def recv(self, flags: int = 0, copy: bool = True, track: bool = False) -> Awaitable[bytes | Frame]: ...

        def recv(self, *args: Any, **kwargs: Any) -> Any: ...

        @overload  # type: ignore[override]
        def recv_multipart(
            self, flags: int = 0, copy: Literal[True] = True, track: bool = False
        ) -> Awaitable[list[bytes]]: ...

        @overload
        def recv_multipart(
            self, flags: int = 0, *, copy: Literal[False], track: bool = False
        ) -> Awaitable[list[Frame]]: ...

        @overload
        def recv_multipart(
            self, flags: int = 0, copy: bool = True, track: bool = False
        ) -> Awaitable[list[bytes] | list[Frame]]: ...

        def recv_multipart(self, *args: Any, **kwargs: Any) -> Any: ...

        def send_string(  # type: ignore[override]
            self, u: str, flags: int = 0, copy: bool = True, encoding: str = "utf-8", **kwargs: Any
        ) -> Awaitable[MessageTracker | None]: ...

        def recv_string(  # type: ignore[override]
            self, flags: int = 0, encoding: str = "utf-8"
        ) -> Awaitable[str]: ...

        def send_pyobj(  # type: ignore[override]
            self, obj: object, flags: int = 0, protocol: int = pickle.DEFAULT_PROTOCOL, **kwargs: Any
        ) -> Awaitable[MessageTracker | None]: ...

        def recv_pyobj(self, flags: int = 0) -> Awaitable[Any]: ...

        def send_json(  # type: ignore[override]
            self, obj: object, flags: int = 0, **kwargs: Any
        ) -> Awaitable[MessageTracker | None]: ...

        def recv_json(self, flags: int = 0, **kwargs: Any) -> Awaitable[Any]: ...

    def __init__(
        self,
        context: Any = None,
        socket_type: int = -1,
        io_loop: Any = None,
        _from_socket: Any = None,
        **kwargs: Any,
    ) -> None:
        if isinstance(context, Socket):
            context, _from_socket = None, context
        if _from_socket is not None:
            super().__init__(shadow=_from_socket.underlying)  # type: ignore[misc]
            self._shadow_sock = _from_socket
        else:
            super().__init__(context, socket_type, **kwargs)  # type: ignore[misc]
            self._shadow_sock = Socket.shadow(self.underlying)
        if io_loop is not None:
            warnings.warn(
                f"{type(self).__name__}: io_loop is deprecated; the running loop is used",
                DeprecationWarning,
                stacklevel=3,
            )
        self._recv_futures = deque()
        self._send_futures = deque()

    @classmethod
    def from_socket(cls, socket: Socket[Any], io_loop: Any = None) -> Self:
        """Returns an asynchronous face of a socket."""
        return cls(_from_socket=socket, io_loop=io_loop)

    def close(self, linger: int | None = None) -> None:
        """Cancels the calls that wait, and closes the socket; see `omq.zmq.Socket.close`."""
        if not self.closed and self._recv_futures is not None:
            for event in list(chain(self._recv_futures, self._send_futures)):
                _cancel(event.future)
            self._clear_io_state()
        super().close(linger=linger)

    # ------------------------------------------------------------------ calls that may wait

    def recv_into(self, buffer: Any, /, *, nbytes: int = 0, flags: int = 0) -> Awaitable[int]:  # type: ignore[override]
        """Takes the next part into a buffer; returns a Future with what `omq.zmq.Socket.recv_into` returns."""
        return self._recv_soon("recv_into", (buffer,), {"nbytes": nbytes, "flags": flags})

    def _recv_soon(self, kind: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Future[Any]:
        return self._add_recv_event(kind, args=args, kwargs=kwargs)

    def _send_soon(self, kind: str, msg: Any, kwargs: dict[str, Any]) -> Future[Any]:
        return self._add_send_event(kind, msg=msg, kwargs=kwargs)

    def _add_recv_event(
        self,
        kind: str,
        *,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        future: Future[Any] | None = None,
    ) -> Future[Any]:
        """Receives now, or when a message arrives, after the calls that wait already."""
        event = _FutureEvent(future or self._Future(), kind, args, kwargs or {})
        if event.kwargs.get("flags", 0) & _DONTWAIT:
            event.attempt(self._shadow_sock)
            return event.future
        timeout = self._shadow_sock.get(SocketOption.RCVTIMEO)
        if self._ready() & _IN and (kind == _POLL or not self._recv_futures) and event.attempt(self._shadow_sock):
            return event.future
        return self._wait(event, self._recv_futures, timeout)

    def _add_send_event(
        self,
        kind: str,
        msg: Any = None,
        kwargs: dict[str, Any] | None = None,
        future: Future[Any] | None = None,
    ) -> Future[Any]:
        """Sends now, or when there is room, after the calls that wait already."""
        args = () if kind == _POLL else (msg,)
        event = _FutureEvent(future or self._Future(), kind, args, kwargs or {})
        if kind == _POLL:
            if self._ready() & _OUT and event.attempt(self._shadow_sock):
                return event.future
        elif not self._send_futures and event.attempt(self._shadow_sock):
            return event.future
        return self._wait(event, self._send_futures, self._shadow_sock.get(SocketOption.SNDTIMEO))

    def _wait(self, event: _FutureEvent, events: deque[_FutureEvent], timeout: int) -> Future[Any]:
        """Adds a call that waits."""
        loop = self._get_loop()
        if timeout >= 0 and event.kind != _POLL:
            event.timer = self._call_later(loop, timeout / 1000, event.expire)
        events.append(event)
        event.future.add_done_callback(partial(self._forget, event, events))
        self._ready()
        self._await_events()
        return event.future

    def _forget(self, event: _FutureEvent, events: deque[_FutureEvent], _: Any = None) -> None:
        """Removes a call that waits no longer."""
        if event.timer is not None:
            event.timer.cancel()
        with contextlib.suppress(ValueError):
            events.remove(event)

    # ------------------------------------------------------------------ the wait of the loop

    def _wanted(self) -> int:
        """Returns the events that calls wait for."""
        return (_IN if self._recv_futures else 0) | (_OUT if self._send_futures else 0)

    def _ready(self) -> int:
        """Returns the events that hold, and sees to calls that wait for them."""
        if self._loop_wait is None:
            self._loop_wait = LoopWait(self, self.close)
        ready = self._loop_wait.ready()
        if ready & self._wanted():
            self._call_later(self._get_loop(), 0, self._handle_events)
        return ready

    def _await_events(self) -> None:
        """Makes the loop read for the socket while calls wait."""
        wait = self._loop_wait
        if wait is not None:
            if not self._watching:
                self._watching = True
                self._watch(self._current_loop, wait)
            wait.begin()

    def _handle_events(self, *_: Any) -> None:
        """Completes the calls that can be completed; the loop calls it."""
        wait = self._loop_wait
        if wait is None:
            return
        wait.end()
        if not self._wanted():
            self._stop_watching()
            return
        try:
            ready = wait.ready()
            if ready & _IN:
                self._complete(self._recv_futures, _IN)
            if self._send_futures and ready & _OUT:
                self._complete(self._send_futures, _OUT)
        except ZMQError as error:
            for event in list(chain(self._recv_futures, self._send_futures)):
                if not event.future.done():
                    event.future.set_exception(error)
            self._clear_io_state()
            return
        if self._wanted():
            self._await_events()

    def _complete(self, events: deque[_FutureEvent], wanted: int) -> None:
        """Completes calls, in order, while the socket is ready for them."""
        while events and events[0].attempt(self._shadow_sock):
            event = events.popleft()
            if event.timer is not None:
                event.timer.cancel()
            if not (events and self._shadow_sock.get(SocketOption.EVENTS) & wanted):
                break

    def _watch(self, loop: Any, wait: LoopWait) -> None:
        """Makes the loop call `_handle_events` while the descriptor is readable."""
        raise NotImplementedError("override in subclass")

    def _unwatch(self, loop: Any, wait: LoopWait) -> None:
        """Undoes `_watch`."""
        raise NotImplementedError("override in subclass")

    def _stop_watching(self) -> None:
        if self._watching and self._loop_wait is not None:
            self._watching = False
            self._unwatch(self._current_loop, self._loop_wait)

    def _clear_io_state(self) -> None:
        """Ends the loop's work for the socket."""
        wait = self._loop_wait
        if wait is not None:
            self._stop_watching()
            self._loop_wait = None
            wait.release()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        wait = None if is_finalizing() else self.__dict__.get("_loop_wait")
        if wait is not None:
            wait.release()
        super().__del__()

    # ------------------------------------------------------------------ calls that are made of others

    def _deserialize(self, recvd: Any, load: Callable[[Any], Any]) -> Future[Any]:
        """Returns a Future with what *load* makes of the result of another one."""
        loaded: Any = self._LoadedFuture()
        loaded.source = recvd

        def pass_on(_: Any) -> None:
            if loaded.done():
                if not recvd.cancelled() and recvd.exception() is None:
                    warnings.warn(f"{loaded} has ended before {recvd}: a message is lost", RuntimeWarning, stacklevel=2)
            elif recvd.cancelled():
                _cancel(loaded)
            elif recvd.exception() is not None:
                loaded.set_exception(recvd.exception())
            else:
                try:
                    loaded.set_result(load(recvd.result()))
                except Exception as error:
                    loaded.set_exception(error)

        if recvd.done():
            pass_on(recvd)
        else:
            recvd.add_done_callback(pass_on)
        return loaded  # type: ignore[no-any-return]

    def poll(self, timeout: int | None = None, flags: int = PollEvent.POLLIN) -> Awaitable[int]:  # type: ignore[override]
        """Waits until a message can be received or sent; returns a Future with what `omq.zmq.Socket.poll` returns."""
        if self.closed:
            raise error_of(Errno.ENOTSUP)
        poller = self._poller_class()
        poller.register(self, flags)
        polled: Future[Any] = poller.poll(timeout)
        found: Future[Any] = self._Future()

        def pass_on(_: Any) -> None:
            if found.done():
                return
            if polled.cancelled():
                _cancel(found)
            elif polled.exception() is not None:
                found.set_exception(cast(BaseException, polled.exception()))
            else:
                found.set_result(int(dict(polled.result()).get(self, 0)))

        if polled.done():
            pass_on(polled)
        else:
            polled.add_done_callback(pass_on)
            found.add_done_callback(lambda _: None if polled.done() else _cancel(polled))
        return found
