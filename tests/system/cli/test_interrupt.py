"""SIGINT (Ctrl-C) at any moment of a command, which is started as the installed program does it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.system.cli.command_process import BOUND

ROOT = Path(__file__).parents[3]
#: The script that pip installs, which also reports when the import of the package begins.
PROGRAM = """
import os, sys
sys.addaudithook(lambda event, values: (event, values[:1]) == ("import", ("omq.cli.main",)) and os.write({}, b"."))
from omq.cli.program import run
run()
"""
MOMENTS_MS = range(0, 601, 50)
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}

pytestmark = pytest.mark.timeout(180)


def interrupted(*words: str, delay: float) -> tuple[int, str]:
    """Interrupts a command some seconds after the import of the package; returns its status and standard error."""
    ours, theirs = os.pipe()
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(theirs), *words],
        env=ENVIRONMENT,
        pass_fds=(theirs,),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        os.close(theirs)
        assert os.read(ours, 1) == b"."
        os.close(ours)
        time.sleep(delay)
        process.send_signal(signal.SIGINT)
        try:
            _, err = process.communicate(timeout=BOUND)
        finally:
            process.kill()
    return process.returncode, err


@pytest.mark.parametrize("moment_ms", MOMENTS_MS)
def test_a_client_that_waits_is_interrupted_silently(moment_ms: int, free_place: str) -> None:
    words = ("topic", "ls", "--broker", free_place)
    assert interrupted(*words, delay=moment_ms / 1000) == (-signal.SIGINT, "")


@pytest.mark.parametrize("moment_ms", MOMENTS_MS)
def test_a_socket_is_interrupted_silently(moment_ms: int, free_place: str) -> None:
    status, err = interrupted("pull", "--quiet", "--bind", free_place, delay=moment_ms / 1000)
    assert err == ""
    assert status in (-signal.SIGINT, 0)  # 0 once it receives


def test_the_end_of_a_command_is_interrupted_silently() -> None:
    ended = set()
    for moment_ms in MOMENTS_MS:
        status, err = interrupted("--version", delay=moment_ms / 1000)
        assert err == ""
        ended.add(status)
    assert -signal.SIGINT in ended
    assert ended <= {-signal.SIGINT, 0}


def test_a_shell_has_the_status_130(free_place: str) -> None:
    script = f'{sys.executable} -c "from omq.cli.program import run; run()" topic ls --broker {free_place}; echo $?'
    with subprocess.Popen(
        ["bash", "-c", f"trap : INT; {script}"],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as shell:
        time.sleep(1.5)
        os.killpg(shell.pid, signal.SIGINT)
        out, err = shell.communicate(timeout=BOUND)
    assert (out, err) == ("130\n", "")


def test_an_ignored_signal_stays_ignored() -> None:
    script = (
        f"trap '' INT; {sys.executable} -c \"from omq.cli.program import run; run()\" --version & kill -INT $!; wait $!"
    )
    done = subprocess.run(["sh", "-c", script], env=ENVIRONMENT, capture_output=True, text=True, timeout=BOUND)
    assert (done.returncode, done.stdout[:4], done.stderr) == (0, "omq ", "")
