"""A device, its producers and consumers under load, killed with SIGKILL at random: nothing acknowledged is lost."""

import os
from pathlib import Path

import pytest

from tests.fault.pzq_player import Player
from tests.ports import held

SEEDS = int(os.environ.get("OMQ_FAULT_SEEDS", "200"))


def killed(directory: Path, seed: int, hits: int) -> Player:
    """Plays one history: kills, a moment of rest, kills, and the end."""
    with held() as receive, held() as send:
        player = Player(directory, seed, (receive, send))
        try:
            player.begin()
            for _ in range(hits):
                player.hit()
            player.rest()
            for number in range(2):
                player.begin_producer(number)
            for _ in range(hits):
                player.hit()
            player.rest()
        finally:
            player.end()
        player.check()
    assert player.received
    return player


@pytest.mark.parametrize("seed", [0, 1])
def test_a_device_whose_world_is_killed_keeps_what_it_acknowledged(tmp_path: Path, seed: int) -> None:
    killed(tmp_path, seed, hits=2)


@pytest.mark.fault
@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("seed", range(2, SEEDS))
def test_a_device_whose_world_is_killed_again_and_again(tmp_path: Path, seed: int) -> None:
    killed(tmp_path, seed, hits=4)
