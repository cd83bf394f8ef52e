"""The context: the I/O thread, inproc names and memory that the sockets of one application share."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, ClassVar, NoReturn, Protocol, Self, SupportsIndex

from omq._core.atomic import Slot
from omq._core.bell import Bell
from omq._core.calls.leader import ForkGuard
from omq._core.link.background import Background
from omq._core.link.deferred_calls import DeferredCalls
from omq._core.link.flusher import Flusher
from omq._core.queues.names import Names
from omq._core.release import OnRelease
from omq._core.wire.pool import Pool
from omq.engine.deferred_close import DeferredClose, close_without_loop
from omq.engine.iothread import IoThread
from omq.engine.linger import skip_lingers
from omq.engine.local_peers import LocalPeers, abandon_inproc
from omq.engine.socket import Engine
from omq.engine.weak_set import WeakIdentitySet
from omq.errors import ClosedError, ContextTerminated, OmqError, StateError
from omq.options import Options
from omq.process_hooks import run_at_exit, run_in_child
from omq.types import UNSET
from omq.unpatched import threading


class BlockingSocketView(Protocol):
    """A blocking socket, as its context uses it."""

    def linger_after(self, error: BaseException) -> float | None: ...

    def report_at_once(self) -> None: ...

    def begin_close(self, linger: Any) -> Any: ...

    def finish_close(self, future: Any) -> None: ...

    def give_up_close(self, future: Any) -> None: ...

    def close_after_fork(self) -> None: ...


class AsyncSocketView(Protocol):
    """An asyncio socket, as its context uses it."""

    def linger_after(self, error: BaseException) -> float | None: ...

    def leave_to_io_thread(self, linger: Any) -> None: ...

    def close_with_context(self, linger: Any) -> None: ...

    def close_at_exit(self) -> Engine | None: ...

    def close_after_fork(self) -> None: ...


class Context:
    """Owns the I/O thread and the flusher of its blocking sockets, the inproc names and the buffer pool.

    Contexts are isolated from each other; omq has no other shared state. A socket made without a context uses
    `Context.default()`. The threads start with the first bind or connect of a blocking socket. A context cannot be
    used in a forked child: make a new one there, or let `default()` do it.
    """

    _default: ClassVar[Slot[Context]] = Slot()
    _all: ClassVar[WeakIdentitySet[Context]] = WeakIdentitySet()

    def __init__(self) -> None:
        if hasattr(self, "pool"):
            raise StateError(f"{self!r} is already initialized: __init__ runs once, when a context is made")
        self.pool = Pool()
        self.inproc = Names()
        self.flusher = Flusher()
        self.background = Background()
        self.deferred_calls = DeferredCalls()
        self.bell = Bell()
        self.fork_guard = ForkGuard()
        self._pid = os.getpid()
        self._io: Slot[IoThread] = Slot()
        self._terminated = False
        self._ended = False
        self._sockets: WeakIdentitySet[Any] = WeakIdentitySet()
        self._async_sockets: WeakIdentitySet[Any] = WeakIdentitySet()
        self._dropped: set[Any] = set()
        self._deferred_closes: set[DeferredClose] = set()
        self._on_release = OnRelease(partial(_abandon, self._io, self._pid))
        Context._all.add(self)

    @classmethod
    def default(cls) -> Context:
        """Returns the context of sockets made without one; created on first use, and again in a forked child."""
        found = cls._default.value
        while found is None or found.fork_guard.stale or found._terminated:
            # Another thread, or a signal handler, may have come first.
            found = cls._default.put(cls(), found)
        return found

    @property
    def io_thread(self) -> IoThread:
        """The I/O thread; started on first use."""
        self.check()
        io = self._io.value
        if io is None or io.over:
            # Not started, or the system refused a thread; another thread or a signal handler may have started it first.
            io = self._io.put(IoThread(self.deferred_calls, self.bell), io)
            assert io is not None
        if self._terminated:
            io.stop()  # `term` may have run before the thread was stored
            self.check()
        io.start()
        return io

    @property
    def _is_io_thread(self) -> bool:
        """Returns whether the calling thread is the I/O thread."""
        io = self._io.value
        return io is not None and io._thread == threading.get_ident()

    @property
    def closed(self) -> bool:
        """Returns whether `term` has been called."""
        return self._terminated

    def check(self) -> None:
        """Raises unless sockets can be made and used here.

        Raises:
            ContextTerminated: `term` has been called.
            StateError: The process has forked since the context was made.
        """
        if self.fork_guard.stale:
            raise StateError("this context belongs to the parent process: make a new one after fork()")
        if self._terminated:
            raise ContextTerminated("the context has been terminated")

    def register(self, socket: BlockingSocketView) -> None:
        """Registers a blocking socket, which `term` and the interpreter's exit close."""
        self._sockets.add(socket)

    def register_async(self, async_socket: AsyncSocketView) -> None:
        """Registers an asyncio socket: it lives in its own loop, but `term` and a fork end it."""
        self._async_sockets.add(async_socket)

    def keep(self, socket: Any) -> None:
        """Keeps a socket that its owner has dropped alive until it is closed."""
        self._dropped.add(socket)

    def release(self, socket: Any) -> None:
        """Drops the reference that `keep` holds."""
        self._dropped.discard(socket)

    def hold_deferred(self, deferred: DeferredClose) -> None:
        """Keeps an asyncio socket whose loop has ended alive until it is closed."""
        self._deferred_closes.add(deferred)

    def release_deferred(self, deferred: DeferredClose) -> None:
        """Drops the reference that `hold_deferred` holds."""
        self._deferred_closes.discard(deferred)

    def term(self, linger: Any = None) -> None:
        """Closes every socket and ends the threads (`zmq_ctx_term(3)`). Idempotent; continues after an interruption.

        The call waits for blocking sockets, and for asyncio sockets whose loop has ended. Other asyncio sockets raise
        `ClosedError` from now on, and their own loop closes them. The call does not wait for that loop, which may run
        in this thread.

        Args:
            linger: Seconds that each socket has to send accepted messages; `None` applies each socket's `linger`
                option.

        Raises:
            OptionError: `linger` is not valid; nothing has been closed.
        """
        linger = UNSET if linger is None else Options(linger=linger).linger
        self._end(lambda _: linger)

    def _end(self, linger_of: Callable[[BlockingSocketView | AsyncSocketView], Any]) -> None:
        """Closes every socket, each with its linger, and ends the threads."""
        if self._ended or self.fork_guard.stale:
            return
        for async_socket in self._async_sockets:
            async_socket.leave_to_io_thread(linger_of(async_socket))
        for deferred in tuple(self._deferred_closes):
            deferred.wait_handed_over()  # while there may still be an I/O thread
        self._terminated = True
        for async_socket in self._async_sockets:
            async_socket.close_with_context(linger_of(async_socket))
        # All sockets close at the same time, so that their lingers do not add up.
        ending: list[BlockingSocketView] = [*self._sockets, *tuple(self._deferred_closes)]
        closing = [(socket, socket.begin_close(linger_of(socket))) for socket in ending]
        while closing:
            socket, future = closing.pop()
            try:
                socket.finish_close(future)
            except BaseException:
                # Interrupted: the other sockets are not waited for either.
                for _, left in closing:
                    if left is not None:
                        left.give_up(self._io.value)
                for other, left in closing:
                    other.give_up_close(left)
                raise
        io = self._io.value
        if io is not None:
            io.stop()
        self.flusher.stop()
        self.background.stop()
        self.deferred_calls.close()
        self.bell.close()
        # Cancelled here: an exception that a signal handler raises in the finalizer would be lost.
        self._on_release.cancel()
        self._ended = True

    @property
    def _engines(self) -> list[Engine]:
        """The engines of all its sockets."""
        sockets = [*self._sockets, *self._async_sockets, *tuple(self._deferred_closes)]
        return [socket._engine for socket in sockets if hasattr(socket, "_engine")]

    def _abandon_inproc(self) -> None:
        """Makes `term` drop messages that only sockets of this context could receive."""
        abandon_inproc(self._engines)

    def _begin_exit(self, async_sockets: list[AsyncSocketView]) -> list[tuple[Engine, float | None]]:
        """Begins to close the sockets at the interpreter's exit; returns those without a loop, each with its linger."""
        for socket in (*self._sockets, *tuple(self._deferred_closes)):
            socket.report_at_once()
        for socket in self._sockets:
            with contextlib.suppress(Exception):
                if socket._engine.has_loop:  # else it may be in its first bind, and `term` ends it
                    socket.begin_close(UNSET)
        left: list[tuple[Engine, float | None]] = []
        for async_socket in async_sockets:
            with contextlib.suppress(Exception):
                engine = async_socket.close_at_exit()
                if engine is not None:
                    left.append((engine, engine.options.linger))
        self._async_sockets = WeakIdentitySet()
        return left + [deferred.take() for deferred in tuple(self._deferred_closes) if not deferred.wait_handed_over()]

    def close_after_fork(self) -> None:
        """Closes the inherited descriptors in a forked child. Must not wait, and must not take a lock."""
        sockets = [*self._sockets, *self._async_sockets, *self._deferred_closes]
        self.fork_guard.expire((self, sockets))
        for socket in sockets:
            socket.close_after_fork()

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError("a context cannot be copied or pickled: make another one, or share this one within its process")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.term()
            else:
                self._end(lambda socket: socket.linger_after(error))
        except KeyboardInterrupt as interrupt:
            skip_lingers(error or interrupt)
            self.term(0.0)
            if error is None:
                raise
            # The interrupt has ended the wait. The block's own exception propagates: it explains more.

    def __repr__(self) -> str:
        state = "terminated" if self._terminated else f"{len(self._sockets)} blocking sockets"
        return f"<omq.Context {state}>"


