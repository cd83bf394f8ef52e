"""A context: what the sockets of one application share. There is no other shared state in omq."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import warnings
from functools import partial
from types import TracebackType
from typing import Any, ClassVar, NoReturn, Protocol, Self, SupportsIndex

from omq._core.atomic import Slot
from omq._core.bell import Bell
from omq._core.calls.leader import ForkGuard
from omq._core.link.deferred_calls import DeferredCalls
from omq._core.link.flusher import Flusher
from omq._core.queues.names import Names
from omq._core.release import OnRelease
from omq._core.wire.pool import Pool
from omq.engine.iothread import IoThread
from omq.engine.weak_set import WeakIdentitySet
from omq.errors import ClosedError, ContextTerminated, OmqError, StateError
from omq.options import Options
from omq.types import UNSET
from omq.unpatched import threading

log = logging.getLogger("omq")


class Closable(Protocol):
    """A socket, as far as its context is concerned."""

    def begin_close(self, linger: Any) -> Any: ...

    def finish_close(self, future: Any) -> None: ...

    def give_up_close(self, future: Any) -> None: ...

    def close_after_fork(self) -> None: ...


class Guest(Protocol):
    """An asyncio socket, as far as its context is concerned."""

    def end_with_context(self, linger: Any) -> None: ...

    def end_with_interpreter(self) -> None: ...

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
        self._on_release = OnRelease(partial(_abandon, self._io, self._pid))
        Context._all.add(self)

    @classmethod
    def default(cls) -> Context:
        """The context of sockets that are given none; made on first use, and made anew in a forked child."""
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
        """Whether this very thread is the I/O thread."""
        io = self._io.value
        return io is not None and io._thread == threading.get_ident()

    @property
    def closed(self) -> bool:
        """Whether `term` has been called."""
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

    def term(self, linger: Any = None) -> None:
        """Closes every socket and ends the threads (`zmq_ctx_term(3)`). Idempotent; goes on if interrupted.

        The call waits for blocking sockets. Calls on asyncio sockets raise `ClosedError` too, but their loop closes
        them. It may be this thread's, so the call does not wait for it.

        Args:
            linger: Seconds that each socket has for what was accepted; `None` for the option of each socket.

        Raises:
            OptionError: `linger` does not fit; nothing has ended.
        """
        if self._ended or self.fork_guard.stale:
            return
        linger = UNSET if linger is None else Options(linger=linger).linger
        self._terminated = True
        for guest in self._guests:
            guest.end_with_context(linger)
        # All sockets close at once: their times are not to add up.
        closing = [(socket, socket.begin_close(linger)) for socket in self._sockets]
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
        self.deferred_calls.close()
        self.bell.close()
        # Nothing is left to do when this is released; and what a signal handler raises there would be lost.
        self._on_release.cancel()
        self._ended = True

    def close_after_fork(self) -> None:
        """In a forked child: closes the descriptors that it inherited. Nothing may wait, and no lock be taken."""
        sockets = [*self._sockets, *self._guests]
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
        self.term()

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
    for context in Context._all:
        if context.fork_guard.stale:
            continue
        for guest in context._guests:
            with contextlib.suppress(Exception):
                guest.end_with_interpreter()
        context._guests = WeakIdentitySet()
        for socket in context._sockets:
            with contextlib.suppress(Exception):
                if socket.lingers:
                    log.warning(
                        "%r waits for what it has accepted to leave (linger=%s s)", socket, socket.options.linger
                    )
        with contextlib.suppress(Exception):
            context.term()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
