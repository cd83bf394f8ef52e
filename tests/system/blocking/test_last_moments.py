"""The interpreter's last moments: nothing hangs, and nothing is printed."""

from __future__ import annotations

import subprocess

from tests.support.fork_server import SOCKETS, run

BOUND = 20.0

FINALIZER = """
import omq
{before}
class Client:
    def __del__(self):
        with omq.PUSH(connect="tcp://127.0.0.1:9", linger=0):
            pass
client = Client()
"""
DAEMONS = """
import omq, threading, time

from tests.support.fork_server import SOCKETS, run
def work():
    while True:
        with omq.Context() as context, omq.PULL(context, bind="tcp://127.0.0.1:*"):
            pass
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.05)
"""


def _run(code: str) -> subprocess.CompletedProcess[str]:
    return run("-c", code, timeout=BOUND, template=SOCKETS)


def test_a_socket_that_a_finalizer_makes_at_the_end_is_refused_as_too_late() -> None:
    for before in ("", "with omq.PULL(bind='tcp://127.0.0.1:*'): pass"):
        done = _run(FINALIZER.format(before=before))
        assert done.returncode == 0
        assert "StateError: the interpreter is shutting down" in done.stderr


def test_daemon_threads_that_open_and_close_contexts_end_without_a_word() -> None:
    for _ in range(3):
        done = _run(DAEMONS)
        assert (done.returncode, done.stderr) == (0, "")
