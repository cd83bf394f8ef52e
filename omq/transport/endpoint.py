"""Endpoints: what an endpoint text means, decided before anything is opened.

The syntax is libzmq's (`zmq_tcp(7)`, `zmq_ipc(7)`, `zmq_inproc(7)`), read strictly: what libzmq would
resolve to something else than was meant (`tcp://host:5555x`, a port above 65535) is an error here.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from omq.errors import EndpointError, TransportError

#: Bytes that a path or an abstract name may have: `sun_path` has 108, and one is for the NUL (`unix(7)`).
MAX_IPC_PATH: Final = 107
#: Characters that a host name may have (RFC 1035, section 3.1); also keeps the IDNA codec from long work.
_MAX_HOST: Final = 255


@dataclass(frozen=True, slots=True)
class TcpEndpoint:
    """A TCP address, or a name that stands for one.

    Attributes:
        host: A host name, an IPv4 or IPv6 address (without brackets), or, to bind, the name of an interface;
            `None` for every address (`*`).
        port: The port, 1 to 65535; 0 for one that the system picks (`*`).
        source: Where a connection is to come from, as (host, port): `*` and 0 leave the choice to the system;
            `None` if nothing is said about it.
    """

    host: str | None
    port: int
    source: tuple[str, int] | None = None

    def __str__(self) -> str:
        target = f"{_bracketed(self.host or '*')}:{self.port or '*'}"
        if self.source is None:
            return f"tcp://{target}"
        host, port = self.source
        return f"tcp://{_bracketed(host)}:{port or '*'};{target}"


@dataclass(frozen=True, slots=True)
class IpcEndpoint:
    """A Unix domain socket.

    Attributes:
        path: The path of the socket file, or `@` and an abstract name (`unix(7)`); `None` for a path that
            omq chooses (`*`).
    """

    path: str | None

    def __str__(self) -> str:
        return f"ipc://{'*' if self.path is None else self.path}"

    @property
    def abstract(self) -> bool:
        """Whether the name is abstract: it is no file and goes when its socket goes."""
        return self.path is not None and self.path.startswith("@")


@dataclass(frozen=True, slots=True)
class InprocEndpoint:
    """A name within one context.

    Attributes:
        name: Any text but the empty one.
    """

    name: str

    def __str__(self) -> str:
        return f"inproc://{self.name}"


Endpoint = TcpEndpoint | IpcEndpoint | InprocEndpoint


def parse_endpoint(text: str, *, bind: bool) -> Endpoint:
    """Reads an endpoint.

    Args:
        text: The endpoint, as the user wrote it.
        bind: It is to be bound; otherwise it is to be connected to, where wildcards mean nothing.

    Raises:
        EndpointError: The text is no endpoint, or not one for this use; the message has it and says why.
    """
    if not isinstance(text, str):
        raise EndpointError(f"an endpoint is a str, not {type(text).__name__}: {_shown(text)}")
    scheme, separator, rest = text.partition("://")
    parse = _PARSERS.get(scheme)
    try:
        if not separator:
            raise ValueError("it does not start with a transport, as in tcp://127.0.0.1:5555")
        if parse is None:
            raise ValueError(f"unknown transport {_shown(scheme)}; known are: {', '.join(_PARSERS)}")
        if not rest:
            raise ValueError("nothing follows the transport")
        return parse(rest, bind)
    except ValueError as reason:
        raise EndpointError(f"endpoint {_shown(text)}: {reason}") from None


_Refusal = TypeVar("_Refusal", bound=TransportError)


def refusal(kind: type[_Refusal], endpoint: object, cause: OSError) -> _Refusal:
    """Makes the error for what the system refused.

    Args:
        kind: `BindError` or `ConnectError`.
        endpoint: What it was to be done to.
        cause: What the system said.

    Returns:
        An error that names the endpoint and the cause, and has the cause's `errno`.
    """
    reason = cause.strerror or str(cause) or type(cause).__name__
    return kind(cause.errno, f"{endpoint}: {reason[:1].lower()}{reason[1:]}")


def _tcp(rest: str, bind: bool) -> TcpEndpoint:
    origin, semicolon, target = rest.rpartition(";")
    if not semicolon:
        return TcpEndpoint(*_tcp_address(target, wildcards=bind))
    if bind:
        raise ValueError("a source address (before the semicolon) is for connecting only")
    host, port = _tcp_address(origin, wildcards=True)
    return TcpEndpoint(*_tcp_address(target, wildcards=False), source=(host or "*", port))


def _tcp_address(text: str, *, wildcards: bool) -> tuple[str | None, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port:
        raise ValueError("the port is missing")
    return _host(host, wildcards), _port(port, wildcards)


def _port(text: str, wildcards: bool) -> int:
    if text == "*" or (text.isascii() and text.isdigit() and not text.strip("0")):
        if not wildcards:
            raise ValueError(f"port {_shown(text)} is for binding only")
        return 0
    # The length first: converting thousands of digits is refused by int() with an error of its own.
    if not (text.isascii() and text.isdigit()) or len(text) > 5 or int(text) > 65535:
        raise ValueError(f"port {_shown(text)} is not a number from 1 to 65535" + (", 0 or *" if wildcards else ""))
    return int(text)


def _host(text: str, wildcards: bool) -> str | None:
    if text == "*":
        if not wildcards:
            raise ValueError("host '*' is for binding only")
        return None
    if not text:
        raise ValueError("the host is missing")
    if ":" in text or text.startswith("["):
        return _ipv6(text)
    if len(text) > _MAX_HOST:
        raise ValueError(f"the host has {len(text)} characters, more than {_MAX_HOST}")
    # Interfaces and hosts are named with these; anything else would reach the resolver only to confuse it.
    if not all(char.isalnum() or char in "-._" for char in text):
        raise ValueError(f"{_shown(text)} is no host name and no address")
    try:
        text.encode("idna")
    except UnicodeError:
        raise ValueError(f"{_shown(text)} is no host name") from None
    return text


def _ipv6(text: str) -> str:
    if text.startswith("["):
        if not text.endswith("]"):
            raise ValueError("the bracket before the IPv6 address is not closed right before the port")
        text = text[1:-1]
    try:
        ipaddress.IPv6Address(text)  # with its zone, RFC 4007: fe80::1%eth0
    except ValueError:
        raise ValueError(f"{_shown(text)} is no IPv6 address") from None
    return text


def _ipc(rest: str, bind: bool) -> IpcEndpoint:
    if rest == "*":
        if not bind:
            raise ValueError("path '*' is for binding only")
        return IpcEndpoint(None)
    if rest == "@":
        raise ValueError("the abstract name is empty")
    if "\0" in rest:
        raise ValueError("a path has no NUL character")
    try:
        size = len(os.fsencode(rest))
    except UnicodeError:
        raise ValueError("the path cannot be encoded for the file system") from None
    if size > MAX_IPC_PATH:
        raise ValueError(f"the path is too long: {size} bytes, and the system takes {MAX_IPC_PATH}")
    return IpcEndpoint(rest)


def _inproc(rest: str, bind: bool) -> InprocEndpoint:
    return InprocEndpoint(rest)


_PARSERS: Final[dict[str, Callable[[str, bool], Endpoint]]] = {"tcp": _tcp, "ipc": _ipc, "inproc": _inproc}


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:160]}... ({len(text)} characters)"
