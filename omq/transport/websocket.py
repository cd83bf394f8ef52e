"""WebSockets: `ws://host:port/path`, and `wss://host:port/path` with TLS around them (RFC 45, RFC 6455)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from omq.errors import OptionError
from omq.options import Options
from omq.transport import tls, upgrade
from omq.transport.base import Address, AddrInfo, Listening, Lookup, Route, StreamTransport, shown
from omq.transport.socks import SocksOpening
from omq.transport.tcp import TcpEndpoint, TcpTransport
from omq.unpatched import socket

_TCP = TcpTransport()
_UNWRITABLE = frozenset(' "#<>?\\^`{|}')  # characters that are not allowed in a path (RFC 3986, 3.3), or end it


@dataclass(frozen=True, slots=True)
class WebSocketEndpoint:
    """A `ws` endpoint.

    Attributes:
        tcp: The TCP endpoint of its server.
        path: The resource; begins with a slash.
    """

    scheme: ClassVar[str] = "ws"
    tcp: TcpEndpoint
    path: str

    def __str__(self) -> str:
        return _text(self.scheme, str(self.tcp), self.path)


class SecureWebSocketEndpoint(WebSocketEndpoint):
    """A `wss` endpoint."""

    __slots__ = ()
    scheme: ClassVar[str] = "wss"


class WebSocketTransport(StreamTransport[WebSocketEndpoint]):
    """WebSockets over TCP."""

    scheme = "ws"
    endpoint_class: ClassVar[type[WebSocketEndpoint]] = WebSocketEndpoint
    families = TcpTransport.families
    options: ClassVar[frozenset[str]] = TcpTransport.options

    def parse(self, rest: str, *, bind: bool) -> WebSocketEndpoint:
        authority, slash, path = rest.partition("/")
        path = slash + path or "/"
        wrong = [one for one in path if one in _UNWRITABLE or not (one.isascii() and one.isprintable())]
        if wrong:
            raise ValueError(f"the path {shown(path)} has {shown(wrong[0])}, which is not allowed in a path")
        if not upgrade.is_available():
            raise ValueError(f"{self.scheme}:// needs wsproto; install omq-zmtp[ws]")
        return self.endpoint_class(_TCP.parse(authority, bind=bind), path)

    def without_path(self, address: str) -> str:
        scheme, separator, rest = address.partition("://")
        return scheme + separator + rest.partition("/")[0]

    def bindings_of(self, address: str) -> tuple[str, ...]:
        found = _TCP.bindings_of("tcp" + self.without_path(address).removeprefix(self.scheme))
        return tuple(_text(self.scheme, one, "") for one in found)

    def listen(self, endpoint: WebSocketEndpoint, options: Options) -> Listening:
        found = _TCP.listen(endpoint.tcp, options)
        return found._replace(endpoint=_text(self.scheme, found.endpoint, endpoint.path))

    def take_connected(self, fd: int, endpoint: WebSocketEndpoint, options: Options) -> socket.socket:
        return _TCP.take_connected(fd, endpoint.tcp, options)

    def tune(self, sock: socket.socket, options: Options) -> None:
        _TCP.tune(sock, options)

    def rejection(self, sock: socket.socket, address: Any, options: Options) -> str | None:
        return _TCP.rejection(sock, address, options)

    def lookups(self, endpoint: WebSocketEndpoint, options: Options) -> list[Lookup]:
        return _TCP.lookups(endpoint.tcp, options)

    def routes(
        self, endpoint: WebSocketEndpoint, options: Options, answers: Sequence[Sequence[AddrInfo]]
    ) -> list[Route]:
        return _TCP.routes(endpoint.tcp, options, answers)

    def address(
        self, endpoint: WebSocketEndpoint, options: Options, answers: Sequence[Sequence[AddrInfo]]
    ) -> Address | None:
        return None  # a connection begins with the upgrade, which has its own key

    def opening(self, endpoint: WebSocketEndpoint, options: Options) -> SocksOpening | None:
        found = _TCP.opening(endpoint.tcp, options)
        if found is not None:
            found.remote = _text(self.scheme, found.remote, "")
        return found

    def upgrade(self, endpoint: str, *, dialled: bool) -> upgrade.WebSocketUpgrade:
        authority, path = _target(endpoint)
        return upgrade.WebSocketUpgrade(authority, path, as_client=dialled)

    def verify(self, sock: socket.socket) -> None:
        _TCP.verify(sock)

    def endpoint_of(self, address: tuple[Any, ...]) -> str:
        return _text(self.scheme, _TCP.endpoint_of(address), "")

    def remote_ip(self, sock: socket.socket) -> str:
        return _TCP.remote_ip(sock)


class SecureWebSocketTransport(WebSocketTransport):
    """WebSockets over TLS."""

    scheme = "wss"
    endpoint_class = SecureWebSocketEndpoint
    options: ClassVar[frozenset[str]] = WebSocketTransport.options | {"tls"}

    def check(self, text: str, options: Options, *, bind: bool) -> None:
        wrong = tls.why_unfit(options.tls, as_server=bind)
        if wrong:
            raise OptionError(f"option tls={options.tls}: {wrong}, for endpoint {text!r}")

    def relay(self, fd: int, endpoint: str, options: Options, *, dialled: bool) -> tls.TlsRelay:
        host = _target(endpoint)[0].rpartition(":")[0].strip("[]")
        return tls.TlsRelay(fd, options.tls, host if dialled else None)


def _target(endpoint: str) -> tuple[str, str]:
    """Returns the host and port of an endpoint text, without a source address or a zone (RFC 6874), and its path."""
    authority, slash, path = endpoint.partition("://")[2].partition("/")
    host, colon, port = authority.rpartition(";")[2].rpartition(":")
    address, zone, _ = host.partition("%")
    return address + ("]" if zone else "") + colon + port, slash + path


def _text(scheme: str, tcp_endpoint: str, path: str) -> str:
    return f"{scheme}{tcp_endpoint.removeprefix('tcp')}{path}"
