"""Histories of clients of brokers that are killed, stopped and emptied: as of one broker without faults."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.fault.cluster_histories import Brokers, Run, cluster_of_brokers, plain_broker

pytestmark = pytest.mark.timeout(400)

SEEDS = int(os.environ.get("OMQ_FAULT_SEEDS", "200"))
SECONDS = 10.0


def run(brokers: Brokers, seed: int, seconds: float = SECONDS) -> Run:
    """Runs a seed; if its check fails, the faults and the logs are printed."""
    made = Run(brokers, seed)
    try:
        made.run(seconds)
    except BaseException:
        sys.stderr.write("\n".join([*made.faults, brokers.log(), ""]))
        raise
    return made


def plain(tmp_path: Path, port: int, seed: int, seconds: float = SECONDS) -> Run:
    with plain_broker(tmp_path, port) as broker:
        return run(broker, seed, seconds)


def cluster(tmp_path: Path, seed: int, seconds: float = 2 * SECONDS) -> Run:
    pytest.importorskip("nats")
    pytest.importorskip("tests.support.broker_cluster")
    with cluster_of_brokers(tmp_path) as brokers:
        return run(brokers, seed, seconds)


def test_a_history_of_a_broker(tmp_path: Path, free_port: int) -> None:
    made = plain(tmp_path, free_port, 0, seconds=5.0)
    assert len(made.messages) > 5
    assert len(made.faults) > 1


@pytest.mark.slow
def test_a_history_that_loses_messages_is_found(tmp_path: Path, free_port: int) -> None:
    with plain_broker(tmp_path, free_port, "async") as broker:
        made = Run(broker, 0)
        with pytest.raises(AssertionError, match=r"lost|none of these can be next"):
            made.run(5.0)
        assert any("kill" in fault for fault in made.faults)


@pytest.mark.fault
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, SEEDS // 10))
def test_histories_of_a_broker(seed: int, tmp_path: Path, free_port: int) -> None:
    assert plain(tmp_path, free_port, seed).messages


@pytest.mark.slow
@pytest.mark.xdist_group("nats")
def test_a_history_of_a_cluster(tmp_path: Path) -> None:
    made = cluster(tmp_path, 0)
    assert made.messages
    assert made.faults


@pytest.mark.fault
@pytest.mark.slow
@pytest.mark.xdist_group("nats")
@pytest.mark.parametrize("seed", range(1, SEEDS))
def test_histories_of_a_cluster(seed: int, tmp_path: Path) -> None:
    assert cluster(tmp_path, seed).messages
