"""A model of a socket's lock: `lock.pyx` and `lock.pxd`, and of what others leave to its holder.

A step lies between two places where a thread lets go of the interpreter's lock: while it waits for this one, and while
it works with it (a large frame is copied, for example). Taking it and letting it go are each one step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.model.explorer import State, Step

FREE = -1
OUT, WORKS, WAITS, WOKEN, ASKS = "out", "works", "waits", "woken", "asks"
NAMES = ("at", "owner", "waiters", "free", "posted", "deferred", "asked", "ran")


@dataclass(frozen=True)
class Case:
    """The threads of a case.

    Attributes:
        threads: How many take the lock, again and again.
        asks: How often each wants a function called under it, and waits for nothing.
        mutation: What is not as in the code; empty: nothing.
    """

    threads: int
    asks: int = 1
    mutation: str = ""


class ModelState:
    """The state, to be worked on."""

    def __init__(self, values: Any) -> None:
        self.__dict__ = dict(zip(NAMES, values, strict=True))
        self.__dict__.update(at=list(values[0]), asked=list(values[NAMES.index("asked")]))

    def freeze(self) -> tuple[Any, ...]:
        return tuple([tuple(value) if type(value) is list else value for value in self.__dict__.values()])


class Locking:
    """All that may happen in one case."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.passing: dict[str, Callable[[Any], bool]] = {
            "a thread waits for a lock that is free": lambda w: w.owner == FREE and (WAITS in w.at or WOKEN in w.at),
            "what was left to the holder is not done": lambda w: w.deferred > 0,
        }

    def initial(self) -> State:
        count = self.case.threads
        return ((OUT,) * count, FREE, 0, 0, False, 0, (self.case.asks,) * count, 0)

    def view(self, state: State) -> Any:
        return ModelState(state)

    def broken(self, w: Any) -> str | None:
        if sum(at == WORKS for at in w.at) > 1:
            return "two threads hold the lock"
        if w.free > 1:
            return "wake-ups pile up"
        if sum(w.asked) + w.deferred + w.ran + w.at.count(ASKS) != self.case.threads * self.case.asks:
            return "a function is called twice, or never"
        if w.deferred and w.owner == FREE:
            return "the lock is free, and what was left to its holder is not done"
        return None

    def steps(self, state: State, seen: Any) -> Iterator[Step]:
        for label, actor, act, thread in self._acts(seen):
            w: Any = ModelState(state)
            act(w, thread)
            yield Step(label, actor, w.freeze())

    def _acts(self, w: Any) -> Iterator[tuple[str, str, Callable[[Any, int], None], int]]:
        for t, at in enumerate(w.at):
            if at == OUT:
                yield f"{t} asks for the lock", "", self._acquire, t
                if w.asked[t]:
                    yield f"{t} wants a call under the lock", "", self._reach, t
            elif at == WORKS:
                yield f"{t} lets go", f"thread {t}", self._release, t
            elif at == WAITS and w.free:
                yield f"{t} wakes up", f"thread {t}", self._wake_up, t
            elif at == WOKEN:
                yield f"{t} tries again", f"thread {t}", self._try_again, t
            elif at == ASKS:
                yield f"{t} leaves it to the holder", f"thread {t}", self._leave, t

    def _acquire(self, w: Any, t: int) -> None:
        if w.owner == FREE:
            w.owner = t
            w.at[t] = WORKS
        else:
            w.waiters += 1
            w.at[t] = WAITS

    def _wake_up(self, w: Any, t: int) -> None:
        """Without the interpreter's lock."""
        w.free -= 1
        w.at[t] = WOKEN

    def _try_again(self, w: Any, t: int) -> None:
        if self.case.mutation != "the used wake-up is not noted":
            w.posted = False
        if w.owner != FREE:
            w.at[t] = WAITS
        else:
            w.waiters -= 1
            w.owner = t
            w.at[t] = WORKS

    def _release(self, w: Any, t: int) -> None:
        w.at[t] = OUT
        if self.case.mutation != "what was left is forgotten":
            w.ran += w.deferred
            w.deferred = 0
        self._let_go(w)

    def _let_go(self, w: Any) -> None:
        w.owner = FREE
        if w.waiters and (not w.posted or self.case.mutation == "every release posts"):
            w.posted = True
            w.free += 1

    def _reach(self, w: Any, t: int) -> None:
        """`Pipe._reach`: another socket's thread never waits for this lock."""
        w.asked[t] -= 1
        if w.owner == FREE:
            w.ran += 1
        elif self.case.mutation == "others run between the try and the note":
            w.at[t] = ASKS
        else:
            w.deferred += 1

    def _leave(self, w: Any, t: int) -> None:
        w.at[t] = OUT
        w.deferred += 1

    def show(self, state: State) -> str:
        return " ".join(f"{name}={value!r}" for name, value in zip(NAMES, state, strict=True))  # type: ignore[arg-type]
