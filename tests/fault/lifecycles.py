"""Random lifecycles, each from a seed: `python -m tests.fault.lifecycles --seed 17 --twin asyncio -v`.

Sockets bind, connect, send, are cancelled, killed, started again and closed in random order. A failure names its seed.
Between batches the process has to be as it was: no descriptor, task, thread or socket more, and no more memory.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import faulthandler
import gc
import itertools
import logging
import os
import resource
import shutil
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import uvloop

import omq
from tests.fault import lifecycle_plan as plans
from tests.fault.lifecycle_runner import SOON, LifecycleRunner
from tests.fault.twin_adapters import AsyncioTwin, BlockingTwin, drive
from tests.support.chaos_proxy import Proxy

BATCH = 250  # lifecycles between two looks at what is left
ABREAST = {"asyncio": 16, "blocking": 6}  # lifecycles at a time
HANG = 60.0  # seconds after which a lifecycle is taken for stuck, whatever it waits for
LEAK = 512 * 1024  # bytes a batch may add to memory, in the second half of a long run
STORY = 60  # lines of a failed lifecycle that are printed
_PAGE = resource.getpagesize()
_lives = itertools.count()


class Complaints(logging.Handler):
    """Everything that goes wrong without an exception: logged errors, warnings, exceptions that cannot be caught."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        # A socket that ends with its parent, or in the midst of its linger, logs what it drops.
        if "has dropped" not in record.getMessage():
            self.found.append(f"{record.name}: {record.getMessage()} {record.exc_info or ''}")

    def __enter__(self) -> Complaints:
        for name in ("omq", "asyncio"):
            logging.getLogger(name).addHandler(self)
        self._hooks = sys.unraisablehook, threading.excepthook, warnings.showwarning
        sys.unraisablehook = lambda what: self.found.append(f"unraisable: {what.exc_value!r} in {what.object!r}")
        threading.excepthook = lambda what: self.found.append(f"in thread {what.thread}: {what.exc_value!r}")
        self._filters = warnings.catch_warnings()
        self._filters.__enter__()
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *_: self.found.append(f"warning: {message!r}")
        return self

    def __exit__(self, *_: object) -> None:
        self._filters.__exit__(None, None, None)
        sys.unraisablehook, threading.excepthook, warnings.showwarning = self._hooks
        for name in ("omq", "asyncio"):
            logging.getLogger(name).removeHandler(self)


