"""The benchmark's routers and clients do what they measure."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.goby.__main__ import gobyd, zmq_router
from bench.goby.clients import measure
from bench.processes import served
from tests.support.optional_packages import require


@pytest.mark.slow
@pytest.mark.parametrize("router", [gobyd, zmq_router])
def test_both_routers_carry(tmp_path: Path, router: Callable[[Path], list[str]]) -> None:
    require("google.protobuf")
    with served(tmp_path, *router(tmp_path)) as (pid, at):
        rate, cost = measure(pid, at["publish"], at["subscribe"], 64, 2, 2, 0.3)
    assert rate > 0
    assert 0 <= cost < 1000


def test_the_help_of_the_benchmark_has_its_options() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "bench.goby", "--help"], capture_output=True, text=True, check=True, timeout=30
    )
    assert "--rounds" in ran.stdout
