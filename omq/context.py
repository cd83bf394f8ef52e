"""A context: what the sockets of one application share. There is no other shared state in omq."""

from __future__ import annotations

import atexit
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
from omq.engine.iothread import IoThread
from omq.engine.last_peers import LastPeers
from omq.engine.linger import give_up
from omq.engine.orphan import Orphan, see_off
from omq.engine.socket import Engine
from omq.engine.weak_set import WeakIdentitySet
from omq.errors import ClosedError, ContextTerminated, OmqError, StateError
from omq.options import Options
from omq.types import UNSET
from omq.unpatched import threading


class Closable(Protocol):
    """A socket, as far as its context is concerned."""

    def linger_after(self, error: BaseException) -> float | None: ...

    def report_at_once(self) -> None: ...

    def begin_close(self, linger: Any) -> Any: ...

    def finish_close(self, future: Any) -> None: ...

    def give_up_close(self, future: Any) -> None: ...

    def close_after_fork(self) -> None: ...


class Guest(Protocol):
    """An asyncio socket, as far as its context is concerned."""

    def linger_after(self, error: BaseException) -> float | None: ...

    def leave_to_context(self, linger: Any) -> None: ...

    def end_with_context(self, linger: Any) -> None: ...

    def end_with_interpreter(self) -> Engine | None: ...

    def close_after_fork(self) -> None: ...


class Context:
    """Owns the I/O thread and the flusher of its blocking sockets, the inproc names, and memory to borrow.

    Two contexts never see each other. A socket made without a context uses `Context.default()`. Threads start with
    the first bind or connect of a blocking socket. In a forked child a context is of no use: make a new one, or let
    `default()` do it.
    """

    _default: ClassVar[Slot[Context]] = Slot()
    _all: ClassVar[WeakIdentitySet[Context]] = WeakIdentitySet()

    def __init__(self) -> None:
        if hasattr(self, "pool"):
            raise StateError(f"{self!r} is there already: __init__ is called once, by making a context")
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
        self._guests: WeakIdentitySet[Any] = WeakIdentitySet()
        self._dropped: set[Any] = set()
        self._orphans: set[Orphan] = set()
        self._on_release = OnRelease(partial(_abandon, self._io, self._pid))
        Context._all.add(self)

    @classmethod
    def default(cls) -> Context:
        """The context of sockets that are given none; made on first use, and made again in a forked child."""
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
            # There is none, or the system gave none; another thread, or a signal handler, may have come first.
            io = self._io.put(IoThread(self.deferred_calls, self.bell), io)
            assert io is not None
        if self._terminated:
            io.stop()  # `term` may have looked for it before it was there
            self.check()
        io.start()
        return io

    @property
    def _is_io_thread(self) -> bool:
        """Returns whether this very thread is the I/O thread."""
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

    def register(self, socket: Closable) -> None:
        """Takes a blocking socket in: `term` and the interpreter's exit close it."""
        self._sockets.add(socket)

    def welcome(self, guest: Guest) -> None:
        """Takes an asyncio socket in: it lives in a loop of its own, but `term` and a fork end it."""
        self._guests.add(guest)

    def keep(self, socket: Any) -> None:
        """Holds a socket that its owner has dropped until it is closed."""
        self._dropped.add(socket)

    def release(self, socket: Any) -> None:
        """Lets go of a socket that `keep` holds."""
        self._dropped.discard(socket)

    def adopt(self, orphan: Orphan) -> None:
        """Holds an asyncio socket whose loop has ended until it is closed."""
        self._orphans.add(orphan)

    def dismiss(self, orphan: Orphan) -> None:
        """Lets go of a socket that `adopt` holds."""
        self._orphans.discard(orphan)

    def term(self, linger: Any = None) -> None:
        """Closes every socket and ends the threads (`zmq_ctx_term(3)`). Idempotent; goes on if interrupted.

        The call waits for blocking sockets, and for asyncio sockets whose loop has ended. Calls on other asyncio
        sockets raise `ClosedError` too, but their loop closes them. It may be this thread's, so the call does not wait
        for it.

        Args:
            linger: Seconds that each socket has for what was accepted; `None` for the option of each socket.

        Raises:
            OptionError: `linger` does not fit; nothing has ended.
        """
        linger = UNSET if linger is None else Options(linger=linger).linger
        self._end(lambda _: linger)

    def _end(self, linger_of: Callable[[Closable | Guest], Any]) -> None:
        """Closes every socket, each with its linger, and ends the threads."""
        if self._ended or self.fork_guard.stale:
            return
        for guest in self._guests:
            guest.leave_to_context(linger_of(guest))
        for orphan in tuple(self._orphans):
            orphan.arrive()  # while there may still be an I/O thread
        self._terminated = True
        for guest in self._guests:
            guest.end_with_context(linger_of(guest))
        # All sockets close at once: their times are not to add up.
        ending: list[Closable] = [*self._sockets, *tuple(self._orphans)]
        closing = [(socket, socket.begin_close(linger_of(socket))) for socket in ending]
        while closing:
            socket, future = closing.pop()
            try:
                socket.finish_close(future)
            except BaseException:
                # Interrupted: nobody waits for the others any more, either.
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
        # Nothing is left to do when this is released; and what a signal handler raises there would be lost.
        self._on_release.cancel()
        self._ended = True

    @property
    def _engines(self) -> list[Engine]:
        """The engines of all its sockets."""
        sockets = [*self._sockets, *self._guests, *tuple(self._orphans)]
        return [socket._engine for socket in sockets if hasattr(socket, "_engine")]

    def _begin_exit(self, guests: list[Guest]) -> list[tuple[Engine, float | None]]:
        """The interpreter ends: begins to close the sockets. Gives those without a loop, and the linger of each."""
        for socket in (*self._sockets, *tuple(self._orphans)):
            socket.report_at_once()
        for socket in self._sockets:
            with contextlib.suppress(Exception):
                if socket._engine.has_loop:  # else it may be in its first bind, and `term` ends it
                    socket.begin_close(UNSET)
        left: list[tuple[Engine, float | None]] = []
        for guest in guests:
            with contextlib.suppress(Exception):
                engine = guest.end_with_interpreter()
                if engine is not None:
                    left.append((engine, engine.options.linger))
        self._guests = WeakIdentitySet()
        return left + [orphan.take() for orphan in tuple(self._orphans) if not orphan.arrive()]

    def close_after_fork(self) -> None:
        """In a forked child: closes the descriptors that it inherited. Nothing may wait, and no lock be taken."""
        sockets = [*self._sockets, *self._guests, *self._orphans]
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
            give_up(error or interrupt)
            self.term(0.0)
            if error is None:
                raise
            # It has ended the wait. What has left the block goes on, and says more than the interrupt.

    def __repr__(self) -> str:
        state = "terminated" if self._terminated else f"{len(self._sockets)} blocking sockets"
        return f"<omq.Context {state}>"


