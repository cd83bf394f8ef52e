"""Threads of another process that stand still while its main thread runs, as if the system did not schedule them."""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path
from typing import Final

SEIZE: Final = 0x4206  # requests of ptrace(2)
INTERRUPT: Final = 0x4207
DETACH: Final = 17
WALL: Final = 0x40000000  # a flag of waitpid(2): also threads

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


class StalledThreads:
    """All threads of a process but the main one, which stand still until `resume`, in the thread that calls both.

    If one of them has the GIL, all of the process stands still.

    Args:
        pid: The process.
    """

    def __init__(self, pid: int) -> None:
        self._threads = []
        for name in os.listdir(f"/proc/{pid}/task"):
            thread = int(name)
            if thread != pid and _ptrace(SEIZE, thread):
                self._threads.append(thread)
        for thread in self._threads:
            _ptrace(INTERRUPT, thread)
        for thread in self._threads:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(thread, WALL)

    def __len__(self) -> int:
        return len(self._threads)

    def resume(self) -> None:
        """Lets them run again."""
        while self._threads:
            _ptrace(DETACH, self._threads.pop())


def states(pid: int) -> dict[int, str]:
    """Returns the states of the threads of a process, one letter each; `t` stands still."""
    found = {}
    for path in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            found[int(path.name)] = (path / "stat").read_text().rpartition(")")[2].split()[0]
    return found


def _ptrace(request: int, thread: int) -> bool:
    """Returns whether the thread was there."""
    if _libc.ptrace(request, thread, None, None) == 0:
        return True
    number = ctypes.get_errno()
    if number == 3:  # ESRCH
        return False
    raise OSError(number, os.strerror(number))
