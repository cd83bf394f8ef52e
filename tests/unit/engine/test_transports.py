"""An unknown transport is served like those that omq has."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import pytest

import omq
import omq.asyncio
from omq.options import Options
from omq.transport import (
    TRANSPORTS,
    AddrInfo,
    Listening,
    LocalTransport,
    Lookup,
    Route,
    StreamTransport,
    parse_endpoint,
)
from tests.unit.conftest import on_both_loops, until
from tests.unit.engine.raw_listeners import FAST


@dataclass(frozen=True, slots=True)
class LoopEndpoint:
    """A number within this process, and a name on the way there: `loop://7` or `loop://7@name`."""

    scheme: ClassVar[str] = "loop"
    number: int
    host: str = ""

    def __str__(self) -> str:
        return f"loop://{self.number}{self.host and '@'}{self.host}"

    @property
    def address(self) -> bytes:
        return b"\0omq-loop-%d-%d" % (os.getpid(), self.number)


class LoopTransport(StreamTransport[LoopEndpoint]):
    """Streams over abstract Unix sockets; the name is looked up, and has no listener at first."""

    scheme = "loop"
    hands_over = True

    def __init__(self) -> None:
        self.tuned = 0
        self.cleaned: list[str] = []

    def parse(self, rest: str, *, bind: bool) -> LoopEndpoint:
        number, _, host = rest.partition("@")
        if not number.isdigit():
            raise ValueError(f"{number!r} is not a number")
        return LoopEndpoint(int(number), host)

    def listen(self, endpoint: LoopEndpoint, options: Options) -> Listening:
        sock = socket.socket(socket.AF_UNIX)
        sock.setblocking(False)
        try:
            sock.bind(endpoint.address)
        except OSError as error:
            sock.close()
            raise omq.BindError(error.errno, f"{endpoint}: taken") from error
        sock.listen(options.backlog)
        return Listening([sock], str(endpoint), partial(self.cleaned.append, str(endpoint)))

    def tune(self, sock: socket.socket, options: Options) -> None:
        self.tuned += 1

    def lookups(self, endpoint: LoopEndpoint, options: Options) -> list[Lookup]:
        return [Lookup("localhost", 1, {"family": socket.AF_INET}, ())] if endpoint.host else []

    def routes(self, endpoint: LoopEndpoint, options: Options, answers: Sequence[Sequence[AddrInfo]]) -> list[Route]:
        assert len(answers) == bool(endpoint.host)
        assert all(answer[0][4][0] == "127.0.0.1" for answer in answers)
        found = [LoopEndpoint(0), endpoint] if answers else [endpoint]
        return [partial(self._prepare, one.address) for one in found]

    def _prepare(self, address: bytes) -> tuple[socket.socket, bytes]:
        sock = socket.socket(socket.AF_UNIX)
        sock.setblocking(False)
        return sock, address

    def verify(self, sock: socket.socket) -> None:
        if sock.getpeername().endswith(b"-13"):
            raise OSError(errno.ECONNREFUSED, "Not allowed there")

    def endpoint_of(self, address: Any) -> str:
        return f"loop://{address.rpartition(b'-')[2].decode()}" if address else ""


@dataclass(frozen=True, slots=True)
class RoomEndpoint:
    """A name within one context."""

    scheme: ClassVar[str] = "room"
    name: str

    def __str__(self) -> str:
        return f"room://{self.name}"


class RoomTransport(LocalTransport[RoomEndpoint]):
    """A second way to name what stands in the same context; case does not matter."""

    scheme = "room"

    def parse(self, rest: str, *, bind: bool) -> RoomEndpoint:
        return RoomEndpoint(rest.lower())


@pytest.fixture(autouse=True)
def loop(monkeypatch: pytest.MonkeyPatch) -> LoopTransport:
    transport = LoopTransport()
    for one in (transport, RoomTransport()):
        monkeypatch.setitem(TRANSPORTS, one.scheme, one)
    return transport


WHERE = [("loop://1", "loop://1"), ("loop://2", "loop://2@name"), ("room://Here", "room://here")]
each_way = pytest.mark.parametrize(("bound", "dialled"), WHERE)


@each_way
@on_both_loops
async def test_asyncio_sockets_use_it(make, bound, dialled):
    pull, push = make(omq.asyncio.PULL, bind=bound), make(omq.asyncio.PUSH, connect=dialled)
    await push.send(b"x")
    assert await pull.recv(timeout=5) == b"x"
    pull.unbind(bound)
    rep, req = make(omq.asyncio.REP, bind=bound), make(omq.asyncio.REQ, connect=dialled)
    for number in range(3):
        await req.send(b"%d" % number)
        await rep.send(await rep.recv(timeout=5) + b"!")
        assert await req.recv(timeout=5) == b"%d!" % number
    assert rep.endpoints == [str(parse_endpoint(bound, bind=True))]
    req.disconnect(dialled)
    await until(lambda: not rep.peers)


@each_way
def test_blocking_sockets_use_it(bound, dialled):
    with omq.Context() as context:
        with omq.PULL(context, bind=bound) as pull, omq.PUSH(context, connect=dialled) as push:
            for number in range(1000):
                push.send(b"%d" % number)
            assert [int(pull.recv(timeout=5)) for _ in range(1000)] == list(range(1000))
        with omq.REP(context, bind=bound) as rep, omq.REQ(context, connect=dialled) as req:
            req.send(b"question")
            assert rep.recv(timeout=5) == b"question"
            rep.send(b"answer")
            assert req.recv(timeout=5) == b"answer"


async def test_it_is_asked_what_only_it_knows(make, loop):
    with pytest.raises(omq.EndpointError, match=r"^endpoint 'loop://seven': 'seven' is not a number$"):
        make(omq.asyncio.PULL, bind="loop://seven")
    pull = make(omq.asyncio.PULL, bind="loop://3")
    with pytest.raises(omq.BindError, match="taken"):
        make(omq.asyncio.PULL, bind="loop://3")
    push = make(omq.asyncio.PUSH, connect="loop://3")
    await push.wait_connected(timeout=5)
    assert loop.tuned == 1
    (event,) = await peer_addresses(push, 1)
    assert event == "loop://3"
    assert loop.cleaned == []
    pull.unbind("loop://3")
    assert loop.cleaned == ["loop://3"]
    await push.send(b"after that")  # who is there stays
    assert await pull.recv(timeout=5) == b"after that"


async def peer_addresses(socket, count):
    """Returns the addresses of a socket's peers."""
    await until(lambda: len(socket._engine.sessions) == count)
    return [session.remote_address for session in socket._engine.sessions]


async def test_what_it_refuses_is_dialled_again(make, reports):
    pull = make(omq.asyncio.PULL, bind="loop://13")
    make(omq.asyncio.PUSH, connect="loop://13", **FAST)
    await until(lambda: sum(event[0] == "connect_failed" for event in reports) >= 2)
    (reason, *_) = [event[2] for event in reports if event[0] == "connect_failed"]
    assert reason.endswith("loop://13: not allowed there")
    assert not pull.peers


async def test_a_second_connection_of_a_type_with_one_is_a_matter_of_the_kind(make):
    rep = make(omq.asyncio.REP, bind=["loop://4", "room://four"])
    for where in ("loop://4", "room://four"):
        req = make(omq.asyncio.REQ)
        req.connect(where)
        req.connect(where)
        await req.wait_connected(1 if where.startswith("loop") else 2, timeout=5)
    await until(lambda: len(rep.peers) == 3)


def test_every_transport_has_its_scheme():
    assert list(TRANSPORTS) == ["tcp", "ipc", "inproc", "udp", "ws", "wss", "loop", "room"]
    assert all(transport.scheme == scheme for scheme, transport in TRANSPORTS.items())
