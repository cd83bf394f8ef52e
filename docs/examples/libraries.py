"""The differences between the two libraries that `demo.py` compares. All else is called alike."""

import importlib.util
from typing import Any, Final, Protocol

import omq.asyncio as omq


class AsyncSocket(Protocol):
    """An asyncio socket of either library."""

    async def send_multipart(self, parts: list[bytes], /) -> Any: ...

    async def recv_multipart(self) -> list[bytes]: ...


class Library(Protocol):
    """Opens the sockets of the demo with one of the libraries, all over tcp on this machine."""

    def push(self) -> tuple[Any, str]:
        """Returns a PUSH socket that listens, and its endpoint."""

    async def wait_pulls(self, push: Any, count: int) -> None:
        """Waits until *count* PULL sockets are connected."""

    def pull(self, endpoint: str) -> Any:
        """Returns a PULL socket that connects to *endpoint*."""

    def listen(self) -> tuple[Any, str]:
        """Returns a SUB socket that listens and subscribes to everything, and its endpoint."""

    async def feed(self, endpoint: str) -> Any:
        """Returns a PUB socket whose subscriber is connected."""

    async def close(self, *sockets: Any) -> None:
        """Closes sockets at once."""


class Omq:
    """The asyncio sockets of omq."""

    def push(self) -> tuple[Any, str]:
        push = omq.PUSH()
        return push, push.bind("tcp://127.0.0.1:*")

    async def wait_pulls(self, push: Any, count: int) -> None:
        await push.wait_connected(count)

    def pull(self, endpoint: str) -> Any:
        return omq.PULL(connect=endpoint)

    def listen(self) -> tuple[Any, str]:
        sub = omq.SUB(subscribe=b"", recv_hwm=0)
        return sub, sub.bind("tcp://127.0.0.1:*")

    async def feed(self, endpoint: str) -> Any:
        pub = omq.PUB(connect=endpoint, send_hwm=0)
        await pub.wait_subscribed()
        return pub

    async def close(self, *sockets: Any) -> None:
        for socket in sockets:
            await socket.close(linger=0)


class Pyzmq:
    """The asyncio sockets of pyzmq."""

    def __init__(self) -> None:
        import zmq
        import zmq.asyncio
        import zmq.utils.monitor

        self._zmq = zmq
        self._context = zmq.asyncio.Context()

    def push(self) -> tuple[Any, str]:
        push = self._context.socket(self._zmq.PUSH)
        # Asked for before the bind, so that no peer is missed.
        push.get_monitor_socket(self._zmq.EVENT_HANDSHAKE_SUCCEEDED)
        return push, self._bound(push)

    async def wait_pulls(self, push: Any, count: int) -> None:
        for _ in range(count):
            await self._zmq.utils.monitor.recv_monitor_message(push.get_monitor_socket())
        push.disable_monitor()

    def pull(self, endpoint: str) -> Any:
        pull = self._context.socket(self._zmq.PULL)
        pull.connect(endpoint)
        return pull

    def listen(self) -> tuple[Any, str]:
        sub = self._context.socket(self._zmq.SUB)
        sub.set_hwm(0)
        sub.subscribe(b"")
        return sub, self._bound(sub)

    async def feed(self, endpoint: str) -> Any:
        # An XPUB receives subscriptions: this one means that the subscriber is connected.
        pub = self._context.socket(self._zmq.XPUB)
        pub.set_hwm(0)
        pub.connect(endpoint)
        await pub.recv()
        return pub

    async def close(self, *sockets: Any) -> None:
        for socket in sockets:
            socket.close(linger=0)
        self._context.destroy(linger=0)

    @staticmethod
    def _bound(socket: Any) -> str:
        port = socket.bind_to_random_port("tcp://127.0.0.1")
        return f"tcp://127.0.0.1:{port}"


LIBRARIES: Final[dict[str, type[Library]]] = {"omq": Omq, "pyzmq": Pyzmq}


def installed(name: str) -> bool:
    """Returns whether a library can be imported."""
    return name == "omq" or importlib.util.find_spec("zmq") is not None
