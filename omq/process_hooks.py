"""Functions that omq runs in forked children and at the interpreter's exit.

Python runs those of a fork in the order in which they were registered, and those of the exit in the opposite order.
Most of omq is imported with the first use of a name, maybe after the program has registered functions that use sockets.
So omq registers here, when the program imports it. In a child, omq is reset before they run; at exit, it closes the
sockets after them.
"""

from __future__ import annotations

import atexit

# uvloop needs it, and Python refuses its import at exit. It imports `threading`, which must be reset first in a child.
import concurrent.futures.thread  # noqa: F401
import os
from collections.abc import Callable
from typing import Final

from omq.unpatched import threading

#: Held while the first use of a name imports. A fork waits for it: a child has no thread that would finish the import,
#: and waits forever for the locks of modules that were being imported.
import_lock: Final = threading.RLock()

_in_child: list[Callable[[], object]] = []
_at_exit: list[Callable[[], object]] = []


def run_in_child(function: Callable[[], object]) -> None:
    """Calls a function in each forked child, after those of earlier calls. It must not raise."""
    _in_child.append(function)


def run_at_exit(function: Callable[[], object]) -> None:
    """Calls a function at the interpreter's exit, after the functions that the program has registered with `atexit`."""
    _at_exit.append(function)


def _run(functions: list[Callable[[], object]]) -> None:
    for function in functions:
        function()


def _after_fork() -> None:
    import_lock.release()
    _run(_in_child)


os.register_at_fork(before=import_lock.acquire, after_in_parent=import_lock.release, after_in_child=_after_fork)
atexit.register(_run, _at_exit)
