"""A check whether a history of concurrent operations is linearizable.

It is the search of Wing and Gong with the cache of Lowe, as in porcupine: it looks for an order of the operations in
which each has the result that it had, and none comes before one that had returned when it was called.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

MAX_STEPS: Final = 2_000_000
SHOWN: Final = 8  # operations in the text of an error

_State = TypeVar("_State", bound=Hashable)


class NotLinearizable(AssertionError):
    """Raised for a history that is not linearizable."""


class Undecided(AssertionError):
    """Raised when the search takes too many steps."""


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation of a client.

    Attributes:
        client: The name of the client.
        call: What was called.
        result: What it has returned.
        called: The time of the call.
        returned: The time at which it returned. Infinite if its outcome is unknown: it may have had its effect at any
            time since the call, or none.
    """

    client: str
    call: Any
    result: Any
    called: float
    returned: float = math.inf

    def __str__(self) -> str:
        until = "?" if self.returned == math.inf else f"{self.returned:.4f}"
        return f"{self.client} [{self.called:.4f}, {until}]: {self.call!r} -> {self.result!r}"


class Model(Protocol[_State]):
    """An object that executes one operation at a time.

    Attributes:
        initial: Its first state.
    """

    @property
    def initial(self) -> _State: ...

    def step(self, state: _State, operation: Operation) -> _State | None:
        """Returns the state after an operation; `None` if it cannot have its result in this state."""
        ...


class _Event:
    """The call or the return of an operation, in a list in the order of time."""

    __slots__ = ("bit", "next", "operation", "previous", "returns")

    def __init__(self, operation: Operation | None, bit: int = 0, returns: _Event | None = None) -> None:
        self.operation = operation  # `None`: it is the return
        self.bit = bit
        self.returns = returns
        self.previous: _Event = self
        self.next: _Event | None = None

    def insert_after(self, event: _Event) -> None:
        self.previous, self.next = event, event.next
        if event.next is not None:
            event.next.previous = self
        event.next = self

    def remove(self) -> None:
        self.previous.next = self.next
        if self.next is not None:
            self.next.previous = self.previous

    def restore(self) -> None:
        self.previous.next = self
        if self.next is not None:
            self.next.previous = self


class _Search(Generic[_State]):
    """The search for an order.

    Args:
        model: The object.
        operations: The history.
    """

    def __init__(self, model: Model[_State], operations: list[Operation]) -> None:
        self._model = model
        self._head = _Event(None)
        self._unreturned = sum(operation.returned < math.inf for operation in operations)
        self._longest: list[Operation] = []
        self._blocked: list[Operation] = []
        times: list[tuple[float, bool, int, _Event]] = []
        for index, operation in enumerate(operations):
            end = None if operation.returned == math.inf else _Event(None)
            times.append((operation.called, False, index, _Event(operation, 1 << index, end)))
            if end is not None:
                times.append((operation.returned, True, index, end))  # of one time, calls come first
        last = self._head
        for *_, event in sorted(times, key=lambda item: item[:3]):
            event.insert_after(last)
            last = event

    def run(self, max_steps: int) -> list[Operation]:
        """Returns an order; operations with an unknown outcome that it leaves out had no effect.

        Raises:
            NotLinearizable: There is none.
            Undecided: None was found in this number of steps.
        """
        state, done = self._model.initial, 0
        cache: set[tuple[int, _State]] = {(done, state)}
        path: list[tuple[_Event, _State]] = []
        event = self._head.next
        steps = 0
        while self._unreturned:
            assert event is not None  # the return of an operation that is not in the path
            if event.operation is None:
                self._note(path, event)
                if not path:
                    raise NotLinearizable(self._text())
                event, state = path.pop()
                done ^= event.bit
                self._put_back(event)
                event = event.next
                continue
            steps += 1
            if steps > max_steps:
                raise Undecided(f"no order was found in {max_steps} steps")
            after = self._model.step(state, event.operation)
            if after is None or (done | event.bit, after) in cache:
                event = event.next
                continue
            cache.add((done | event.bit, after))
            path.append((event, state))
            done |= event.bit
            state = after
            self._take_out(event)
            event = self._head.next
        return [taken.operation for taken, _ in path if taken.operation is not None]

    def _take_out(self, event: _Event) -> None:
        event.remove()
        if event.returns is not None:
            event.returns.remove()
            self._unreturned -= 1

    def _put_back(self, event: _Event) -> None:
        if event.returns is not None:
            event.returns.restore()
            self._unreturned += 1
        event.restore()

    def _note(self, path: list[tuple[_Event, _State]], end: _Event) -> None:
        """Keeps the longest order, and the operations of which none can follow it."""
        if self._blocked and len(path) <= len(self._longest):
            return
        self._longest = [event.operation for event, _ in path if event.operation is not None]
        self._blocked = []
        event = self._head.next
        while event is not None and event is not end:
            if event.operation is not None:
                self._blocked.append(event.operation)
            event = event.next

    def _text(self) -> str:
        lines = [f"after {len(self._longest)} operations none of these can be next:"]
        lines += [f"  {operation}" for operation in self._blocked[:SHOWN]]
        lines += ["the last ones before:", *(f"  {operation}" for operation in self._longest[-SHOWN:])]
        return "\n".join(lines)


