"""`omq monitor`."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import omq
from tests.support.fork_server import ForkedProcess
from tests.system.cli.command_process import failed, finished, start


def event(process: ForkedProcess) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(process.stdout.readline())
    return found


def test_events_of_a_bound_socket_as_json() -> None:
    process = start("monitor", "pub", "-b", "tcp://127.0.0.1:*", "--json")
    listening = event(process)
    assert listening["kind"] == "listening"
    with omq.SUB(connect=listening["endpoint"], subscribe=b"A\xff"):
        assert event(process)["kind"] == "accepted"
        ready = event(process)
        assert (ready["kind"], ready["mechanism"], ready["socket_type"]) == ("handshake_succeeded", "NULL", "SUB")
        subscribed = event(process)
        assert (subscribed["kind"], subscribed["prefix"]) == ("subscribed", "A\\xff")
    assert event(process)["kind"] == "disconnected"
    os.kill(process.pid, signal.SIGTERM)
    finished(process)


def test_events_of_a_connected_socket_as_lines(free_place: str) -> None:
    process = start("monitor", "push", "-c", free_place, "-n", "3")
    lines = finished(process).decode().splitlines()
    kinds = [line.split()[1] for line in lines]
    assert kinds == ["connect_delayed", "connect_failed", "connect_retried"]
    assert free_place in lines[1]
    assert "refused" in lines[1]
    assert "delay=0." in lines[2]


def test_errors_are_one_line(free_place: str) -> None:
    assert "'some'" in failed(start("monitor", "some", "-b", free_place), 2)
    assert "subscribe" in failed(start("monitor", "pull", "-b", free_place, "-s", "A"), 2)
    assert "0.1 s" in failed(start("monitor", "pull", "-b", free_place, "-n", "2", "-t", "0.1"))
