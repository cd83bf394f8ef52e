"""The blocking sockets. The calling thread does the work."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Coroutine, Iterable, Sequence
from types import TracebackType
from typing import Any, Final, Self, cast

from omq._core.calls.attempt import checked_events
from omq._core.calls.readable_event import ReadableEvent
from omq._core.calls.routed_calls import RoutedSyncCore
from omq._core.calls.sync import SyncCore, wait_for_any
from omq._core.clock import check_timeout
from omq.context import Context
from omq.engine.deferred_close import IoThreadClose
from omq.engine.driver import CallerDriver
from omq.engine.iothread import IoThread
from omq.engine.linger import skip_lingers
from omq.engine.socket import Engine
from omq.engine.thread_call import ThreadCall, run_in_new_thread
from omq.errors import ContextTerminated, StateError
from omq.monitor import Monitor
from omq.options import Options
from omq.socket_base import SocketBase, several
from omq.types import POLL_IN, POLL_OUT, UNSET, SocketType

_MAX_LEAVING: Final = 32  # sockets of a context that may close in the background


class Socket(SocketBase, IoThreadClose, SyncCore):
    """A blocking socket. Use one of its types, such as `omq.PUSH`. Threads may share it.

    Args:
        context: The context that it belongs to; `None` for the default context.
        bind: The endpoint, or endpoints, to bind.
        connect: The endpoint, or endpoints, to connect to.
        **options: See `omq.Options`.

    Raises:
        OptionError: An option is unknown, does not fit the type, or has an invalid value.
        EndpointError: An endpoint cannot be parsed.
        BindError: An endpoint cannot be bound.
        ContextTerminated: The context has been terminated.
    """

    def __init__(
        self,
        context: Context | None = None,
        *,
        bind: str | Iterable[str] | None = None,
        connect: str | Iterable[str] | None = None,
        **options: Any,
    ) -> None:
        self._refuse_second_init()
        context = self._context_of(context)
        context.check()
        self._context = context
        self._io: IoThread | None = None  # set on first use: from then on the engine belongs to that thread
        driver = CallerDriver(self, context.flusher, context.deferred_calls, context.bell)
        self._engine = Engine(self.socket_type, Options.parse(self.socket_type, options), context, driver)
        self._attach_queues()
        self._apply_options()
        context.register(self)
        try:
            for endpoint in several(bind):
                self.bind(endpoint)
            for endpoint in several(connect):
                self.connect(endpoint)
        except BaseException:
            self.stop()
            raise

    def _attach_queues(self) -> None:
        pattern = self._engine.pattern
        self._assemble(pattern.recv_queue, pattern.send_queue, self._context.fork_guard)

    def _apply_options(self) -> None:
        options = self._engine.options
        self._set_timeouts(options.send_timeout, options.recv_timeout)
        spin = options.busy_poll
        adaptive = spin == "adaptive" and (len(os.sched_getaffinity(0)) > 1)
        self._set_spin(0 if isinstance(spin, str) else int(spin * 1e9), adaptive)

    # ------------------------------------------------------------------ endpoints

    def bind(self, endpoint: str, **options: Any) -> str:
        """Listens on an endpoint (`zmq_bind(3)`).

        Args:
            endpoint: The endpoint, such as `tcp://*:5555`.
            **options: Options for this endpoint and the connections that it accepts; the socket's own options apply
                otherwise. See `omq.Options`.

        Returns:
            The endpoint with its real address and port.

        Raises:
            EndpointError: The endpoint cannot be parsed.
            OptionError: An option is unknown, applies to the whole socket, does not fit this endpoint, or has an
                invalid value.
            BindError: The endpoint cannot be bound; see `errno`.
            ClosedError: The socket is closed.
        """
        return str(self._endpoint_call(self._engine.endpoints.bind, endpoint, options))

    def connect(self, endpoint: str, **options: Any) -> str:
        """Connects to an endpoint in the background, and again when the connection ends (`zmq_connect(3)`).

        Each call makes one more connection. But SUB, PUB, DEALER and REQ keep one for each tcp and ipc endpoint,
        because a second one would duplicate messages or lose replies.

        Args:
            endpoint: The endpoint, such as `tcp://host:5555`.
            **options: Options for this endpoint and each connection to it; the socket's own options apply otherwise.
                See `omq.Options`.

        Returns:
            The endpoint.

        Raises:
            EndpointError: The endpoint cannot be parsed.
            OptionError: An option is unknown, applies to the whole socket, does not fit this endpoint, or has an
                invalid value.
            AlreadyConnected: On SUB, PUB, DEALER and REQ: the endpoint is connected with another value of an option.
            ClosedError: The socket is closed.
        """
        io = self._adopt_thread()
        endpoints = self._engine.endpoints
        route = endpoints.route(endpoint, options)
        try:
            if endpoints.queue_connect(route):
                # Dialling happens in the background, so the call need not wait.
                io.post(_dial_queued, io, self._engine)
                return route.name
        except BaseException:
            endpoints.cancel_connect(route)
            raise
        return str(self._endpoint_call(endpoints.connect, endpoint, options))

    def _endpoint_call(self, call: Callable[..., Any], endpoint: str, *options: dict[str, Any]) -> Any:
        return self._adopt_thread().run(self._start, call, endpoint, *options)

    def _adopt_thread(self) -> IoThread:
        """Returns the context's I/O thread, to which the engine belongs from its first use on."""
        self._context.check()
        self._refuse_closed()
        self._io = self._context.io_thread
        self._engine.driver.meet(self)
        return self._io

    def _start(self, call: Callable[..., Any] | None = None, *arguments: Any) -> Any:
        """Makes a call on the I/O thread, once the engine runs there."""
        self._arrive()
        if self._engine.closing:
            raise self._closed_error()
        return call(*arguments) if call is not None else None

    def _arrive(self) -> None:
        """Begins each step on the I/O thread: starts the engine, and dials the endpoints that `connect` has queued."""
        assert self._io is not None
        _attach(self._io, self._engine)
        if not self._engine.closing:
            self._engine.endpoints.dial_queued()

    # ------------------------------------------------------------------ options and subscriptions

    def set_options(self, **options: Any) -> None:
        self._refuse_in_child()
        super().set_options(**options)

    def _change_options(self, options: dict[str, Any]) -> None:
        super()._change_options(options)
        self._apply_options()  # on this thread, too: there, no signal handler can interrupt it

    def _engine_call(self, call: Callable[..., Any], *arguments: Any) -> Any:
        # Python code that holds the socket's lock, or must not be interrupted, runs where no signal handler does.
        if self._io is None:
            return run_in_new_thread(call, *arguments)
        if self._engine.closed or self._io.is_current:
            return call(*arguments)
        return self._io.run(call, *arguments)

    def _refuse_in_child(self) -> None:
        """Raises in a forked child, where the lock may be held for ever."""
        if self._context.fork_guard.stale:
            self._context.check()

    # ------------------------------------------------------------------ peers

    def wait_connected(self, n: int = 1, *, timeout: float | None = None) -> None:
        """Waits until *n* peers have finished the handshake.

        Args:
            n: The number of peers.
            timeout: Seconds; `None` waits for ever.

        Raises:
            Timeout: There are fewer peers after *timeout*.
            ClosedError: The socket is closed, or was closed during the call.
        """
        self._wait(self._connected(n), f"{n} connected peers", timeout)

    def wait_subscribed(self, prefix: str | bytes | None = None, n: int = 1, *, timeout: float | None = None) -> None:
        """Waits until *n* subscriptions are in force: distinct pairs of peer and prefix, or group. PUB, XPUB and RADIO.

        Args:
            prefix: Counts only subscriptions to exactly this prefix, or group; `None` counts all.
            n: The number of subscriptions.
            timeout: Seconds; `None` waits for ever.

        Raises:
            Timeout: There are fewer subscriptions after *timeout*.
            ClosedError: The socket is closed, or was closed during the call.
            StateError: The type does not publish.
        """
        self._wait(self._subscribed(prefix, n), f"{n} subscriptions", timeout)

    def flush(self, timeout: float | None = None) -> None:
        """Waits until all accepted messages have been handed to the kernel or, over inproc, to the peer.

        The call also waits for messages that other threads send meanwhile and, without a peer, until one connects.

        Args:
            timeout: Seconds; `None` waits for ever.

        Raises:
            SendTimeout: Some messages have not left in time. No message is lost.
            StateError: The type does not send.
            ClosedError: The socket is closed, or was closed during the call.
        """
        timeout = check_timeout(timeout)
        self._refuse_unless_sending()
        if not self._begin().run(self._engine.flush, timeout):
            raise self._not_flushed(timeout)

    def _look(self) -> None:
        """Processes what the kernel has for this socket, subscriptions included, in the calling thread."""
        self.dispatch()

    def _begin(self) -> IoThread:
        """Waits until the engine runs on the context's I/O thread, and returns that thread."""
        io = self._adopt_thread()
        io.run(self._start)
        return io

    def _show_room(self, room: ReadableEvent, stack: contextlib.ExitStack[Any]) -> None:
        """Makes *room* readable whenever the socket may have room for a message, until the stack unwinds."""
        self._refuse_unless_sending()
        if self._engine.has_loop:
            self._context.check()
            self._refuse_closed()
        else:
            self._begin()
        wait_queue = self.writable
        stack.callback(wait_queue.hide, room)
        wait_queue.show(room)
        # No call is in progress, so the I/O thread must notice at once that a peer has room.
        if not self.watched:
            self._engine_call(self._engine.driver.take_over)

    def _wait(self, reached: Callable[[], bool], what: str, timeout: float | None) -> None:
        timeout = check_timeout(timeout)
        if not self._begin().run(self._engine.wait_until, reached, timeout):
            if self.closed:
                raise self._closed_error("was closed while a call waited")
            raise self._not_in_time(what, timeout)

    def monitor(self, limit: int = 1000) -> Monitor:
        """Returns a monitor of the socket and its connections, from now on; also before the first bind or connect.

        Args:
            limit: Events that may be queued; a slower reader finds an event `missed` with the number of lost ones.

        Returns:
            An iterator of events (`Event`) that ends when the socket is closed. A socket may have several.

        Raises:
            ClosedError: The socket is closed.
            StateError: The process has forked.
        """
        return Monitor(self._may_monitor(), limit)

    # ------------------------------------------------------------------ life

    @property
    def closed(self) -> bool:
        """Returns whether the socket is closed, or closing."""
        return self._engine.closing or bool(SyncCore.closed.__get__(self))

    @property
    def lingers(self) -> bool:
        """Returns whether `close` would wait for accepted messages that have not left."""
        engine = self._engine
        if self._io is None or engine.closed or self.options.linger == 0:
            return False
        return bool(self._engine_call(engine.has_unsent))

    def report_at_once(self) -> None:
        """Makes `close` report at once what it waits for."""
        self._engine.report_at_once()

    def close(self, linger: Any = UNSET) -> None:
        """Closes the socket; calls that wait, in any thread, raise `ClosedError`.

        The call returns when accepted messages have left, or `linger` has passed. Bound endpoints are free by then. The
        connections of a socket without bound endpoints end in the background, once its peers have everything. A call on
        the I/O thread, where the garbage collector may run, cannot wait: the socket closes in the background. With
        several calls at once, the shortest linger applies; a call that a signal interrupts ends nothing while another
        one waits.

        Args:
            linger: Seconds that accepted messages have to leave; `None` waits for ever; the option applies if omitted.

        Raises:
            OptionError: `linger` is not valid; the socket stays open.
        """
        if self._can_end_unnoticed():
            seconds = self._linger(linger)
            self._engine.driver.meet(self)
            self._mark_closed()
            if self._has_delivered():
                assert self._io is not None
                self._io.leaving.add(id(self))
                with contextlib.suppress(ContextTerminated):  # which has closed it, too
                    self._io.post(self._close_later, seconds)
                return
        self.finish_close(self.begin_close(linger))

    def _can_end_unnoticed(self) -> bool:
        """Returns whether the caller cannot notice the end of the socket, once its messages are delivered."""
        io, engine = self._io, self._engine
        if io is None or io.is_current or self.lock.mine or self._context.fork_guard.stale or engine.closing:
            return False
        # Bounded, because the thread may fall behind: descriptors must not accumulate.
        return len(io.leaving) < _MAX_LEAVING and not engine.reporter.is_read and engine.endpoints.can_end_unnoticed

    def _has_delivered(self) -> bool:
        """Returns whether the peers' kernels have all accepted messages; no call may accept more."""
        # All sessions count: one that has left routing may still have messages to deliver.
        sessions = tuple(self._engine._sessions)
        return self._engine.pattern.idle and all(_parts_cleanly(session) for session in sessions)

    def _close_later(self, linger: float | None) -> None:
        """Closes the socket on the I/O thread; no call waits for it."""
        assert self._io is not None
        self._io.leaving.discard(id(self))
        engine = self._engine
        if engine.closing:
            return
        self._arrive()
        engine.begin_closing()
        if engine.half_close():
            engine.stop()  # the usual case: there is nothing to wait for
        else:
            self._keep()
            self._close_here(linger)

    def begin_close(self, linger: Any) -> ThreadCall | None:
        """Starts to close without waiting; returns the call to wait for, or `None`."""
        if self._context.fork_guard.stale:
            return None
        seconds = self._linger(linger)
        self._engine.driver.meet(self)
        if self._io is not None and not self._engine.closed and self._io.is_current:
            self._keep()
            self._close_here(seconds)
            return None
        if self.lock.mine and self._io is not None:
            raise StateError(
                "this thread is inside a call of this socket, such as in a signal handler; "
                "close the socket after that call returns"
            )
        self._mark_closed()
        if self._engine.closed:
            return None
        if self._io is None:
            # It has never been bound or connected: no peer can come for what it accepted.
            run_in_new_thread(self._engine.stop)
            return None
        with contextlib.suppress(ContextTerminated):  # which has closed it, too
            return self._io.begin(self._close_there, seconds)
        return None

    def _close_there(self, linger: float | None) -> Coroutine[Any, Any, None] | None:
        """Runs on the I/O thread; returns a coroutine to await there, or `None`."""
        # In one step, mostly: for each further one the thread may have to wait for the GIL.
        self._arrive()
        return None if self._engine.close_at_once() else self._engine.close(linger)

    def stop(self) -> None:
        """Closes the socket at once; messages that have not left are dropped."""
        if self._context.fork_guard.stale:
            return
        self._mark_closed()
        if self._io is None:
            run_in_new_thread(self._engine.stop)
        elif self._io.is_current:
            self._engine.stop()
        else:
            with contextlib.suppress(ContextTerminated):  # which has closed it, too
                self._io.finish(self._io.begin(self._engine.stop))

    @property
    def _is_served(self) -> bool:
        return self._io is not None and not self._io.over

    def _end_dropped(self) -> None:
        assert self._io is not None
        self._keep()
        with contextlib.suppress(ContextTerminated):  # everything has ended
            self._io.post(self._close_here, self.options.linger)

    def _keep(self) -> None:
        """Keeps the socket alive until it is closed in the background."""
        self._context.keep(self)
        self._context.register(self)  # the garbage collector may have taken it out
        self._engine.driver.hold(self)

    def _close_here(self, linger: float | None) -> None:
        """Runs on the I/O thread."""
        self._arrive()
        self._mark_closed()
        self._engine.begin_closing()
        self._closing = self._engine.loop.create_task(self._engine.close(linger))
        self._closing.add_done_callback(lambda _: self._context.release(self))

    def close_after_fork(self) -> None:
        """Closes the inherited descriptors, which the parent uses too, in a forked child."""
        self._abandon()
        self._engine.close_after_fork()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close(UNSET if error is None else self.linger_after(error))
        except KeyboardInterrupt as interrupt:
            skip_lingers(error or interrupt)
            if error is None:
                raise
            # The interrupt has ended the wait. The block's own exception propagates: it explains more.


