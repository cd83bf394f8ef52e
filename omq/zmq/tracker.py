"""Trackers, which report when memory that was sent is free again."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass
from typing import Any, Final

from omq import errors
from omq._core.zmq.frame import FrameData
from omq.unpatched import threading, time
from omq.zmq.error import NotDone

_MAX_NAP_S: Final = 0.02
_FOR_EVER_S: Final = 3600 * 24 * 7


@dataclass(slots=True)
class Send:
    """A send whose content omq keeps by reference.

    Attributes:
        socket: The omq socket.
        data: The content.
        references: How many references there were at the last check, omq's among them; 0 before the first check.
    """

    socket: Any
    data: bytes
    references: int = 0

    @property
    def is_over(self) -> bool:
        """Returns whether omq has dropped its reference.

        That shows in the number of references, unless the program has made new ones. But a socket that has handed over
        everything has none.
        """
        references = sys.getrefcount(self.data)
        if self.references and references < self.references:
            return True
        self.references = references
        try:
            return not self.socket.lingers
        except errors.OmqError:
            return True


class Release:
    """Becomes set once no frame and no send uses some memory any more; it has the methods of an `Event`.

    Args:
        frames: Whether a frame uses the memory, which calls `set` at its end.
    """

    def __init__(self, *, frames: bool = False) -> None:
        self._frames = frames
        self._sends: list[Send] = []

    def set(self) -> None:
        """Notes that the last frame is gone."""
        self._frames = False

    def add(self, socket: Any, data: Any) -> None:
        """Notes a send of which omq keeps the content."""
        self._sends.append(Send(socket, data))

    def is_set(self) -> bool:
        """Returns whether nothing uses the memory."""
        while self._sends and self._sends[0].is_over:
            self._sends.pop(0)
        return not self._frames and not self._sends

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until nothing uses the memory; returns whether that is so."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self.is_set():
            left = _MAX_NAP_S if deadline is None else min(_MAX_NAP_S, deadline - time.monotonic())
            if left <= 0:
                return False
            if self._sends:
                # In slices, because it waits for later messages of other threads, too.
                with contextlib.suppress(errors.OmqError):
                    self._sends[0].socket.flush(left)
            else:
                time.sleep(left)
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
            elif isinstance(one, Release | threading.Event) or hasattr(one, "is_set"):
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
