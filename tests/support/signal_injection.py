"""A signal that comes at a chosen moment of a call, as the interpreter would see it.

CPython runs signal handlers in the main thread, and looks for signals at certain instructions only: where a Python
function begins, after calls, where loops go round, and where C code asks. `Points` counts those instructions while a
call runs, in whatever Python code it reaches, and has a signal wait for the interpreter just before the k-th of them:
so the handler runs exactly where a real signal's would. Handlers are not called from the tracer, which would be between
any two instructions: even `with lock:` is not safe there, and need not be.
"""

from __future__ import annotations

import ctypes
import dis
import signal
import sys
from types import CodeType, FrameType
from typing import Any

SIGNAL = int(signal.SIGUSR1)

_LOOKS = frozenset(
    number
    for name, number in dis.opmap.items()
    if name.startswith("CALL") or ("JUMP_BACKWARD" in name and "NO_INTERRUPT" not in name)
)


class _Trigger:
    """Has a signal wait for the interpreter. A property, for the interpreter looks for signals after every call."""

    _as_parameter_ = SIGNAL
    pulled = property(ctypes.pythonapi.PyErr_SetInterruptEx)


TRIGGER = _Trigger()


class Points:
    """Counts the moments of one call at which a signal handler can run, and interrupts it at one of them.

    Attributes:
        count: How many moments there were so far.
    """

    def __init__(self) -> None:
        self.count = 0
        self._at = 0
        self._codes: dict[CodeType, bytes] = {}
        # Instructions that call a Python function though they do not look like it: for example a property.
        self._calling: set[tuple[CodeType, int]] = set()

    def watch(self, at: int) -> None:
        """Counts from now on, in this thread; interrupts at number *at*, or never, if that is below 1."""
        self.count = 0
        self._at = at
        sys.settrace(self._on_call)

    def _on_call(self, frame: FrameType, _: str, __: Any) -> Any:
        caller = frame.f_back
        if caller is not None and caller.f_code in self._codes and not self._looks(caller):
            self._calling.add((caller.f_code, caller.f_lasti))
        if frame.f_code not in self._codes:
            self._codes[frame.f_code] = frame.f_code.co_code
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return self._on_opcode

    def _looks(self, frame: FrameType) -> bool:
        return self._codes[frame.f_code][frame.f_lasti] in _LOOKS

    def _on_opcode(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "opcode" and (self._looks(frame) or (frame.f_code, frame.f_lasti) in self._calling):
            self.count += 1
            if self.count == self._at:
                sys.settrace(None)
                TRIGGER.pulled  # noqa: B018  # the last thing that this function does: it would look for signals itself
                return None
        return self._on_opcode


def scattered(count: int) -> list[int]:
    """1 to *count*, far ones first: a run that stops early has seen some of everywhere."""
    bits = max(count.bit_length(), 1)
    order = sorted(range(1 << bits), key=lambda n: int(f"{n:0{bits}b}"[::-1], 2))
    return [n for n in order if 1 <= n <= count]