class RoutedSocket(RoutedSyncCore, Socket):
    """A blocking socket whose `send` takes a message's destination as a keyword; use one of its types."""


def wait(sockets: Sequence[Socket], timeout: float | None = None, events: int = POLL_IN) -> list[Socket]:
    """Waits until a message can be received from, or sent to, at least one of several sockets.

    Args:
        sockets: The sockets. With `POLL_IN` alone, each must be able to receive; with `POLL_OUT` alone, to send.
        timeout: Seconds; `None` waits for ever.
        events: `POLL_IN`, `POLL_OUT` or both: a socket is ready if it is ready for one of them.

    Returns:
        The sockets that are ready; empty after the timeout.

    Raises:
        StateError: A socket does not receive, or does not send, and nothing else was asked for.
        ClosedError: A socket is closed.
        ValueError: The timeout is negative or not a number, or *events* is not valid.
        TypeError: One of *sockets* is not a blocking socket.
    """
    timeout = check_timeout(timeout)
    checked_events(events)
    if isinstance(sockets, Socket) or not isinstance(sockets, Iterable):
        raise TypeError(f"sockets: must be a sequence of blocking sockets, not {sockets!r}")
    distinct = list(dict.fromkeys(sockets))
    if not distinct:
        raise StateError(f"sockets={sockets!r}: there is no socket to wait for")
    for one in distinct:
        if not isinstance(one, Socket):
            raise TypeError(f"sockets: omq.wait takes blocking sockets, not {one!r}")
    with contextlib.ExitStack() as stack:
        room = None
        for one in distinct if events & POLL_OUT else ():
            if one.send_queue is not None or events == POLL_OUT:
                room = room or ReadableEvent()
                one._show_room(room, stack)
        return cast("list[Socket]", wait_for_any(cast("list[SyncCore]", distinct), events, timeout, room))


