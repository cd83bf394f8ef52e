"""Reports to the service manager, at real datagram sockets."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from omq.serving.notify import ServiceNotifier

log = logging.getLogger("omq.test")


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The socket of a service manager, in the environment."""
    for name in ("WATCHDOG_USEC", "WATCHDOG_PID"):
        monkeypatch.delenv(name, raising=False)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.settimeout(10)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield sock


def test_each_state_is_one_datagram(manager: socket.socket) -> None:
    notifier = ServiceNotifier(log)
    notifier.ready()
    assert manager.recv(100) == b"READY=1"
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    notifier.reloading()
    first, second = manager.recv(100).split(b"\n")
    assert first == b"RELOADING=1"
    name, _, number = second.partition(b"=")
    assert (name, before <= int(number) <= before + 10_000_000) == (b"MONOTONIC_USEC", True)
    notifier.stopping()
    assert manager.recv(100) == b"STOPPING=1"
    notifier.ready()  # a reload that has finished late
    notifier.stopping()
    manager.setblocking(False)
    with pytest.raises(BlockingIOError):
        manager.recv(100)


def test_an_abstract_address(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind("")  # Linux chooses an abstract address
        sock.settimeout(10)
        monkeypatch.setenv("NOTIFY_SOCKET", "@" + sock.getsockname()[1:].decode())
        ServiceNotifier(log).ready()
        assert sock.recv(100) == b"READY=1"


@pytest.mark.parametrize("of_this_process", [True, False])
async def test_keep_alive_pings_while_the_loop_runs(
    manager: socket.socket, monkeypatch: pytest.MonkeyPatch, of_this_process: bool
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "20000")
    if of_this_process:
        monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    manager.setblocking(False)
    loop = asyncio.get_running_loop()
    notifier = ServiceNotifier(log)
    notifier.ping_watchdog()
    assert [await loop.sock_recv(manager, 100) for _ in range(5)] == [b"WATCHDOG=1"] * 5
    notifier.stopping()
    while (state := await loop.sock_recv(manager, 100)) != b"STOPPING=1":
        assert state == b"WATCHDOG=1"
    assert notifier._timer is not None
    assert notifier._timer.cancelled()


@pytest.mark.parametrize(
    ("microseconds", "process"), [(None, None), ("20000", "1"), ("soon", None), ("0", None), ("-5", None), ("", None)]
)
async def test_no_keep_alive_ping_is_expected(
    manager: socket.socket, monkeypatch: pytest.MonkeyPatch, microseconds: str | None, process: str | None
) -> None:
    if microseconds is not None:
        monkeypatch.setenv("WATCHDOG_USEC", microseconds)
    if process is not None:
        monkeypatch.setenv("WATCHDOG_PID", process)
    notifier = ServiceNotifier(log)
    notifier.ping_watchdog()
    notifier.ready()
    assert manager.recv(100) == b"READY=1"


def test_a_wrong_interval_is_named(
    manager: socket.socket, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "soon")
    ServiceNotifier(log)
    assert "WATCHDOG_USEC='soon': must be a number of microseconds" in caplog.text


def test_without_a_manager_nothing_is_sent(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    notifier = ServiceNotifier(log)
    notifier.ready()
    notifier.stopping()
    assert caplog.text == ""


@pytest.mark.parametrize("address", ["/nowhere/notify", "/" + "x" * 200, "vsock:2:1234"])
def test_a_manager_that_is_not_there_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, address: str
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    notifier = ServiceNotifier(log)
    notifier.ready()
    notifier.stopping()
    (line,) = caplog.records
    assert f"NOTIFY_SOCKET={address!r}: " in line.getMessage()


def test_a_manager_that_does_not_read_does_not_stop_the_server(manager: socket.socket) -> None:
    notifier = ServiceNotifier(log)
    for _ in range(10_000):  # more than the socket queues
        notifier.ready()
    assert b"READY=1" in manager.recv(4096)
