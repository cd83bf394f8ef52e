"""The state that all faces of one context share: its omq context, its open sockets and its options."""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import weakref
from typing import Any, Final

import omq
from omq import errors
from omq._core.zmq.calls import Handle
from omq.unpatched import threading
from omq.zmq.constants import ContextOption, Errno
from omq.zmq.error import error_of, note_exit

_INT_MAX: Final = 2**31 - 1
_EXIT_LINGER_S: Final = 0.1
_IPV6: Final = 42  # the number of the socket option
_BLOCKY: Final = 70
_ZERO_COPY_RECV: Final = 10
#: The options of a context: the default, and the smallest value; `None`: it cannot be set.
_OPTIONS: Final[dict[int, tuple[int, int | None]]] = {
    ContextOption.IO_THREADS: (1, 0),
    ContextOption.MAX_SOCKETS: (1023, 1),
    ContextOption.SOCKET_LIMIT: (65535, None),
    ContextOption.THREAD_SCHED_POLICY: (-1, 0),
    ContextOption.MAX_MSGSZ: (_INT_MAX, 0),
    ContextOption.MSG_T_SIZE: (64, None),
    ContextOption.THREAD_NAME_PREFIX: (0, 0),
    _ZERO_COPY_RECV: (1, 0),
    _IPV6: (0, 0),
    _BLOCKY: (1, 0),
}
_ONLY_SET: Final = (ContextOption.THREAD_AFFINITY_CPU_ADD, ContextOption.THREAD_AFFINITY_CPU_REMOVE)

_contexts: weakref.WeakValueDictionary[int, ContextState] = weakref.WeakValueDictionary()
_sockets: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


class ContextState:
    """One context, which several `Context` objects may show.

    Attributes:
        omq: The context of omq.
        terminating: Whether `term` has been called.
        terminated: Whether it has returned.
    """

    def __init__(self) -> None:
        self.omq = omq.Context()
        self.terminating = False
        self.terminated = False
        self._options: dict[int, int] = {}
        self._open: set[Handle] = set()
        self._changed = threading.Condition()
        self._pid = os.getpid()
        _contexts[id(self)] = self

    @property
    def forked(self) -> bool:
        """Returns whether this is a child of the process that has made it."""
        return os.getpid() != self._pid

    def get(self, option: int) -> int:
        """Returns the value of an option."""
        if option == ContextOption.MAX_SOCKETS or option in self._options or option in _OPTIONS:
            return self._options.get(option, _OPTIONS[option][0])
        raise error_of(Errno.EINVAL)

    def set(self, option: int, value: int) -> None:
        """Sets an option."""
        if option in _ONLY_SET:
            return
        least = _OPTIONS.get(option, (0, None))[1]
        if option == ContextOption.THREAD_PRIORITY:  # SOCKET_LIMIT, which cannot be set, has the same number
            return
        if least is None or value < least:
            raise error_of(Errno.EINVAL)
        self._options[option] = value

    def add(self, handle: Handle) -> None:
        """Adds a new socket."""
        with self._changed:
            self._open.add(handle)
        _sockets[id(handle)] = handle

    def check_room(self) -> None:
        """Raises EMFILE if there are as many sockets as `MAX_SOCKETS` allows."""
        if len(self._open) >= self.get(ContextOption.MAX_SOCKETS):
            raise error_of(errno.EMFILE)

    def close(self, handle: Handle, linger: float | None) -> None:
        """Closes a socket: accepted messages leave in the background."""
        try:
            with contextlib.suppress(errors.OmqError):
                handle.omq.begin_close(linger)
        finally:
            with self._changed:
                self._open.discard(handle)
                self._changed.notify_all()

    def term(self) -> None:
        """Interrupts all calls, and waits until all sockets are closed and their messages have left.

        Messages for inproc peers are dropped: no socket of this context receives from now on.
        """
        self.terminating = True
        self.omq._abandon_inproc()
        self.omq.term()
        with self._changed:
            while self._open:
                self._changed.wait()
        self.terminated = True


def _at_exit() -> None:
    """Ends contexts that the program has left open.

    With libzmq nothing waits for their messages. omq gathers messages into batches, which get a moment to leave.
    """
    note_exit()
    linger = _EXIT_LINGER_S
    for state in list(_contexts.values()):
        if state.terminated or state.forked:
            continue
        state.terminating = True
        with contextlib.suppress(errors.OmqError):
            try:
                state.omq.term(linger)
            except KeyboardInterrupt:  # a second Ctrl-C: nothing is waited for any more
                linger = 0.0
                state.omq.term(linger)


atexit.register(_at_exit)  # runs before that of omq, which was registered earlier


def context_at(address: int) -> ContextState | None:
    """Returns the context with a number that `underlying` has given out."""
    return _contexts.get(address)


def socket_at(address: int) -> Any:
    """Returns the state of the socket with a number that `underlying` has given out."""
    return _sockets.get(address)
