"""Workers of consumer groups and the broker, killed with SIGKILL: each message is done, and no confirmed one again."""

import os
from pathlib import Path

import pytest

from tests.fault.group_chaos import GroupChaos

#: A group whose messages are lost lags for ever: the history then fails with its own text after 120 s.
pytestmark = pytest.mark.timeout(300)

SEEDS = int(os.environ.get("OMQ_FAULT_SEEDS", "200"))
KINDS = ("strong", "weak")


def killed(directory: Path, seed: int, port: int, kills: int = 12) -> GroupChaos:
    """Plays one history."""
    chaos = GroupChaos(directory, seed, port, KINDS[seed % len(KINDS)])
    chaos.run(kills)
    return chaos


def test_groups_survive_kills_of_workers_and_of_the_broker(tmp_path, free_port):
    chaos = killed(tmp_path, 0, free_port, kills=5)
    assert len(chaos.published) > 1000


@pytest.mark.fault
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, SEEDS))
def test_groups_survive_many_kills(seed, tmp_path, free_port):
    assert killed(tmp_path, seed, free_port).published
