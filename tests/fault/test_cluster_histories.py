"""Histories of clients of brokers that are killed, stopped and emptied: as of one broker without faults."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

import pytest

from tests.fault.cluster_histories import Brokers, Run
from tests.fault.history_brokers import CUTS, cluster_of_brokers, plain_broker
from tests.support.network_namespaces import Unavailable

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


def cluster(
    tmp_path: Path, seed: int, seconds: float = 1.5 * SECONDS, *, partitions: bool = False, snapshots: bool = False
) -> Run:
    pytest.importorskip("nats")
    with contextlib.ExitStack() as kept:
        try:
            brokers = kept.enter_context(cluster_of_brokers(tmp_path, partitions=partitions, snapshots=snapshots))
        except Unavailable as error:
            pytest.skip(str(error))
        made = run(brokers, seed, seconds)
        assert not snapshots or brokers.loads, "no broker has loaded a snapshot"
        return made


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


@pytest.mark.slow
@pytest.mark.xdist_group("nats")
def test_a_history_of_a_cluster_with_partitions_and_snapshots(tmp_path: Path) -> None:
    made = cluster(tmp_path, 0, partitions=True, snapshots=True)
    assert made.messages
    assert any(fault.split()[1] in CUTS for fault in made.faults)


@pytest.mark.fault
@pytest.mark.slow
@pytest.mark.xdist_group("nats")
@pytest.mark.parametrize("seed", range(1, SEEDS))
def test_histories_of_a_cluster(seed: int, tmp_path: Path) -> None:
    # Half of them with a network, a third with snapshots.
    assert cluster(tmp_path, seed, partitions=seed % 2 == 1, snapshots=seed % 3 == 0).messages
