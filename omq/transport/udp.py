"""UDP: datagrams of a RADIO to one DISH or, by multicast, to many (`zmq_udp(7)`, `udp(7)`, `ip(7)`)."""

from __future__ import annotations

import errno
import ipaddress
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from omq.errors import BindError, ConnectError
from omq.options import Options
from omq.transport import tcp
from omq.transport.base import AddrInfo, DatagramTransport, Lookup, refusal, shown
from omq.unpatched import socket

_NO_DEVICE: Final = 0  # ipv6(7): the kernel chooses the interface


@dataclass(frozen=True, slots=True)
class UdpEndpoint:
    """A UDP address, or a name that stands for one.

    Attributes:
        host: A host name, an IPv4 or IPv6 address (without brackets) or, for `bind`, the name of an interface; `None`
            for all addresses (`*`).
        port: The port, 1 to 65535; 0 lets the system choose (`*`).
        interface: The interface of multicast, by an address or by name; `None` lets the kernel choose.
    """

    scheme: ClassVar[str] = "udp"
    host: str | None
    port: int
    interface: str | None = None

    def __str__(self) -> str:
        target = f"{_bracketed(self.host or '*')}:{self.port or '*'}"
        return f"udp://{target}" if self.interface is None else f"udp://{_bracketed(self.interface)};{target}"

    @property
    def is_multicast(self) -> bool:
        """Returns whether it is the address of a multicast group."""
        return self.host is not None and _is_multicast(self.host)


class UdpTransport(DatagramTransport[UdpEndpoint]):
    """Datagrams between machines, or over the loopback."""

    scheme = "udp"
    options: ClassVar[frozenset[str]] = (DatagramTransport.options - {"identity"}) | {
        *("bind_device", "ipv6", "max_message_size", "multicast_hops", "multicast_loop", "priority", "recv_buffer"),
        *("send_buffer", "tos"),
    }

    def parse(self, rest: str, *, bind: bool) -> UdpEndpoint:
        interface, semicolon, target = rest.rpartition(";")
        endpoint = UdpEndpoint(*tcp.parse_address(target, wildcards=bind))
        if not semicolon:
            return endpoint
        if not endpoint.is_multicast:
            raise ValueError(
                f"an interface (before the semicolon) is for multicast only: {shown(endpoint.host or '*')} is not a "
                "multicast address"
            )
        return UdpEndpoint(endpoint.host, endpoint.port, tcp.parse_host(interface, wildcards=True))

    def listen(self, endpoint: UdpEndpoint, options: Options) -> tuple[socket.socket, str]:
        try:
            family, address = _address_to_bind(endpoint, options)
            sock = _open(family, options)
            try:
                if endpoint.is_multicast:
                    # Several receivers on a machine may share a multicast address; each gets every datagram.
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                elif family == socket.AF_INET6:
                    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, endpoint.host is not None)
                # The multicast address itself is bound, so that datagrams for other groups of the port, and unicast, do
                # not arrive.
                sock.bind(address)
                if endpoint.is_multicast:
                    _join(sock, address[0], endpoint.interface)
            except OSError:
                sock.close()
                raise
        except OSError as error:
            raise refusal(BindError, endpoint, error) from error
        host, port = sock.getsockname()[:2]
        if endpoint.interface is not None:
            host = host.partition("%")[0]  # the zone is that of the interface (RFC 4007, section 11)
        return sock, str(UdpEndpoint(host, port, endpoint.interface))

    def lookup(self, endpoint: UdpEndpoint, options: Options) -> Lookup:
        assert endpoint.host is not None
        found = tcp.known(endpoint.host, endpoint.port)
        return Lookup(endpoint.host, endpoint.port, tcp.hints(endpoint.host, options), found)

    def connect(self, endpoint: UdpEndpoint, options: Options, infos: Sequence[AddrInfo]) -> socket.socket:
        try:
            found = tcp.candidates(infos)
            if not found:
                raise OSError(errno.EADDRNOTAVAIL, "the host has no address")
            family = found[0][0]
            address = _in_zone(family, found[0][4], endpoint.interface)
            sock = _open(family, options)
            try:
                if _is_multicast(address[0]):
                    _aim(sock, endpoint.interface, options)
                sock.connect(address)
            except OSError:
                sock.close()
                raise
        except OSError as error:
            raise refusal(ConnectError, endpoint, error) from error
        return sock


def _open(family: int, options: Options) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_DGRAM)
    try:
        sock.setblocking(False)
        tcp.set_network(sock, options)
        tcp.set_buffers(sock, options)
    except OSError:
        sock.close()
        raise
    return sock


def _address_to_bind(endpoint: UdpEndpoint, options: Options) -> tuple[int, tuple[Any, ...]]:
    """Returns the family and the first address of an endpoint; a name, or an interface, may have several."""
    if endpoint.host is None:
        return (
            (socket.AF_INET6, ("::", endpoint.port)) if options.ipv6 else (socket.AF_INET, ("0.0.0.0", endpoint.port))
        )
    family, _, _, _, address = tcp.addresses(endpoint.host, endpoint.port, options)[0]
    return family, _in_zone(family, address, endpoint.interface)


def _in_zone(family: int, address: tuple[Any, ...], interface: str | None) -> tuple[Any, ...]:
    """Adds the interface to an IPv6 address: groups of a link, or of the machine, differ between interfaces."""
    if family != socket.AF_INET6 or interface is None:
        return address
    return (*address[:3], _device_of(interface))


def _join(sock: socket.socket, group: str, interface: str | None) -> None:
    """Joins a multicast group (ip(7), IP_ADD_MEMBERSHIP; ipv6(7), IPV6_ADD_MEMBERSHIP)."""
    if sock.family == socket.AF_INET6:
        packed = socket.inet_pton(socket.AF_INET6, group.partition("%")[0])
        request = packed + struct.pack("=I", _device_of(interface))
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, request)
    else:
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton(group) + _ipv4_of(interface))


def _aim(sock: socket.socket, interface: str | None, options: Options) -> None:
    """Sets the options of outgoing multicast."""
    if sock.family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, options.multicast_hops)
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_LOOP, options.multicast_loop)
        if interface is not None:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, _device_of(interface))
    else:
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, options.multicast_hops)
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, options.multicast_loop)
        if interface is not None:
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, _ipv4_of(interface))


def _ipv4_of(interface: str | None) -> bytes:
    """Returns an interface as IPv4 names it: by one of its addresses; all zeros let the kernel choose."""
    if interface is None:
        return bytes(4)
    for info in tcp.known(interface, 0, interfaces=True):
        if info[0] == socket.AF_INET:
            return socket.inet_aton(info[4][0])
    raise OSError(errno.ENODEV, f"the interface {interface} has no IPv4 address")


def _device_of(interface: str | None) -> int:
    """Returns an interface as IPv6 names it: by its index; 0 lets the kernel choose."""
    if interface is None:
        return _NO_DEVICE
    for number, name in socket.if_nameindex():
        if name == interface or any(interface == info[4][0] for info in tcp.known(name, 0, interfaces=True)):
            return number
    raise OSError(errno.ENODEV, f"there is no interface {interface}")


def _is_multicast(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_multicast
    except ValueError:
        return False


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
