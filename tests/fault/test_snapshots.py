"""Snapshots of a store under load, while its process and that of the snapshot are killed at random moments."""

import os
import random
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from omq.store.lmdb.snapshot import restore_snapshot
from tests.fault.store_history import History
from tests.support import snapshot_process
from tests.support.fork_server import run
from tests.support.waits import until

SEEDS = int(os.environ.get("OMQ_FAULT_SEEDS", "200"))
QUICK = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
KILLS = 3


@dataclass
class Taken:
    """A snapshot that was reported as done, and what was acknowledged before it began."""

    path: Path
    done: dict[int, int | None]
    acked: list[tuple[int, int]]
    position: int


class Snapshots:
    """Takes snapshots of a store one after the other, checks them, and kills some of the processes that make them.

    A snapshot is deleted after its check: together they need more memory than some machines have.

    Args:
        directory: The directory of the store.
        history: The history of its processes.
        seed: The seed of the pauses and kills.
    """

    def __init__(self, directory: Path, history: History, seed: int) -> None:
        self._directory = directory
        self._history = history
        self._random = random.Random(seed)
        self._stopped = threading.Event()
        self._number = 0
        self.checked = 0
        self.failed: list[str] = []
        self.killed = 0
        self._thread = ThreadPoolExecutor(1)

    def __enter__(self) -> "Snapshots":
        self._running = self._thread.submit(self._run)
        return self

    def __exit__(self, *exc: object) -> None:
        self._stopped.set()
        self._thread.shutdown()
        self._running.result()

    def _run(self) -> None:
        while not self._stopped.is_set():
            if (self._directory / "session").exists():
                self.take(self._random.choice([0.0, 0.01, 0.1, 0.3]) if self._random.random() < 0.4 else None)
            else:
                time.sleep(0.01)

    def take(self, kill_after: float | None) -> None:
        """Takes a snapshot and checks it.

        Args:
            kill_after: The seconds after the begin of the copy, or sometimes of its process, after which it is killed;
                `None`: never.
        """
        self._number += 1
        target = self._directory.with_name(f"snapshot {self._number}")
        history = self._history
        found = Taken(target, dict(history.done), list(history.acked), history.position)
        process = snapshot_process.start(self._directory, target, self._random.choice([0.0, 0.0002, 0.001]))
        assert process.stdout is not None
        if kill_after is not None and self._random.random() < 0.8:
            process.stdout.readline()
        try:
            _, errors = process.communicate(timeout=kill_after)
        except subprocess.TimeoutExpired:
            process.kill()
            _, errors = process.communicate()
            self.killed += 1
        if process.returncode == 0:
            self._check(found)
            return
        assert not target.exists() or process.returncode < 0
        if process.returncode > 0:
            self.failed.append(errors.decode())

    def _check(self, taken: Taken) -> None:
        """Checks a snapshot, and what is restored from it, and deletes both."""
        verified = run("-m", "omq.cli.main", "store", "verify", taken.path, timeout=120)
        assert verified.returncode == 0, verified.stdout + verified.stderr
        restored = taken.path.with_name("restored")
        restore_snapshot(taken.path, restored)
        shutil.rmtree(taken.path)
        history = History(
            tried=self._history.tried,
            kinds=self._history.kinds,
            done=taken.done,
            acked=taken.acked,
            position=taken.position,
        )

        def passes() -> bool:
            try:
                history.check(restored)
            except KeyError:  # the report of an append in the snapshot is not read yet
                return False
            return True

        until(passes, "all appends in the snapshot are reported")
        self.checked += 1
        shutil.rmtree(restored)


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=QUICK) as path:
        yield Path(path) / "store"


def snapshots_of(directory: Path, seed: int) -> None:
    """Runs processes that are killed, and then one that ends by itself, and checks all snapshots."""
    history = History()
    chance = random.Random(seed)
    with Snapshots(directory, history, seed) as snapshots:
        for round_number in range(KILLS):
            done, pause = len(history.done), chance.uniform(0.1, 1.5)

            def kill(process: subprocess.Popen[bytes], done: int = done, pause: float = pause) -> None:
                def wait() -> None:
                    until(lambda: len(history.done) > done or process.poll() is not None, "the process writes")
                    time.sleep(pause)
                    process.kill()

                threading.Thread(target=wait, daemon=True).start()

            history.run(directory, 1000 * seed + round_number, 100_000, kill=kill)
        assert history.run(directory, 1000 * seed + 9, 20) == 0
    snapshots.take(None)
    assert snapshots.failed == []
    assert snapshots.checked
    history.check(directory)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_snapshots_under_load_and_kills(directory: Path) -> None:
    snapshots_of(directory, 0)


@pytest.mark.fault
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(1, SEEDS))
def test_snapshots_under_load_and_kills_many_times(directory: Path, seed: int) -> None:
    snapshots_of(directory, seed)
