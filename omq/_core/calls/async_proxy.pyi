import asyncio

from omq._core.calls.proxy import ProxyCore

class AsyncProxy(ProxyCore):
    """The asyncio proxy: works in the turns of its sockets' loop.

    Args:
        frontend: The core of the one socket.
        backend: That of the other one.
        capture: That of a socket which gets a copy of each message; `None`: there is none.
        control: That of a socket which gives commands; `None`: there is none.
    """

    def begin(self) -> None:
        """Begins to serve the sockets.

        Raises:
            StateError: Another proxy serves one of them.
        """

    def turn(self) -> bool:
        """Works for one turn of the loop.

        Returns:
            Whether there is more to do.

        Raises:
            ClosedError: One of the sockets was closed.
        """

    def rest(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        """A Future that is done when something has happened to a socket; for where `turn` had nothing more to do."""

    def end(self) -> None:
        """Ceases to serve the sockets; what has gathered leaves."""
