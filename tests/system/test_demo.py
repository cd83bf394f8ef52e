"""`demo.py` as a user runs it: real processes, real sockets, real interruptions."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "docs" / "examples" / "demo.py"
pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A directory with everything that a directory may hold."""
    root = tmp_path / "a directory"
    (root / "sub").mkdir(parents=True)
    (root / "empty").write_bytes(b"")
    (root / "small").write_bytes(b"small")
    (root / "sub" / "large").write_bytes(os.urandom(5_000_000))
    (root / "link").symlink_to("small")
    (root / "loop").symlink_to(".")
    os.mkfifo(root / "pipe")
    with open(os.fsencode(root) + b"/caf\xe9", "wb") as file:
        file.write(b"a name that is not text")
    return root


class Mark:
    """An environment by which every process of a test is known."""

    def __init__(self) -> None:
        self.entry = f"OMQ_TEST_MARK={uuid.uuid4()}"
        self.env = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "120", **dict([self.entry.split("=")])}

    def alive(self) -> list[int]:
        """The processes that carry the mark and have not ended."""
        found = []
        for folder in Path("/proc").iterdir():
            try:
                if folder.name.isdigit() and self.entry.encode() in (folder / "environ").read_bytes():
                    found.append(int(folder.name))
            except OSError:
                continue
        return found


@pytest.fixture
def mark() -> Mark:
    return Mark()


def demo(
    mark: Mark, *arguments: str | Path, program: tuple[str | Path, ...] = (DEMO,)
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *program, *map(str, arguments)],
        env=mark.env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def started(mark: Mark, *arguments: str | Path) -> subprocess.Popen[str]:
    """The demo, running, with a first round behind it."""
    process = subprocess.Popen(
        [sys.executable, "-u", DEMO, *map(str, arguments)],
        env=mark.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if "omq, round 1 of" in line:
            return process
    pytest.fail(f"the demo ended with {process.wait()}: {process.stderr and process.stderr.read()}")


def ended(pids: list[int], within: float) -> bool:
    """Returns whether all the processes end in time."""
    deadline = time.monotonic() + within
    for pid in pids:
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            if not select.select([handle], [], [], max(0.0, deadline - time.monotonic()))[0]:
                return False
        finally:
            os.close(handle)
    return True


def test_every_file_passes_and_is_checked(mark: Mark, tree: Path) -> None:
    """Small blocks are enough for both workers. Without a terminal the lines are plain."""
    done = demo(mark, "--dir", tree, "--rounds", "1", "--block", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 files, 5.0 MB" in done.stdout
    assert "skipped: 2 links, 1 special files" in done.stdout
    messages = sum(max(1, -(-size // 1024)) for size in (0, 5, 22, 5_000_000))
    assert re.search(rf"messages\W+{messages:,}\W+{messages:,}\W", done.stdout)
    assert re.search(r"digests\W+all match the disk\W+all match the disk", done.stdout)
    assert done.stderr == ""
    assert mark.alive() == []
    assert "\x1b" not in done.stdout
    assert "\r" not in done.stdout
    found = re.search(r"^omq, round 1 of 1: ([\d,]+) \+ ([\d,]+) messages in [\d.]+ s$", done.stdout, re.MULTILINE)
    assert found is not None, done.stdout
    assert all(int(share.replace(",", "")) > 0 for share in found.groups())


#: The demo where pyzmq is not installed.
BLIND = (
    f"import runpy, sys; sys.modules['zmq'] = None; sys.path.insert(0, {str(DEMO.parent)!r}); "
    f"runpy.run_path({str(DEMO)!r}, run_name='__main__')"
)


@pytest.mark.slow
def test_on_a_terminal_it_draws_a_bar(mark: Mark, tree: Path) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", BLIND, "--dir", str(tree), "--rounds", "1"]
    with subprocess.Popen(
        command, env={**mark.env, "TERM": "xterm"}, stdin=theirs, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        seen = b""
        try:
            while chunk := os.read(ours, 65536):
                seen += chunk
        except OSError:  # how a terminal reports that its last writer has closed it
            pass
        finally:
            os.close(ours)
    assert process.returncode == 0, seen.decode()
    assert "━".encode() in seen
    assert b"worker 1:" in seen
    assert b"all match the disk" in seen


@pytest.mark.slow
def test_without_pyzmq_it_runs_alone_and_prints_how_to_compare(mark: Mark, tree: Path) -> None:
    done = demo(mark, "--dir", tree, "--rounds", "1", program=("-c", BLIND))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "pip install pyzmq" in done.stdout
    assert "pyzmq, round" not in done.stdout


@pytest.mark.parametrize("name", ["nowhere", "pipe"])
def test_a_wrong_directory_is_refused_at_once(mark: Mark, tree: Path, name: str) -> None:
    done = demo(mark, "--dir", tree / name)
    assert done.returncode == 2
    assert name in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.alone  # the demo is at work for a second
def test_ctrl_c_ends_everything(mark: Mark, tree: Path) -> None:
    process = started(mark, "--dir", tree, "--rounds", "20")
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130, errors
    assert "interrupted" in errors
    assert "Traceback" not in errors
    assert mark.alive() == []


@pytest.mark.alone  # the demo is at work for a second
def test_no_child_outlives_a_killed_parent(mark: Mark, tree: Path) -> None:
    process = started(mark, "--dir", tree, "--rounds", "20")
    process.kill()
    process.communicate(timeout=30)
    assert ended(mark.alive(), within=10)
    assert mark.alive() == []
