"""A device on a disk that is full, fails, or has damage: each is reported, and what can go on goes on."""

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import closing
from pathlib import Path

import pytest
import zmq

from omq.pzq import Device
from omq.store.errors import DamagedError
from tests.support.disks import needs_strace, strace
from tests.support.libzmq_pzq_clients import asked, figures, raw
from tests.support.waits import until

ROOT = Path(__file__).parents[2]
TCP = "tcp://127.0.0.1:*"
NO_REDELIVERY_US = 600_000_000  # as `ack_timeout`: a slow disk must not repeat what has been counted


@pytest.mark.parametrize("hard_sync", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_full_disk_refuses_delivers_and_takes_again(small_disk: Path, hard_sync: bool) -> None:
    with (
        Device(
            small_disk / "data", hard_sync=hard_sync, ack_timeout=NO_REDELIVERY_US, monitor=TCP, http="127.0.0.1:0"
        ) as device,
        raw(zmq.DEALER, device.endpoints["receive"]) as producer,
        raw(zmq.ROUTER, device.endpoints["send"]) as consumer,
    ):
        kept = 0
        while (answer := asked(producer, b"id", b"", b"%d" % kept + bytes(5000)))[1] == b"1":
            kept += 1
        assert kept > 20
        assert answer[:3] == [b"id", b"0", b""]
        assert b"disk is full" in answer[3]
        assert figures(device.endpoints["monitor"])["full"]
        with urllib.request.urlopen(f"{device.endpoints['http']}/healthz", timeout=10) as health:
            assert health.read() == b"ok, but the disk is full\n"
        for number in range(kept):
            peer, key, *_, body = consumer.recv_multipart()
            assert body.startswith(b"%d\0" % number)
            consumer.send_multipart([peer, key, b"1"])
        until(lambda: figures(device.endpoints["monitor"])["messages"] == 0)
        until(lambda: asked(producer, b"id", b"", b"again")[1] == b"1")
        assert consumer.recv_multipart()[5] == b"again"
        until(lambda: not figures(device.endpoints["monitor"])["full"], bound=20)


@pytest.mark.slow
@pytest.mark.parametrize("hard_sync", [False, True])
def test_what_is_acknowledged_on_a_full_disk_makes_room_as_often_as_it_is_full(
    small_disk: Path, hard_sync: bool
) -> None:
    with (
        Device(small_disk / "data", hard_sync=hard_sync, ack_timeout=NO_REDELIVERY_US, monitor=TCP) as device,
        raw(zmq.DEALER, device.endpoints["receive"]) as producer,
        raw(zmq.ROUTER, device.endpoints["send"]) as consumer,
    ):
        for _ in range(3):
            kept, refused = 0, 0
            while refused < 20:
                if asked(producer, b"id", b"", bytes(1000))[1] == b"1":
                    kept += 1
                else:
                    refused += 1
            assert kept > 20
            for _ in range(kept):
                peer, key, *_ = consumer.recv_multipart()
                consumer.send_multipart([peer, key, b"1"])
            until(lambda: figures(device.endpoints["monitor"])["messages"] == 0)


@needs_strace
def test_a_sync_that_fails_ends_all_acknowledging(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    command = [*strace("fdatasync:error=EIO:when=12+"), sys.executable, "-m", "omq.cli.main", "pzq", "--hard-sync"]
    command += [f"--database={tmp_path / 'data'}", *(f"--{name}-dsn={TCP}" for name in ("receive", "send", "monitor"))]
    process = subprocess.Popen(
        [*command, "--http=127.0.0.1:0", f"--ready-file={ready}"], cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    try:
        until(lambda: ready.exists() or process.poll() is not None, bound=30)
        where = json.loads(ready.read_bytes())
        with raw(zmq.DEALER, where["receive"]) as producer, raw(zmq.ROUTER, where["send"]) as consumer:
            kept = 0
            while (answer := asked(producer, b"id", b"", b"%d" % kept))[1] == b"1":
                kept += 1
                assert kept < 100
            assert b"the store has failed" in answer[3]
            assert asked(producer, b"id", b"", b"more")[1] == b"0"
            assert figures(where["monitor"])["failed"]
            with pytest.raises(urllib.error.HTTPError, match="503"):
                urllib.request.urlopen(f"{where['http']}/healthz", timeout=10)
            if kept:
                assert consumer.recv_multipart()[5] == b"0"  # what is there can be read
        (found,) = (int(line) for line in [(tmp_path / "data" / "lock").read_text().strip()])
        os.kill(found, 15)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.communicate()
    with Device(tmp_path / "data", monitor=TCP) as device:
        assert figures(device.endpoints["monitor"])["messages"] in (kept, kept + 1)


def test_damaged_messages_are_passed_over_and_reported(tmp_path: Path) -> None:
    with closing(Device(tmp_path / "data", hard_sync=True)) as device:
        device.start()
        with raw(zmq.DEALER, device.endpoints["receive"]) as producer:
            for body in (b"a" * 5000, b"damaged" * 1000, b"c" * 5000):
                assert asked(producer, b"id", b"", body)[1] == b"1"
    path = tmp_path / "data" / "strong" / "data.mdb"
    content = bytearray(path.read_bytes())
    at = content.index(b"damaged" * 100)
    content[at] ^= 1
    path.write_bytes(content)
    with (
        Device(tmp_path / "data", hard_sync=True, monitor=TCP) as device,
        raw(zmq.ROUTER, device.endpoints["send"]) as consumer,
    ):
        found = [consumer.recv_multipart()[5][:1] for _ in range(2)]
        assert found == [b"a", b"c"]
        until(lambda: figures(device.endpoints["monitor"])["messages"] == 2)
        assert figures(device.endpoints["monitor"])["damaged"] == 1


def test_a_store_that_is_no_store_any_more_is_refused(tmp_path: Path) -> None:
    with Device(tmp_path / "data", hard_sync=True):
        pass
    path = tmp_path / "data" / "strong" / "data.mdb"
    path.write_bytes(path.read_bytes()[: 4096 + 100])
    with pytest.raises(DamagedError):
        Device(tmp_path / "data", hard_sync=True).start()
