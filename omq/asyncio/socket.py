"""The asyncio sockets."""

from __future__ import annotations

import asyncio
import inspect
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from types import TracebackType
from typing import Any, Self

from omq._core.atomic import Latch
from omq._core.calls.call import AsyncCore
from omq._core.calls.routed_calls import RoutedAsyncCore
from omq._core.clock import check_timeout
from omq.asyncio.monitor import Monitor
from omq.context import Context
from omq.engine.deferred_close import DeferredClose
from omq.engine.driver import TASKS, LoopDriver
from omq.engine.loop_close_hook import LoopCloseHook
from omq.engine.socket import Engine, Parent
from omq.engine.weak_callback import weak_callback
from omq.errors import OptionError, StateError
from omq.options import Options
from omq.socket_base import SocketBase, several
from omq.types import UNSET, SocketType

_NEVER_S = 1e9  # a timer that never fires: only the end of its loop matters
_LAST_TURN_TIMEOUT_S = 0.2  # for a turn of a loop in another thread, when the interpreter ends


class Socket(SocketBase, AsyncCore):
    """An asyncio socket. Use one of its types, such as `omq.asyncio.PUSH`.

    Args:
        context: The context that it belongs to; `None` for the default context.
        bind: The endpoint, or endpoints, to bind.
        connect: The endpoint, or endpoints, to connect to.
        parent: Owns its tasks: a `TaskGroup`, or any object with `create_task`; `None` for the loop.
        **options: See `omq.Options`.

    Raises:
        OptionError: An option is unknown, does not fit the type, or has an invalid value.
        EndpointError: An endpoint cannot be parsed.
        BindError: An endpoint cannot be bound.
    """

    _loop_finished = False  # it was dropped, and its loop can do no more for it
    _on_io_thread = False  # the context's thread has its engine
    _closing: asyncio.Task[None] | None = None  # the task that closes a dropped socket

    def __init__(
        self,
        context: Context | None = None,
        *,
        bind: str | Iterable[str] | None = None,
        connect: str | Iterable[str] | None = None,
        parent: Parent | None = None,
        **options: Any,
    ) -> None:
        _refuse_spinning(options)
        self._refuse_second_init()
        context = self._context_of(context)
        context.check()
        self._context = context
        self._engine = Engine(
            self.socket_type, Options.parse(self.socket_type, options), context, LoopDriver(self), parent
        )
        self._attach_queues()
        self._engine.on_stop = weak_callback(self._mark_closed)
        self._apply_options()
        context.register_async(self)
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
        self._assemble(pattern.recv_queue, pattern.send_queue, *TASKS, self._engine.driver.poller)

    def _apply_options(self) -> None:
        self._set_timeouts(self._engine.options.send_timeout, self._engine.options.recv_timeout)

    def set_options(self, **options: Any) -> None:
        self._refuse_in_child()
        _refuse_spinning(options)
        super().set_options(**options)

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
        return str(self._endpoint_call(self._engine.endpoints.connect, endpoint, options))

    # ------------------------------------------------------------------ peers

    async def wait_connected(self, n: int = 1, *, timeout: float | None = None) -> None:
        """Waits until *n* peers have finished the handshake.

        Args:
            n: The number of peers.
            timeout: Seconds; `None` waits for ever.

        Raises:
            Timeout: There are fewer peers after *timeout*.
            ClosedError: The socket is closed, or was closed during the call.
        """
        await self._wait(self._connected(n), f"{n} connected peers", timeout)

    async def wait_subscribed(
        self, prefix: str | bytes | None = None, n: int = 1, *, timeout: float | None = None
    ) -> None:
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
        await self._wait(self._subscribed(prefix, n), f"{n} subscriptions", timeout)

    async def flush(self, timeout: float | None = None) -> None:
        """Waits until all accepted messages have been handed to the kernel or, over inproc, to the peer.

        The call also waits for messages that other tasks send meanwhile and, without a peer, until one connects.

        Args:
            timeout: Seconds; `None` waits for ever.

        Raises:
            SendTimeout: Some messages have not left in time. No message is lost.
            StateError: The type does not send.
            ClosedError: The socket is closed, or was closed during the call.
        """
        timeout = check_timeout(timeout)
        self._refuse_unless_sending()
        self._begin()
        if not await self._engine.flush(timeout):
            raise self._not_flushed(timeout)

    def _look(self) -> None:
        """Processes what the kernel has for this socket, subscriptions included."""
        self._engine.driver.poller.dispatch()

    async def _wait(self, reached: Any, what: str, timeout: float | None) -> None:
        timeout = check_timeout(timeout)
        self._begin()
        if not await self._engine.wait_until(reached, timeout):
            if self.closed:
                raise self._closed_error("was closed while a call waited")
            raise self._not_in_time(what, timeout)

    def monitor(self, limit: int = 1000) -> Monitor:
        """Returns a monitor of the socket and its connections, from now on; also before the first bind or connect.

        Args:
            limit: Events that may be queued; a slower reader finds an event `missed` with the number of lost ones.

        Returns:
            An asynchronous iterator of events (`Event`) that ends when the socket is closed. A socket may have several.

        Raises:
            ClosedError: The socket is closed.
            StateError: The process has forked.
        """
        return Monitor(self._may_monitor(), limit, self)

    # ------------------------------------------------------------------ life

    def _begin(self) -> None:
        """Attaches the socket to the running loop at its first use; without one, it waits for a loop."""
        self._refuse_in_child()
        self._refuse_closed()
        loop = asyncio._get_running_loop()
        if loop is not None:
            self._attach(loop)
        else:
            self._refuse_elsewhere()

    def _refuse_elsewhere(self) -> None:
        """Raises while the socket's loop runs in another thread: only that thread may use the descriptors."""
        if self._engine.runs_elsewhere:
            raise StateError(
                f"this {self.socket_type.value} socket belongs to an event loop that runs in another thread; "
                f"asyncio.run_coroutine_threadsafe or call_soon_threadsafe reach it: {self._engine.loop!r}"
            )

    def _endpoint_call(self, call: Callable[..., Any], endpoint: str, *options: dict[str, Any]) -> Any:
        self._begin()
        return super()._endpoint_call(call, endpoint, *options)

    def _refuse_in_child(self) -> None:
        if self._engine.fork_guard.stale:
            self._engine.context.check()

    def _attach(self, loop: asyncio.AbstractEventLoop | None) -> None:
        if loop is None:
            raise StateError(f"a {self.socket_type.value} socket of omq.asyncio is used inside a running event loop")
        if self._engine.has_loop:
            if self._engine.loop is not loop:
                raise StateError(
                    f"this {self.socket_type.value} socket belongs to another event loop: {self._engine.loop!r}"
                )
            self._set_loop(loop)  # the loop may have moved to another thread
            self._engine.driver.move()
            return
        self._set_loop(loop)
        try:
            self._engine.attach(loop)
        except BaseException:
            self.stop()  # otherwise half of the socket would stay without an owner
            raise

    async def close(self, linger: Any = UNSET) -> None:
        """Closes the socket; calls that wait raise `ClosedError`.

        A call that is cancelled drops messages that have not left, unless another call waits. With several calls at
        once, the shortest linger applies.

        Args:
            linger: Seconds that accepted messages have to leave; `None` waits for ever; the option applies if omitted.

        Raises:
            OptionError: `linger` is not valid; the socket stays open.
            StateError: The socket's loop runs in another thread; or this is another loop, and accepted messages have
                not left, although the socket's own loop is not closed. The socket stays open.
        """
        engine = self._engine
        if engine.fork_guard.stale:
            return
        self._refuse_elsewhere()
        seconds = self._linger(linger)
        if seconds != 0 and engine.has_loop and not engine.closed and engine.loop is not asyncio.get_running_loop():
            if not engine.has_unsent():
                seconds = 0
            elif engine.in_loop:
                raise StateError(
                    f"this {self.socket_type.value} socket belongs to another event loop, from which its accepted "
                    f"messages leave: close it in {engine.loop!r}, or with linger=0"
                )
            else:
                engine.leave_loop()
                engine.enter_loop(asyncio.get_running_loop())
        self._mark_closed()
        await engine.close(seconds)

    def stop(self) -> None:
        """Closes the socket at once, dropping messages that have not left; in its loop, if another thread calls."""
        if self._engine.fork_guard.stale:
            return
        if self._engine.runs_elsewhere:
            # Only the loop may close its descriptors: closing one in another thread may crash the process.
            self._engine.post(self.stop)
            return
        self._mark_closed()
        self._engine.stop()

    def _end_dropped(self) -> None:
        self._context.keep(self)
        self._context.register_async(self)  # the garbage collector may have taken it out
        self._engine.on_stop = self._mark_closed
        self._close_in_loop(UNSET)

    def _close_in_loop(self, linger: Any) -> None:
        """Makes the loop close the socket; if the loop is closed before that, the context's I/O thread does."""
        self._engine.post(self._close_dropped, linger, LoopCloseHook(partial(self._finish_in_loop, linger)))

    def _close_dropped(self, linger: Any, close_hook: LoopCloseHook) -> None:
        """Closes a dropped socket, in its loop."""
        loop = self._engine.loop
        seconds = self._linger(linger)
        self._mark_closed()
        closing = self._closing = loop.create_task(self._engine.close(seconds, keeps=True))
        # `asyncio.run` cancels the task, and a loop that is run by hand may have no turn for it. Only the loop refers
        # to the timer, and only the timer refers to the object that detects the end of the loop.
        timer = weakref.ref(loop.call_later(_NEVER_S, close_hook.cancel))

        def end(_: asyncio.Task[None]) -> None:
            self._finish_in_loop(linger)
            found = timer()
            if found is not None:
                found.cancel()

        closing.add_done_callback(end)

    def _finish_in_loop(self, linger: Any) -> None:
        """Finishes a dropped socket once its loop can do no more, also if the task never ran."""
        if not self._loop_finished:
            self._loop_finished = True
            if not self._engine.closed and not self._close_on_io_thread(linger):
                self._engine.stop()
            self._drop_closing()
            self._context.release(self)

    def _close_on_io_thread(self, linger: Any = UNSET) -> bool:
        if self._on_io_thread:
            return True
        engine = self._engine
        seconds = self._linger(linger)
        if not engine.has_loop or engine.closed or seconds == 0 or not engine.has_unsent():
            return False
        if self._context.closed:
            engine.report_lost("its context has been terminated")
            return False
        self._leave_loop()
        self._on_io_thread = True
        DeferredClose(engine, self._context, seconds)
        return True

    def _leave_loop(self) -> None:
        self._engine.leave_loop()
        self._drop_closing()

    def _drop_closing(self) -> None:
        """Ends the task of a closed loop, which never runs it: asyncio and Python would log errors about it."""
        closing = self._closing
        if closing is None or (not closing.done() and self._engine.in_loop):
            return
        self._closing = None
        if not closing.done():
            closing._log_destroy_pending = False  # type: ignore[attr-defined]
            work = closing.get_coro()
            if inspect.iscoroutine(work):
                work.close()

    def leave_to_io_thread(self, linger: Any) -> None:
        """Closes the socket on the I/O thread if its own loop does not run.

        `Context.term` calls this before it terminates the context.
        """
        if not (self._engine.has_loop and self._engine.loop.is_running()):
            self._close_on_io_thread(linger)

    def close_with_context(self, linger: Any) -> None:
        """Closes the socket in its loop, if that runs, because its context is terminated; on any thread."""
        engine = self._engine
        if engine.closed or self._on_io_thread:
            return
        if engine.closing:
            if linger == 0:
                self.stop()  # the shortest linger applies
            return
        if engine.in_loop and engine.loop.is_running():
            engine.context.keep(self)
            engine.call(self._mark_closed)
            self._close_in_loop(linger)
        else:
            self.stop()

    def close_at_exit(self) -> Engine | None:
        """Ends the socket at the interpreter's exit; returns the engine if it must be closed in another loop.

        The loop of a daemon thread still runs then, and its tasks notice nothing. But if the loop has a turn soon, a
        socket with unsent messages leaves it, and any other one stops listening, so that no socket file stays behind.
        """
        engine = self._engine
        if self._on_io_thread:
            return None
        if not engine.runs_elsewhere:
            if self._leave_at_exit(and_peers=True):
                return engine
            self.stop()
            return None
        if not engine.endpoints.bound and not engine.has_unsent():
            return None
        done = Latch()
        left: list[Engine] = []

        def leave() -> None:
            if self._leave_at_exit(and_peers=False):
                left.append(engine)
            else:
                engine.endpoints.stop_listening()
            engine.loop.call_soon(done.set)  # after what the loop was about to do for the socket

        engine.post(leave)
        if not done.wait(_LAST_TURN_TIMEOUT_S) and not left and not engine.closed:
            engine.report_lost("its event loop is busy")
        return engine if left else None

    def _leave_at_exit(self, *, and_peers: bool) -> bool:
        """Leaves the loop if messages have not left or, *and_peers*, may be on their way to the kernels of peers."""
        engine = self._engine
        if engine.closed or not engine.has_loop or self.options.linger == 0 or engine.pattern.send_queue is None:
            return False
        if not engine.has_unsent() and not (and_peers and engine.sessions):
            return False
        if engine.futile_reason:
            engine.report_lost(engine.futile_reason)
            return False
        self._leave_loop()
        return True

    def close_after_fork(self) -> None:
        """Closes the inherited descriptors, which the parent uses too, in a forked child."""
        self._abandon()
        self._engine.close_after_fork()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(UNSET if error is None else self.linger_after(error))


class RoutedSocket(RoutedAsyncCore, Socket):
    """An asyncio socket whose `send` takes a message's destination as a keyword; use one of its types."""


def _refuse_spinning(options: dict[str, Any]) -> None:
    """Refuses `busy_poll`, because an event loop cannot poll for a socket."""
    if "busy_poll" in options:
        raise OptionError("option 'busy_poll' is for blocking sockets: an event loop does not spin for a socket")


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
    async def connect_peer(self, endpoint: str, *, timeout: float | None = None, **options: Any) -> int:
        """Connects to an endpoint, and waits until the peer has finished the handshake: as `omq.PEER.connect_peer`.

        A call that is cancelled disconnects the endpoint again.

        Args:
            endpoint: The endpoint, such as `tcp://host:5555`.
            timeout: Seconds; `None` waits for ever.
            **options: See `connect`.

        Returns:
            The routing id of the peer, for `send`.
        """
        timeout = check_timeout(timeout)
        self._begin()
        found = await self._engine.endpoints.connect_peer(endpoint, options, timeout)
        return self._peer_id(found)
