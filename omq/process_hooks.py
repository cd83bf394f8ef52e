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


os.register_at_fork(after_in_child=lambda: _run(_in_child))
atexit.register(_run, _at_exit)
