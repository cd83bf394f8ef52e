"""WebSockets: `ws://host:port/path`, and `wss://host:port/path` with TLS around them (RFC 45, RFC 6455)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from omq.errors import OptionError
from omq.options import Options
from omq.transport import tls, upgrade
from omq.transport.base import Address, AddrInfo, Listening, Lookup, Route, StreamTransport, shown
from omq.transport.tcp import TcpEndpoint, TcpTransport
from omq.unpatched import socket

_TCP = TcpTransport()
_UNWRITABLE = frozenset(' "#<>?\\^`{|}')  # characters that a path cannot have (RFC 3986, 3.3), or that end it


@dataclass(frozen=True, slots=True)
class WebSocketEndpoint:
    """A `ws` endpoint.

    Attributes:
        tcp: Where its server is.
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
    """WebSockets over tcp."""

    scheme = "ws"
    endpoint_class: ClassVar[type[WebSocketEndpoint]] = WebSocketEndpoint
    options: ClassVar[frozenset[str]] = TcpTransport.options - {
        *("socks_password", "socks_proxy", "socks_username", "use_fd")
    }

    def parse(self, rest: str, *, bind: bool) -> WebSocketEndpoint:
        authority, slash, path = rest.partition("/")
        if ";" in authority:
            raise ValueError("a source address (before a semicolon) is for tcp only")
        path = slash + path or "/"
        if not path.isascii() or not path.isprintable() or not _UNWRITABLE.isdisjoint(path):
            raise ValueError(f"the path {shown(path)} has characters that a request cannot have")
        if not upgrade.is_available():
            raise ValueError(f"{self.scheme}:// needs wsproto; install omq-zmtp[ws]")
        return self.endpoint_class(_TCP.parse(authority, bind=bind), path)

    def listen(self, endpoint: WebSocketEndpoint, options: Options) -> Listening:
        found = _TCP.listen(endpoint.tcp, options)
        return found._replace(endpoint=_text(self.scheme, found.endpoint, endpoint.path))

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
        return None  # a connection begins with the upgrade, which has a key of its own

    def upgrade(self, endpoint: str, *, dialled: bool) -> upgrade.WebSocketUpgrade:
        authority, _, path = endpoint.partition("://")[2].partition("/")
        return upgrade.WebSocketUpgrade(authority, f"/{path}", as_client=dialled)

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
        wrong = tls.unfit(options.tls, as_server=bind)
        if wrong:
            raise OptionError(f"option tls={options.tls}: {wrong}, for endpoint {text!r}")

    def relay(self, fd: int, endpoint: str, options: Options, *, dialled: bool) -> tls.TlsRelay:
        host = endpoint.partition("://")[2].partition("/")[0].rpartition(":")[0].strip("[]")
        return tls.TlsRelay(fd, options.tls, host.partition("%")[0] if dialled else None)


def _text(scheme: str, tcp_endpoint: str, path: str) -> str:
    return f"{scheme}{tcp_endpoint.removeprefix('tcp')}{path}"
