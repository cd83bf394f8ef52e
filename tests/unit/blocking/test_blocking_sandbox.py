"""Blocking calls where a sandbox refuses epoll_pwait2, the system call of 2021 that counts in nanoseconds."""

from __future__ import annotations

import errno
import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, struct, sys, threading

libc = ctypes.CDLL(None, use_errno=True)
ERRNO, KILL, ALLOW = 0x00050000, 0x80000000, 0x7FFF0000

class Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("program", ctypes.c_void_p)]

def answer(action):  # seccomp(2): to epoll_pwait2, whose number is the same everywhere
    steps = [(0x20, 0, 0, 0), (0x15, 0, 1, 441), (0x06, 0, 0, action), (0x06, 0, 0, ALLOW)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    found = Filter(len(steps), ctypes.cast(code, ctypes.c_void_p).value)
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.byref(found)):
        sys.exit("no filters here")

answer(ERRNO | int(sys.argv[1]))
assert libc.syscall(441, -1, None, 0, None, None, 8) == -1 and ctypes.get_errno() == int(sys.argv[1])

import omq

pull = omq.PULL(bind="tcp://127.0.0.1:*")
push = omq.PUSH(connect=pull.endpoints[0], linger=0)
push.wait_connected(timeout=10)
for timeout in (0.005, 0.05):
    try:
        pull.recv(timeout=timeout)
    except omq.ReceiveTimeout:
        print("timeout")
# A caller that was refused once asks no more: that would end the process.
answer(KILL)
for timeout in (0.009, 10):
    for _ in range(3):
        threading.Timer(0.02, push.send, [b"x"]).start()
        while True:
            try:
                assert pull.recv(timeout=timeout) == b"x"
                break
            except omq.ReceiveTimeout:
                pass
print("received", pull.poll(0.001))
"""


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOSYS, errno.EACCES, errno.EINVAL], ids=errno.errorcode.get)
def test_a_refused_system_call_is_done_without(number):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(number)], capture_output=True, text=True, timeout=50, check=False
    )
    if "no filters here" in done.stderr:
        pytest.skip("the system takes no seccomp filters")
    assert (done.stdout.split(), done.returncode, done.stderr) == (["timeout", "timeout", "received", "0"], 0, "")
