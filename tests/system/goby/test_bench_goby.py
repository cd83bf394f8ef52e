"""The benchmark's routers and clients do what they measure."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bench.goby.__main__ import gobyd, served, stub
from bench.goby.bare import carried


@pytest.mark.parametrize("router", [gobyd, stub])
@pytest.mark.parametrize("transport", ["ipc", "tcp"])
def test_both_routers_carry_all(tmp_path: Path, router: object, transport: str) -> None:
    with served(tmp_path, *router(tmp_path, transport)) as endpoints:  # type: ignore[operator]
        assert carried(endpoints, 2000, 64, 2) > 0


def test_it_says_what_it_can_be_told() -> None:
    said = subprocess.run(
        [sys.executable, "-m", "bench.goby", "--help"], capture_output=True, text=True, check=True, timeout=30
    )
    assert "--rounds" in said.stdout
