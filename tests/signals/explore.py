"""Interrupts calls of the library, each at one moment after the other, and reports failures: `python -m` this.

Each case prints a line of JSON: the number of moments, the number of those visited, and the failures. A case that hangs
prints its stacks (faulthandler), and ends the process.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import json
import logging
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any

import omq
from tests.signals.call_registry import cases
from tests.signals.interrupted_call import InterruptedCall
from tests.support.signal_injection import SIGNAL, TRIGGER, Points, scattered
from tests.support.waits import until

HANG = 12.0  # seconds after which one interruption hangs
ENOUGH = 3  # failures of a case that are printed


class Tick(Exception):
    """The exception of a handler."""


class BaseTick(BaseException):
    """The same, where `except Exception` does not see it."""


class Elsewhere:
    """Two sockets that have nothing to do with the call that is interrupted."""

    def __init__(self) -> None:
        self.context = omq.Context()
        self.pull = omq.PULL(self.context, bind="tcp://127.0.0.1:*", linger=0)
        self.push = omq.PUSH(self.context, connect=self.pull.endpoints[0], linger=0)
        self.push.wait_connected(timeout=5)

    def use(self, case: InterruptedCall) -> None:
        self.push.send(b"x", timeout=5)
        assert self.pull.recv(timeout=5) == b"x"
        if case.context.closed:
            return
        name = "inproc://elsewhere"
        with omq.PULL(case.context, bind=name) as pull, omq.PUSH(case.context, connect=name, linger=0) as push:
            push.send(b"y", timeout=5)
            assert pull.recv(timeout=5) == b"y"


def _raise(_: InterruptedCall) -> None:
    raise Tick


def _raise_base(_: InterruptedCall) -> None:
    raise BaseTick


ELSEWHERE: list[Elsewhere] = []
ACTIONS: dict[str, Callable[[InterruptedCall], Any]] = {
    "raise": _raise,
    "raise-base": _raise_base,
    "close": lambda case: case.one.close(0),
    "stop": lambda case: case.one.stop(),
    "term": lambda case: case.context.term(0),
    "use": lambda case: case.use(),
    "elsewhere": lambda case: ELSEWHERE[0].use(case),
}
ENDS = ("close", "stop", "term")
RAISES = {"raise": Tick, "raise-base": BaseTick}


class Explorer:
    """One case and one action."""

    def __init__(self, case: type[InterruptedCall], transport: str, action: str) -> None:
        self.case = case
        self.transport = transport
        self.action = action
        self.points = Points()
        self.where = ""
        self.ran = False
        self.own: BaseException | None = None
        self.noise: list[str] = []
        self.now: InterruptedCall | None = None

    def handle(self, _: int, frame: FrameType | None) -> None:
        """The signal handler."""
        sys.settrace(None)
        if self.ran or self.now is None:
            return
        self.ran = True
        self.where = _where(frame)
        try:
            ACTIONS[self.action](self.now)
        except BaseException as error:
            self.own = error
            raise

    def visit(self, at: int) -> None:
        """One interruption, in a case of its own: *at* 0 while the call begins, below 0 none."""
        case = self.case(self.transport)
        try:
            self._interrupt(case, at)
            self._check(case)
        finally:
            self.now = None
            case.end()
        if self.noise:
            raise AssertionError(self.noise.pop())

    def _interrupt(self, case: InterruptedCall, at: int) -> None:
        self.ran, self.own, self.where = False, None, ""
        self.noise.clear()
        self.now = case
        results, take = case.results(), case.out.extend
        caught: BaseException | None = None
        gc.disable()  # objects that die by chance would run code of theirs
        try:
            if at == 0:
                TRIGGER.pulled  # noqa: B018
                take(results)
            else:
                self.points.watch(at)
                take(results)
        except BaseException as error:  # whatever it is, it is judged below
            caught = error
        finally:
            sys.settrace(None)
            self.now = None
            gc.enable()
        self._judge(case, caught)

    def _judge(self, case: InterruptedCall, caught: BaseException | None) -> None:
        """Checks the exception of the call."""
        if self.ran and self.action in RAISES:
            assert caught is self.own, f"the handler's exception vanished; instead: {caught!r}"
            case.raised = True
        elif caught is not None:
            allowed: tuple[type[BaseException], ...] = ()
            if self.ran and self.action in ENDS:
                allowed = (omq.ClosedError, omq.ContextTerminated)
            if not isinstance(caught, allowed) or caught is self.own:
                raise caught
            case.raised = True

    def _check(self, case: InterruptedCall) -> None:
        if self.ran and self.action in ENDS:
            assert case.one.closed, "the handler closed it, and it is open"
            until(lambda: case.one._engine.closed, "the end of the socket", 5)
            if self.action == "term" and type(case).__name__ != "Default":
                assert case.context.closed
        else:
            case.check_connection()
            case.check_after()
            for thread in case.threads:
                thread.join(6)

    def explore(self, budget: float) -> dict[str, Any]:
        """Visits as many moments as there is time for."""
        end = time.monotonic() + budget
        failures: list[str] = []
        visited = 0
        self._bounded(-1, failures)  # the second round knows more of the moments
        self._bounded(-1, failures)
        count = self.points.count
        for at in [0, *scattered(count)]:
            if (visited >= 3 and time.monotonic() > end) or len(failures) >= ENOUGH:
                break
            self._bounded(at, failures)
            visited += 1
        return {"moments": count + 1, "visited": visited, "failures": failures}

    def _bounded(self, at: int, failures: list[str]) -> None:
        name = f"{self.case.__name__} {self.transport} {self.action} {at}"
        faulthandler.dump_traceback_later(HANG, exit=True)
        print(name, file=sys.stderr, flush=True)
        try:
            self.visit(at)
        except BaseException as error:
            trace = "".join(traceback.format_exception(error)[-3:])
            failures.append(f"at {at} ({self.where}): {error!r}\n{trace}")
        finally:
            faulthandler.cancel_dump_traceback_later()


class Listener(logging.Handler):
    """Collects what the library complains of; without a lock, for handlers of signals may be running."""

    def __init__(self, noise: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._noise = noise

    def createLock(self) -> None:  # noqa: N802
        self.lock = None

    def handle(self, record: logging.LogRecord) -> bool:
        error = record.exc_info and record.exc_info[1]
        self._noise.append(f"logged: {record.getMessage()} {error!r}")
        return True


def _where(frame: FrameType | None) -> str:
    found: list[str] = []
    while frame is not None and len(found) < 4:
        path = frame.f_code.co_filename
        if "tests/signals" in path:
            break
        found.append(f"{'/'.join(path.split('/')[-2:])}:{frame.f_lineno} {frame.f_code.co_name}")
        frame = frame.f_back
    return " < ".join(found)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("action", choices=[*ACTIONS])
    parser.add_argument("cases", nargs="*", help="CASE or CASE/TRANSPORT; all of them by default")
    parser.add_argument("--without", default="-", help="no cases whose names contain this")
    parser.add_argument("--seconds", type=float, default=1e9, help="for each case and transport")
    parser.add_argument("--one", action="store_true", help="one transport of each case: each action has another one")
    parser.add_argument("--at", type=int, help="this moment only")
    asked = parser.parse_args()
    sys.unraisablehook = lambda lost: noise.append(f"unraisable: {lost.exc_value!r} in {lost.object!r}")
    threading.excepthook = lambda lost: noise.append(f"in {lost.thread}: {lost.exc_value!r}")
    noise: list[str] = []
    for name in ("omq", "asyncio"):
        log = logging.getLogger(name)
        log.addHandler(Listener(noise))
        log.propagate = False
    ELSEWHERE.append(Elsewhere())
    known = cases()
    for number, each in enumerate(asked.cases or [*known], [*ACTIONS].index(asked.action)):
        name, _, transport = each.partition("/")
        if asked.without in name:
            continue
        every = known[name].transports
        if asked.one:
            transport = transport or every[number % len(every)]
        for one in [transport] if transport else every:
            explorer = Explorer(known[name], one, asked.action)
            explorer.noise = noise
            signal.signal(SIGNAL, explorer.handle)
            if asked.at is not None:
                explorer.visit(-1)
                explorer.visit(asked.at)
                continue
            found = explorer.explore(asked.seconds)
            print(json.dumps({"case": name, "transport": one, **found}), flush=True)
    ELSEWHERE[0].context.term(0)


if __name__ == "__main__":
    main()
