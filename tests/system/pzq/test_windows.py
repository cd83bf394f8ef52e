"""Producers of the original that send ahead of their answers: every message has one, in the order of the messages."""

from __future__ import annotations

from pathlib import Path

import pytest
import zmq

from omq.pzq import Device
from tests.support.libzmq_pzq_clients import figures, raw
from tests.support.pzq_nodes import cluster

pytestmark = pytest.mark.timeout(120)
MESSAGES = 5_000


def answers(endpoint: str, window: int, count: int) -> list[list[bytes]]:
    """Returns the answers to *count* messages, of which a bounded number wait for their answers at a time."""
    got: list[list[bytes]] = []
    with raw(zmq.DEALER, endpoint, rcvhwm=0) as producer:
        for number in range(count):
            if number - len(got) >= window:
                got.append(producer.recv_multipart())
            producer.send_multipart([b"%d" % number, b"", b"x" * (number % 50)])
        while len(got) < count:
            got.append(producer.recv_multipart())
    return got


@pytest.mark.slow
@pytest.mark.parametrize("window", [1, 8, 200, MESSAGES])
def test_no_answer_is_lost_at_any_window(tmp_path: Path, window: int) -> None:
    count = MESSAGES if window > 1 else 500
    with Device(tmp_path / "data", monitor="tcp://127.0.0.1:*") as device:
        assert answers(device.endpoints["receive"], window, count) == [[b"%d" % n, b"1", b""] for n in range(count)]
        assert figures(device.endpoints["monitor"])["messages"] == count


def test_no_answer_is_lost_where_messages_are_replicated(tmp_path: Path) -> None:
    with cluster(tmp_path, "--replicas", "1", "--timeout-replication", "20000000") as nodes:
        for window, count in ((1, 100), (8, 1000), (200, 2000), (2000, 2000)):
            got = answers(nodes[0].receive, window, count)
            assert got == [[b"%d" % n, b"1", b""] for n in range(count)]
        assert nodes[0].figures()["messages"] == 5_100
