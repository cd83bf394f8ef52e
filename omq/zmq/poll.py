"""Waiting for several sockets and descriptors."""

from __future__ import annotations

import contextlib
import operator
from typing import Any

import omq
from omq import errors
from omq._core.calls.readable_event import ReadableEvent
from omq._core.zmq.calls import SocketCalls
from omq._core.zmq.poll import PollGroup
from omq.types import POLL_IN, POLL_OUT
from omq.unpatched import select as _select
from omq.unpatched import time
from omq.zmq.constants import ETERM, POLLERR, POLLIN, POLLOUT, POLLPRI, Errno
from omq.zmq.error import error_of, translate

_IN, _OUT = int(POLLIN), int(POLLOUT)


class Poller:
    """Sockets and descriptors with the events to wait for.

    Attributes:
        sockets: What is registered, with its events, in order.
    """

    sockets: list[tuple[Any, int]]
    _map: dict[Any, int]

    def __init__(self) -> None:
        self.sockets = []
        self._map = {}
        self._grouped: list[tuple[Any, int]] = []
        self._group: PollGroup | None = None

    def __contains__(self, socket: Any) -> bool:
        return socket in self._map

    def register(self, socket: Any, flags: int = POLLIN | POLLOUT) -> None:
        """Adds a socket, a descriptor, or an object with `fileno()`; or changes its events.

        Args:
            socket: The socket or descriptor.
            flags: `POLLIN`, `POLLOUT` or both; 0 removes it.
        """
        if flags:
            if socket in self._map:
                self.sockets[self._map[socket]] = (socket, flags)
            else:
                self._map[socket] = len(self.sockets)
                self.sockets.append((socket, flags))
        elif socket in self._map:
            self.unregister(socket)

    def modify(self, socket: Any, flags: int = POLLIN | POLLOUT) -> None:
        """Changes the events of a socket or descriptor; see `register`."""
        self.register(socket, flags)

    def unregister(self, socket: Any) -> None:
        """Removes a socket or descriptor.

        Raises:
            KeyError: It is not registered.
        """
        index = self._map.pop(socket)
        self.sockets.pop(index)
        for later, _ in self.sockets[index:]:
            self._map[later] -= 1

    def poll(self, timeout: int | None = None) -> list[tuple[Any, int]]:
        """Waits until something is ready.

        Args:
            timeout: Milliseconds; `None` or a negative number waits for ever.

        Returns:
            What is ready, with its events; of an object with `fileno()`, the descriptor. Empty after the timeout.
        """
        if timeout is None or timeout < 0:
            timeout = -1
        if self._grouped != self.sockets:
            self._regroup()
        if self._group is None:
            return zmq_poll(self.sockets, timeout=int(timeout))
        try:
            return self._group.poll(int(timeout))
        except errors.OmqError as error:
            raise translate(error, self._handle_in_trouble()) from None

    def _regroup(self) -> None:
        """Prepares the wait for several sockets; other waits are prepared each time."""
        if self._group is not None:
            self._group.close()
            self._group = None
        self._grouped = list(self.sockets)
        if len(self.sockets) > 1 and all(isinstance(one, SocketCalls) for one, _ in self.sockets):
            for socket, _ in self.sockets:
                socket._check()
            self._group = PollGroup([(one, one._handle, operator.index(events)) for one, events in self.sockets])

    def _handle_in_trouble(self) -> Any:
        """Returns the handle of a socket that is closed."""
        handles = [one._handle for one, _ in self.sockets]
        return next((one for one in handles if one.closed or one.context.terminating), handles[0])

    def __del__(self) -> None:
        if getattr(self, "_group", None) is not None:
            self._group.close()  # type: ignore[union-attr]


def zmq_poll(sockets: list[tuple[Any, int]], timeout: int = -1) -> list[tuple[Any, int]]:
    """Waits until something is ready.

    Args:
        sockets: Sockets, descriptors and objects with `fileno()`, each with its events.
        timeout: Milliseconds; negative waits for ever.

    Returns:
        See `Poller.poll`.

    Raises:
        ZMQError: ENOTSOCK: A socket is closed. ETERM: Its context is terminated.
        TypeError: One of *sockets* is neither.
    """
    if not sockets:
        return []
    own, others = [], []
    for one, events in sockets:
        if isinstance(one, SocketCalls):
            own.append((one, one._handle, operator.index(events)))
        else:
            others.append((_descriptor_of(one), operator.index(events)))
    deadline = None if timeout < 0 else time.monotonic() + timeout / 1000
    try:
        while True:
            ready = _ready(own)
            if others:
                ready += _ready_descriptors(others, 0)
            if ready or (deadline is not None and time.monotonic() >= deadline):
                return ready
            _wait(own, others, deadline)
    except errors.OmqError as error:
        raise translate(error, own[0][1]) from None


