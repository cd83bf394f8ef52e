"""Authentication of peers in a loop of tornado, which is one of asyncio; deprecated."""

from __future__ import annotations

import warnings
from typing import Any

from omq.zmq.auth.asyncio import AsyncioAuthenticator
from omq.zmq.context import Context

warnings.warn(
    "zmq.auth.ioloop.IOLoopAuthenticator is deprecated; use zmq.auth.asyncio.AsyncioAuthenticator",
    DeprecationWarning,
    stacklevel=2,
)


class IOLoopAuthenticator(AsyncioAuthenticator):
    """Answers requests in the running loop.

    Args:
        context: The context of the sockets; `None` for `Context.instance()`.
        encoding: The encoding of domains, addresses, user names and passwords.
        log: The logger; `None` for `zmq.auth`.
        io_loop: Ignored; deprecated.
    """

    def __init__(
        self, context: Context[Any] | None = None, encoding: str = "utf-8", log: Any = None, io_loop: Any = None
    ) -> None:
        loop = None
        if io_loop is not None:
            warnings.warn(f"{type(self).__name__}(io_loop) is deprecated and ignored", DeprecationWarning, stacklevel=2)
            loop = io_loop.asyncio_loop
        super().__init__(context=context, encoding=encoding, log=log, loop=loop)


__all__ = ["IOLoopAuthenticator"]
