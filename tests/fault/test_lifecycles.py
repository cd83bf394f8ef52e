"""Sockets of both twins survive whatever happens to them, in random order; see `tests.fault.lifecycles`."""

import pytest

from tests.support.fork_server import SOCKETS, run


def play(twin, seed, count):
    """In a process of its own, with descriptors, threads and memory of its own."""
    options = ("--twin", twin, "--seed", str(seed), "--count", str(count))
    done = run("-m", "tests.fault.lifecycles", *options, timeout=1100, template=SOCKETS)
    assert done.returncode == 0, f"{done.stdout[-20000:]}\n{done.stderr[-20000:]}"
    assert done.stderr == ""


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("twin", ["asyncio", "blocking"])
def test_a_few_lifecycles(twin):
    play(twin, 1_000_000, 100)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("twin", ["asyncio", "blocking"])
def test_ten_thousand_lifecycles(twin):
    play(twin, 0, 10_000)
