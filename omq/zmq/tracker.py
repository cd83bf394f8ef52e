"""Trackers, which report when memory that was sent is free again."""

from __future__ import annotations

import contextlib
import math
from typing import Any, Final

from omq import errors
from omq._core.zmq.frame import FrameData
from omq.unpatched import threading, time
from omq.zmq.error import NotDone

_FLUSH_INTERVAL_S: Final = 0.02
_FOR_EVER_S: Final = 3600 * 24 * 7


class Release(threading.Event):
    """Becomes set once no frame and no send uses some memory any more."""

    def __init__(self) -> None:
        super().__init__()
        self._sockets: list[Any] = []

    def add(self, socket: Any) -> None:
        """Notes the omq socket of a send."""
        self._sockets.append(socket)

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until nothing uses the memory; returns whether that is so."""
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while not super().wait(max(0.0, min(_FLUSH_INTERVAL_S, deadline - time.monotonic()))):
            if time.monotonic() >= deadline:
                return False
            for socket in self._sockets:
                # An event loop that serves the socket may be the one that waits here.
                with contextlib.suppress(errors.OmqError):
                    socket.flush(0)
        return True


class MessageTracker:
    """Reports when the memory of messages is free again.

    Args:
        *towatch: Events, other trackers, and frames that were made with `track=True`.
    """

    events: set[Any]
    peers: set[MessageTracker]

    def __init__(self, *towatch: Any) -> None:
        self.events = set()
        self.peers = set()
        for one in towatch:
            if isinstance(one, MessageTracker):
                self.peers.add(one)
            elif isinstance(one, FrameData):
                if not one.tracker:
                    raise ValueError("Not a tracked message")
                self.peers.add(one.tracker)
            elif isinstance(one, threading.Event) or hasattr(one, "is_set"):
                self.events.add(one)
            else:
                raise TypeError(f"Require Events or Message Frames, not {type(one)}")

    @property
    def done(self) -> bool:
        """Returns whether the memory is free."""
        return all(event.is_set() for event in self.events) and all(peer.done for peer in self.peers)

    def wait(self, timeout: float | int = -1) -> None:
        """Waits until the memory is free.

        Args:
            timeout: Seconds; negative waits for ever.

        Raises:
            NotDone: It is in use after *timeout*.
        """
        deadline = time.monotonic() + (_FOR_EVER_S if timeout is False or timeout < 0 else timeout)
        for event in self.events:
            if not event.wait(max(0.0, deadline - time.monotonic())):
                raise NotDone
        for peer in self.peers:
            peer.wait(max(0.0, deadline - time.monotonic()))


_FINISHED_TRACKER: Final[MessageTracker] = MessageTracker()

__all__ = ["MessageTracker", "_FINISHED_TRACKER"]
