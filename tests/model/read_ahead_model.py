"""A model of who reads a connection: its owner, or the background thread while the owner is away.

It reads like the code: `background.pyx` (_report, _attend, _serve, _handle, detach), `read_ahead.pyx` (take, pass_on),
`poller.pyx` (_take_ahead) and `receiver.pyx` (_read, _take_in, refill). The thread never takes the interpreter's lock:
its steps lie between two sections under its mutex, or under the connection's flag. The owner's steps lie between the
places where it lets go of that lock: it waits for the flag, and a read of a large frame is done without the lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.model.explorer import State, Step


@dataclass(frozen=True)
class Case:
    """The peer, and the limits of the connection.

    Attributes:
        sends: Messages that the peer sends.
        hwm: Messages that may wait to be taken.
        turn: Messages that one read takes.
        closes: Whether the connection ends at some time.
        mutation: What is not as in the code; empty: nothing.
    """

    sends: int
    hwm: int = 2
    turn: int = 2
    closes: bool = False
    mutation: str = ""


START: dict[str, Any] = {
    "sent": 0, "kernel": (), "ahead": (), "complete": (), "taken": -1, "flag": "", "event": False, "signalled": False,
    "stopped": False, "closed": False, "mode": "quiet", "report": False, "looked": False, "owner": "out",
    "thread": "sleeps", "left": 0, "moved": False, "waiting": 0,
}  # fmt: skip


class ModelState:
    """The state, to be worked on."""

    def __init__(self, values: Any) -> None:
        self.__dict__ = dict(zip(START, values, strict=True))

    def freeze(self) -> tuple[Any, ...]:
        return tuple(self.__dict__.values())


class ReadingAhead:
    """All that may happen in one case."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.passing: dict[str, Callable[[Any], bool]] = {
            "the kernel has a message, and it is not read": lambda w: bool(
                w.kernel and self._has_room(w) and not w.closed
            ),
            "the set stays readable for nothing": lambda w: w.event and not w.ahead and w.owner != "out",
        }

    def _has_room(self, w: Any) -> bool:
        # As the thread counts: messages that the owner has taken since its last read show no room.
        return not w.stopped and w.waiting + len(w.ahead) < self.case.hwm

    def _readable(self, w: Any) -> bool:
        """Returns whether the socket's epoll set has an event."""
        return not w.closed and (bool(w.kernel and not w.stopped) or w.event)

    def initial(self) -> State:
        return tuple(START.values())

    def view(self, state: State) -> Any:
        return ModelState(state)

    def broken(self, w: Any) -> str | None:
        waiting = (*w.complete, *w.ahead, *w.kernel)
        if not w.closed and waiting != tuple(range(w.taken + 1, w.sent)):
            return "a message is lost, overtaken, or there twice"
        if w.flag == "owner and thread":
            return "two threads are at one connection"
        if w.closed and w.thread == "reads":
            return "the thread is at a connection that is gone"
        if len(w.complete) > self.case.hwm or (w.mode == "away" and len(w.complete) + len(w.ahead) > 2 * self.case.hwm):
            return "more messages wait than recv_hwm allows"
        idle = w.owner == "out" and w.thread in ("sleeps", "looks") and not w.moved
        if idle and w.ahead and not w.stopped and not w.event and not w.closed:
            return "messages were read ahead, and nothing notifies the owner"
        if idle and w.stopped and not w.complete and not w.closed:
            return "reading has stopped for good"
        return None

    # ------------------------------------------------------------------ what may happen

    def steps(self, state: State, seen: Any) -> Iterator[Step]:
        for label, actor, act in self._acts(seen):
            w = ModelState(state)
            act(w)
            yield Step(label, actor, w.freeze())

    def _acts(self, w: Any) -> Iterator[tuple[str, str, Callable[[Any], None]]]:
        if w.sent < self.case.sends and not w.closed:
            yield "the peer sends", "", self._send
        if w.owner == "out" and not w.closed:
            if self._readable(w):
                yield "the owner looks at the set", "", self._look
            if w.complete:
                yield "the owner takes a message", "", self._take
            may_end = w.thread != "reads" or self.case.mutation == "detach does not wait"
            if self.case.closes and may_end:
                yield "the connection ends", "", self._close
        if w.owner == "begins" and (not w.flag or self.case.mutation == "the owner ignores the flag"):
            yield "owner: takes the flag", "owner", self._begin
        if w.owner == "reads":
            yield "owner: reads", "owner", self._read
        if w.owner == "ends":
            yield "owner: drops the flag", "owner", self._end
        if w.thread == "sleeps" and w.report:
            yield "thread: wakes up", "thread", self._report
        if w.thread == "sleeps" and w.mode == "away" and self.case.mutation != "only events are looked at":
            yield "thread: looks again", "thread", self._report
        if w.thread == "looks":
            yield "thread: attends", "thread", self._attend
        if w.thread == "takes":
            yield "thread: takes the flag", "thread", self._enter
        if w.thread == "reads":
            yield "thread: reads", "thread", self._read_ahead
        if w.thread == "tells":
            yield "thread: signals", "thread", self._signal
        if w.thread == "rests":
            yield "thread: has rested", "thread", self._arm

    def _send(self, w: Any) -> None:
        w.kernel = (*w.kernel, w.sent)
        w.sent += 1
        self._occurs(w)

    def _occurs(self, w: Any) -> None:
        """Something comes into the socket's set, which reports it to the thread's set."""
        if w.mode in ("quiet", "away") and self._readable(w):
            w.report = True

    # ------------------------------------------------------------------ the owner

    def _look(self, w: Any) -> None:
        w.looked = True
        if w.signalled:
            w.signalled = w.event = False
            if self.case.mutation == "the signal outlives its bytes":
                w.event = True
        w.owner = "begins"

    def _take(self, w: Any) -> None:
        w.taken = w.complete[0]
        w.complete = w.complete[1:]
        if w.stopped and not w.complete:
            w.stopped = False
            w.owner = "begins"
            self._occurs(w)

    def _begin(self, w: Any) -> None:
        w.flag = "owner and thread" if w.flag else "owner"
        w.left = self.case.turn
        w.owner = "reads"

    def _read(self, w: Any) -> None:
        if len(w.complete) >= self.case.hwm or w.left == 0:
            w.owner = "ends"
        elif w.ahead and self.case.mutation != "the kernel comes first":
            w.complete, w.ahead = (*w.complete, w.ahead[0]), w.ahead[1:]
            w.left -= 1
        elif w.kernel:
            w.complete, w.kernel = (*w.complete, w.kernel[0]), w.kernel[1:]
            w.left -= 1
        else:
            w.owner = "ends"

    def _end(self, w: Any) -> None:
        if len(w.complete) >= self.case.hwm:
            w.stopped = True
        if w.ahead and not w.stopped and self.case.mutation != "a turn ends in silence":
            w.signalled = w.event = True
            self._occurs(w)
        w.waiting = len(w.complete)
        w.flag = ""
        w.owner = "out"

    def _close(self, w: Any) -> None:
        w.closed = True
        w.kernel = w.ahead = w.complete = ()
        w.event = w.signalled = False

    # ------------------------------------------------------------------ the thread

    def _report(self, w: Any) -> None:
        w.report = False
        if w.mode == "quiet":
            w.mode, w.looked = "fired", False
        w.thread = "looks"

    def _attend(self, w: Any) -> None:
        if w.looked and self.case.mutation != "the thread stays":
            w.mode, w.thread, w.report = "resting", "rests", False
        elif w.mode == "fired" and not self._readable(w):
            self._arm(w)
        else:
            w.mode = "away"
            w.thread = "takes" if not w.closed and w.kernel and not w.stopped else "sleeps"

    def _arm(self, w: Any) -> None:
        w.mode, w.thread = "quiet", "sleeps"
        if self._readable(w) and self.case.mutation != "the set is armed on an edge":
            w.report = True

    def _enter(self, w: Any) -> None:
        if w.closed:
            w.thread = "sleeps"
        elif w.flag:
            w.thread = "looks"  # a thread reads, and will have looked
        else:
            w.flag = "thread"
            w.thread = "reads"

    def _read_ahead(self, w: Any) -> None:
        if w.kernel and self._has_room(w):
            w.ahead, w.kernel = (*w.ahead, w.kernel[0]), w.kernel[1:]
            w.moved = True
        else:
            w.flag = "" if w.flag == "thread" else w.flag
            w.thread = "tells" if w.moved else "sleeps"

    def _signal(self, w: Any) -> None:
        if not w.closed and not w.signalled and self.case.mutation != "nothing is reported":
            w.signalled = w.event = True
        w.moved = False
        w.thread = "sleeps"

    def show(self, state: State) -> str:
        now = dict(zip(START, state, strict=True))  # type: ignore[arg-type]
        return " ".join(f"{name}={value!r}" for name, value in now.items() if value != START[name])
