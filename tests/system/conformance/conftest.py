"""One text for both twins: asyncio sockets live in a loop of their own here, and each call waits for its result."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import uvloop

import omq
import omq.asyncio
from tests.support.socket_types import fitting
from tests.support.waits import BOUND


class Awaited:
    """An asyncio socket whose methods can be called from outside of its loop."""

    def __init__(self, twin: AsyncioTwin, socket: omq.asyncio.Socket) -> None:
        self._twin = twin
        self._socket = socket

    def __getattr__(self, name: str) -> Any:
        found = self._twin.call(lambda: getattr(self._socket, name))
        if not callable(found):
            return found
        return lambda *arguments, **options: self._twin.call(lambda: found(*arguments, **options))

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            super().__setattr__(name, value)
        else:
            self._twin.call(lambda: setattr(self._socket, name, value))

    def __repr__(self) -> str:
        return repr(self._socket)

    def __iter__(self) -> Awaited:
        return self

    def __next__(self) -> Any:
        try:
            return self._twin.call(self._socket.__anext__)
        except StopAsyncIteration:
            raise StopIteration from None


class Twin:
    """Makes sockets of one twin, in a context of the test's own."""

    name: str

    def __init__(self) -> None:
        self.context: Any = None
        self._made: list[Any] = []

    def __call__(self, kind: str, *, context: Any = None, **options: Any) -> Any:
        socket = self.make(kind, context or self.context, options)
        self._made.append(socket)
        return socket

    def make(self, kind: str, context: Any, options: dict[str, Any]) -> Any:
        raise NotImplementedError

    def linked(self, one: str, other: str, endpoint: str, **options: Any) -> tuple[Any, Any]:
        """Two sockets: the first bound, the second connected, both knowing it; options for whom they fit."""
        bound = self(one, bind=endpoint, **fitting(one, options))
        dialled = self(other, connect=bound.endpoints[0], **fitting(other, options))
        bound.wait_connected(timeout=BOUND)
        dialled.wait_connected(timeout=BOUND)
        return bound, dialled

    def wait(self, work: Callable[[], Any]) -> Any:
        """Does something that is awaited in one of the twins."""
        return work()

    def event(self, monitor: Any, timeout: float = BOUND) -> Any:
        """Returns the next event of a monitor."""
        return self.wait(lambda: monitor.recv(timeout=timeout))

    def spawn(self, socket: Any, call: str, *arguments: Any, **options: Any) -> Waiting:
        """Runs a call in a thread."""
        return Waiting(lambda: getattr(socket, call)(*arguments, **options))

    def stop(self) -> None:
        for socket in self._made:
            socket.stop()


