"""A process that may open no more descriptors."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCARCE = """
import os, resource, sys
import omq
import uvloop  # what a context would import has no descriptors to be read with

before = resource.getrlimit(resource.RLIMIT_NOFILE)
spare = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1 + spare, before[1]))
try:
    context = omq.Context()
    push = omq.PUSH(context, bind="tcp://127.0.0.1:*", linger=0)
except OSError as error:
    print("Too many open files" in str(error), flush=True)
else:
    print("made", flush=True)
    push.close()
    context.term()
resource.setrlimit(resource.RLIMIT_NOFILE, before)
with omq.Context() as context, omq.PULL(context, bind="tcp://127.0.0.1:*") as pull:
    with omq.PUSH(context, connect=pull.endpoints[0]) as push:
        push.send(b"after")
        print(pull.recv(timeout=10), flush=True)
"""


@pytest.mark.parametrize(
    "spare", [0, 2, 4, 8, 40, *(pytest.param(spare, marks=pytest.mark.slow) for spare in (1, 3, 5, 6, 12, 16))]
)
def test_a_first_context_without_descriptors_is_an_error_and_not_the_end(program, spare):
    """libuv aborts the process whose first loop gets none for its signals."""
    running = program(SCARCE, str(spare))
    assert running.line() == ("True" if spare < 40 else "made")
    assert running.line() == "b'after'"
    running.end()


DAEMON = """
import omq
with omq.Context() as context, omq.PULL(context, bind="tcp://127.0.0.1:*") as pull:
    with omq.PUSH(context, connect=pull.endpoints[0]) as push:
        push.send(b"to a daemon")
        assert pull.recv(timeout=10) == b"to a daemon"
"""


@pytest.mark.slow
def test_a_daemon_without_standard_streams_makes_and_ends_a_context():
    """libuv aborts the process when it closes a descriptor that has the number of one of them."""
    closed = ["sh", "-c", 'exec "$@" 0<&- 1>&- 2>&-', "sh", sys.executable, "-c", DAEMON]
    assert subprocess.run(closed, timeout=60).returncode == 0
