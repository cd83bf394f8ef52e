"""The process of a host that has a sink's connection, and those that write through it."""

import secrets
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass

import pytest

pa = pytest.importorskip("pyarrow", reason="!! omq.spark IS NOT TESTED: pip install 'omq-zmtp[spark]'")

from omq.spark.live import host_writer  # noqa: E402


@dataclass
class Count:
    rows: int


class Counter:
    """A sender that counts batches."""

    closed = False

    def send(self, batches: Iterable[object]) -> Count:
        return Count(len(list(batches)))

    def close(self) -> None:
        self.closed = True


def test_a_process_that_sends_nothing_delays_others_only_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_writer, "REQUEST_TIMEOUT_S", 0.3)
    key = secrets.token_hex(8)
    writer = host_writer.claim(key, 60, Counter)
    assert writer is not None
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent:
        silent.connect(host_writer._name(key))
        begun = time.monotonic()
        assert host_writer.deliver(key, iter(())) == {"rows": 0}
        assert time.monotonic() < begun + 5
    batch = pa.RecordBatch.from_pydict({"value": [b"1"]})
    assert host_writer.deliver(key, iter([batch, batch])) == {"rows": 2}
    writer.abandon()
    host_writer._kept.clear()