def _abandon(slot: Slot[IoThread], pid: int) -> None:
    """The context is gone, and so are its sockets, each of which held it. Nothing may wait: any thread may be here."""
    io = slot.value
    if io is not None and not io.over and pid == os.getpid():
        io.abandon()
        warnings.warn("a Context was dropped without term(): its threads end now", ResourceWarning, stacklevel=2)


def _after_fork() -> None:
    """The child has no threads but this one: nothing that it inherited can be used, and locks may be held for ever."""
    for context in Context._all:
        context.close_after_fork()
    Context._all = WeakIdentitySet()
    Context._default = Slot()


def _end_daemons() -> None:
    """Ends daemon threads silently where a call of theirs would raise that its socket is closed.

    Beside this thread only daemon threads are left. An error would be printed; a worker that logs each error and tries
    again would fill the screen. A thread that makes such an error ends instead, as by `sys.exit()`.
    """
    here = threading.get_ident()

    def make(kind: type[ClosedError], *arguments: object) -> ClosedError:
        if threading.get_ident() != here and not any(context._is_io_thread for context in Context._all):
            raise SystemExit
        return OmqError.__new__(kind, *arguments)

    ClosedError.__new__ = make  # type: ignore[method-assign, assignment]


def _at_exit() -> None:
    """Closes what is open, with its linger, and says what it waits for."""
    _end_daemons()
    contexts = [context for context in Context._all if not context.fork_guard.stale]
    # First: daemon threads go on making sockets, and one whose peers were not looked for would be waited for.
    guests = [list(context._guests) for context in contexts]
    last_peers = LastPeers()
    last_peers.look(engine for context in contexts for engine in context._engines)
    # Of all contexts at once: what waits in the connection of one that reads no more is to go to others.
    left = [one for context, own in zip(contexts, guests, strict=True) for one in context._begin_exit(own)]
    last_peers.look(engine for context in contexts for engine in context._engines)
    if left:
        see_off(left)
    for context in contexts:
        for linger in (None, 0.0):
            try:
                with contextlib.suppress(Exception):
                    context.term(linger)
                break
            except KeyboardInterrupt:
                pass  # it has ended the wait: what was lost is in the log, and what is left ends at once


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
