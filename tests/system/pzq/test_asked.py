"""A producer that waits for each answer: the device looks for its next request before it sleeps."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import zmq

from omq.pzq.device.producer_server import SLOW_WRITE_S, THREAD_WRITES_S
from omq.store.lmdb.store import LmdbStore
from tests.support.libzmq_pzq_clients import asked, figures, raw
from tests.system.pzq.conftest import Make
from tests.system.pzq.test_command import device

pytestmark = pytest.mark.timeout(60)


def processor_time(pid: int) -> float:
    """Seconds that a process has computed for."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_an_idle_device_sleeps_also_between_rare_requests(tmp_path: Path) -> None:
    with (
        device(tmp_path, f"--database={tmp_path / 'data'}") as (process, where),
        raw(zmq.DEALER, where["receive"]) as producer,
    ):
        for pause in (None, 0.002):
            for number in range(500):
                assert asked(producer, b"%d" % number, b"", b"body") == [b"%d" % number, b"1", b""]
            before, began = processor_time(process.pid), time.monotonic()
            while time.monotonic() - began < 0.5:
                if pause is None:
                    time.sleep(0.1)
                else:
                    time.sleep(pause)
                    assert asked(producer, b"id", b"", b"body") == [b"id", b"1", b""]
            assert processor_time(process.pid) - before < 0.2


@pytest.mark.slow
def test_consumers_are_served_next_to_producers_that_ask_without_a_pause(tmp_path: Path) -> None:
    with (
        device(tmp_path, f"--database={tmp_path / 'data'}") as (_, where),
        raw(zmq.DEALER, where["receive"]) as producer,
        raw(zmq.ROUTER, where["send"]) as consumer,
    ):
        taken: list[bytes] = []

        def consume() -> None:
            while len(taken) < 2000:
                frames = consumer.recv_multipart()
                taken.append(frames[-1])
                consumer.send_multipart([frames[0], frames[1], b"1"])

        thread = threading.Thread(target=consume, daemon=True)
        thread.start()
        worst = 0.0
        for number in range(2000):
            assert asked(producer, b"id", b"", b"%d" % number) == [b"id", b"1", b""]
            if number % 100 == 99:
                began = time.monotonic()
                while len(taken) < number - 50:
                    time.sleep(0.001)
                    assert time.monotonic() - began < 10
                worst = max(worst, time.monotonic() - began)
        thread.join(10)
        assert taken == [b"%d" % number for number in range(2000)]
        assert worst < 5


def test_a_disk_that_is_behind_does_not_hold_up_the_loop(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    began: list[float] = []
    write_at_once = LmdbStore.write_at_once

    def slowly(store: LmdbStore, writes: list[Any], *, allow_wal: bool = False) -> bool:
        if allow_wal:
            began.append(time.monotonic())
            time.sleep(2 * SLOW_WRITE_S)
        return write_at_once(store, writes, allow_wal=allow_wal)

    monkeypatch.setattr(LmdbStore, "write_at_once", slowly)
    device = make()
    with raw(zmq.DEALER, device.endpoints["receive"]) as producer:
        start = time.monotonic()
        while time.monotonic() < start + 2.5 * THREAD_WRITES_S:
            assert asked(producer, b"id", b"", b"body") == [b"id", b"1", b""]
        assert 2 <= len(began) <= 1 + (time.monotonic() - start) / THREAD_WRITES_S
        stats = figures(device.endpoints["monitor"])
        assert stats["messages"] == stats["stored"] > 100


def test_figures_add_up_while_a_producer_asks(tmp_path: Path) -> None:
    monitor = f"ipc://{tmp_path / 'm'}"
    with (
        device(tmp_path, f"--database={tmp_path / 'data'}", f"--monitor-dsn={monitor}") as (_, where),
        raw(zmq.DEALER, where["receive"]) as producer,
    ):
        ended = threading.Event()

        def ask() -> None:
            while not ended.is_set():
                assert asked(producer, b"id", b"", b"body") == [b"id", b"1", b""]

        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        try:
            for _ in range(100):
                stats = figures(monitor)
                # The store's thread may have just committed the one message that is not answered yet.
                assert stats["messages"] - stats["stored"] in (0, 1)
        finally:
            ended.set()
            thread.join(10)
        assert stats["stored"] > 100