def _attach(io: IoThread, engine: Engine) -> None:
    """Starts the engine on the I/O thread, at its first use."""
    if not engine.has_loop and not engine.closed:
        engine.attach(io.loop)
        io.stop_with_thread(engine)


def _dial_queued(io: IoThread, engine: Engine) -> None:
    """Runs on the I/O thread. Holds no reference to the socket, which may be dropped meanwhile."""
    if engine.closed:
        engine.endpoints.cancel_queued()
        return
    if engine.driver.is_orphaned:
        # The garbage collector is finalizing the socket, which then closes with its linger: dial before that.
        with contextlib.suppress(ContextTerminated):
            io.post(_dial_queued, io, engine)
        return
    _attach(io, engine)
    engine.endpoints.dial_queued()


def _parts_cleanly(session: Any) -> bool:
    """Returns whether a session has nothing to deliver. It has no peer before the end of its handshake."""
    peer = getattr(session, "peer", None)
    return peer is None or bool(getattr(peer, "parts_cleanly", True))


# The types, one line each; `omq.types.TRAITS` describes them.


class PUSH(Socket, kind=SocketType.PUSH): ...


class PULL(Socket, kind=SocketType.PULL): ...


class PUB(Socket, kind=SocketType.PUB): ...


class SUB(Socket, kind=SocketType.SUB): ...


