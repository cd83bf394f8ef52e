"""One way to speak to both twins: a lifecycle is written once, with `await`.

The coroutines of the blocking twin never suspend: `drive` runs them to their end, and what goes on in the background
has a thread of its own.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Coroutine
from typing import Any, Protocol

import omq
import omq.asyncio


class Background(Protocol):
    """Something that goes on during the steps."""

    def cancel(self) -> None: ...

    def done(self) -> bool: ...


class Twin(Protocol):
    """The calls of one of the twins."""

    name: str

    async def make(self, kind: str, context: omq.Context, owned: bool, options: dict[str, Any]) -> Any:
        """A socket."""

    async def do(self, socket: Any, call: str, *arguments: Any, **named: Any) -> Any:
        """Makes a call and waits for its result."""

    async def cut(self, socket: Any, call: str, seconds: float) -> Any:
        """Makes a call that is cut off from outside after a time; raises TimeoutError then."""

    async def orphan(self, socket: Any) -> None:
        """Ends a socket through its owner, or from elsewhere."""

    async def sleep(self, seconds: float) -> None: ...

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> Background: ...

    async def join(self, background: Background, bound: float) -> bool:
        """Waits for its end; whether it came in time. Raises what it raised."""


class _Owner:
    """A task group that a socket belongs to."""

    def __init__(self) -> None:
        self._over = asyncio.Event()
        self._ready: asyncio.Future[asyncio.TaskGroup] = asyncio.get_running_loop().create_future()
        self.task = asyncio.create_task(self._run(), name="owner")

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            self._ready.set_result(group)
            await self._over.wait()

    async def group(self) -> asyncio.TaskGroup:
        return await self._ready

    async def release(self) -> None:
        """The group has nothing more to wait for but its sockets."""
        self._over.set()
        await self.task


class AsyncioTwin:
    name = "asyncio"

    def __init__(self) -> None:
        self._owners: dict[int, _Owner] = {}

    async def make(self, kind: str, context: omq.Context, owned: bool, options: dict[str, Any]) -> Any:
        if not owned:
            return getattr(omq.asyncio, kind)(context, **options)
        owner = _Owner()
        socket = getattr(omq.asyncio, kind)(context, parent=await owner.group(), **options)
        self._owners[id(socket)] = owner
        return socket

    async def do(self, socket: Any, call: str, *arguments: Any, **named: Any) -> Any:
        result = getattr(socket, call)(*arguments, **named)
        if inspect.isawaitable(result):
            result = await result
        if call in ("close", "stop") and (owner := self._owners.pop(id(socket), None)) is not None:
            await owner.release()
        return result

    async def cut(self, socket: Any, call: str, seconds: float) -> Any:
        if seconds == 0:
            async with asyncio.timeout(0):
                return await getattr(socket, call)()
        return await asyncio.wait_for(getattr(socket, call)(), seconds)

    async def orphan(self, socket: Any) -> None:
        owner = self._owners.pop(id(socket), None)
        if owner is None:
            socket.stop()
            return
        owner.task.cancel()
        await asyncio.wait([owner.task])
        if not socket.closed and not socket._engine.has_loop:
            socket.stop()  # it was never used, and so the group never had it

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> Background:
        return asyncio.create_task(work, name=name)

    async def join(self, background: Any, bound: float) -> bool:
        await asyncio.wait([background], timeout=bound)
        if not background.done():
            return False
        if not background.cancelled():
            background.result()
        return True


class _Thread:
    """Something in the background of the blocking twin; it ends when its socket does."""

    def __init__(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._work = work
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            drive(self._work)
        except BaseException as error:
            self._failure = error

    def cancel(self) -> None:
        """Threads cannot be cancelled."""

    def done(self) -> bool:
        return not self._thread.is_alive()

    def join(self, bound: float) -> bool:
        self._thread.join(bound)
        if self._failure is not None:
            raise self._failure
        return not self._thread.is_alive()


class BlockingTwin:
    name = "blocking"

    async def make(self, kind: str, context: omq.Context, owned: bool, options: dict[str, Any]) -> Any:
        return getattr(omq, kind)(context, **options)

    async def do(self, socket: Any, call: str, *arguments: Any, **named: Any) -> Any:
        return getattr(socket, call)(*arguments, **named)

    async def cut(self, socket: Any, call: str, seconds: float) -> Any:
        return getattr(socket, call)(timeout=seconds)

    async def orphan(self, socket: Any) -> None:
        thread = threading.Thread(target=socket.stop)
        thread.start()
        thread.join()

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> Background:
        return _Thread(work, name)

    async def join(self, background: Any, bound: float) -> bool:
        return bool(background.join(bound))


def drive(work: Coroutine[Any, Any, Any]) -> Any:
    """Runs a coroutine that never suspends."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError(f"{work!r} suspended")
