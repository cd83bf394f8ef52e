"""Peers come and go for a long time: `make soak MINUTES=10`, or `python -m tests.soak.soak --minutes 10`.

All patterns and both twins at once, in this process and in others that are started, killed and stopped. The memory of
this process, after warming up, must stay flat, and so must its descriptors and threads; the exit status shows whether.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import gc
import os
import random
import resource
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import uvloop

import omq
import omq.asyncio
from tests.support.socket_types import PAIRS, joined

GROWTH = 2**20  # bytes that ten minutes may add: the regression over everything after warming up
WARM = 0.25  # of the time, and two minutes at most: what is opened and filled until then stays
SAMPLE = 2.0  # seconds between two samples
PAUSE = 0.03  # seconds between two messages of a task, about: the machine has other things to do
_PAGE = resource.getpagesize()

Task = Callable[["SoakEndpoints", random.Random], Awaitable[None]]


class SoakEndpoints:
    """The part that all tasks share: endpoints that live as long as the run, and their counters."""

    def __init__(self, folder: str) -> None:
        self.counts: Counter[str] = Counter()
        self.context = omq.Context()
        self.over = threading.Event()
        self.work = f"ipc://{folder}/work"
        self.feed = f"ipc://{folder}/feed"
        self.service = "tcp://127.0.0.1:*"
        self.inner = "inproc://soak"


# ------------------------------------------------------------------ tasks in this process: asyncio


async def pipeline(shared: SoakEndpoints, chance: random.Random) -> None:
    """Workers join and leave a PUSH, in order or not."""
    async with omq.asyncio.PUSH(shared.context, bind=shared.work, send_timeout=1.0, linger=0) as push:
        while not shared.over.is_set():
            with contextlib.suppress(omq.Timeout):
                await push.send(os.urandom(chance.choice([10, 200, 5000, 50000])))
                shared.counts["pushed"] += 1
            await asyncio.sleep(PAUSE / 5)


async def worker(shared: SoakEndpoints, chance: random.Random) -> None:
    while not shared.over.is_set():
        pull = omq.asyncio.PULL(shared.context, connect=shared.work, linger=0)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(chance.random()):
                async for _ in pull:
                    shared.counts["pulled"] += 1
        if chance.random() < 0.5:
            await pull.close()
        else:
            pull.stop()


async def feed(shared: SoakEndpoints, chance: random.Random) -> None:
    async with omq.asyncio.XPUB(shared.context, bind=[shared.feed, shared.inner], send_hwm=100) as pub:
        while not shared.over.is_set():
            await pub.send_multipart([chance.choice([b"a", b"b", b"ab"]), b"x" * chance.choice([10, 3000])])
            while await pub.poll(0):
                await pub.recv()
                shared.counts["subscriptions"] += 1
            shared.counts["published"] += 1
            await asyncio.sleep(PAUSE / 3)


async def reader(shared: SoakEndpoints, chance: random.Random) -> None:
    while not shared.over.is_set():
        where = chance.choice([shared.feed, shared.inner])
        async with omq.asyncio.SUB(
            shared.context, connect=where, subscribe=[b"a", b"b"][: chance.choice([1, 2])]
        ) as sub:
            for _ in range(chance.randrange(40)):
                with contextlib.suppress(omq.Timeout):
                    await sub.recv_multipart(timeout=0.1)
                    shared.counts["read"] += 1
            sub.subscribe(b"ab")
            sub.unsubscribe(b"ab")


async def cancelled(shared: SoakEndpoints, chance: random.Random) -> None:
    """Calls that are cut off, on sockets without a peer."""
    while not shared.over.is_set():
        dealer = omq.asyncio.DEALER(shared.context, connect="tcp://127.0.0.1:9", reconnect_interval=0.05, send_hwm=3)
        tasks = [asyncio.ensure_future(dealer.recv()) for _ in range(3)]
        tasks += [asyncio.ensure_future(dealer.send(b"x" * 100)) for _ in range(5)]
        await asyncio.sleep(chance.random() / 10)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await dealer.close(linger=0.01)
        shared.counts["cancelled"] += len(tasks)


# ------------------------------------------------------------------ tasks in this process: blocking


def service(shared: SoakEndpoints) -> None:
    """A ROUTER that answers clients of this process and of others."""
    with omq.ROUTER(shared.context, bind="tcp://127.0.0.1:*") as router:
        shared.service = router.endpoints[0]
        while not shared.over.is_set():
            with contextlib.suppress(omq.Timeout):
                router.send_multipart(router.recv_multipart(timeout=0.2))
                shared.counts["served"] += 1


def client(shared: SoakEndpoints, chance: random.Random) -> None:
    while not shared.over.is_set():
        kind = chance.choice([omq.REQ, omq.DEALER])
        with kind(shared.context, connect=shared.service, linger=0.1, identity=b"") as one:
            for _ in range(chance.randrange(20)):
                message = [b"x" * chance.choice([1, 100, 20000])] * chance.choice([1, 3])
                one.send_multipart(message)
                try:
                    assert one.recv_multipart(timeout=1) == message
                except omq.Timeout:
                    break  # a REQ may not ask again; at the end of the soak no peer answers
                shared.counts["answered"] += 1
                time.sleep(PAUSE)


def pairs(shared: SoakEndpoints, chance: random.Random) -> None:
    """Contexts come and go, too, with each type whose messages have one part."""
    while not shared.over.is_set():
        with omq.Context() as context:

            def make(kind: str, context: omq.Context = context, **options: Any) -> Any:
                return getattr(omq, kind)(context, **options)

            kinds = chance.choice([("PAIR", "PAIR"), *PAIRS])
            endpoint = chance.choice(["inproc://pair", "tcp://127.0.0.1:*"])
            one, other, route = joined(make, *kinds, endpoint, 5, linger=0)
            for _ in range(10):
                one.send(b"x" * 1000, **route)
                other.recv(timeout=1)
                shared.counts["paired"] += 1
            ends = [one.close, one.stop, other.close, other.stop]
            chance.choice(ends)()
            one.close()
            other.close()
        time.sleep(4 * PAUSE * chance.random())


# ------------------------------------------------------------------ other processes


def outsider(stage_work: str, stage_feed: str, service_at: str, seed: int) -> None:
    """A process that works, reads and asks until it is killed."""
    chance = random.Random(seed)
    pull = omq.PULL(connect=stage_work)
    sub = omq.SUB(connect=stage_feed, subscribe=b"")
    req = omq.DEALER(connect=service_at)
    while True:
        req.send(b"x" * chance.choice([10, 10000]))
        for one in omq.wait([pull, sub, req], 0.1):
            one.recv_multipart()


def visit(shared: SoakEndpoints, chance: random.Random) -> None:
    """Starts processes, stops some for a moment, and kills them all."""
    while not shared.over.is_set():
        command = [sys.executable, "-m", "tests.soak.soak", "--outsider", shared.work, shared.feed, shared.service]
        child = os.posix_spawn(sys.executable, command, os.environ)
        shared.counts["processes"] += 1
        shared.over.wait(1 + chance.random())
        if chance.random() < 0.5:
            os.kill(child, signal.SIGSTOP)
            shared.over.wait(chance.random())
            os.kill(child, signal.SIGCONT)
        os.kill(child, chance.choice([signal.SIGKILL, signal.SIGTERM]))
        os.waitpid(child, 0)
        shared.over.wait(2)


# ------------------------------------------------------------------ the run


def sample() -> tuple[int, int, int]:
    """Bytes in memory, open descriptors, threads."""
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm") as statm:
        memory = int(statm.read().split()[1]) * _PAGE
    return memory, len(os.listdir("/proc/self/fd")), threading.active_count()


def slope(samples: list[tuple[float, float]]) -> float:
    """Returns the growth in ten minutes, by linear regression. A shorter time is not extrapolated: it is all noise."""
    middle = sum(when for when, _ in samples) / len(samples)
    mean = sum(value for _, value in samples) / len(samples)
    spread = sum((when - middle) ** 2 for when, _ in samples) or 1
    span = samples[-1][0] - samples[0][0]
    return (600 if span > 300 else span) * sum((when - middle) * (value - mean) for when, value in samples) / spread


async def _asyncio_tasks(shared: SoakEndpoints, seed: int) -> None:
    tasks: list[Task] = [pipeline, worker, worker, worker, feed, reader, reader, cancelled]
    async with asyncio.TaskGroup() as group:
        for number, play in enumerate(tasks):
            group.create_task(play(shared, random.Random(seed + number)))


def _start(shared: SoakEndpoints, seed: int, failures: list[str]) -> list[threading.Thread]:
    def guarded(work: Callable[..., Any], *arguments: Any) -> threading.Thread:
        def run() -> None:
            try:
                work(*arguments)
            except BaseException as error:
                failures.append(f"{work.__name__}: {error!r}")
                shared.over.set()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    threads = [guarded(service, shared)]
    while not shared.service.split(":")[-1].isdigit() and not shared.over.wait(0.01):
        pass
    threads.append(guarded(lambda: uvloop.run(_asyncio_tasks(shared, seed))))
    for number, play in enumerate((client, client, pairs, visit)):
        threads.append(guarded(play, shared, random.Random(seed + 100 + number)))
    return threads


def soak(minutes: float, seed: int) -> int:
    """Runs it; 0 if everything stayed flat."""
    failures: list[str] = []
    samples: list[tuple[float, tuple[int, int, int]]] = []
    with tempfile.TemporaryDirectory(prefix="omq-") as folder:
        shared = SoakEndpoints(folder)
        threads = _start(shared, seed, failures)
        begun = printed = time.monotonic()
        print(f"{'s':>6} {'MiB':>8} {'fds':>5} {'threads':>8}  counts", flush=True)
        while time.monotonic() - begun < 60 * minutes and not shared.over.wait(SAMPLE):
            gc.collect()
            samples.append((time.monotonic() - begun, sample()))
            if samples[-1][0] - printed + begun > 15 or len(samples) == 1:
                printed = time.monotonic()
                when, (memory, descriptors, count) = samples[-1]
                counts = ", ".join(f"{name} {number}" for name, number in sorted(shared.counts.items()))
                print(f"{when:6.0f} {memory / 2**20:8.2f} {descriptors:5} {count:8}  {counts}", flush=True)
        shared.over.set()
        for thread in threads:
            thread.join(20)
            if thread.is_alive():
                failures.append(f"{thread} does not end")
        shared.context.term(linger=0)
    return _verdict(samples, minutes, failures)


def _verdict(samples: list[tuple[float, tuple[int, int, int]]], minutes: float, failures: list[str]) -> int:
    warm = min(120.0, 60 * minutes * WARM)
    kept = [(when, values) for when, values in samples if when > warm]
    usage = resource.getrusage(resource.RUSAGE_SELF)
    print(f"\nCPU: {(usage.ru_utime + usage.ru_stime) / (60 * minutes):.2f} cores")
    names = ("memory", "descriptors", "threads")
    limits = (GROWTH, 10.0, 5.0)  # peers come and go: a regression over what swings is not exactly 0
    print(f"{'':12} {'lowest':>12} {'highest':>12} {'in 10 minutes':>14} {'limit':>12}")
    for place, (name, limit) in enumerate(zip(names, limits, strict=True)):
        series = [(when, float(values[place])) for when, values in kept]
        growth = slope(series)
        lowest, highest = min(value for _, value in series), max(value for _, value in series)
        print(f"{name:12} {lowest:12.0f} {highest:12.0f} {growth:+14.0f} {limit:12.0f}")
        if growth > limit:
            failures.append(f"{name} grows by {growth:.0f} in ten minutes, more than {limit:.0f}")
    for failure in failures:
        print(f"FAILED: {failure}")
    return 1 if failures else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--outsider", nargs=3, metavar=("WORK", "FEED", "SERVICE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.outsider:
        outsider(*arguments.outsider, arguments.seed)
    return soak(arguments.minutes, arguments.seed)


if __name__ == "__main__":
    sys.exit(main())
