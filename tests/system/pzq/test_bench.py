"""The benchmark's clients do what they measure."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bench.processes import served
from bench.pzq.__main__ import ACK_TIMEOUT_US, run_round
from bench.pzq.clients import BareConsumer, ask, messages_left, produce
from tests.support.waits import until
from tests.system.pzq.conftest import Make


def test_what_is_produced_is_consumed(make: Make) -> None:
    device = make()
    assert ask(device.endpoints["receive"], 20, 1024) > 0
    assert produce(device.endpoints["receive"], 1000, 1024, 64, 16) > 0
    assert messages_left(device.endpoints["monitor"]) == 1020
    consumer = BareConsumer(device.endpoints["send"], 1024, ACK_TIMEOUT_US)
    consumer.consume(1020)
    until(lambda: messages_left(device.endpoints["monitor"]) == 0)
    consumer.close()


@pytest.mark.slow
def test_the_stub_plays_a_device(tmp_path: Path) -> None:
    with served(tmp_path, "bench.pzq.stub_device", str(tmp_path / "ready.json")) as (_, endpoints):
        assert sorted(run_round(endpoints, 500, 1024)) == ["asked", "consumed", "produced"]


def test_the_help_of_the_benchmark_has_its_options() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "bench.pzq", "--help"], capture_output=True, text=True, check=True, timeout=30
    )
    assert "--rounds" in ran.stdout