class Waiting:
    """A call that runs in a thread."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._outcome: Any = None
        self._failure: BaseException | None = None

        def run() -> None:
            try:
                self._outcome = work()
            except BaseException as error:
                self._failure = error

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def done(self, within: float = 0) -> bool:
        self._thread.join(within)
        return not self._thread.is_alive()

    def result(self) -> Any:
        assert self.done(BOUND), "the call hangs"
        if self._failure is not None:
            raise self._failure
        return self._outcome


class BlockingTwin(Twin):
    name = "blocking"

    def __init__(self) -> None:
        super().__init__()
        self.context = omq.Context()

    def make(self, kind: str, context: Any, options: dict[str, Any]) -> Any:
        return getattr(omq, kind)(context, **options)

    def stop(self) -> None:
        super().stop()
        self.context.term(linger=0)


class AsyncioTwin(Twin):
    name = "asyncio"

    def __init__(self, new_loop: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop) -> None:
        super().__init__()
        self.context = omq.asyncio.Context()
        self._loop = new_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def call(self, work: Callable[[], Any]) -> Any:
        """Does something in the loop; what has to be awaited is."""

        async def run() -> Any:
            result = work()
            return await result if inspect.isawaitable(result) else result

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(2 * BOUND)

    def wait(self, work: Callable[[], Any]) -> Any:
        return self.call(work)

    def make(self, kind: str, context: Any, options: dict[str, Any]) -> Any:
        return Awaited(self, self.call(lambda: getattr(omq.asyncio, kind)(context, **options)))

    def stop(self) -> None:
        super().stop()
        self.call(self._run_out)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _run_out(self) -> None:
        """Waits until the tasks that the sockets have cancelled have ended."""
        left = asyncio.all_tasks() - {asyncio.current_task()}
        if left:
            await asyncio.wait(left, timeout=BOUND)
        assert all(task.done() for task in left), left


TWINS: dict[str, Callable[[], Twin]] = {
    "blocking": BlockingTwin,
    "asyncio": AsyncioTwin,
    "asyncio-without-uvloop": partial(AsyncioTwin, asyncio.SelectorEventLoop),
}
#: Combinations of twin and transport that run with the slow tests: the others have each of both.
SLOW = {
    ("blocking", "ipc"),
    ("asyncio", "tcp"),
    ("asyncio", "inproc"),
    ("asyncio-without-uvloop", "ipc"),
    ("asyncio-without-uvloop", "inproc"),
}
#: For what the loop could make different.
on_every_loop = pytest.mark.parametrize("twin", list(TWINS), indirect=True)


def pytest_itemcollected(item: pytest.Item) -> None:
    if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
        found = item.callspec.params
        if (found.get("twin"), found.get("endpoint")) in SLOW:
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(tryfirst=True)  # before pytest chooses by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leaves each combination of other parameters to one twin; those with the other one run with the slow tests.

    The transports have combinations of their own. Modules with `on_each_twin` have values that one twin does not know.
    """
    runs: dict[tuple[object, ...], list[pytest.Function]] = {}
    folder = f"{Path(__file__).parent}/"
    for item in items:
        is_ours = isinstance(item, pytest.Function) and str(item.path).startswith(folder) and hasattr(item, "callspec")
        if is_ours and not item.get_closest_marker("slow") and not hasattr(item.module, "on_each_twin"):
            found = item.callspec.params
            if "twin" in found and "endpoint" not in found and len(found) > 1:
                others = item.callspec.id.replace(found["twin"], "", 1)
                runs.setdefault((item.path, item.originalname, others), []).append(item)
    for number, some in enumerate(runs.values()):
        for item in some:
            if item is not some[number % len(some)]:
                item.add_marker(pytest.mark.slow)


@pytest.fixture(params=["blocking", "asyncio"])
def twin(request: pytest.FixtureRequest) -> Iterator[Twin]:
    """Makes sockets: `twin("PUSH", bind=...)`; each test runs with both twins."""
    made = TWINS[request.param]()
    try:
        yield made
    finally:
        made.stop()


_names = itertools.count()


@pytest.fixture
def inproc() -> str:
    """A fresh inproc name."""
    return f"inproc://conformance-{next(_names)}"


@pytest.fixture(params=["tcp", "ipc", "inproc"])
def endpoint(request: pytest.FixtureRequest, tmp_path: Any, inproc: str, free_place: str) -> str:
    """An endpoint to bind, and to bind again, once for each transport."""
    return {"tcp": free_place, "ipc": f"ipc://{tmp_path}/s", "inproc": inproc}[request.param]


def fill(socket: Any, limit: int, *parts: bytes, timeout: float = 0, first: int = 0) -> int:
    """Sends messages, numbered from *first*, until there is no room; how many were accepted, *limit* at most."""
    if not parts:
        try:
            return int(socket.send_many([b"%d" % (first + number) for number in range(limit)], timeout=timeout))
        except omq.SendTimeout:
            return 0
    for number in range(limit):
        try:
            socket.send_multipart([*parts, b"%d" % (first + number)], timeout=timeout)
        except omq.SendTimeout:
            return number
    return limit


def drain(socket: Any, count: int = 0, quiet: float = 0.1) -> list[Any]:
    """Everything that arrives until nothing comes for a while; *count* messages are waited for longer."""
    got: list[Any] = []
    while socket.poll(quiet if len(got) >= count else BOUND):
        got += socket.recv_many()
    return got
