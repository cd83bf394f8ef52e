"""The parts of a new socket type: a pattern, a row in the table of types, and a line in each twin.

The types that are made here stand in the rows of SERVER and CLIENT; their patterns are put together from queues that
others use.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest

import omq
import omq.asyncio
import omq.asyncio.socket
import omq.socket
from omq._core.queues.peer import RecvQueue
from omq._core.queues.routed import RoutedSendQueue
from omq._core.queues.send_queue import RoundRobin
from omq.errors import RemoteProtocolError
from omq.routing import PATTERNS, Pattern
from omq.types import SocketType
from omq.zmtp.command import Command
from tests.support import raw_zmtp
from tests.support.waits import BOUND, until
from tests.system.conformance.test_notices import dial

T = SocketType


class Numbering(Pattern):
    """Peers have numbers; one that sends NUDGE is nudged back, and one that sends CRASH loses its connection."""

    commands = frozenset({b"NUDGE", b"CRASH"})

    def __init__(self, *arguments):
        super().__init__(*arguments)
        _, options, readable, writable = arguments
        self.recv_queue = RecvQueue(readable)
        self.send_queue = RoutedSendQueue(writable, options.send_hwm, True)
        self._numbers = itertools.count(7)
        self.nudges = []

    def connected(self, session):
        session.peer.routing_id = next(self._numbers)
        super().connected(session)

    def heed(self, session, command):
        if command.name == b"CRASH":
            raise RemoteProtocolError("a CRASH")
        self.nudges.append(command.body)
        session.peer.command(b"NUDGED", command.body)


class Simple(Pattern):
    """Sends to its peers in turn, takes from all in turn, and nudges each at once."""

    commands = frozenset({b"NUDGED"})

    def __init__(self, *arguments):
        super().__init__(*arguments)
        _, options, readable, writable = arguments
        self.recv_queue = RecvQueue(readable)
        self.send_queue = RoundRobin(writable, options.send_hwm)
        self.nudged = []

    def connected(self, session):
        super().connected(session)
        session.peer.command(b"NUDGE", b"softly")
        session.peer.command(b"NOVEL", b"which is not known")

    def heed(self, session, command):
        self.nudged.append(command)


@pytest.fixture(autouse=True)
def _new_types(monkeypatch: pytest.MonkeyPatch) -> None:
    made: dict[SocketType, Any] = {T.SERVER: Numbering, T.CLIENT: Simple}
    for kind, pattern in made.items():
        monkeypatch.setitem(PATTERNS, kind, pattern)
        for twin in (omq.socket, omq.asyncio.socket):
            base = twin.RoutedSocket if kind is T.SERVER else twin.Socket
            one = type(base)(kind.value, (base,), {"__module__": twin.__name__}, kind=kind)
            monkeypatch.setattr(omq if twin is omq.socket else twin, kind.value, one, raising=False)


@pytest.fixture
def server_and_client(twin, endpoint):
    server = twin("SERVER", bind=endpoint, send_timeout=BOUND, recv_timeout=BOUND)
    client = twin("CLIENT", connect=server.endpoints[0], send_timeout=BOUND, recv_timeout=BOUND)
    server.wait_connected(timeout=BOUND)
    client.wait_connected(timeout=BOUND)
    return server, client


def patterns(*sockets):
    return [getattr(one, "_socket", one)._engine.pattern for one in sockets]


def test_a_route_goes_out_with_a_message_and_comes_back(server_and_client):
    server, client = server_and_client
    client.send(b"question")
    asked = server.recv_message()
    assert (asked.body, asked.routing_id, asked.group) == (b"question", 7, None)
    server.send(b"answer", routing_id=asked.routing_id)
    server.send_multipart([b"another"], routing_id=asked.routing_id)
    server.send(bytearray(b"third"), routing_id=asked.routing_id, timeout=BOUND)
    answer = client.recv_message()
    assert (answer.body, answer.routing_id, answer.group) == (b"answer", None, None)
    assert [client.recv(), client.recv()] == [b"another", b"third"]


def test_a_route_that_does_not_fit_is_reported(server_and_client):
    server, client = server_and_client
    with pytest.raises(omq.UnroutableError, match="no connected peer has the routing id 1"):
        server.send(b"x", routing_id=1)
    with pytest.raises(omq.StateError, match="a SERVER socket needs the receiver of a message: routing_id= is missing"):
        server.send(b"x")
    with pytest.raises(omq.StateError, match="a SERVER socket does not take group=: use it with RADIO"):
        server.send_multipart([b"x"], routing_id=7, group="news")
    for wrong in ("7", 7.0, True, b"7"):
        with pytest.raises(TypeError, match="must be a whole number"):
            server.send(b"x", routing_id=wrong)
    with pytest.raises(omq.StateError, match="one message at a time"):
        server.send_many([b"x"])
    with pytest.raises(TypeError, match="routing_id"):
        client.send(b"x", routing_id=7)
    server.send(b"none of these", routing_id=7)
    assert client.recv() == b"none of these"


def test_a_pattern_gets_the_commands_that_it_declares(server_and_client):
    numbering, simple = patterns(*server_and_client)
    until(lambda: simple.nudged)
    assert numbering.nudges == [b"softly"]
    assert simple.nudged == [Command(b"NUDGED", b"softly")]


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (
            raw_zmtp.frame(b"a", raw_zmtp.MORE) + raw_zmtp.frame(b"b"),
            "more than max_parts=1 parts",
        ),
        (raw_zmtp.command(b"CRASH"), "a CRASH"),
    ],
    ids=["several parts", "what the pattern refuses"],
)
def test_a_peer_that_sends_what_it_may_not_loses_its_connection(twin, sent, why):
    server = twin("SERVER", bind="tcp://127.0.0.1:*")
    monitor = server.monitor()
    with dial(server.endpoints[0]) as peer:
        peer.sendall(raw_zmtp.greeting() + raw_zmtp.ready("CLIENT") + raw_zmtp.frame(b"before") + sent)
        while peer.recv(4096):
            pass
    events = []
    while not events or events[-1].kind is not omq.EventKind.DISCONNECTED:
        events.append(twin.wait(lambda: monitor.recv(timeout=BOUND)))
    assert why in str(events[-1].reason)
    assert server.recv(timeout=BOUND) == b"before"


@pytest.mark.parametrize("kind", ["PUSH", "PUB", "PAIR", "DEALER", "ROUTER", "REQ", "REP", "XPUB", "XSUB"])
@pytest.mark.parametrize("route", [{"routing_id": 1}, {"group": "news"}], ids=["routing_id", "group"])
def test_types_that_take_no_route_name_the_word(twin, kind, route):
    one = twin(kind)
    for call in (lambda: one.send(b"x", **route), lambda: one.send_multipart([b"x"], **route)):
        with pytest.raises(TypeError, match=next(iter(route))):
            call()
