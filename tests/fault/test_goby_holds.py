"""Three required clients in any order, of which one may crash and return and one may be late: nothing is lost."""

import os
from pathlib import Path

import pytest

from tests.fault.goby_chaos import play

SEEDS = int(os.environ.get("OMQ_FAULT_SEEDS", "200"))
BOUND = 0.1  # seconds from the last "ready" to the first delivery

pytestmark = pytest.mark.timeout(60)


@pytest.mark.alone
@pytest.mark.parametrize("seed", range(2))
def test_what_is_published_during_the_hold_arrives_once_and_in_order(tmp_path: Path, seed: int) -> None:
    assert play(tmp_path, seed) <= BOUND


@pytest.mark.fault
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, SEEDS))
def test_every_publication_arrives_after_any_history(tmp_path: Path, seed: int) -> None:
    assert play(tmp_path, seed) <= BOUND
