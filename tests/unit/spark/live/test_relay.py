"""The process of a host that has a sink's connection, and those that write through it."""

import secrets
import socket
import time
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow", reason="!! omq.spark IS NOT TESTED: pip install 'omq-zmtp[spark]'")

from omq.spark.live import relay  # noqa: E402


def test_one_that_says_nothing_keeps_nobody_waiting_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "PATIENCE", 0.3)
    key = secrets.token_hex(8)
    claim = relay.Claim(key, 60)
    claim.start(lambda request, stream: {"rows": stream.readline().decode()}, lambda: None)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent:
        silent.connect(relay._name(key))
        begun = time.monotonic()
        answer: Any = relay.deliver(key, {}, iter(()))
        assert answer == {"rows": "none\n"}
        assert time.monotonic() < begun + 5
    claim.abandon()
