"""Both sides of a handshake with roles, driven by hand: what each sends, step by step."""

from collections.abc import Callable
from dataclasses import dataclass, field

from omq._core.wire.framing import FrameDecoder
from omq.types import SocketType
from omq.zmtp.handshake import Handshake
from omq.zmtp.mechanism import Mechanism


@dataclass
class Exchange:
    """A client and a server, and what they have sent: each entry the sending side and one whole frame.

    Attributes:
        client: The client's handshake, done.
        server: The server's handshake, done.
        sent: The commands in their order; greetings are not among them.
    """

    client: Handshake
    server: Handshake
    sent: list[tuple[str, bytes]] = field(default_factory=list)


def handshake(mechanism: Mechanism, kind: SocketType = SocketType.DEALER, **properties: bytes) -> Handshake:
    """A handshake that has begun nothing."""
    ours = {name.encode(): value for name, value in properties.items()}
    return Handshake(socket_type=kind, mechanism=mechanism, properties=ours)


def greet(client: Handshake, server: Handshake) -> bytes:
    """Exchanges the greetings; gives the client's first command. A server sends nothing first."""
    to_server, to_client = client.start(), server.start()
    first = client.receive(to_client)
    assert server.receive(to_server) == b""
    return first


def frames(data: bytes) -> list[bytes]:
    """Whole frames, apart."""
    decoder = FrameDecoder()
    decoder.feed(data)
    found = []
    before = len(data)
    while decoder.next_frame() is not None:
        found.append(data[len(data) - before : len(data) - len(decoder.unread)])
        before = len(decoder.unread)
    assert not decoder.unread
    return found


def run(make_client: Callable[[], Mechanism], make_server: Callable[[], Mechanism]) -> Exchange:
    """A whole handshake between two good peers."""
    client, server = handshake(make_client(), Identity=b"me"), handshake(make_server(), SocketType.ROUTER)
    exchange = Exchange(client, server)
    to_server, to_client = greet(client, server), b""
    while not (client.done and server.done):
        exchange.sent += [("client", one) for one in frames(to_server)]
        to_client = server.receive(to_server)
        if server.question is not None:
            to_client += server.answer()
        exchange.sent += [("server", one) for one in frames(to_client)]
        to_server = client.receive(to_client)
    assert to_server == b""
    return exchange
