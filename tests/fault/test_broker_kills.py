"""A broker under load, killed with SIGKILL at random moments: what it acknowledged is there, once, and in order."""

import os
import random
from pathlib import Path

import pytest

from tests.fault.broker_chaos import BrokerChaos

SEEDS = int(os.environ.get("OMQ_FAULT_SEEDS", "200"))


def killed(directory: Path, seed: int, port: int, kills: int = 3) -> BrokerChaos:
    """Plays one history."""
    chance = random.Random(seed)
    chaos = BrokerChaos(directory, seed, port)
    try:
        for _ in range(kills):
            chaos.begin()
            chaos.live(chance.uniform(0.05, 0.6))
            chaos.end()
        chaos.begin()
        chaos.finish()
        chaos.check()
    finally:
        chaos.end()
    assert chaos.first_ids
    return chaos


def test_a_broker_that_is_killed_keeps_what_it_acknowledged(tmp_path, free_port):
    chaos = killed(tmp_path, 0, free_port, kills=2)
    assert chaos.seen
    assert chaos.settled
    assert chaos.position


@pytest.mark.fault
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, SEEDS))
def test_a_broker_that_is_killed_again_and_again(seed, tmp_path, free_port):
    killed(tmp_path, seed, free_port)
