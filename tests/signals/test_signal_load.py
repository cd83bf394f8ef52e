"""Signals at random moments of busy streams, with handlers that raise, end the socket, or use it (`signal_load.py`)."""

from __future__ import annotations

import pytest

from tests.signals.signal_load import LOADS

pytestmark = pytest.mark.xdist_group("signals")

PROGRAM = "tests.signals.signal_load"


#: Those that resemble another one: over the other transport, in the other style, with the other call.
SLOW = {"loop-iteration", "subscribe-inproc", "hear-tcp", "send-tcp", "calls-inproc", "stop"}
USUAL = [
    pytest.param((200, PROGRAM, load, "0.3"), id=load, marks=pytest.mark.slow if load in SLOW else ()) for load in LOADS
]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("run", USUAL, indirect=True)
def test_streams_under_signals(run):
    assert run.returncode == 0, run.stderr[-6000:]


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("run", [(60, PROGRAM, load, "20") for load in LOADS], ids=LOADS, indirect=True)
def test_streams_under_signals_for_long(run):
    assert run.returncode == 0, run.stderr[-6000:]
