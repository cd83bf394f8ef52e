"""A store whose process is killed at random moments, and at each system call that writes."""

import os
import random
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fault.store_history import History
from tests.support.disks import needs_strace, strace

SEEDS = int(os.environ.get("OMQ_FAULT_SEEDS", "200"))
QUICK = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
CALLS = ["pwrite64", "writev", "fdatasync"]
slow = pytest.mark.slow  # each call is killed or fails in one of the three tests that run always


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=QUICK) as path:
        yield Path(path) / "store"


def killed_somewhere(directory: Path, seed: int) -> None:
    """Runs three processes in turn, each killed after some time, and then one that ends by itself."""
    history = History()
    chance = random.Random(seed)
    for round_number in range(3):

        def kill(process: subprocess.Popen[bytes]) -> None:
            timer = threading.Timer(chance.uniform(0.15, 0.5), process.kill)
            timer.daemon = True
            timer.start()

        history.run(directory, 1000 * seed + round_number, 100_000, kill=kill)
        if chance.random() < 0.5:
            history.check(directory)
    assert history.run(directory, 1000 * seed + 9, 20) == 0
    assert history.over
    assert history.failed == []
    assert {number for number, kind in history.kinds.items() if kind == "append"} <= set(history.done)
    history.check(directory)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_somewhere(directory: Path, seed: int) -> None:
    killed_somewhere(directory, seed)


@pytest.mark.fault
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(2, SEEDS))
def test_killed_somewhere_many_times(directory: Path, seed: int) -> None:
    killed_somewhere(directory, seed)


def killed_at(directory: Path, call: str, number: int) -> bool:
    """Kills a process at its nth system call of a kind; returns false if it makes fewer."""
    history = History()
    history.run(directory, 1, 12)
    status = history.run(directory, 2, 12, *strace(f"{call}:signal=KILL:when={number}"))
    if history.over:
        assert status == 0
        return False
    assert status in (-signal.SIGKILL, 128 + signal.SIGKILL)
    history.check(directory)
    history.run(directory, 3, 5)
    assert history.over
    history.check(directory)
    return True


@needs_strace
@pytest.mark.parametrize(
    ("call", "number"),
    [("pwrite64", 9), pytest.param("writev", 6, marks=slow), pytest.param("fdatasync", 6, marks=slow)],
)
def test_killed_at_a_call(directory: Path, call: str, number: int) -> None:
    # The number of calls depends on how writes are grouped.
    assert any(killed_at(directory / str(one), call, one) for one in (number, number // 2, 1))


@needs_strace
@pytest.mark.fault
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("call", [*CALLS, "fsync", "ftruncate", "rename"])
def test_killed_at_each_call(directory: Path, call: str) -> None:
    number = 1
    while killed_at(directory / str(number), call, number):
        number += 1
    assert number > 1


def failing_at(directory: Path, call: str, number: int, error: str) -> History | None:
    """Lets one system call fail, and checks that answered writes are there; `None` if it is made less often."""
    history = History()
    history.run(directory, 1, 5)
    done = len(history.done)
    history.run(directory, 2, 25, *strace(f"{call}:error={error}:when={number}"))
    if not history.failed:
        return None
    assert len(history.done) >= done
    assert history.over, "what was committed could not be read any more"
    kinds = set(history.failed)
    history.check(directory)
    history.failed.clear()
    history.run(directory, 3, 5)
    assert history.over
    assert history.failed == []
    history.check(directory)
    history.failed = sorted(kinds)
    return history


@needs_strace
@pytest.mark.parametrize(
    "call", [pytest.param("pwrite64", marks=slow), pytest.param("writev", marks=slow), "fdatasync"]
)
def test_after_a_failed_write_nothing_is_acknowledged(directory: Path, call: str) -> None:
    some = (failing_at(directory / str(number), call, number, "EIO") for number in (8, 6, 4, 2))
    history = next((one for one in some if one is not None), None)
    assert history is not None
    assert "StoreFailed" in history.failed
    assert set(history.failed) <= {"StoreFailed", "UnknownTopic"}


@needs_strace
@pytest.mark.fault
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("call", CALLS)
def test_each_write_fails(directory: Path, call: str) -> None:
    for number in range(1, 30):
        history = failing_at(directory / str(number), call, number, "EIO")
        # A topic whose creation failed does not exist afterwards.
        assert history is None or "StoreFailed" in history.failed
        assert history is None or set(history.failed) <= {"StoreFailed", "UnknownTopic"}


@pytest.mark.slow
@needs_strace
def test_space_that_comes_back_is_used(directory: Path) -> None:
    # The number of calls depends on how writes are grouped.
    some = (failing_at(directory / str(number), "writev", number, "ENOSPC") for number in (4, 2, 1))
    history = next((one for one in some if one is not None), None)
    assert history is not None
    assert "OutOfSpace" in history.failed
    assert set(history.failed) <= {"OutOfSpace", "StageError"}  # a failed stage cannot be committed
