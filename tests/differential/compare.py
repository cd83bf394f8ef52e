"""The differences between two runs of one program."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.differential.program import Program, Step
from tests.differential.runner import Seen

_TAG = re.compile(rb"#([a-z])\d")


@dataclass(frozen=True)
class Difference:
    """One thing that two runs do not agree on.

    Attributes:
        index: The number of the step; one more than the last for what came after all steps.
        step: The step itself.
        what: `outcome`, `events` or `links`.
        seat: Whose; for `links` whose step it was, if anybody's.
        ours: What the run under test shows.
        theirs: What libzmq shows.
    """

    index: int
    step: Step
    what: str
    seat: str
    ours: Any
    theirs: Any


def differences(program: Program, ours: Sequence[Seen], theirs: Sequence[Seen]) -> list[Difference]:
    """Returns the differences up to the first step that has another outcome: after it the runs cannot be compared."""
    found: list[Difference] = []
    for index, (mine, its) in enumerate(zip(ours, theirs, strict=True)):
        ended = index == len(program.steps)
        step = ("", "end") if ended else program.steps[index]
        found += [
            Difference(index, step, "events", name, events, its.events[name])
            for name, events in mine.events.items()
            if events != its.events[name]
        ]
        if mine.links != its.links:
            found.append(Difference(index, step, "links", str(step[0]), mine.links, its.links))
        outcomes = mine.outcome if ended else {step[0]: mine.outcome}
        for name, outcome in outcomes.items():
            other = its.outcome[name] if ended else its.outcome
            if in_order(outcome) != in_order(other):
                found.append(Difference(index, step, "outcome", name, outcome, other))
        if any(one.what == "outcome" for one in found):
            break
    return found


def in_order(outcome: Any) -> Any:
    """An outcome in which messages of different senders stand in no order."""
    if not isinstance(outcome, list):
        return outcome
    senders: dict[bytes, list[Any]] = {}
    for message in outcome:
        tag = _TAG.search(b"|".join(message))
        senders.setdefault(tag[1] if tag else b"", []).append(message)
    return senders
