"""A bus that tests have to themselves.

What needs protobuf is imported where it is used: without protobuf the modules are skipped, and this one is loaded.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pytest

import omq.asyncio
from tests.support.parameters import each_value_once

if TYPE_CHECKING:
    from omq.goby import Daemon


class Bus:
    """A gobyd in this process, and its place.

    Attributes:
        daemon: The gobyd.
        bus_options: The options by which a portal finds it.
    """

    def __init__(self, daemon: Daemon, bus_options: dict[str, Any]) -> None:
        self.daemon = daemon
        self.bus_options = bus_options


Make = Callable[..., Bus]
#: Makes a portal of either twin.
Twin = Callable[..., Any]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs a test over both transports and with both twins; the usual run takes each once."""
    every = {"portal": ["blocking", "asyncio"], "bus": ["ipc", "tcp"]}
    some = {name: values for name, values in every.items() if name in metafunc.fixturenames}
    if some:
        metafunc.parametrize(*each_value_once(**some).args, indirect=True)


@pytest.fixture
def bus(request: pytest.FixtureRequest, tmp_path: Path, free_port: int) -> Iterator[Make]:
    """Makes a gobyd, or the next one at the same place, on either transport."""
    from omq.goby import Daemon

    with ExitStack() as stack:

        def made(**options: Any) -> Bus:
            bus_options: dict[str, Any] = {"socket_name": tmp_path / "g"}
            if request.param == "tcp":
                bus_options = {"transport": "tcp", "port": free_port}
                options.setdefault("host", "127.0.0.1")
            return Bus(stack.enter_context(Daemon(**bus_options, **options)), bus_options)

        yield made


@pytest.fixture
def bus_options(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """Runs a bus over ipc that requires no client; yields the options by which a portal finds it."""
    from omq.goby import Daemon

    with Daemon(socket_name=tmp_path / "g"):
        yield {"socket_name": tmp_path / "g"}


class Driven:
    """An object of the asyncio twin, whose calls are made in the loop of a thread, and waited for."""

    def __init__(self, loop: asyncio.AbstractEventLoop, driven: Any) -> None:
        self._loop = loop
        self._driven = driven

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._driven, name)
        if isinstance(found, omq.asyncio.Socket):
            return Driven(self._loop, found)
        return partial(self._call, found) if callable(found) else found

    def _call(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        from omq.asyncio.goby import Subscription

        async def made() -> Any:
            result = call(*arguments, **options)
            return await result if inspect.isawaitable(result) else result

        if asyncio._get_running_loop() is self._loop:  # in a callback
            result = call(*arguments, **options)
            if inspect.iscoroutine(result):
                self._task = self._loop.create_task(result)
            return None
        result = asyncio.run_coroutine_threadsafe(made(), self._loop).result(60)
        return Driven(self._loop, result) if isinstance(result, Subscription) else result

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        try:
            return self.recv()
        except omq.ClosedError:
            raise StopIteration from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@pytest.fixture
def portal(request: pytest.FixtureRequest) -> Iterator[Twin]:
    """Makes portals of either twin, connected, whose calls wait."""
    import omq.asyncio.goby
    from omq.goby import Portal

    if request.param == "blocking":
        yield Portal
        return
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def connected(*arguments: Any, **options: Any) -> Driven:
        found = omq.asyncio.goby.Portal(*arguments, **options)
        await found.start()
        return Driven(loop, found)

    try:
        yield lambda *given, **options: asyncio.run_coroutine_threadsafe(connected(*given, **options), loop).result(60)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
