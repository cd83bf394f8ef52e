"""A cluster under load, whose nodes are killed, stopped and lose a disk: nothing replicated is lost or comes back."""

import os
from pathlib import Path

import pytest

from tests.fault.pzq_cluster_chaos import CALM, PRODUCERS, PzqClusterChaos
from tests.support.pzq_nodes import cluster

SEEDS = int(os.environ.get("OMQ_FAULT_SEEDS", "60"))


def play(directory: Path, seed: int, hits: int) -> PzqClusterChaos:
    """Plays one history: faults, a moment of rest, faults, and the end."""
    hard = ["--hard-sync"] if seed % 2 else []
    with cluster(directory, "--replicas", "1", "--ack-timeout", "120000000", *hard) as nodes:
        chaos = PzqClusterChaos(directory, seed, nodes)
        try:
            chaos.begin()
            for _ in range(hits):
                chaos.hit()
            chaos.rest()
            for number in range(PRODUCERS):
                chaos.begin_producer(number)
            chaos.calm()
            for _ in range(hits):
                chaos.hit()
            chaos.rest()
        finally:
            chaos.end()
        chaos.check()
    assert chaos.received
    assert chaos.in_order > CALM // 10
    return chaos


@pytest.mark.fault
@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_cluster_that_is_hit_again_and_again(tmp_path: Path, seed: int) -> None:
    play(tmp_path, seed, hits=4)
