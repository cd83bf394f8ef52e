"""Decides whether a program shows a difference that no list covers, and shows it every time."""

from __future__ import annotations

from collections.abc import Mapping

from tests.differential.compare import Difference, differences
from tests.differential.program import Program
from tests.differential.rules import Rule, covering
from tests.differential.runner import run

TIMES = 5  # a difference that does not show each time is one of timing


def uncovered(
    program: Program, seatings: list[Mapping[str, str]], rules: tuple[Rule, ...], times: int = TIMES
) -> list[str]:
    """Describes what differs from the program's reference each time and is covered by no rule, in words.

    Args:
        program: What is run.
        seatings: By seat the name of its library: each is compared to the reference in every seat.
        rules: What covers differences from libzmq: two twins have none.
        times: How often a difference has to show.
    """
    complaints = []
    reference = program.reference
    if reference != "libzmq":
        rules = ()
    theirs = run(program, reference)
    for seating in seatings:
        found = _left(program, differences(program, run(program, seating), theirs), rules)
        for _ in range(times - 1):
            if not found:
                break
            again = differences(program, run(program, seating), run(program, reference))
            shown = {(one.index, one.what, one.seat) for one in _left(program, again, rules)}
            found = [one for one in found if (one.index, one.what, one.seat) in shown]
        complaints += [f"{dict(seating)}: {one}" for one in found]
    return complaints


def _left(program: Program, found: list[Difference], rules: tuple[Rule, ...]) -> list[Difference]:
    return [one for one in found if covering(rules, program, one) is None]
