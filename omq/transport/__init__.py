"""The transports of bytes to a peer: one for each scheme. Nothing here awaits or depends on ZMTP.

All other code imports from here, and from no module inside: so it knows no scheme, and nothing of a single transport.
The syntax of endpoints is libzmq's (`zmq_tcp(7)`, `zmq_ipc(7)`, `zmq_inproc(7)`), read strictly: what libzmq would
resolve to something else than was meant (`tcp://host:5555x`, a port above 65535) is an error here.
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
        text: The endpoint, as the user wrote it.
        bind: It is to be bound; otherwise it is to be connected to, where wildcards mean nothing.

    Raises:
        EndpointError: The text is not an endpoint, or not one for this use; the message has it and says why.
    """
    if not isinstance(text, str):
        raise EndpointError(f"an endpoint is a str, not {type(text).__name__}: {shown(text)}")
    scheme, separator, rest = text.partition("://")
    transport = TRANSPORTS.get(scheme)
    try:
        if not separator:
            raise ValueError("it does not start with a transport, as in tcp://127.0.0.1:5555")
        if transport is None:
            raise ValueError(f"unknown transport {shown(scheme)}; known are: {', '.join(TRANSPORTS)}")
        if not rest:
            raise ValueError("nothing follows the transport")
        endpoint: Endpoint = transport.parse(rest, bind=bind)
    except ValueError as reason:
        raise EndpointError(f"endpoint {shown(text)}: {reason}") from None
    return endpoint


def check_endpoint(endpoint: str, *, bind: bool = False, socket_type: SocketType | None = None) -> None:
    """Checks an endpoint where none is to be opened yet: what is configured here and used in another process.

    Args:
        endpoint: As `Socket.bind` and `Socket.connect` take it.
        bind: It is to be bound; otherwise it is to be connected to.
        socket_type: The type of the socket that is to use it; `None`: any that can.

    Raises:
        EndpointError: It cannot be understood, or is not for this use.
    """
    found = parse_endpoint(endpoint, bind=bind)
    if socket_type is not None:
        check_fit(transport_of(found), socket_type, "bind" if bind else "connect", endpoint)


def check_fit(transport: Transport[Any], socket_type: SocketType, call: str, text: str) -> None:
    """Checks that a socket of a type can use a transport.

    Args:
        transport: That of the endpoint.
        socket_type: The type.
        call: `"bind"` or `"connect"`.
        text: The endpoint, for the error.

    Raises:
        EndpointError: It cannot.
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
    """The transport that has read an endpoint."""
    return TRANSPORTS[endpoint.scheme]


def bindings_of(address: str) -> tuple[str, ...]:
    """The endpoints one of which is bound on this machine where a connection to *address* leads there."""
    transport = TRANSPORTS.get(address.partition("://")[0])
    return (address,) if transport is None else transport.bindings_of(address)


def without_path(address: str) -> str:
    """Returns an endpoint without a path, which has no part in finding the machine and the port."""
    transport = TRANSPORTS.get(address.partition("://")[0])
    return address if transport is None else transport.without_path(address)


def is_local(address: str) -> bool:
    """Returns whether an endpoint is a name within a context."""
    return isinstance(TRANSPORTS.get(address.partition("://")[0]), LocalTransport)


def local_endpoint(name: str) -> str:
    """The endpoint of a name within the context: for what the library itself finds there."""
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
