"""Parameters that several commands share."""

from __future__ import annotations

import logging

import pytest

from omq.broker.config import Config
from omq.cli import broker
from omq.cli.parameters import is_loopback, is_reachable

HERE = ["127.0.0.1", "127.8.9.1", "localhost", "LocalHost", "[::1]"]
ELSEWHERE = [
    "*",
    "0.0.0.0",
    "[::]",
    "10.0.0.1",
    "eth0",
    "127.example.com",
    "127.0.0.1.example.com",
    "localhost.example.com",
    "localhost-2",
    "[::12]",
    "[::1:2]",
]


@pytest.mark.parametrize("host", [*HERE, *ELSEWHERE])
@pytest.mark.parametrize("form", ["tcp://{}:5555", "tcp://{}:*", "ws://{}:80/path:1", "wss://{}:443/"])
def test_an_endpoint_is_reachable_unless_its_host_is_this_machine(host: str, form: str) -> None:
    assert is_reachable(form.format(host)) == (host in ELSEWHERE)
    assert is_loopback(host.strip("[]")) == (host in HERE)


@pytest.mark.parametrize("endpoint", ["ipc:///tmp/a", "ipc://@a", "inproc://a", "inproc://10.0.0.1:1"])
def test_endpoints_within_a_machine_are_not_reachable(endpoint: str) -> None:
    assert not is_reachable(endpoint)


@pytest.mark.parametrize(("http", "warns"), [("localhost:1", False), ("[::1]:1", False), ("127.example.com:1", True)])
def test_a_reachable_status_page_is_reported(http: str, warns: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    broker.log_warnings(Config(bind=(), http=http))
    assert ("the status page shows every topic's name" in caplog.text) == warns
