"""The driver that carries out a node's decisions in a device."""

from __future__ import annotations

import time

import pytest

from omq.pzq.cluster.cluster_driver import clock


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="this system has no such clock")
def test_leases_go_on_while_the_host_sleeps() -> None:
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert before <= clock() <= time.clock_gettime(time.CLOCK_BOOTTIME)
