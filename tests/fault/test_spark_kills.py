"""Structured Streaming from topic to topic while its JVM, workers and broker are killed: every row arrives once."""

import os
from pathlib import Path

import pytest

from tests.fault.spark_chaos import KILLS, SparkChaos
from tests.support.ports import held
from tests.system.spark.conftest import MISSING

#: Histories of six kills each: sixty where the tests of faults run as they usually do.
SEEDS = max(int(os.environ.get("OMQ_FAULT_SEEDS", "200")) // 20, 2)
EACH = 6

pytestmark = [
    pytest.mark.fault,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(MISSING), reason=f"!! SPARK IS NOT TESTED: {MISSING}"),
]


@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_row_arrives_once_whatever_is_killed(seed: int, tmp_path: Path) -> None:
    with held() as port:
        chaos = SparkChaos(tmp_path, seed, port)
        try:
            chaos.play(EACH)
        finally:
            chaos.end()
    assert len(chaos.kills) == EACH
    assert set(chaos.kills) <= set(KILLS)