def _abandon(slot: Slot[IoThread], pid: int) -> None:
    """Ends the I/O thread of a context that was dropped with its sockets. Must not wait: any thread may run it."""
    io = slot.value
    if io is not None and not io.over and pid == os.getpid():
        io.abandon()
        warnings.warn("a Context was dropped without term(): its threads end now", ResourceWarning, stacklevel=2)


def _after_fork() -> None:
    """Resets a forked child: the inherited threads are gone, and inherited locks may be held for ever."""
    for context in Context._all:
        context.close_after_fork()
    Context._all = WeakIdentitySet()
    Context._default = Slot()


def _silence_daemon_threads() -> None:
    """Ends daemon threads silently when a call of theirs would raise `ClosedError`.

    At exit, only daemon threads are left next to this one. Their errors would be printed, and a worker that logs each
    error and retries would flood the log. Such a thread ends instead, as with `sys.exit()`.
    """
    here = threading.get_ident()

    def make(kind: type[ClosedError], *arguments: object) -> ClosedError:
        if threading.get_ident() != here and not any(context._is_io_thread for context in Context._all):
            raise SystemExit
        return OmqError.__new__(kind, *arguments)

    ClosedError.__new__ = make  # type: ignore[method-assign, assignment]


def _at_exit() -> None:
    """Closes the open sockets with their linger, and reports what the exit waits for."""
    _silence_daemon_threads()
    contexts = [context for context in Context._all if not context.fork_guard.stale]
    # First: daemon threads continue to make sockets, and the exit would wait for one whose peers were not looked up.
    async_sockets = [list(context._async_sockets) for context in contexts]
    local_peers = LocalPeers()
    local_peers.abandon_undeliverable(engine for context in contexts for engine in context._engines)
    # All contexts at once: what waits in the connection of a socket that no longer reads must go to other peers.
    left = [one for context, own in zip(contexts, async_sockets, strict=True) for one in context._begin_exit(own)]
    local_peers.abandon_undeliverable(engine for context in contexts for engine in context._engines)
    if left:
        close_without_loop(left)
    for context in contexts:
        for linger in (None, 0.0):
            try:
                with contextlib.suppress(Exception):
                    context.term(linger)
                break
            except KeyboardInterrupt:
                pass  # it ended the wait: the log reports what was lost, and the rest ends at once


run_in_child(_after_fork)
run_at_exit(_at_exit)
