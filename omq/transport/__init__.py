"""The transports of bytes to a peer, one for each scheme. Nothing here awaits or depends on ZMTP.

All other code imports from here, and not from the modules inside, so it does not depend on a single scheme.
The syntax of endpoints is that of libzmq (`zmq_tcp(7)`, `zmq_ipc(7)`, `zmq_inproc(7)`), read strictly: a text that
libzmq would take for something else than was meant (`tcp://host:5555x`, a port above 65535) is an error here.
"""

from __future__ import annotations

from typing import Any

from omq.errors import EndpointError
from omq.transport.base import (
    Address,
    AddrInfo,
    DatagramTransport,
    Endpoint,
    Listening,
    LocalTransport,
    Lookup,
    Opening,
    Relay,
    Route,
    StreamTransport,
    Transport,
    refusal,
    shown,
)
from omq.transport.inproc import InprocEndpoint, InprocTransport
from omq.transport.ipc import IpcTransport
from omq.transport.tcp import TcpTransport
from omq.transport.udp import UdpTransport
from omq.transport.websocket import SecureWebSocketTransport, WebSocketTransport
from omq.types import TRAITS, SocketType

#: The transport of each scheme that omq speaks.
TRANSPORTS: dict[str, Transport[Any]] = {
    transport.scheme: transport
    for transport in (
        *(TcpTransport(), IpcTransport(), InprocTransport(), UdpTransport()),
        *(WebSocketTransport(), SecureWebSocketTransport()),
    )
}


def parse_endpoint(text: str, *, bind: bool) -> Endpoint:
    """Reads an endpoint.

    Args:
        text: The endpoint.
        bind: Whether it is for `bind`; otherwise it is for `connect`, where wildcards are not allowed.

    Raises:
        EndpointError: The text is not an endpoint, or not one for this use; the error has the text and the reason.
    """
    if not isinstance(text, str):
        raise EndpointError(f"endpoint={shown(text)}: must be a str, not {type(text).__name__}")
    scheme, separator, rest = text.partition("://")
    transport = TRANSPORTS.get(scheme)
    try:
        if not separator:
            raise ValueError("it does not start with a transport, as in tcp://127.0.0.1:5555")
        if transport is None:
            raise ValueError(f"unknown transport {shown(scheme)}; known transports are {', '.join(TRANSPORTS)}")
        if not rest:
            raise ValueError("nothing follows '://'")
        endpoint: Endpoint = transport.parse(rest, bind=bind)
    except ValueError as reason:
        raise EndpointError(f"endpoint {shown(text)}: {reason}") from None
    return endpoint


def check_endpoint(endpoint: str, *, bind: bool = False, socket_type: SocketType | None = None) -> None:
    """Checks an endpoint without opening it, such as one in a configuration for another process.

    Args:
        endpoint: The endpoint, as for `Socket.bind` and `Socket.connect`.
        bind: Whether it is for `bind`; otherwise it is for `connect`.
        socket_type: The type of the socket that will use it; `None` for any that can.

    Raises:
        EndpointError: The endpoint cannot be parsed, or is not for this use.
    """
    found = parse_endpoint(endpoint, bind=bind)
    if socket_type is not None:
        check_fit(transport_of(found), socket_type, "bind" if bind else "connect", endpoint)


def check_fit(transport: Transport[Any], socket_type: SocketType, call: str, text: str) -> None:
    """Checks that a socket of a type can use a transport.

    Args:
        transport: The transport of the endpoint.
        socket_type: The socket's type.
        call: `"bind"` or `"connect"`.
        text: The endpoint, for the error.

    Raises:
        EndpointError: The socket cannot use the transport.
    """
    traits = TRAITS[socket_type]
    if isinstance(transport, DatagramTransport) and traits.datagrams != call:
        fitting = ", ".join(f"{kind.value} sockets {row.datagrams}" for kind, row in TRAITS.items() if row.datagrams)
        raise EndpointError(f"endpoint {text!r}: a {socket_type.value} socket cannot {call} to datagrams; {fitting}")
    if not (transport.bare or traits.handshakes):
        fitting = ", ".join(scheme for scheme, one in TRANSPORTS.items() if one.bare)
        raise EndpointError(
            f"{call}: {text!r} does not fit a {socket_type.value} socket, which does not speak ZMTP; "
            f"its transports are {fitting}"
        )


def transport_of(endpoint: Endpoint) -> Transport[Any]:
    """Returns the transport that has parsed an endpoint."""
    return TRANSPORTS[endpoint.scheme]


def bindings_of(address: str) -> tuple[str, ...]:
    """Returns endpoints: if one of them is bound on this machine, a connection to *address* may lead there."""
    transport = TRANSPORTS.get(address.partition("://")[0])
    return (address,) if transport is None else transport.bindings_of(address)


def without_path(address: str) -> str:
    """Returns an endpoint without its path, which does not affect the machine and the port."""
    transport = TRANSPORTS.get(address.partition("://")[0])
    return address if transport is None else transport.without_path(address)


def is_local(address: str) -> bool:
    """Returns whether an endpoint is a name within a context."""
    return isinstance(TRANSPORTS.get(address.partition("://")[0]), LocalTransport)


def local_endpoint(name: str) -> str:
    """Returns the endpoint of a name within the context, for the library's own use."""
    return str(InprocEndpoint(name))


__all__ = [
    "Address",
    "AddrInfo",
    "DatagramTransport",
    "Endpoint",
    "Listening",
    "LocalTransport",
    "Lookup",
    "Opening",
    "Relay",
    "Route",
    "StreamTransport",
    "TRANSPORTS",
    "Transport",
    "bindings_of",
    "check_fit",
    "is_local",
    "local_endpoint",
    "parse_endpoint",
    "refusal",
    "without_path",
    "transport_of",
]
