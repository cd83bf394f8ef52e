"""The other side of a call that is interrupted: a blocking socket, or an asyncio socket whose loop runs in a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import omq
import omq.asyncio

BOUND = 5.0  # seconds for one step of a peer


class _Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, name="loop", daemon=True).start()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(BOUND)

    async def make(self, make: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        return make(*arguments, **options)


class Peer:
    """The calls that a test makes on the other side, in either twin."""

    _loop: _Loop | None = None

    def __init__(self, kind: str, context: omq.Context, asynchronous: bool, **options: Any) -> None:
        options.setdefault("linger", 0)
        self._asynchronous = asynchronous
        if asynchronous:
            Peer._loop = Peer._loop or _Loop()
            self.socket: Any = Peer._loop.run(Peer._loop.make(getattr(omq.asyncio, kind), context, **options))
        else:
            self.socket = getattr(omq, kind)(context, **options)

    def __call__(self, name: str, *arguments: Any, **options: Any) -> Any:
        """Calls a method of the socket where it lives."""
        method = getattr(self.socket, name)
        if self._asynchronous:
            assert Peer._loop is not None
            return Peer._loop.run(self._call(method, *arguments, **options))
        return method(*arguments, **options)

    async def _call(self, method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        result = method(*arguments, **options)
        return await result if hasattr(result, "__await__") else result

    def until(self, last: bytes) -> list[bytes]:
        """Returns the messages up to *last*."""
        found: list[bytes] = []
        while last not in found:
            found += self("recv_many", timeout=BOUND)
        return found

    def bind(self, transport: str, name: str) -> str:
        """Listens; gives where."""
        endpoint = {"tcp": "tcp://127.0.0.1:*", "ipc": "ipc://*"}.get(transport, f"inproc://{name}")
        return str(self("bind", endpoint))

    def stop(self) -> None:
        self("stop")