class XPUB(Socket, kind=SocketType.XPUB): ...


class XSUB(Socket, kind=SocketType.XSUB): ...


class REQ(Socket, kind=SocketType.REQ): ...


class REP(Socket, kind=SocketType.REP): ...


class DEALER(Socket, kind=SocketType.DEALER): ...


class ROUTER(Socket, kind=SocketType.ROUTER): ...


class PAIR(Socket, kind=SocketType.PAIR): ...


class SCATTER(Socket, kind=SocketType.SCATTER): ...


class GATHER(Socket, kind=SocketType.GATHER): ...


class CHANNEL(Socket, kind=SocketType.CHANNEL): ...


class CLIENT(Socket, kind=SocketType.CLIENT): ...


class SERVER(RoutedSocket, kind=SocketType.SERVER): ...


class RADIO(RoutedSocket, kind=SocketType.RADIO): ...


class DISH(Socket, kind=SocketType.DISH): ...


class STREAM(Socket, kind=SocketType.STREAM): ...


class PEER(RoutedSocket, kind=SocketType.PEER):
    def connect_peer(self, endpoint: str, *, timeout: float | None = None, **options: Any) -> int:
        """Connects to an endpoint, and waits until the peer has finished the handshake (`zmq_connect_peer(3)`).

        The number is that of this connection: after a reconnect, the peer has another one. If the call raises, the
        endpoint is not connected.

        Args:
            endpoint: The endpoint, such as `tcp://host:5555`.
            timeout: Seconds; `None` waits for ever, and retries until the peer has connected.
            **options: See `connect`.

        Returns:
            The routing id of the peer, for `send`.

        Raises:
            Timeout: No peer has connected in time; the text has the endpoint's last failure.
            ConnectError: The socket has stopped dialling, because of `reconnect_interval`, `reconnect_stop` or a
                `disconnect` meanwhile.
            EndpointError: The endpoint cannot be parsed.
            OptionError: An option is unknown, applies to the whole socket, does not fit this endpoint, or has an
                invalid value.
            ClosedError: The socket is closed, or was closed during the call.
        """
        timeout = check_timeout(timeout)
        found = self._begin().run(self._engine.endpoints.connect_peer, endpoint, options, timeout)
        return self._peer_id(found)
