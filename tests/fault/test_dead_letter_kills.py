"""A broker that is killed with SIGKILL while dead letters are moved: each returns once, and none is lost."""

import os
from itertools import product
from pathlib import Path

import pytest

from tests.fault.dead_letter_chaos import DeadLetterChaos

SEEDS = int(os.environ.get("OMQ_FAULT_SEEDS", "200"))
KINDS = list(product(("strong", "weak"), repeat=2))  # of the jobs, and of the dead letters


def killed(directory: Path, seed: int, port: int, kills: int = 5) -> DeadLetterChaos:
    """Plays one history."""
    chaos = DeadLetterChaos(directory, seed, port, *KINDS[seed % len(KINDS)])
    chaos.run(kills)
    return chaos


def test_a_broker_that_is_killed_requeues_each_dead_letter_once(tmp_path, free_port):
    chaos = killed(tmp_path, 0, free_port, kills=2)
    assert chaos.acked
    assert any(chaos.purged.values())


@pytest.mark.fault
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, SEEDS))
def test_a_broker_that_is_killed_again_and_again(seed, tmp_path, free_port):
    assert killed(tmp_path, seed, free_port).acked
