"""A model of who writes what a caller has left behind: the flusher, the epoll set, or the next call.

It reads like the code: `connection.pyx` (send, _decide, _push, _after, flush), `batch.pyx` (flush_late) and
`flusher.pyx` (leave, _round, forget, parking). The flusher's thread never takes the interpreter's lock: its steps lie
between two sections under its mutex, or under a batch's flag. A caller's step is a whole call, but where it writes a
large batch: that is done without the interpreter's lock, under the flag. Some thread serves the epoll set; which one,
`serving.py` decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.model.explorer import State, Step

NONE = -1
IDLE_LOOKS = 2  # looks without work before the flusher parks; ten in the code
FULL = 2  # messages at which a batch leaves


@dataclass(frozen=True)
class Case:
    """The threads and peers of a case.

    Attributes:
        sends: Messages that the caller sends on each connection.
        room: Messages that the kernel takes at first, on each.
        reads: Messages that each peer reads later.
        large: Whether a full batch is so large that it is written without the interpreter's lock.
        closes: Whether the first connection ends at some time.
        mutation: What is not as in the code; empty: nothing.
    """

    sends: tuple[int, ...]
    room: int = 1
    reads: int = 3
    large: bool = False
    closes: bool = False
    mutation: str = ""


START: dict[str, Any] = {
    "pushing": NONE, "waits": NONE, "notified": False, "left": (), "parked": True, "work": 0, "at": "rest",
    "current": NONE, "index": 0, "worked": False, "idle": 0, "keep": False,
}  # fmt: skip
EACH = ("sends", "room", "reads", "batch", "taken", "queued", "stuck", "watched", "blocked", "recent", "closed")
NAMES = (*EACH, *START)


class ModelState:
    """The state, to be worked on; what is named in EACH has an entry for each connection."""

    def __init__(self, values: Any) -> None:
        self.__dict__ = dict(zip(NAMES, values, strict=True))
        for name in (*EACH, "left"):
            self.__dict__[name] = list(self.__dict__[name])

    def freeze(self) -> tuple[Any, ...]:
        return tuple([tuple(value) if type(value) is list else value for value in self.__dict__.values()])


class Leaving:
    """All that may happen in one case."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.links = range(len(case.sends))
        self.passing: dict[str, Callable[[Any], bool]] = {
            "a batch stays behind": lambda w: any(w.batch[b] and w.room[b] and not w.closed[b] for b in self.links),
            "a caller waits for room that is there": lambda w: w.waits != NONE and not w.blocked[w.waits],
            "the epoll set reports room that no caller wants": self._useless,
        }

    def _useless(self, w: Any) -> bool:
        return any(w.watched[b] and w.room[b] and not w.batch[b] and not w.closed[b] for b in self.links)

    def initial(self) -> State:
        count = len(self.case.sends)
        each: dict[str, Any] = dict.fromkeys(EACH, (False,) * count)
        each.update(sends=self.case.sends, room=(self.case.room,) * count, reads=(self.case.reads,) * count)
        each.update(batch=(0,) * count, taken=("",) * count)
        values = {**each, **START}
        return tuple(values[name] for name in NAMES)

    def view(self, state: State) -> Any:
        return ModelState(state)

    def broken(self, w: Any) -> str | None:
        if w.current != NONE and w.closed[w.current] and w.at in ("take", "write", "drop"):
            return "the flusher is at a batch that is gone"
        for b in self.links:
            if w.taken[b] == "caller and flusher":
                return "two threads are at one batch"
            if not w.closed[b] and w.blocked[b] and not w.watched[b]:
                return "a connection is blocked, and the epoll set does not report when it is not"
        if w.parked and w.left and not w.work:
            return "the flusher sleeps though something was left to it"
        return None

    # ------------------------------------------------------------------ what may happen

    def steps(self, state: State, seen: Any) -> Iterator[Step]:
        for label, actor, act, which in self._acts(seen):
            w: Any = ModelState(state)
            act(w, which)
            yield Step(label, actor, w.freeze())

    def _acts(self, w: Any) -> Iterator[tuple[str, str, Callable[[Any, int], None], int]]:
        for b in self.links:
            if w.reads[b] and w.room[b] < 2:
                yield f"peer {b} reads", "", self._read, b
            if w.recent[b]:
                yield f"time passes ({b})", f"clock {b}", self._age, b
            if w.closed[b]:
                continue
            free = w.taken[b] == ""
            if w.waits == NONE and w.pushing == NONE and w.sends[b] and free:
                yield f"the caller sends on {b}", "", self._send, b
            if w.watched[b] and w.room[b] and free:
                yield f"the epoll set reports room for {b}", f"set {b}", self._on_room, b
            may_end = w.current != b or self.case.mutation == "forget does not wait"
            if self.case.closes and b == 0 and w.waits == NONE and w.pushing == NONE and free and may_end:
                yield f"connection {b} ends", "", self._close, b
        if w.waits != NONE and not w.blocked[w.waits] and w.notified and w.taken[w.waits] == "":
            yield "the caller was notified of room", "caller", self._go_on, w.waits
        if w.pushing != NONE:
            yield "the caller has written a large batch", "caller", self._pushed, w.pushing
        if w.at != "rest":
            yield f"flusher: {w.at}", "flusher", getattr(self, f"_{w.at}"), 0
        elif w.work:
            yield "flusher: there is work", "flusher", self._wake_up, 0

    def _read(self, w: Any, b: int) -> None:
        w.reads[b] -= 1
        w.room[b] += 1

    def _age(self, w: Any, b: int) -> None:
        w.recent[b] = False

    # ------------------------------------------------------------------ the caller: connection.pyx

    def _send(self, w: Any, b: int) -> None:
        if w.blocked[b]:  # send_hwm 1: the send queue has no room
            w.waits = b
            return
        w.sends[b] -= 1
        w.batch[b] += 1
        if w.stuck[b]:
            self._is_blocked(w, b)
        elif w.batch[b] >= FULL:
            if self.case.large:
                w.pushing = b
                w.taken[b] = "caller"
            else:
                self._after(w, b, self._push(w, b))
        elif w.batch[b] == 1:
            if not w.recent[b]:
                w.recent[b] = True
                self._after(w, b, self._push(w, b))
            else:
                self._leave(w, b)

    def _pushed(self, w: Any, b: int) -> None:
        done = self._push(w, b)
        w.taken[b] = ""
        w.pushing = NONE
        self._after(w, b, done)

    def _push(self, w: Any, b: int) -> bool:
        written = min(w.batch[b], w.room[b])
        w.batch[b] -= written
        w.room[b] -= written
        if w.batch[b] == 0:
            w.stuck[b] = False
            w.watched[b] = self.case.mutation == "EPOLLOUT is not taken back" and w.watched[b]
        else:
            w.watched[b] = True
        return bool(w.batch[b] == 0)

    def _after(self, w: Any, b: int, done: bool) -> None:
        if not done:
            self._is_blocked(w, b)
        elif w.blocked[b]:
            w.blocked[b] = False
            if w.waits == b and self.case.mutation != "room is not reported":
                w.notified = True

    def _is_blocked(self, w: Any, b: int) -> None:
        w.blocked[b] = True

    def _on_room(self, w: Any, b: int) -> None:
        if w.batch[b] or w.blocked[b] or w.stuck[b] or w.watched[b]:
            self._after(w, b, self._push(w, b))

    def _go_on(self, w: Any, b: int) -> None:
        w.waits = NONE
        w.notified = False
        self._send(w, b)

    def _close(self, w: Any, b: int) -> None:
        w.left = [entry for entry in w.left if entry != b]
        w.closed[b] = True
        w.batch[b] = 0

    # ------------------------------------------------------------------ leaving: flusher.pyx

    def _leave(self, w: Any, b: int) -> None:
        if w.queued[b]:
            return
        w.left.append(b)
        w.queued[b] = True
        wake = w.parked and self.case.mutation != "the flusher is not woken"
        w.parked = False
        if wake:
            w.work += 1

    # ------------------------------------------------------------------ the flusher's thread

    def _wake_up(self, w: Any, _: int) -> None:
        w.work -= 1
        w.idle = 0
        w.at = "round"

    def _round(self, w: Any, _: int) -> None:
        w.index = 0
        w.worked = False
        self._next(w)

    def _next(self, w: Any) -> None:
        if w.index < len(w.left):
            w.worked = True
            w.current = w.left[w.index]
            w.at = "take"
        else:
            w.idle = 0 if w.worked else w.idle + 1
            w.at = "park" if w.idle >= IDLE_LOOKS else "round"

    def _take(self, w: Any, _: int) -> None:
        b = w.current
        if w.taken[b]:
            if self.case.mutation == "the flag is ignored":
                w.taken[b] = "caller and flusher"
            w.keep = True
            w.at = "done"
        else:
            w.taken[b] = "flusher"
            w.keep = False
            w.at = "write"

    def _write(self, w: Any, _: int) -> None:
        b = w.current
        if w.batch[b] == 0 or w.stuck[b]:
            pass
        elif w.recent[b]:
            w.keep = True
        else:
            written = min(w.batch[b], w.room[b])
            w.batch[b] -= written
            w.room[b] -= written
            w.recent[b] = True
            if w.batch[b]:
                w.stuck[b] = True
                w.watched[b] = self.case.mutation != "stuck, and the epoll set is not asked"
        w.at = "drop"

    def _drop(self, w: Any, _: int) -> None:
        b = w.current
        if self.case.mutation != "left, and thought to be queued" or w.keep:
            w.queued[b] = w.keep
        w.taken[b] = ""
        w.at = "done"

    def _done(self, w: Any, _: int) -> None:
        b, w.current = w.current, NONE
        if self.case.mutation == "what is left again is dropped" and not w.keep:
            w.left = [entry for entry in w.left if entry != b]
        elif w.keep or w.index >= len(w.left) or w.left[w.index] != b:
            w.index += 1
        else:
            last = w.left.pop()
            if w.index < len(w.left):
                w.left[w.index] = last
        w.keep = False
        self._next(w)

    def _park(self, w: Any, _: int) -> None:
        w.parked = not w.left or self.case.mutation == "parks whatever is left"
        w.idle = 0
        w.index = 0
        w.at = "rest" if w.parked else "round"

    def show(self, state: State) -> str:
        first = dict(zip(NAMES, self.initial(), strict=True))  # type: ignore[arg-type]
        now = dict(zip(NAMES, state, strict=True))  # type: ignore[arg-type]
        return " ".join(f"{name}={value!r}" for name, value in now.items() if value != first[name])
