"""A signal handler at every moment of a call at which one can run: it raises, ends the socket, or uses it.

`interrupted_call.py` has the assertions, and `signal_injection.py` finds the moments. To run one case, or one moment:
`python -m tests.signals.explore close Subscribe/tcp --at 16`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.signals.call_registry import cases
from tests.signals.explore import ACTIONS

pytestmark = [
    pytest.mark.xdist_group("signals"),
    pytest.mark.skipif(sys.version_info >= (3, 12), reason="traced instructions look for signals elsewhere"),
]

EXPLORE = "tests.signals.explore"
#: For each case and action, over one of the transports; three moments of each are visited at least.
GLIMPSE = ("--seconds", "0.01", "--one")


def seen(run: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    """Returns the results of the interruptions; a program that hangs is a failure."""
    found = [json.loads(line) for line in run.stdout.splitlines()]
    wrong = [f"{one['case']} over {one['transport']}, {failure}" for one in found for failure in one["failures"]]
    if run.returncode:
        wrong.append(run.stderr[-6000:])
    assert not wrong, "\n".join(wrong)
    return found


#: Those that resemble another one.
SLOW = {"raise": "raise-base", "stop": "close", "elsewhere": "use"}
USUAL = [
    pytest.param((200, EXPLORE, action, *GLIMPSE), id=action, marks=pytest.mark.slow if action in SLOW else ())
    for action in ACTIONS
]


@pytest.mark.timeout(240)  # ten seconds of its own; others run at the same time
@pytest.mark.parametrize("run", USUAL, indirect=True)
def test_a_handler_at_some_moments_of_every_call(run):
    found = seen(run)
    assert {one["case"] for one in found} == set(cases())
    assert all(one["visited"] >= min(3, one["moments"]) for one in found)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "run",
    [pytest.param((800, EXPLORE, do, case), id=f"{case}-{do}") for case in cases() for do in ACTIONS],
    indirect=True,
)
def test_a_handler_at_every_moment_of_a_call(run):
    found = seen(run)
    assert found
    assert all(one["visited"] == one["moments"] for one in found)
