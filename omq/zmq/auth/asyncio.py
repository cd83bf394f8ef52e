"""Authentication of peers in a loop of asyncio."""

from __future__ import annotations

import asyncio
import warnings
from typing import Any

from omq.zmq.auth.base import Authenticator
from omq.zmq.auth.readable import wait_readable
from omq.zmq.context import Context


class AsyncioAuthenticator(Authenticator):
    """Answers requests in the running loop.

    Args:
        context: The context of the sockets; `None` for `Context.instance()`.
        loop: Ignored; deprecated.
        encoding: The encoding of domains, addresses, user names and passwords.
        log: The logger; `None` for `zmq.auth`.
    """

    def __init__(
        self, context: Context[Any] | None = None, loop: Any = None, encoding: str = "utf-8", log: Any = None
    ) -> None:
        super().__init__(context, encoding, log)
        if loop is not None:
            warnings.warn(f"{type(self).__name__}(loop) is deprecated and ignored", DeprecationWarning, stacklevel=2)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins to answer requests."""
        super().start()
        self._task = asyncio.ensure_future(self._answer())

    async def _answer(self) -> None:
        while True:
            await wait_readable(self.zap_socket)
            await self.handle_zap_message(self.zap_socket.recv_multipart())

    def stop(self) -> None:
        """Ends the answers."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        super().stop()


__all__ = ["AsyncioAuthenticator"]
