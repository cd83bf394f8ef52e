"""Adapters for both twins of the broker's client, so that each test is written once."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import uvloop

import omq.asyncio.broker
import omq.broker


class Blocking:
    """Clients of `omq.broker`."""

    name = "blocking"
    Client: Any = omq.broker.Client

    def wait(self, call: Any) -> Any:
        """Returns the result of a call."""
        return call

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Calls a method that is awaited in neither twin."""
        return function(*arguments)

    def step(self, function: Callable[..., Any]) -> Any:
        """Calls a method that is awaited, outside of a running loop."""
        return function()

    def begin(self, function: Callable[..., Any], times: int) -> Callable[[], list[Any]]:
        """Starts calls concurrently, and returns a function that waits for their results."""
        pool = ThreadPoolExecutor(times)
        futures = [pool.submit(function, timeout=20.0) for _ in range(times)]
        return lambda: [future.result() for future in futures]

    def take(self, stream: Any, count: int) -> list[Any]:
        """Iterates."""
        got: list[Any] = []
        for message in stream if count else ():
            got.append(message)
            if len(got) == count:
                break
        return got

    def all(self, stream: Any) -> list[Any]:
        """Iterates to the end."""
        return list(stream)

    def close(self) -> None:
        """Releases the resources of the twin."""


class Looped:
    """Clients of `omq.asyncio.broker`, whose loop runs while a test waits for a result."""

    name = "asyncio"
    Client: Any = omq.asyncio.broker.Client

    def __init__(self) -> None:
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)

    def wait(self, call: Any) -> Any:
        async def run() -> Any:
            return await call

        return self._runner.run(run()) if inspect.isawaitable(call) else call

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        async def run() -> Any:
            return function(*arguments)

        return self._runner.run(run())

    def step(self, function: Callable[..., Any]) -> Any:
        return function().send(None)

    def begin(self, function: Callable[..., Any], times: int) -> Callable[[], list[Any]]:
        async def run() -> Any:
            tasks = [asyncio.ensure_future(function(timeout=20.0)) for _ in range(times)]
            await asyncio.sleep(0)  # they wait
            return tasks

        tasks = self._runner.run(run())

        async def wait() -> Any:
            return await asyncio.gather(*tasks)

        return lambda: self._runner.run(wait())

    def take(self, stream: Any, count: int) -> list[Any]:
        async def run() -> list[Any]:
            got: list[Any] = []
            if count:
                async for message in stream:
                    got.append(message)
                    if len(got) == count:
                        break
            return got

        return self._runner.run(run())

    def all(self, stream: Any) -> list[Any]:
        async def run() -> list[Any]:
            return [message async for message in stream]

        return self._runner.run(run())

    def close(self) -> None:
        self._runner.close()


TWINS = {"blocking": Blocking, "asyncio": Looped}


def twins(name: str) -> Iterator[Any]:
    """Yields the adapter of a twin, for a fixture."""
    twin = TWINS[name]()
    try:
        yield twin
    finally:
        twin.close()
