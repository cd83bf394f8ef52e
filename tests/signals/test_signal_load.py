"""Signals at random moments of busy streams, with handlers that raise, end the socket, or use it (`signal_load.py`)."""

from __future__ import annotations

import pytest

from tests.signals.signal_load import LOADS

pytestmark = pytest.mark.xdist_group("signals")

PROGRAM = "tests.signals.signal_load"


@pytest.mark.timeout(240)
@pytest.mark.parametrize("run", [(200, PROGRAM, load, "0.3") for load in LOADS], ids=LOADS, indirect=True)
def test_streams_under_signals(run):
    assert run.returncode == 0, run.stderr[-6000:]


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("run", [(60, PROGRAM, load, "20") for load in LOADS], ids=LOADS, indirect=True)
def test_streams_under_signals_for_long(run):
    assert run.returncode == 0, run.stderr[-6000:]
