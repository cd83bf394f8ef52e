"""Runs `async def` tests: each in a fresh event loop, within a bound, and leaving nothing behind."""

from __future__ import annotations

import asyncio
import gc
import inspect
import itertools
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

import omq.asyncio as omq
from tests.support import waits
from tests.support.async_waits import until as until
from tests.support.socket_types import fitting
from tests.support.waits import descriptors

#: Seconds that one test may take; every wait of a test ends by then.
BOUND = 20.0

LoopFactory = Callable[[], asyncio.AbstractEventLoop]
LOOPS: dict[str, LoopFactory] = {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.SelectorEventLoop}

#: For modules whose cases hold on both loops: `pytestmark = on_both_loops`.
on_both_loops = pytest.mark.parametrize("loop_factory", list(LOOPS), indirect=True)


#: Combinations of loop and transport that run with the slow tests: the others have each of both.
SLOW = {("asyncio", "ipc"), ("uvloop", "inproc")}


def pytest_itemcollected(item: pytest.Item) -> None:
    if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
        found = item.callspec.params
        if (found.get("loop_factory"), found.get("endpoint")) in SLOW:
            item.add_marker(pytest.mark.slow)


#: For tests that leave a process little of it.
needs_address_space = pytest.mark.skipif(
    any(name in Path("/proc/self/maps").read_text() for name in ("libasan", "libtsan")),
    reason="a sanitizer reserves terabytes of it",
)


@pytest.fixture(autouse=True)
def loop_factory(request: pytest.FixtureRequest) -> LoopFactory:
    """The kind of loop that an `async def` test runs in."""
    return LOOPS[getattr(request, "param", "uvloop")]


@pytest.fixture(autouse=True, scope="session")
def _descriptors_of_the_process() -> None:
    """Has the libraries open what they open once for the whole process."""
    for factory in LOOPS.values():
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(asyncio.sleep(0))


class Sockets:
    """Makes sockets and stops them when the test's coroutine is over, whatever happened in it."""

    def __init__(self) -> None:
        self._made: list[omq.Socket] = []

    def __call__(self, kind: type[omq.Socket], *arguments: Any, **options: Any) -> Any:
        socket = kind(*arguments, **options)
        self._made.append(socket)
        return socket

    async def linked(self, one: type[omq.Socket], other: type[omq.Socket], endpoint: str, **options: Any) -> Any:
        """Two sockets: the first bound, the second connected, both knowing it; options for whom they fit."""
        bound = self(one, bind=endpoint, **fitting(one.socket_type, options))
        dialled = self(other, connect=bound.endpoints[0], **fitting(other.socket_type, options))
        await bound.wait_connected(timeout=5)
        await dialled.wait_connected(timeout=5)
        return bound, dialled

    def stop(self) -> None:
        for one in self._made:
            one.stop()


@pytest.fixture
def make() -> Sockets:
    return Sockets()


_names = itertools.count()


@pytest.fixture(params=["tcp", "ipc", "inproc"])
def endpoint(request: pytest.FixtureRequest, tmp_path: Path, free_place: str) -> str:
    """An endpoint to bind, and to bind again, once for each transport."""
    return {
        "tcp": free_place,
        "ipc": f"ipc://{tmp_path}/s",
        "inproc": f"inproc://test-{next(_names)}",
    }[request.param]


@pytest.fixture
def inproc() -> str:
    """A fresh inproc name."""
    return f"inproc://test-{next(_names)}"


async def _bounded(test: Callable[..., Any], arguments: dict[str, Any], complaints: list[str]) -> None:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: complaints.append(f"{context}"))
    made = [value for value in arguments.values() if isinstance(value, Sockets)]
    try:
        async with asyncio.timeout(BOUND):
            await test(**arguments)
    finally:
        for sockets in made:
            sockets.stop()
        # What was cancelled needs a turn to end.
        for _ in range(3):
            await asyncio.sleep(0)
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        complaints += [f"a task is left: {task!r}" for task in left]


# No plugin does this job: pytest-asyncio 1.5 passes a test that leaves a task or whose loop reports an exception, and
# anyio 4 passes one that leaves a task. Neither looks for open descriptors, or bounds a test inside its loop.
@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    arguments = {name: pyfuncitem.funcargs[name] for name in names if name in pyfuncitem.funcargs}
    complaints: list[str] = []
    before = descriptors()
    with asyncio.Runner(loop_factory=pyfuncitem.funcargs["loop_factory"]) as runner:
        runner.run(_bounded(pyfuncitem.obj, arguments, complaints))
    assert not complaints, complaints
    if descriptors() - before:
        gc.collect()
    # A blocking socket of the test's may end in the background.
    waits.until(lambda: not descriptors() - before, lambda: f"descriptors are left open: {descriptors() - before}")
    return True


@pytest.fixture
def little_memory() -> Iterator[Callable[[int | None], None]]:
    """A function that leaves the process a number of bytes of address space; `None`: as many as before."""
    before = resource.getrlimit(resource.RLIMIT_AS)

    def leave(size: int | None) -> None:
        held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, before if size is None else (held + size, before[1]))

    yield leave
    leave(None)
