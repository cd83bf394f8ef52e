"""The rules that excuse a difference between omq and libzmq, or name it as known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.differential.compare import Difference
from tests.differential.program import Program
from tests.differential.topology import Topology, standing


@dataclass(frozen=True)
class Rule:
    """One way in which omq is not libzmq.

    Attributes:
        key: Its name, which the page has too.
        shown: The shortest program that shows it.
        covers: Whether a difference, with what stood behind its step, is of this kind.
        reason: What is wrong in omq; empty where it is libzmq's way that omq does not want.
    """

    key: str
    shown: Program
    covers: Callable[[Program, Difference, Topology], bool]
    reason: str = ""


def covering(rules: tuple[Rule, ...], program: Program, difference: Difference) -> str | None:
    """The key of the first rule that covers a difference."""
    stood = standing(program, difference.index + 1)
    return next((rule.key for rule in rules if rule.covers(program, difference, stood)), None)


def messages(outcome: Any) -> Counter[Any]:
    """The messages of an outcome, in no order."""
    if isinstance(outcome, list):
        return Counter(outcome)
    return Counter([outcome] if isinstance(outcome, tuple) else [])


def ours_more(difference: Difference) -> bool:
    """Returns whether omq has messages, or `POLL_IN`, that libzmq has not, and libzmq none that omq has not."""
    if difference.what == "events":
        return "in" in str(difference.ours) and "in" not in str(difference.theirs)
    return difference.what == "outcome" and messages(difference.ours) > messages(difference.theirs)


def theirs_more(difference: Difference) -> bool:
    """The same with the libraries exchanged."""
    if difference.what == "events":
        return "in" in str(difference.theirs) and "in" not in str(difference.ours)
    return difference.what == "outcome" and messages(difference.theirs) > messages(difference.ours)


def only_out(difference: Difference) -> bool:
    """Returns whether the two results of poll differ in `POLL_OUT` only."""
    return difference.what == "events" and difference.ours.replace("out", "") == difference.theirs.replace("out", "")


def kind(program: Program, difference: Difference) -> str:
    """The type of whom it concerns."""
    return program.kind(difference.seat) if difference.seat else ""