def linearize(model: Model[_State], operations: Iterable[Operation], max_steps: int = MAX_STEPS) -> list[Operation]:
    """Returns an order of a history in which a model has the same results.

    Args:
        model: The object.
        operations: The history.
        max_steps: The number of steps of the model after which the search ends.

    Raises:
        NotLinearizable: There is no such order.
        Undecided: The search has ended without a result.
    """
    return _Search(model, list(operations)).run(max_steps)


def check_parts(
    model: Model[_State], operations: Iterable[Operation], part: Callable[[Operation], Hashable]
) -> dict[Hashable, list[Operation]]:
    """Returns orders of histories of independent objects, by object.

    Args:
        model: Each of the objects.
        operations: The histories of all.
        part: Returns the object of an operation.

    Raises:
        NotLinearizable: The history of one of them has no order.
    """
    parts: dict[Hashable, list[Operation]] = defaultdict(list)
    for operation in operations:
        parts[part(operation)].append(operation)
    found = {}
    for key, own in parts.items():
        try:
            found[key] = linearize(model, own)
        except NotLinearizable as error:
            raise NotLinearizable(f"{key!r}: {error}") from None
    return found


class Prefix(tuple[int, int, int]):
    """The messages of a topic up to one of them: their number, the last id, and a digest of all."""

    @classmethod
    def of(cls, messages: Iterable[tuple[int, bytes]]) -> Prefix:
        """Returns the prefix with these ids and bodies."""
        prefix = NOTHING
        for id, body in messages:
            prefix = prefix.then(id, body)
        return prefix

    def then(self, id: int, body: bytes) -> Prefix:
        """Returns the prefix with one message more."""
        return Prefix((self[0] + 1, id, hash((self[2], id, body))))

    def __repr__(self) -> str:
        return f"{self[0]} messages up to {self[1]}, digest {self[2] & 0xFFFF:04x}"


NOTHING: Final = Prefix((0, 0, 0))


@dataclass(frozen=True)
class Log:
    """A topic. `("append", body)` returns the id, `("read",)` the `Prefix` of all messages.

    Attributes:
        dense: No id is skipped.
        initial: The messages that it has at first.
    """

    dense: bool = True
    initial: Prefix = NOTHING

    def step(self, state: Prefix, operation: Operation) -> Prefix | None:
        if operation.call[0] == "read":
            return state if operation.result == state else None
        id, last = operation.result, state[1]
        if id != last + 1 if self.dense else id <= last:
            return None
        return state.then(id, operation.call[1])


@dataclass(frozen=True)
class Job:
    """A message of a work queue: it is published, delivered any number of times, and not after its ack.

    Calls are `("publish", body)`, `("take", body)` and `("ack", body)`; the results do not matter.
    """

    initial: str = "absent"

    def step(self, state: str, operation: Operation) -> str | None:
        match operation.call[0], state:
            case "publish", "absent":
                return "waits"
            case "take", "waits":
                return "waits"
            case "ack", "waits" | "done":
                return "done"
        return None
