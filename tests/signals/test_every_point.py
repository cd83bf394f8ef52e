"""A signal handler at every moment of a call at which one can run: it raises, ends the socket, or uses it.

What is asserted, and how the moments are found, stands in `world.py` and `points.py`. To look at one world, or at one
moment: `python -m tests.signals.explore close Subscribe/tcp --at 16`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.signals.call_registry import worlds
from tests.signals.explore import ACTIONS

pytestmark = [
    pytest.mark.xdist_group("signals"),
    pytest.mark.skipif(sys.version_info >= (3, 12), reason="traced instructions look for signals elsewhere"),
]

EXPLORE = "tests.signals.explore"
#: For each world and action, over one of the transports; three moments of each are visited at least.
GLIMPSE = ("--seconds", "0.01", "--one")


def seen(run: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    """Returns the results of the interruptions; a program that hangs is a failure."""
    found = [json.loads(line) for line in run.stdout.splitlines()]
    wrong = [f"{one['world']} over {one['transport']}, {failure}" for one in found for failure in one["failures"]]
    if run.returncode:
        wrong.append(run.stderr[-6000:])
    assert not wrong, "\n".join(wrong)
    return found


@pytest.mark.timeout(240)  # ten seconds of its own; others run beside it
@pytest.mark.parametrize("run", [(200, EXPLORE, action, *GLIMPSE) for action in ACTIONS], ids=ACTIONS, indirect=True)
def test_a_handler_at_some_moments_of_every_call(run):
    found = seen(run)
    assert {one["world"] for one in found} == set(worlds())
    assert all(one["visited"] >= min(3, one["moments"]) for one in found)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "run",
    [pytest.param((800, EXPLORE, do, world), id=f"{world}-{do}") for world in worlds() for do in ACTIONS],
    indirect=True,
)
def test_a_handler_at_every_moment_of_a_call(run):
    found = seen(run)
    assert found
    assert all(one["visited"] == one["moments"] for one in found)
