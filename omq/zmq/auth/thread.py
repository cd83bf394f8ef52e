"""Authentication of peers in a thread."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import omq.zmq.asyncio  # noqa: F401 - programs use it without importing it
from omq.unpatched import threading
from omq.zmq.auth.base import Authenticator
from omq.zmq.auth.readable import wait_readable
from omq.zmq.constants import PAIR
from omq.zmq.context import Context
from omq.zmq.socket import Socket

_START_TIMEOUT_S: Final = 10.0
_TERMINATE: Final = b"TERMINATE"


class AuthenticationThread(threading.Thread):
    """Answers requests until it receives `TERMINATE`.

    Args:
        authenticator: Decides.
        pipe: The PAIR that receives the command.

    Attributes:
        started: Set when the thread answers.
    """

    def __init__(self, authenticator: Authenticator, pipe: Socket[Any]) -> None:
        super().__init__(name="omq-zmq-auth", daemon=True)
        self.authenticator = authenticator
        self.log = authenticator.log
        self.pipe = pipe
        self.started = threading.Event()

    def run(self) -> None:
        """Runs the thread."""
        try:
            asyncio.run(self._answer())
        finally:
            self.pipe.close()

    async def _answer(self) -> None:
        zap_socket = self.authenticator.zap_socket
        self.started.set()
        while True:
            ready = await wait_readable(self.pipe, zap_socket)
            if self.pipe in ready and self._handle_pipe_message(self.pipe.recv_multipart()):
                return
            if zap_socket in ready:
                await self.authenticator.handle_zap_message(zap_socket.recv_multipart())

    def _handle_pipe_message(self, msg: list[bytes]) -> bool:
        """Returns whether a command ends the thread."""
        if msg[0] == _TERMINATE:
            return True
        self.log.error("Invalid auth command from API: %r", msg[0])
        self.pipe.send(b"ERROR")
        return False


class ThreadAuthenticator(Authenticator):
    """Answers requests in a thread.

    Args:
        context: The context of the sockets; `None` for `Context.instance()`.
        encoding: The encoding of domains, addresses, user names and passwords.
        log: The logger; `None` for `zmq.auth`.
    """

    pipe: Socket[Any]
    pipe_endpoint: str = ""
    thread: AuthenticationThread

    def __init__(self, context: Context[Any] | None = None, encoding: str = "utf-8", log: Any = None) -> None:
        super().__init__(context=context, encoding=encoding, log=log)
        self.pipe = None  # type: ignore[assignment]
        self.pipe_endpoint = f"inproc://{id(self)}.inproc"
        self.thread = None  # type: ignore[assignment]

    def start(self) -> None:
        """Starts the thread.

        Raises:
            RuntimeError: It does not start in time.
        """
        super().start()
        self.pipe = self._pair()
        self.pipe.bind(self.pipe_endpoint)
        theirs = self._pair()
        theirs.connect(self.pipe_endpoint)
        self.thread = AuthenticationThread(authenticator=self, pipe=theirs)
        self.thread.start()
        if not self.thread.started.wait(timeout=_START_TIMEOUT_S):
            raise RuntimeError("Authenticator thread failed to start")

    def _pair(self) -> Socket[Any]:
        made: Socket[Any] = self.context.socket(PAIR, socket_class=Socket)
        made.linger = 1
        return made

    def stop(self) -> None:
        """Ends the thread."""
        if self.pipe:
            self.pipe.send(_TERMINATE)
            if self.is_alive():
                self.thread.join()
            self.thread = None  # type: ignore[assignment]
            self.pipe.close()
            self.pipe = None  # type: ignore[assignment]
        super().stop()

    def is_alive(self) -> bool:
        """Returns whether the thread runs."""
        return bool(self.thread and self.thread.is_alive())

    def __del__(self) -> None:
        self.stop()


__all__ = ["ThreadAuthenticator"]
