"""Signals at random moments of busy streams, with handlers that raise, end the socket, or use it (`storm.py`)."""

from __future__ import annotations

import pytest

from tests.signals.signal_load import STORMS

pytestmark = pytest.mark.xdist_group("signals")

STORM = "tests.signals.signal_load"


@pytest.mark.timeout(240)
@pytest.mark.parametrize("run", [(200, STORM, storm, "0.3") for storm in STORMS], ids=STORMS, indirect=True)
def test_a_short_storm(run):
    assert run.returncode == 0, run.stderr[-6000:]


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("run", [(60, STORM, storm, "20") for storm in STORMS], ids=STORMS, indirect=True)
def test_a_long_storm(run):
    assert run.returncode == 0, run.stderr[-6000:]