def _descriptor_of(one: Any) -> int:
    if isinstance(one, int):
        return one
    if not hasattr(one, "fileno"):
        raise TypeError(f"Socket must be a 0MQ socket, an integer fd or have a fileno() method: {one!r}")
    try:
        return int(one.fileno())
    except Exception:
        raise ValueError("fileno() must return a valid integer fd") from None


def _ready(own: list[tuple[Any, Any, int]]) -> list[tuple[Any, int]]:
    found = []
    for socket, handle, events in own:
        if socket._closed or handle.closed:
            raise error_of(Errno.ENOTSOCK)
        if handle.context.terminating:
            raise error_of(ETERM)
        ready = handle.ready(events)
        if ready:
            found.append((socket, ready))
    return found


def _ready_descriptors(others: list[tuple[int, int]], timeout: float) -> list[tuple[int, int]]:
    """Returns descriptors that are ready, with libzmq's events."""
    poll = _select.poll()
    wanted: dict[int, int] = {}
    for fd, events in others:
        wanted[fd] = wanted.get(fd, 0) | events
    for fd, events in wanted.items():
        if fd >= 0:  # poll(2) ignores the others, such as that of a closed socket
            poll.register(fd, _system_events(events))
    found = dict(poll.poll(timeout))
    ready = []
    for fd, events in others:
        seen = found.get(fd, 0)
        shown = 0
        if seen & _select.POLLIN:
            shown |= _IN
        if seen & _select.POLLOUT:
            shown |= _OUT
        if seen & _select.POLLPRI:
            shown |= int(POLLPRI)
        if seen & ~(_select.POLLIN | _select.POLLOUT | _select.POLLPRI):
            shown |= int(POLLERR)
        shown &= events | int(POLLERR)
        if shown:
            ready.append((fd, shown))
    return ready


def _system_events(events: int) -> int:
    found = 0
    for bit, system in ((_IN, _select.POLLIN), (_OUT, _select.POLLOUT), (int(POLLPRI), _select.POLLPRI)):
        if events & bit:
            found |= system
    return found


def _wait(own: list[tuple[Any, Any, int]], others: list[tuple[int, int]], deadline: float | None) -> None:
    """Waits until something may be ready."""
    left = None if deadline is None else max(0.0, deadline - time.monotonic())
    if not others:
        kinds = {_wanted(handle, events) for _, handle, events in own}
        if len(kinds) == 1 and 0 not in kinds:
            sockets = [handle.omq for _, handle, _ in own]
            if len(own) == 1:
                sockets[0].poll(left, kinds.pop())
            else:
                omq.wait(sockets, left, kinds.pop())
            return
    with contextlib.ExitStack() as stack:
        poll = _select.poll()
        for fd, events in others:
            if fd >= 0:
                poll.register(fd, _system_events(events))
        room: ReadableEvent | None = None
        for _, handle, events in own:
            wanted = _wanted(handle, events)
            if wanted & POLL_IN:
                poll.register(handle.omq.fileno(), _select.POLLIN)
                stack.callback(handle.omq.release_fileno)
            if wanted & POLL_OUT:
                if room is None:
                    room = ReadableEvent()
                    poll.register(room.fileno(), _select.POLLIN)
                handle.omq._show_room(room, stack)
        if _ready(own):
            return
        poll.poll(None if left is None else left * 1000 + 0.5)


def _wanted(handle: Any, events: int) -> int:
    """Returns the events, as omq numbers them, that a socket can have."""
    wanted = 0
    if events & _IN and handle.receives:
        wanted |= POLL_IN
    if events & _OUT and handle.sends:
        wanted |= POLL_OUT
    return wanted


def select(
    rlist: list[Any], wlist: list[Any], xlist: list[Any], timeout: float | None = None
) -> tuple[list[Any], list[Any], list[Any]]:
    """Waits until something is ready, like `select.select`.

    Args:
        rlist: Sockets and descriptors to receive from.
        wlist: Those to send to.
        xlist: Those whose errors matter.
        timeout: Seconds; `None` waits for ever.

    Returns:
        The three lists, of those that are ready.
    """
    milliseconds = -1 if timeout is None else int(timeout * 1000.0)
    wanted: dict[Any, int] = {}
    for sockets, flag in ((rlist, POLLIN), (wlist, POLLOUT), (xlist, POLLERR)):
        for one in sockets:
            wanted[one] = wanted.get(one, 0) | int(flag)
    ready = zmq_poll(list(wanted.items()), max(milliseconds, -1))
    return (
        [one for one, events in ready if events & POLLIN],
        [one for one, events in ready if events & POLLOUT],
        [one for one, events in ready if events & POLLERR],
    )


__all__ = ["Poller", "select"]
