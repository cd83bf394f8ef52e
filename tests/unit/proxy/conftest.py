"""Proxies for tests: each runs in a thread of its own, and a test steers it."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

import omq
import omq.asyncio
from tests.support.waits import BOUND
from tests.system.conformance.conftest import AsyncioTwin
from tests.unit.blocking.conftest import Crew, Sockets, asleep

TCP = "tcp://127.0.0.1:*"


class Figures(NamedTuple):
    """The answer to STATISTICS."""

    front_in: int
    front_bytes_in: int
    front_out: int
    front_bytes_out: int
    back_in: int
    back_bytes_in: int
    back_out: int
    back_bytes_out: int


def figures_of(parts: list[bytes]) -> Figures:
    """The numbers in an answer."""
    return Figures(*(struct.unpack("=Q", part)[0] for part in parts))


class Steered:
    """A proxy that runs in a thread, and the sockets around it."""

    def __init__(self, make: Any, crew: Crew, front: Any, back: Any, kinds: tuple[Any, Any], **more: Any) -> None:
        self.front, self.back = front, back
        own, others = kinds
        self._control = make(own, bind=TCP, **({"subscribe": b""} if own is omq.SUB else {}))
        self.steer = make(others, connect=self._control.endpoints[0])
        self._control.wait_connected(timeout=BOUND)
        self.steer.wait_connected(timeout=BOUND)
        if others is omq.PUB:
            self.steer.wait_subscribed(timeout=BOUND)
        self.thread = crew(lambda: make.proxy(front, back, control=self._control, **more))

    @property
    def front_end(self) -> str:
        """Returns the endpoint to which clients of the frontend connect."""
        return str(self.front.endpoints[0])

    @property
    def back_end(self) -> str:
        """The same of the backend."""
        return str(self.back.endpoints[0])

    def command_proxy(self, command: bytes) -> None:
        """Gives a command."""
        self.steer.send(command, timeout=BOUND)
        if self.steer.socket_type is omq.SocketType.REQ:
            assert self.steer.recv(timeout=BOUND) == b""

    def figures(self) -> Figures:
        """Asks for the statistics; earlier commands have been obeyed when they come."""
        self.steer.send(b"STATISTICS", timeout=BOUND)
        return figures_of(self.steer.recv_multipart(timeout=BOUND))

    def ends(self) -> None:
        """Waits for the end of the call."""
        self.thread.join(BOUND)
        assert not self.thread.is_alive(), "the proxy goes on"

    def sleeps(self) -> None:
        """Waits until the proxy waits."""
        asleep(self.front)


class Proxies:
    """Starts proxies, and ends them with the test."""

    def __init__(self, make: Any, crew: Crew) -> None:
        self._make, self._crew = make, crew
        self._running: list[Steered] = []

    def __call__(self, front: Any, back: Any, *, kinds: tuple[Any, Any] = (omq.PAIR, omq.PAIR), **more: Any) -> Steered:
        """Starts a proxy between two sockets, or types of sockets, which are then bound."""
        front, back = (self._make(one, bind=TCP) if isinstance(one, type) else one for one in (front, back))
        steered = Steered(self._make, self._crew, front, back, kinds, **more)
        self._running.append(steered)
        return steered

    def stop(self) -> None:
        for one in self._running:
            if one.thread.is_alive():
                one.command_proxy(b"KILL")
                one.ends()


class BlockingSockets(Sockets):
    """Makes blocking sockets, and runs their proxy."""

    proxy = staticmethod(omq.proxy)


class AsyncioSockets:
    """Makes asyncio sockets by the class of their blocking twins, and runs their proxy in their loop."""

    def __init__(self) -> None:
        self._twin = AsyncioTwin()

    def __call__(self, kind: type[omq.Socket], **options: Any) -> Any:
        return self._twin(kind.socket_type.value, **options)

    def proxy(self, *sockets: Any, **more: Any) -> None:
        inner = [one._socket for one in sockets]
        named = {name: one and one._socket for name, one in more.items()}
        self._twin.call(lambda: omq.asyncio.proxy(*inner, **named))

    def stop(self) -> None:
        self._twin.stop()


MAKERS = {"blocking": BlockingSockets, "asyncio": AsyncioSockets}
#: For what the proxies of both twins do.
in_both_twins = pytest.mark.parametrize("make", list(MAKERS), indirect=True)


@pytest.fixture
def make(request: pytest.FixtureRequest) -> Iterator[Any]:
    sockets = MAKERS[getattr(request, "param", "blocking")]()
    yield sockets
    sockets.stop()


@pytest.fixture
def crew() -> Crew:
    return Crew()


@pytest.fixture
def proxied(make: Any, crew: Crew) -> Iterator[Proxies]:
    proxies = Proxies(make, crew)
    yield proxies
    proxies.stop()
    crew.join()
