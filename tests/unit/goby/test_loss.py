"""A router that stalls, or is lost, and what its portals make of that."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import omq
import omq.asyncio.goby as twin
from omq.goby import Daemon, Portal
from tests.support.fork_server import ForkedProcess
from tests.support.waits import until
from tests.unit.goby.conftest import Make, Twin

pytestmark = pytest.mark.timeout(60)

MAIN = "from omq.cli.main import main; main()"
MANY = 3000  # publications, more than the marks have room for


@contextmanager
def stalled(daemon: Daemon) -> Iterator[None]:
    """Has a gobyd's router stand still."""
    assert daemon._router is not None
    daemon._router._xpub.set_options(send_hwm=0)  # all that has come meanwhile leaves at once
    daemon._router._control.send(b"PAUSE")
    try:
        yield
    finally:
        daemon._router._control.send(b"RESUME")


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has portals wait less long for a router that stalls."""
    monkeypatch.setattr("omq.goby.portal_base.BARRIER_TIMEOUT_S", 0.05)
    monkeypatch.setattr("omq.goby.portal_base.LINGER_S", 0.02)


def test_a_router_that_stalls_while_what_waits_leaves_costs_nothing(tmp_path: Path, hasty: None) -> None:
    received: list[int] = []
    with Daemon(socket_name=tmp_path / "g") as daemon, Portal("b", socket_name=tmp_path / "g") as b:
        b.subscribe("n", str, lambda text: received.append(int(text.split()[0])))
        b.wait_released(10)
        with Portal("a", socket_name=tmp_path / "g") as a:
            a.wait_released(10)
            with stalled(daemon):
                a.subscribe("late", str)
                for number in range(MANY):
                    a.publish("n", f"{number} {'x' * 10_000}")
                with pytest.raises(omq.SendTimeout):
                    a.flush(1.0)
            a.flush(30)
            until(lambda: len(received) == MANY, lambda: len(received))
    assert received == list(range(MANY))


def test_and_nothing_of_the_twin(tmp_path: Path, hasty: None) -> None:
    received: list[int] = []

    async def run(daemon: Daemon) -> None:
        async with twin.Portal("a", socket_name=tmp_path / "g") as a:
            await a.wait_released(10)
            with stalled(daemon):
                a.subscribe("late", str)
                for number in range(MANY):
                    await a.publish("n", f"{number} {'x' * 10_000}")
                with pytest.raises(omq.SendTimeout):
                    await a.flush(1.0)
            await a.flush(30)

    with Daemon(socket_name=tmp_path / "g") as daemon, Portal("b", socket_name=tmp_path / "g") as b:
        b.subscribe("n", str, lambda text: received.append(int(text.split()[0])))
        b.wait_released(10)
        asyncio.run(run(daemon))
        until(lambda: len(received) == MANY, lambda: len(received))
    assert received == list(range(MANY))


def test_a_publisher_that_alone_is_cut_off_is_noticed(portal: Twin, bus: Make) -> None:
    with portal("a", **bus().bus_options) as a:
        a.wait_released(10)
        assert a._router is not None
        a._pub.disconnect(a._router.publish)
        a._pub.connect(a._router.publish)
        until(lambda: not a.released, bound=5)
        a.wait_released(10)


@contextmanager
def gobyd(folder: Path, port: int) -> Iterator[ForkedProcess]:
    """A gobyd of another process, over tcp."""
    ready = folder / "ready.json"
    options = ("--transport=tcp", f"--tcp-port={port}", "--bind-address=127.0.0.1", "--ready-file", ready)
    process = ForkedProcess("-c", MAIN, "gobyd", *options, stderr=subprocess.DEVNULL)
    try:
        until(ready.exists)
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_a_gobyd_whose_host_falls_silent_is_missed_by_subscribers(
    portal: Twin, tmp_path: Path, free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omq.goby.portal_base.HEARTBEAT_INTERVAL_S", 0.3)
    with (
        gobyd(tmp_path, free_port) as process,
        portal("a", transport="tcp", port=free_port) as a,
        portal("b", transport="tcp", port=free_port) as b,
    ):
        texts = a.subscribe("x", str)
        for portal in a, b:
            portal.wait_released(10)
        at = a._connections()
        with pytest.raises(omq.ReceiveTimeout):
            texts.recv(timeout=1.0)
        assert a._connections() == at, "a quiet one is not taken for a lost one"
        process.send_signal(signal.SIGSTOP)
        until(lambda: not a.released and not b.released, bound=10)
        b.publish("x", "kept")
        process.send_signal(signal.SIGCONT)
        for portal in a, b:
            portal.wait_released(10)
        assert texts.recv(timeout=10) == "kept"


def test_a_callback_may_wait_for_a_release(bus: Make) -> None:
    first = bus()
    waited: list[str] = []
    with Portal("a", **first.bus_options) as a:

        def wait(text: str) -> None:
            first.daemon.close()
            until(lambda: not a.released)
            a.publish("kept", "text")
            again = threading.Timer(0.2, bus)
            again.start()
            a.wait_released(10)
            waited.append("release")
            a.flush(10)
            waited.append("flush")
            again.join()

        a.subscribe("x", str, wait)
        kept = a.subscribe("kept", str)
        a.wait_released(10)
        a.publish("x", "text")
        assert kept.recv(timeout=20) == "text"
        until(lambda: waited == ["release", "flush"])


def test_a_release_is_handled_while_a_callback_takes_long(bus: Make) -> None:
    """A release by gobyd does not release later holds; and a portal whose callback takes long receives both."""
    first = bus()
    slow, seen = threading.Event(), threading.Event()

    def take(text: str) -> None:
        seen.set()
        slow.wait(20)

    with Portal("a", **first.bus_options) as a:
        try:
            a.subscribe("x", str, take)
            a.wait_released(10)
            a.publish("x", "text")
            assert seen.wait(10)
            first.daemon.close()
            until(lambda: not a.released)
            second = bus()
            a.wait_released(10)
            second.daemon.close()
            until(lambda: not a.released)
            a.publish("kept", "text")
            third = bus(required_clients=["x"])
            until(lambda: bool(a.missing(timeout=1)))
            slow.set()
            with pytest.raises(omq.Timeout, match="it waits for x"):
                a.wait_released(0.5)
            assert third.daemon.missing == ["x"]
            assert a.waiting == 1
        finally:
            slow.set()
