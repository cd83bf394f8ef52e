"""A model of the queue of waiting messages: the caller, its socket's owner and the background thread share it.

It reads like the code: `send_queue.pyx` (put, _give, _pump, recall), `connection.pyx` (flush, note_handed),
`send_buffer.pyx` (flush_on) and `waiting.pyx` (begin, end). What happens under the batch's flag is one step. Between
`begin` and `end` the owner holds a message that stands nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.model.explorer import State, Step

NONE = -1


@dataclass(frozen=True)
class Case:
    """The case to explore.

    Attributes:
        sends: Messages that the caller sends.
        hwm: Messages that wait in the queue at most.
        room: Messages that the kernel takes at most.
        reads: Messages that the peer reads.
        away: Whether the owner serves its socket no more once everything is sent.
        dies: Whether the connection is lost at some time, and another one is made.
        mutation: What is not as in the code; empty: nothing.
    """

    sends: int
    hwm: int = 2
    room: int = 1
    reads: int = 3
    away: bool = False
    dies: bool = False
    mutation: str = ""


NAMES = (
    "sent", "queue", "batch", "kernel", "got", "lost", "reads", "blocked",
    "waits", "notified", "handed", "raised", "moving", "kept", "dies",
)  # fmt: skip


class ModelState:
    """The state, to be worked on."""

    def __init__(self, values: Any) -> None:
        self.__dict__ = dict(zip(NAMES, values, strict=True))

    def freeze(self) -> tuple[Any, ...]:
        return tuple(self.__dict__.values())


class Feeding:
    """All that may happen in one case."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.passing: dict[str, Callable[[Any], bool]] = {
            "a caller waits though there is room": lambda w: w.waits and len(w.queue) < case.hwm,
            "something waits though the peer has room": lambda w: (
                bool(w.batch or w.queue or w.moving != NONE) and len(w.kernel) < case.room
            ),
        }

    def initial(self) -> State:
        return (0, (), (), (), (), (), self.case.reads, False, False, False, 0, False, NONE, False, self.case.dies)

    def view(self, state: State) -> Any:
        return ModelState(state)

    def broken(self, w: Any) -> str | None:
        moving = () if w.moving == NONE else (w.moving,)
        everything = (*w.got, *w.lost, *w.kernel, *w.batch, *moving, *w.queue)
        if sorted(everything) != list(range(w.sent)):
            return "a message is lost, or there twice"
        if list(w.got) != sorted(w.got):
            return "messages have overtaken each other"
        return None

    # ------------------------------------------------------------------ what may happen

    def steps(self, state: State, seen: Any) -> Iterator[Step]:
        for label, actor, act in self._acts(seen):
            w: Any = ModelState(state)
            act(w)
            yield Step(label, actor, w.freeze())

    def _acts(self, w: Any) -> Iterator[tuple[str, str, Callable[[Any], None]]]:
        has_room = len(w.kernel) < self.case.room
        owner_is_there = not self.case.away or w.sent < self.case.sends
        if w.kernel and w.reads:
            yield "the peer reads", "", self._read
        if w.sent < self.case.sends and not w.waits and w.moving == NONE:
            yield "the caller sends", "", self._put
        if w.waits and w.notified and w.moving == NONE:
            yield "the caller was notified of room", "caller", self._go_on
        noted = w.queue and self.case.mutation != "the wait for room is lost"
        if (w.blocked or noted) and has_room:  # the set reports room, or the owner has noted what waits
            yield "the background thread writes on", "background", self._write_on
        if w.moving != NONE:
            yield "the owner gives a message", "owner", self._give
        elif owner_is_there:
            if w.blocked and has_room:
                yield "the owner learns of room", "owner", self._flush
            if w.raised:
                yield "the owner is notified by the background thread", "owner", self._on_notified
            if not w.blocked and w.queue:
                yield "the owner pumps", "owner", self._begin
            if w.dies and w.moving == NONE:
                yield "the connection is lost", "", self._die

    def _read(self, w: Any) -> None:
        w.reads -= 1
        w.got += w.kernel[:1]
        w.kernel = w.kernel[1:]

    # ------------------------------------------------------------------ the caller: send_queue.pyx

    def _put(self, w: Any) -> None:
        if not w.queue and not w.blocked:
            w.batch += (w.sent,)
            w.sent += 1
            self._push(w)
        elif len(w.queue) < self.case.hwm:
            w.queue += (w.sent,)
            w.sent += 1
        else:
            w.waits = True

    def _go_on(self, w: Any) -> None:
        w.waits = w.notified = False
        self._put(w)

    def _notify(self, w: Any) -> None:
        w.notified = w.notified or w.waits

    # ------------------------------------------------------------------ the batch: send_buffer.pyx

    def _push(self, w: Any) -> None:
        room = self.case.room - len(w.kernel)
        w.kernel += w.batch[:room]
        w.batch = w.batch[room:]
        w.blocked = bool(w.batch)

    def _flush_on(self, w: Any) -> None:
        """Writes, and takes what waits as long as the kernel takes everything."""
        while True:
            self._push(w)
            kept = w.kept and self.case.mutation != "the owner's mark is ignored"
            if w.batch or not w.queue or kept or len(w.kernel) == self.case.room:
                break
            w.batch += w.queue[:1]
            w.queue = w.queue[1:]
            w.handed += 1
        # With messages waiting the set goes on telling of room.
        w.blocked = w.blocked or (bool(w.queue) and self.case.mutation != "the wait for room is lost")

    def _write_on(self, w: Any) -> None:
        before = w.handed
        self._flush_on(w)
        if w.handed > before and self.case.mutation != "the owner is not notified":
            w.raised = True

    # ------------------------------------------------------------------ the owner: connection.pyx, send_queue.pyx

    def _flush(self, w: Any) -> None:
        self._flush_on(w)
        if w.handed:
            w.handed = 0
            if self.case.mutation != "counted, and the caller sleeps":
                self._notify(w)
        w.raised = False

    def _on_notified(self, w: Any) -> None:
        w.raised = False
        if w.handed:
            w.handed = 0
            self._notify(w)

    def _begin(self, w: Any) -> None:
        w.moving, w.queue, w.kept = w.queue[0], w.queue[1:], True

    def _give(self, w: Any) -> None:
        w.batch += (w.moving,)
        w.moving, w.kept = NONE, False
        self._push(w)
        self._notify(w)

    def _die(self, w: Any) -> None:
        """Returns what no peer can have seen to the front of what waits; the next connection has room."""
        w.dies = False
        w.lost += w.kernel
        w.queue = (*w.queue, *w.batch) if self.case.mutation == "put back behind" else (*w.batch, *w.queue)
        w.kernel = w.batch = ()
        w.blocked = False
        w.handed, w.raised = 0, False
        self._notify(w)

    def show(self, state: State) -> str:
        first = dict(zip(NAMES, self.initial(), strict=True))  # type: ignore[arg-type]
        now = dict(zip(NAMES, state, strict=True))  # type: ignore[arg-type]
        return " ".join(f"{name}={value!r}" for name, value in now.items() if value != first[name])
