"""The I/O thread's part in the model of who serves a socket: `driver.py`, and `dispatch` of `leader.pyx`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

from tests.model.serving_state import MAX_LOOKS, NO_CALLER, SHOWS, SLOWER, Case, ModelState


class Driving(ABC):
    """The steps of the I/O thread, from one place where others may run to the next."""

    case: Case
    publishes: bool  # a caller calls fileno()

    @abstractmethod
    def _ready(self, w: ModelState) -> tuple[Any, ...]: ...

    @abstractmethod
    def _served(self, w: ModelState) -> bool: ...

    @abstractmethod
    def _serve(self, w: ModelState, late: bool = False) -> None: ...

    @abstractmethod
    def _drain(self, w: ModelState) -> None: ...

    @abstractmethod
    def _show_readable(self, w: ModelState) -> None: ...

    @abstractmethod
    def _close_descriptors(self, w: ModelState) -> None: ...

    def _io_acts(self, w: ModelState) -> Iterator[tuple[str, str, Callable[[ModelState], None]]]:
        if w.io != "idle":
            yield f"io: {w.io}", "io", lambda w: self._io_on(w)
            return
        if w.reader and w.open and self._ready(w):
            yield "io: the set is ready", "io reader", self._dispatch
        if w.bell:
            yield f"io: bell, {w.bell[0]}", "io bell", self._answer
        # A loop runs what is due, then what is ready: an order waits for one timer at most.
        if w.timer != "none" and not (w.bell and w.put_off):
            yield f"io: time to look ({w.timer})", "io timer", self._time
        if w.alarm:
            yield "io: alarm", "io alarm", self._ring_alarm

    def _io_on(self, w: ModelState) -> None:
        IO[w.io](self, w)
        self._hurry(w)

    def _hurry(self, w: ModelState) -> None:
        """Skips the step that looks for a call of fileno(), where no thread makes one."""
        while w.io in ASKS_PUBLISHED and not self.publishes:
            IO[w.io](self, w)

    def _dispatch(self, w: ModelState) -> None:
        w.io = "attended, so?" if w.leader != NO_CALLER else "serve"
        self._hurry(w)

    def _dispatch_attended(self, w: ModelState) -> None:
        if self._published(w):
            w.io = "serve"
        else:
            self._give_way(w)

    def _io_serve(self, w: ModelState) -> None:
        w.io = "idle"
        if w.open and w.leader == NO_CALLER:
            self._drain(w)
            self._serve(w)
            self._show_readable(w)

    def _answer(self, w: ModelState) -> None:
        order = w.bell.pop(0)
        w.put_off = False
        if order == "give way":
            self._give_way(w)
        elif order == "come":
            w.called = False
            w.io = "attend"
            self._hurry(w)
        elif order == "take over":
            w.timer = "none"
            w.io = "watch"
        else:
            self._stop(w)

    def _give_way(self, w: ModelState) -> None:
        w.io = "idle" if w.stopped_io or not w.watches else "unwatch"

    def _published(self, w: ModelState) -> bool:
        return w.readable_event in SHOWS and self.case.mutation != "way is given though the descriptor is published"

    def _unwatch(self, w: ModelState) -> None:
        """Asked under the lock: a caller that waits for later messages sees that no thread watches."""
        if self.case.mutation != "a refusal leaves the request to make way":
            w.dismissed = False
        w.io = "idle"
        if not self._published(w):
            w.watches = w.reader = w.watched = w.dismissed = False
            w.io = "note the looks"

    def _note(self, w: ModelState) -> None:
        w.fresh = False
        w.io = "idle"
        if self.case.mutation != "way is given for good":
            self._look_again(w, "soon")

    def _look_again(self, w: ModelState, when: str) -> None:
        w.timer = w.pause = when

    def _time(self, w: ModelState) -> None:
        w.timer = "none"
        w.put_off = bool(w.bell)
        if w.stopped_io or w.watches:
            return
        if self._ready(w) and not self._served(w):
            w.looks = min(w.looks + 1, MAX_LOOKS + 1)
        w.changed, w.fresh = w.fresh, False
        w.io = "published?"
        self._hurry(w)

    def _look_published(self, w: ModelState) -> None:
        w.io = "watch" if w.readable_event in SHOWS else "attended?"

    def _look_attended(self, w: ModelState) -> None:
        w.io = "idle"
        if w.leader != NO_CALLER:
            w.io = "look late?"
        elif w.changed:
            self._look_again(w, "soon")
        else:
            w.io = "watch"
        if w.io != "look late?":
            w.changed = False

    def _look_late(self, w: ModelState) -> None:
        slower = "soon" if w.changed and not self.case.sleeps_long else SLOWER[w.pause]
        w.drowsy = slower != "soon"
        w.roused = False
        w.changed = False
        self._look_again(w, slower)
        w.io = "idle"

    def _watch(self, w: ModelState) -> None:
        w.io = "idle"
        if not w.stopped_io and not w.watches:
            w.watches = w.watched = True
            w.dismissed = False
            w.io = "add the reader"

    def _add_reader(self, w: ModelState) -> None:
        w.drowsy = w.roused = False
        w.reader = True
        w.io = "idle"

    def _ring_alarm(self, w: ModelState) -> None:
        w.alarm = False
        self._attend(w)

    def _attend(self, w: ModelState) -> None:
        w.timer = "none"
        w.io = "idle"
        if not w.stopped_io and not w.watches:
            w.drowsy = w.roused = False
            if w.readable_event in SHOWS:
                w.io = "watch"
            else:
                w.fresh = False
                self._look_again(w, "soon")

    def _stop(self, w: ModelState) -> None:
        w.stopped_io = True
        w.timer = "none"
        w.alarm = False
        w.reader = w.watches = w.watched = False
        w.io = "close the descriptors"

    def _io_close(self, w: ModelState) -> None:
        w.io = "idle"
        self._close_descriptors(w)


ASKS_PUBLISHED = ("attended, so?", "attend", "published?")
IO: dict[str, Callable[[Driving, ModelState], None]] = {
    "attended, so?": Driving._dispatch_attended,
    "serve": Driving._io_serve,
    "attend": Driving._attend,
    "unwatch": Driving._unwatch,
    "note the looks": Driving._note,
    "published?": Driving._look_published,
    "attended?": Driving._look_attended,
    "look late?": Driving._look_late,
    "watch": Driving._watch,
    "add the reader": Driving._add_reader,
    "close the descriptors": Driving._io_close,
}
