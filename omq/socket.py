"""The blocking sockets: the thread that calls does the work."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Self, cast

from omq._core.calls.attempt import checked_events
from omq._core.calls.readable_event import ReadableEvent
from omq._core.calls.routed_calls import RoutedSyncCore
from omq._core.calls.sync import SyncCore, wait_for_any
from omq._core.clock import patience
from omq.context import Context
from omq.engine.driver import CallerDriver
from omq.engine.job import Job, apart
from omq.engine.linger import give_up
from omq.engine.orphan import IoClosing
from omq.engine.socket import Engine
from omq.errors import ContextTerminated, StateError
from omq.monitor import Monitor
from omq.options import Options
from omq.socket_base import SocketBase, several
from omq.types import POLL_IN, POLL_OUT, UNSET, SocketType


class Socket(SocketBase, IoClosing, SyncCore):
    """A blocking socket; use one of its types. Threads may share it.

    Args:
        context: Whose I/O thread and inproc names it uses; `None` for the default context.
        bind: The endpoint, or endpoints, to listen on.
        connect: The endpoint, or endpoints, to dial.
        **options: See `omq.Options`.

    Raises:
        OptionError: An option is unknown, does not fit the type, or has a value that does not fit.
        EndpointError: An endpoint cannot be understood.
        BindError: An endpoint cannot be listened on.
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
        self._refuse_second()
        context = self._context_of(context)
        context.check()
        self._context = context
        driver = CallerDriver(self, context.flusher, context.deferred_calls, context.bell)
        self._engine = Engine(self.socket_type, Options.parse(self.socket_type, options), context, driver)
        self._equip()
        self._take_options()
        context.register(self)
        try:
            for endpoint in several(bind):
                self.bind(endpoint)
            for endpoint in several(connect):
                self.connect(endpoint)
        except BaseException:
            self.stop()
            raise

    def _equip(self) -> None:
        pattern = self._engine.pattern
        self._assemble(pattern.recv_queue, pattern.send_queue, self._context.fork_guard)

    def _take_options(self) -> None:
        options = self._engine.options
        self._set_timeouts(options.send_timeout, options.recv_timeout)
        spin = options.busy_poll
        adaptive = spin == "adaptive" and (len(os.sched_getaffinity(0)) > 1)
        self._set_spin(0 if isinstance(spin, str) else int(spin * 1e9), adaptive)

    # ------------------------------------------------------------------ endpoints

    def bind(self, endpoint: str, **options: Any) -> str:
        """Listens on an endpoint (`zmq_bind(3)`).

        Args:
            endpoint: Where.
            **options: What is to hold for this endpoint and the connections that it accepts; the socket's own options
                hold where nothing is given. See `omq.Options`.

        Returns:
            The endpoint with its real address and port.

        Raises:
            EndpointError: The endpoint cannot be understood.
            OptionError: An option is unknown, the whole socket's, not for this endpoint, or has a value that does not
                fit.
            BindError: The system refuses.
            ClosedError: The socket is closed.
        """
        return str(self._endpoint_call(self._engine.endpoints.bind, endpoint, options))

    def connect(self, endpoint: str, **options: Any) -> str:
        """Dials an endpoint in the background, and again when the connection ends (`zmq_connect(3)`).

        A second call makes a second connection. But SUB, PUB, DEALER and REQ keep one over tcp and ipc, because a
        second one would only do harm.

        Args:
            endpoint: Where.
            **options: What is to hold for this endpoint and its connection, each time that it is made; the socket's own
                options hold where nothing is given. See `omq.Options`.

        Returns:
            The endpoint.

        Raises:
            EndpointError: The endpoint cannot be understood.
            OptionError: An option is unknown, the whole socket's, not for this endpoint, or has a value that does not
                fit; or the endpoint is connected already, with another value, and has one connection.
            ClosedError: The socket is closed.
        """
        return str(self._endpoint_call(self._engine.endpoints.connect, endpoint, options))

    def _endpoint_call(self, call: Callable[..., Any], endpoint: str, *options: dict[str, Any]) -> Any:
        self._context.check()
        self._refuse_closed()
        self._io = self._context.io_thread
        return self._io.run(self._start, call, endpoint, *options)

    def _start(self, call: Callable[..., Any] | None = None, *arguments: Any) -> Any:
        """Runs on the I/O thread, to which the engine belongs from its first use on."""
        if not self._engine.has_loop and not self._engine.closed:
            self._engine.attach(self._io.loop)
            self._io.look_after(self._engine)
        self._refuse_closed()
        return call(*arguments) if call is not None else None

    # ------------------------------------------------------------------ options and subscriptions

    def set_options(self, **options: Any) -> None:
        self._refuse_in_child()
        super().set_options(**options)

    def _change_options(self, options: dict[str, Any]) -> None:
        super()._change_options(options)
        self._take_options()  # on this thread, too: no signal handler leaves it half done

    def _engine_call(self, call: Callable[..., Any], *arguments: Any) -> Any:
        # Python code that holds the socket's lock, or must not come apart, runs where no signal handler does.
        if not self._engine.has_loop:
            return apart(call, *arguments)
        if self._engine.closed or self._engine.on_loop_thread:
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
            n: How many.
            timeout: Seconds; `None` for ever.

        Raises:
            Timeout: There are fewer.
            ClosedError: The socket was closed.
        """
        self._wait(self._connected(n), f"{n} connected peers", timeout)

    def wait_subscribed(self, prefix: bytes | None = None, n: int = 1, *, timeout: float | None = None) -> None:
        """Waits until *n* subscriptions are in force: distinct pairs of peer and prefix; PUB and XPUB.

        Args:
            prefix: Count only subscriptions to exactly this prefix; `None` counts all.
            n: How many.
            timeout: Seconds; `None` for ever.

        Raises:
            Timeout: There are fewer.
            ClosedError: The socket was closed.
            StateError: The type does not publish.
        """
        self._wait(self._subscribed(prefix, n), f"{n} subscriptions", timeout)

    def flush(self, timeout: float | None = None) -> None:
        """Waits until everything that was accepted has left: the kernel has it or, over inproc, the peer.

        The call also waits for what other threads send meanwhile, and, without a peer, for one to come.

        Args:
            timeout: Seconds; `None` for ever.

        Raises:
            SendTimeout: Something has not left in time. Nothing is lost.
            StateError: The type does not send.
            ClosedError: The socket is closed, or was closed meanwhile.
        """
        timeout = patience(timeout)
        self._refuse_unless_sending()
        self._begin()
        if not self._io.run(self._engine.flush, timeout):
            raise self._not_flushed(timeout)

    def _look(self) -> None:
        """Handles what the kernel has for this socket just now, subscriptions among it, in the calling thread."""
        self.dispatch()

    def _begin(self) -> None:
        """A socket belongs to the context's thread from its first use on."""
        self._context.check()
        self._refuse_closed()
        self._io = self._context.io_thread
        self._io.run(self._start)

    def _show_room(self, room: ReadableEvent, stack: contextlib.ExitStack[Any]) -> None:
        """Makes *room* readable whenever the socket may have got room for a message, until the stack unwinds."""
        self._refuse_unless_sending()
        if self._engine.has_loop:
            self._context.check()
            self._refuse_closed()
        else:
            self._begin()
        wait_queue = self.writable
        stack.callback(wait_queue.hide, room)
        wait_queue.show(room)
        # No call is under way: the I/O thread is to see at once that a peer has made room.
        if not self.watched:
            self._engine_call(self._engine.driver.take_over)

    def _wait(self, reached: Callable[[], bool], what: str, timeout: float | None) -> None:
        timeout = patience(timeout)
        self._begin()
        if not self._io.run(self._engine.wait_until, reached, timeout):
            if self.closed:
                raise self._closed_error("was closed while a call waited")
            raise self._not_in_time(what, timeout)

    def monitor(self, limit: int = 1000) -> Monitor:
        """Tells what happens to the socket and its connections from now on, also before the first bind or connect.

        Args:
            limit: Events that may wait; a reader that falls behind is told how many it has missed.

        Returns:
            An iterator of `Event`s that ends when the socket is closed. Several may be in use.

        Raises:
            ClosedError: The socket is closed.
            StateError: The process has forked.
        """
        return Monitor(self._may_monitor(), limit)

    # ------------------------------------------------------------------ life

    @property
    def lingers(self) -> bool:
        """Whether closing now would wait for something that was accepted and has not left."""
        engine = self._engine
        if not engine.has_loop or engine.closed or self.options.linger == 0:
            return False
        return bool(self._engine_call(engine.is_laden))

    def report_at_once(self) -> None:
        """Has the end of the socket report at once what it waits for."""
        self._engine.report_at_once()

    def close(self, linger: Any = UNSET) -> None:
        """Closes the socket; calls that wait, in whatever thread, raise `ClosedError`.

        The call returns when what was accepted has left, or `linger` is over. It cannot wait on omq's own thread, which
        runs what the garbage collector finds there: the socket then closes in the background. Of several calls at
        once the least patient decides; a call that a signal interrupts ends nothing as long as another waits.

        Args:
            linger: Seconds that what was accepted has to leave; `None` for ever; left out, the option holds.

        Raises:
            OptionError: `linger` does not fit; the socket stays open.
        """
        self.finish_close(self.begin_close(linger))

    def begin_close(self, linger: Any) -> Job | None:
        """The part of `close` that does not wait. Gives the job to wait for, or `None`."""
        if self._context.fork_guard.stale:
            return None
        patience = self._linger(linger)
        if self._engine.has_loop and not self._engine.closed and self._engine.on_loop_thread:
            self._keep()
            self._close_here(patience)
            return None
        if self.lock.mine and self._engine.has_loop:
            raise StateError("the socket is at work in this very thread: it cannot be closed in the middle of that")
        self._mark_closed()
        if self._engine.closed:
            return None
        if not self._engine.has_loop:
            # It has never been bound or connected: nobody can come for what it accepted.
            apart(self._engine.stop)
            return None
        with contextlib.suppress(ContextTerminated):  # which has closed it, too
            return self._io.begin(self._engine.close, patience)
        return None

    def stop(self) -> None:
        """Closes the socket at once; what has not left is dropped."""
        if self._context.fork_guard.stale:
            return
        self._mark_closed()
        if not self._engine.has_loop:
            apart(self._engine.stop)
        elif self._engine.on_loop_thread:
            self._engine.stop()
        else:
            with contextlib.suppress(ContextTerminated):  # which has closed it, too
                self._io.finish(self._io.begin(self._engine.stop))

    def _end_dropped(self) -> None:
        self._keep()
        self._engine.post(self._close_here, self.options.linger)

    def _keep(self) -> None:
        """Keeps the socket alive until it is closed in the background."""
        self._context.keep(self)
        self._context.register(self)  # the garbage collector may have taken it out
        self._engine.driver.hold(self)

    def _close_here(self, linger: float | None) -> None:
        """Runs on the I/O thread."""
        self._mark_closed()
        self._engine.begin_closing()
        self._closing = self._engine.loop.create_task(self._engine.close(linger))
        self._closing.add_done_callback(lambda _: self._context.release(self))

    def close_after_fork(self) -> None:
        """In a forked child: closes the descriptors that it inherited, which are the parent's too."""
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
            give_up(error or interrupt)
            if error is None:
                raise
            # It has ended the wait. What has left the block goes on, and says more than the interrupt.


class RoutedSocket(RoutedSyncCore, Socket):
    """A blocking socket whose `send` says whom a message is for; use one of its types."""


def wait(sockets: Sequence[Socket], timeout: float | None = None, events: int = POLL_IN) -> list[Socket]:
    """Waits until a message can be received from one of several sockets, or sent.

    Args:
        sockets: The sockets. With `POLL_IN` alone each receives; with `POLL_OUT` alone each sends.
        timeout: Seconds; `None` for ever.
        events: `POLL_IN`, `POLL_OUT` or both. A socket is ready if it is ready for one of them.

    Returns:
        The sockets that are ready; none if the time was up.

    Raises:
        StateError: A socket does not receive, or does not send, and nothing else was asked for.
        ClosedError: A socket is closed.
        ValueError: The timeout is below 0, or no number; or the events are others.
        TypeError: One of *sockets* is no blocking socket.
    """
    timeout = patience(timeout)
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


# The types, one line each; `omq.types.TRAITS` says the rest.


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
