"""Visits every state that a model can reach, and reports the steps to one that must not be.

A model is what several actors do to one state, step by step. No actor can see half of a step. Two kinds of
promises are checked: that no state is broken, and that nothing which ought to pass stays for ever, as long as every
actor that can go on, again and again, does so at some time. Others (users, peers, clocks) may never do anything more.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

State = Hashable


@dataclass(frozen=True, slots=True)
class Step:
    """A possible next step.

    Attributes:
        label: What happens, for people.
        actor: Who does it in the end, if it can be done again and again; empty: no actor has to.
        state: What is so afterwards.
    """

    label: str
    actor: str
    state: State


class Model(Protocol):
    """The possible steps, and the promises about them."""

    def initial(self) -> State: ...

    def view(self, state: State) -> Any:
        """A state to be asked: what the others take."""

    def steps(self, state: State, seen: Any) -> Iterable[Step]:
        """Yields the possible next steps; *seen* is the view of the state, and is left as it is."""

    def broken(self, seen: Any) -> str | None:
        """Returns an error of the state by itself."""

    passing: dict[str, Callable[[Any], bool]]  # what may hold for a while, and never for good

    def show(self, state: State) -> str: ...


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that does not hold.

    Attributes:
        what: Which, and how.
        trace: The steps that lead there, each with the state that it leads to.
        cycle: Steps that may go on for ever from there, where that is what is wrong.
    """

    what: str
    trace: list[tuple[str, str]]
    cycle: list[str]

    def __str__(self) -> str:
        lines = [self.what, *(f"  {label:<34} {shown}" for label, shown in self.trace)]
        if self.cycle:
            lines += ["  and then for ever:", *(f"    {label}" for label in self.cycle)]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Report:
    """The result of an exploration.

    Attributes:
        states: How many there are.
        steps: How many lead from one to another.
        seconds: How long it took.
        violation: The first that was found, by the shortest way; `None`: every promise holds.
    """

    states: int
    steps: int
    seconds: float
    violation: Violation | None

    def __str__(self) -> str:
        found = f": {self.violation}" if self.violation else ""
        return f"{self.states} states, {self.steps} steps, {self.seconds:.2f} s{found}"


class TooLarge(Exception):
    """There are more states than the case was meant to have."""


def explore(model: Model, limit: int = 1_000_000) -> Report:
    """Visits all states, breadth first, then looks for what may last for ever."""
    gc.disable()  # nothing that is kept here is garbage, and there is a lot of it
    try:
        return _explore(model, limit)
    finally:
        gc.enable()


def _explore(model: Model, limit: int) -> Report:
    begun = time.perf_counter()
    first = model.initial()
    number = {first: 0}
    states = [first]
    came: list[tuple[int, str]] = [(-1, "")]
    follow: list[list[tuple[int, str]]] = []  # per state: the next one, and who does the step
    held: dict[str, set[int]] = {what: set() for what in model.passing}
    at = 0
    count = 0

    def trace(index: int) -> list[tuple[str, str]]:
        way: list[tuple[str, str]] = []
        while index >= 0:
            before, label = came[index]
            way.append((label or "in the beginning", model.show(states[index])))
            index = before
        return way[::-1]

    def report(violation: Violation | None) -> Report:
        return Report(len(states), count, time.perf_counter() - begun, violation)

    while at < len(states):
        state = states[at]
        seen = model.view(state)
        for what, holds in model.passing.items():
            if holds(seen):
                held[what].add(at)
        wrong = model.broken(seen)
        if wrong is not None:
            return report(Violation(wrong, trace(at), []))
        nexts: list[tuple[int, str]] = []
        for step in model.steps(state, seen):
            count += 1
            index = number.setdefault(step.state, len(states))
            if index == len(states):
                states.append(step.state)
                came.append((at, step.label))
                if index >= limit:
                    raise TooLarge(f"more than {limit} states")
            nexts.append((index, step.actor))
        follow.append(nexts)
        at += 1

    for what, inside in held.items():
        part = min(fair(follow, inside), key=min, default=None)
        if part is not None:
            return report(Violation(f"{what}, for ever", trace(min(part)), _round(model, states, part)))
    return report(None)


def _round(model: Model, states: list[State], part: set[int]) -> list[str]:
    members = {states[index] for index in part}
    labels: dict[str, None] = {}
    for index in sorted(part):
        for step in model.steps(states[index], model.view(states[index])):
            if step.state in members:
                labels[step.label] = None
    return list(labels) or ["nothing happens"]


def fair(follow: list[list[tuple[int, str]]], inside: set[int]) -> Iterator[set[int]]:
    """The sets of states that can go on among themselves for ever while everybody who could act again and again does.

    Args:
        follow: Where each state leads, and by whose step.
        inside: The states to stay in.
    """
    waiting = [inside]
    while waiting:
        for part in _components(follow, waiting.pop()):
            if len(part) == 1:
                (one,) = part
                if not any(actor for _, actor in follow[one]):
                    yield part  # no actor has to do anything any more
                    continue
            acts = {actor for index in part for target, actor in follow[index] if target in part}
            if not acts and not any(target in part for index in part for target, _ in follow[index]):
                continue  # every actor here leaves
            starved = {actor for index in part for _, actor in follow[index] if actor and actor not in acts}
            if not starved:
                yield part
                continue
            rest = {index for index in part if not any(actor in starved for _, actor in follow[index])}
            if rest:
                waiting.append(rest)


def _components(follow: list[list[tuple[int, str]]], inside: set[int]) -> Iterator[set[int]]:
    """The strongly connected components of a part of the graph (Tarjan, without recursion)."""
    order: dict[int, int] = {}
    low: dict[int, int] = {}
    path: list[int] = []
    on_path: set[int] = set()
    for root in inside:
        if root in order:
            continue
        order[root] = low[root] = len(order)
        path.append(root)
        on_path.add(root)
        work = [(root, iter(follow[root]))]
        while work:
            node, targets = work[-1]
            for target, _ in targets:
                if target not in inside:
                    continue
                if target not in order:
                    order[target] = low[target] = len(order)
                    path.append(target)
                    on_path.add(target)
                    work.append((target, iter(follow[target])))
                    break
                if target in on_path:
                    low[node] = min(low[node], order[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == order[node]:
                    part: set[int] = set()
                    while True:
                        member = path.pop()
                        on_path.discard(member)
                        part.add(member)
                        if member == node:
                            break
                    yield part
