"""Sockets of both twins survive whatever happens to them, in random order; see `tests.fault.lifecycles`."""

import subprocess
import sys

import pytest


def play(twin, seed, count):
    """In a process of its own, with descriptors, threads and memory of its own."""
    command = [
        sys.executable,
        "-m",
        "tests.fault.lifecycles",
        "--twin",
        twin,
        "--seed",
        str(seed),
        "--count",
        str(count),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout[-20000:]}\n{done.stderr[-20000:]}"
    assert done.stderr == ""


@pytest.mark.timeout(240)
@pytest.mark.parametrize("twin", ["asyncio", "blocking"])
def test_a_few_lifecycles(twin):
    play(twin, 1_000_000, 100)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("twin", ["asyncio", "blocking"])
def test_ten_thousand_lifecycles(twin):
    play(twin, 0, 10_000)
