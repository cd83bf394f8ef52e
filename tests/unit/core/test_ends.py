"""Connections that end without a close: in the garbage collector, and where the flusher's write fails."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import pytest

GARBAGE = """
import gc, os, socket
from omq._core.link.connection import Connection
from omq._core.link.background import Background
from omq._core.link.flusher import Flusher
from omq._core.link.poller import Poller
from omq._core.queues.send_queue import RoundRobin
from omq._core.queues.wait_queue import WaitQueue
from omq._core.queues.peer import RecvQueue
from omq._core.wire.pool import Pool

gc.disable()
pool, flusher, background = Pool(), Flusher(), Background()

def leave():
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    poller, send_queue = Poller(), RoundRobin(WaitQueue(), 0)
    # The collector clears in the order of their coming: the connection, and only then what would break the cycle.
    held = {}
    recv_queue = RecvQueue(WaitQueue())
    connection = Connection((held,), ours.detach(), poller, pool, recv_queue, 0, flusher=flusher, background=background)
    held["peer"] = connection
    connection.start(b"\\0\\1x")
    send_queue.add(connection)
    for _ in range(6):
        connection.send_parts([b"x" * 100])  # the last ones are left to the flusher's thread
    send_queue.remove(connection)
    poller.close()
    return theirs

leave()
gc.collect()
gc.freeze()  # so that a collection is quicker than the flusher
before = len(os.listdir("/proc/self/fd"))
for _ in range(300):
    theirs = leave()
    assert gc.collect() > 0
    theirs.close()
assert len(os.listdir("/proc/self/fd")) <= before + 1
flusher.stop()
background.stop()
print("done")
"""

FAILURE = """
import ctypes, struct, sys

libc = ctypes.CDLL(None, use_errno=True)
LONG = 150  # bytes of a write that is refused: what gathers is longer than one message

class Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("program", ctypes.c_void_p)]

def refuse(seccomp, number, answer):  # seccomp(2), for all threads: sendto with more than LONG bytes
    steps = [
        (0x20, 0, 0, 0), (0x15, 0, 3, number),
        (0x20, 0, 0, 16 + 8 * 2), (0x35, 0, 1, LONG),
        (0x06, 0, 0, 0x00050000 | answer), (0x06, 0, 0, 0x7FFF0000),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    found = Filter(len(steps), ctypes.cast(code, ctypes.c_void_p).value)
    if libc.prctl(38, 1, 0, 0, 0) or libc.syscall(seccomp, 1, 1, ctypes.byref(found)):
        sys.exit("no filters here")

import omq

pull = omq.PULL(bind="tcp://127.0.0.1:*", linger=0)
push = omq.PUSH(connect=pull.endpoints[0], reconnect_interval=None, linger=0)
push.wait_connected(timeout=10)
monitor = push.monitor()
refuse(*{"x86_64": (317, 44), "aarch64": (277, 206)}[sys.argv[2]], int(sys.argv[1]))
for _ in range(20):
    push.send(bytes(100))
event = monitor.recv(timeout=10)
print(event.kind, event.reason)
print(len(push.peers))
"""


def run(program, *arguments):
    environment = {**os.environ, "PYTHONMALLOC": "debug"}
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", program, *arguments],
        capture_output=True, text=True, timeout=50, check=False, env=environment,
    )  # fmt: skip


def test_the_flusher_forgets_a_connection_that_the_garbage_collector_takes():
    done = run(GARBAGE)
    assert (done.stdout, done.returncode) == ("done\n", 0), done.stderr


@pytest.mark.skipif(os.uname().machine not in ("x86_64", "aarch64"), reason="the number of sendto is another")
@pytest.mark.parametrize("number", [errno.ENOBUFS, errno.ENOMEM, errno.EPERM], ids=errno.errorcode.get)
def test_a_write_of_the_flusher_that_fails_ends_the_connection_and_is_reported(number):
    done = run(FAILURE, str(number), os.uname().machine)
    if "no filters here" in done.stderr:
        pytest.skip("the system takes no seccomp filters")
    assert done.returncode == 0, done.stderr
    what, peers = done.stdout.splitlines()
    assert what.startswith("disconnected ")
    assert ("memory" if number == errno.ENOMEM else os.strerror(number)) in what
    assert peers == "0"
