"""Waiting for sockets and descriptors while other greenlets run."""

from __future__ import annotations

from typing import Any

from gevent import select

from omq import errors
from omq._core.zmq.poll import PollGroup
from omq.unpatched import time
from omq.zmq.constants import Errno, PollEvent
from omq.zmq.error import error_of, translate
from omq.zmq.poll import Poller
from omq.zmq.socket import Socket

_SYSTEM = {
    int(PollEvent.POLLIN): select.POLLIN,
    int(PollEvent.POLLOUT): select.POLLOUT,
    int(PollEvent.POLLERR): 0,
    int(PollEvent.POLLPRI): 0,
}


def wait(sockets: list[tuple[Any, int]], others: list[tuple[int, int]], seconds: float | None) -> None:
    """Waits until a socket or a descriptor may be ready; other greenlets run meanwhile.

    Args:
        sockets: The sockets with their events.
        others: Descriptors with their events.
        seconds: The longest wait; `None` for ever.

    Raises:
        ZMQError: A socket is closed, or its context is terminated.
    """
    for socket, _ in sockets:
        socket._check()
    group = PollGroup([(socket, socket._handle, events) for socket, events in sockets])
    try:
        poll = select.poll()
        poll.register(group.fileno(), select.POLLIN)
        for fd, events in others:
            poll.register(fd, sum(bits for event, bits in _SYSTEM.items() if events & event))
        deadline = None if seconds is None else time.monotonic() + seconds
        while not group.poll(0):
            group.lead()
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            found = poll.poll(None if left is None else left * 1000)
            group.leave()
            if not found or any(fd != group.fileno() for fd, _ in found):
                return
    except errors.OmqError as error:
        handle = next((one._handle for one, _ in sockets if one._handle.closed), sockets[0][0]._handle)
        raise translate(error, handle) from None
    finally:
        group.leave()
        group.close()


class _Poller(Poller):
    """A poller whose `poll` lets other greenlets run."""

    def poll(self, timeout: float | None = -1) -> list[tuple[Any, int]]:
        """Waits until something is ready; see `omq.zmq.Poller.poll`."""
        deadline = None if timeout is None or timeout < 0 else time.monotonic() + timeout / 1000
        own = [(one, int(events)) for one, events in self.sockets if isinstance(one, Socket)]
        others = [(_descriptor(one), int(events)) for one, events in self.sockets if not isinstance(one, Socket)]
        while True:
            found = super().poll(0)
            left = None if deadline is None else deadline - time.monotonic()
            if found or (left is not None and left <= 0):
                return found
            wait(own, others, left)


def _descriptor(one: Any) -> int:
    if isinstance(one, int):
        return one
    if not hasattr(one, "fileno"):
        raise error_of(Errno.ENOTSOCK)
    return int(one.fileno())