class LifecycleRun:
    """The surroundings of lifecycles: proxy, folder, context, and the watch over what they leave.

    Attributes:
        failures: By seed, what went wrong.
        levels: Bytes in memory after each batch.
    """

    def __init__(self, twin: str, verbose: bool = False) -> None:
        self.twin = twin
        self.failures: dict[int, str] = {}
        self.levels: list[int] = []
        self._verbose = verbose
        self._folder = tempfile.mkdtemp(prefix="omq-")
        self._context = omq.Context()
        self._proxy = Proxy()
        self._under_way: dict[int, float] = {}
        self._stories: dict[int, list[str]] = {}
        self._over = threading.Event()
        self._watchdog = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> LifecycleRun:
        self._complaints = Complaints().__enter__()
        self._watchdog.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._watchdog.join()
        self._context.term(linger=0)
        self._proxy.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._complaints.__exit__()

    def _watch(self) -> None:
        """Ends the process when a lifecycle hangs where no bound of its own reaches: with every stack."""
        while not self._over.wait(1):
            late = [seed for seed, since in tuple(self._under_way.items()) if time.monotonic() - since > HANG]
            if late:
                print(f"{self.twin}: hangs, seeds {late}", file=sys.__stderr__, flush=True)
                faulthandler.dump_traceback(sys.__stderr__, all_threads=True)
                os._exit(3)

    # ------------------------------------------------------------------ lifecycles

    def run(self, seeds: range, batch: int = BATCH) -> None:
        """Plays the lifecycles of these seeds; stops at the end of a batch with failures."""
        self._warm()
        for start in range(0, len(seeds), batch):
            if not self.failures:
                self._run_batch(list(seeds[start : start + batch]))

    def _warm(self) -> None:
        """Has everything opened that stays open, and looks what that is."""
        with omq.PAIR(self._context, bind="inproc://warm"):
            pass
        if self.twin == "asyncio":
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(asyncio.sleep(0))
        self._before = self._holdings()

    def _run_batch(self, seeds: list[int]) -> None:
        if self.twin == "asyncio":
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._play_in_tasks(seeds))
        else:
            self._play_in_threads(seeds)
        if self.failures:
            return
        self._look_for_leaks(seeds)
        self.levels.append(_memory())

    async def _play_in_tasks(self, seeds: list[int]) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: self._complaints.found.append(f"loop: {context}"))
        waiting = iter(seeds)

        async def work() -> None:
            for seed in waiting:
                await self._asyncio_life(seed)

        await asyncio.gather(*[work() for _ in range(ABREAST["asyncio"])])
        for _ in range(3):
            await asyncio.sleep(0)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        if left:
            self._fail(seeds, f"tasks are left: {left}")

    async def _asyncio_life(self, seed: int) -> None:
        self._under_way[seed] = time.monotonic()
        life, context = self._life(seed, AsyncioTwin())
        try:
            async with asyncio.timeout(4 * SOON):
                await life.play()
        except BaseException as error:
            self._blame(seed, error)
            if not isinstance(error, Exception):
                raise
        finally:
            if context is not self._context:
                context.term()
            del self._under_way[seed], self._stories[seed]

    def _play_in_threads(self, seeds: list[int]) -> None:
        waiting = iter(seeds)
        guard = threading.Lock()

        def work() -> None:
            while True:
                with guard:
                    seed = next(waiting, None)
                if seed is None:
                    return
                self._blocking_life(seed)

        threads = [threading.Thread(target=work, name=f"lifecycle {n}") for n in range(ABREAST["blocking"])]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _blocking_life(self, seed: int) -> None:
        self._under_way[seed] = time.monotonic()
        life, context = self._life(seed, BlockingTwin())
        try:
            drive(life.play())
            if context is not self._context:
                context.term()
        except Exception as error:
            self._blame(seed, error)
        finally:
            del self._under_way[seed], self._stories[seed]

    def _life(self, seed: int, twin: Any) -> tuple[LifecycleRunner, omq.Context]:
        plan = plans.make(seed)
        begun = time.monotonic()
        story = self._stories[seed] = []

        def report(text: str) -> None:
            story.append(f"{1000 * (time.monotonic() - begun):9.3f} {text}")
            if self._verbose:
                print(seed, story[-1], flush=True)

        for role in plan.cast:
            report(f"{role}")
        report(f"{plan.transport} calm={plan.calm} lossless={plan.lossless} clean={plan.clean} proxied={plan.proxied}")
        context = omq.Context() if plan.own_context else self._context
        return LifecycleRunner(plan, twin, context, self._proxy, self._endpoints(plan.transport), report), context

    def _endpoints(self, transport: str) -> Callable[[int], str]:
        """Endpoints that no other lifecycle uses: known before they are bound, and free when they are again."""
        life = next(_lives)
        if transport == "tcp":
            # Every address of 127.0.0.0/8 is this machine; no port of a fresh one is in TIME_WAIT.
            host = f"127.{os.getpid() % 250 + 1}.{life // 250 % 250}.{life % 250 + 1}"
            base = 10000 + os.getpid() // 250 % 60 * 300
            return lambda number: f"tcp://{host}:{base + number}"
        if transport == "ipc":
            return lambda number: f"ipc://{self._folder}/{life}-{number}"
        return lambda number: f"inproc://life-{life}-{number}"

    # ------------------------------------------------------------------ what is wrong

    def _blame(self, seed: int, error: BaseException) -> None:
        tail_lines = "\n".join(self._stories[seed][-STORY:])
        self.failures[seed] = f"{tail_lines}\n{''.join(traceback.format_exception(error))}"

    def _fail(self, seeds: list[int], what: str) -> None:
        self.failures[seeds[0]] = f"seeds {seeds[0]} to {seeds[-1]}: {what}"

    def _holdings(self) -> dict[str, set[str]]:
        own = {str(fd) for fd in self._context.background.descriptors}
        descriptors = {f"{fd} -> {_target(fd)}" for fd in os.listdir("/proc/self/fd") if fd not in own}
        return {
            "descriptors": {name for name in descriptors if not name.endswith("-> ")},
            "threads": {f"{thread.name} {thread.ident}" for thread in threading.enumerate() if _lasting(thread)},
            "names": {*self._context.inproc.bound, *self._context.inproc.waited_for},
            "files": set(os.listdir(self._folder)),
            "sockets": {repr(socket) for socket in self._context._sockets},
        }

    def _look_for_leaks(self, seeds: list[int]) -> None:
        gc.collect()
        end = time.monotonic() + 2
        while True:
            now = self._holdings()
            more = {what: held - self._before[what] for what, held in now.items() if held - self._before[what]}
            if not more or time.monotonic() > end:
                break
            time.sleep(0.01)
            gc.collect()
        if more:
            self._fail(seeds, f"left behind: {more}")
        if self._complaints.found:
            self._fail(seeds, f"complaints: {self._complaints.found[:10]}")


def _lasting(thread: threading.Thread) -> bool:
    return not thread.name.startswith("lifecycle")


def _target(fd: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except FileNotFoundError:
        return ""


def _memory() -> int:
    # What the allocator keeps for later is not a leak, and varies.
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * _PAGE


def slope(levels: list[int]) -> float:
    """Returns the bytes that a batch adds to memory: the linear regression over the second half of the batches."""
    half = levels[len(levels) // 2 :]
    if len(half) < 10:
        return 0.0
    middle = (len(half) - 1) / 2
    mean = sum(half) / len(half)
    spread = sum((place - middle) ** 2 for place in range(len(half)))
    return sum((place - middle) * (level - mean) for place, level in enumerate(half)) / spread


def run(twin: str, seeds: range, verbose: bool = False, batch: int = BATCH) -> LifecycleRun:
    """Runs lifecycles; `failures` of the result has what went wrong."""
    with LifecycleRun(twin, verbose) as lifecycles:
        lifecycles.run(seeds, batch)
    return lifecycles


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--twin", choices=list(ABREAST), default="asyncio")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=1, help="how many lifecycles")
    parser.add_argument("-v", "--verbose", action="store_true", help="print every step")
    arguments = parser.parse_args()
    begun = time.monotonic()
    lifecycles = run(arguments.twin, range(arguments.seed, arguments.seed + arguments.count), arguments.verbose)
    took = time.monotonic() - begun
    for seed, story in lifecycles.failures.items():
        print(f"seed {seed}:\n{story}")
    print("MiB after each batch:", *(level // 2**20 for level in lifecycles.levels))
    print(
        f"{arguments.twin}: {arguments.count} lifecycles in {took:.1f} s ({arguments.count / took:.0f}/s), "
        f"{len(lifecycles.failures)} failures; {slope(lifecycles.levels) / 1024:+.0f} KiB a batch of {BATCH}"
    )
    if slope(lifecycles.levels) > LEAK:
        print(f"memory grows: more than {LEAK / 1024:.0f} KiB a batch")
    return 1 if lifecycles.failures or slope(lifecycles.levels) > LEAK else 0


if __name__ == "__main__":
    sys.exit(main())
