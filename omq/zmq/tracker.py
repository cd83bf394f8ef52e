"""Trackers, which report when memory that was sent is free again."""

from __future__ import annotations

import math
from typing import Any, Final

from omq import errors
from omq._core.zmq.calls import Handle
from omq._core.zmq.frame import FrameData
from omq.unpatched import threading, time
from omq.zmq.error import NotDone

_FIRST_NAP_S: Final = 0.001
_MAX_NAP_S: Final = 0.02
_FOR_EVER_S: Final = 3600 * 24 * 7


class Release:
    """An event that becomes set once no frame and no send uses some memory any more."""

    __slots__ = ("_handles", "_is_set", "_waiting")

    def __init__(self) -> None:
        self._is_set = False
        self._handles: list[Handle] = []
        # A `threading.Event` from the first wait that sleeps: to make one takes as long as a send.
        self._waiting: Any = None

    def is_set(self) -> bool:
        """Returns whether nothing uses the memory."""
        return self._is_set

    def set(self) -> None:
        """Ends all waits."""
        self._is_set = True
        if self._waiting is not None:
            self._waiting.set()

    def add(self, handle: Handle) -> None:
        """Notes the socket of a send."""
        if handle not in self._handles:
            self._handles.append(handle)

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until nothing uses the memory; returns whether that is so."""
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        nap = _FIRST_NAP_S
        while not self._is_set:
            left = min(nap, deadline - time.monotonic())
            if left <= 0:
                return False
            nap = min(2 * nap, _MAX_NAP_S)
            try:
                # In slices: another thread may set the event, and an event loop that serves the socket may wait here.
                if not self._handles:
                    self._sleep(left)
                elif not self._handles[0].serve_until(self, left):
                    for handle in self._handles:
                        handle.omq.flush(0)
            except errors.SendTimeout:
                pass
            except errors.OmqError:  # the socket is closed
                self._sleep(left)
        return True

    def _sleep(self, timeout: float) -> None:
        if self._waiting is None:
            self._waiting = threading.Event()
        waiting = self._waiting
        if not self._is_set:  # else it was set before there was something to wait for
            waiting.wait(timeout)


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
            if type(one) is Release:
                self.events.add(one)
            elif isinstance(one, MessageTracker):
                self.peers.add(one)
            elif isinstance(one, FrameData):
                if not one.tracker:
                    raise ValueError("Not a tracked message")
                self.peers.add(one.tracker)
            elif hasattr(one, "is_set"):
                self.events.add(one)
            else:
                raise TypeError(f"Require Events or Message Frames, not {type(one)}")

    @property
    def done(self) -> bool:
        """Returns whether the memory is free."""
        for event in self.events:
            if not event.is_set():
                return False
        return not self.peers or all(peer.done for peer in self.peers)

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
