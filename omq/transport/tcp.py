"""TCP: its endpoints, listening sockets, sockets ready to connect, and their options (`zmq_tcp(7)`, `tcp(7)`).

Nothing here waits, with one exception: `listen` calls the system's resolver if the host is a name. A dialer calls the
resolver itself; `candidates` sorts its answers, and `prepare` makes a socket for each."""

from __future__ import annotations

import errno
import fcntl
import ipaddress
import math
import struct
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from encodings import idna
from functools import partial
from typing import Any, ClassVar, Final

from omq.errors import BindError, ConnectError, OptionError
from omq.options import Options
from omq.transport import descriptor
from omq.transport.base import (
    Address,
    AddrInfo,
    Listening,
    Lookup,
    Route,
    SettingsRecorder,
    StreamTransport,
    on_loan,
    refusal,
    shown,
)
from omq.transport.socks import SocksOpening
from omq.unpatched import socket

_SIOCGIFADDR: Final = 0x8915  # netdevice(7): the IPv4 address of an interface
_IP_BIND_ADDRESS_NO_PORT: Final = 24  # ip(7): choose the source port on connect, when the destination is known
_LINK_LOCAL: Final = 0x20  # the scope column of /proc/net/if_inet6
#: Characters of a host name (RFC 1035, section 3.1); also limits the work of the IDNA codec.
_MAX_HOST_CHARACTERS: Final = 255
_MAX_LABEL_CHARACTERS: Final = 63
_NO_LINGER: Final = struct.pack("ii", 1, 0)  # socket(7), SO_LINGER: closing resets
#: Attempts to find a port that is free on all addresses of a name.
_PORT_ATTEMPTS: Final = 16
#: The errors of an address that the machine does not have; ignored while the name has others.
_NOT_HERE: Final = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL})
_EVERYWHERE: Final = ("tcp://0.0.0.0", "tcp://[::]")
_LOOPBACK: Final = ("tcp://127.0.0.1", "tcp://[::1]")


@dataclass(frozen=True, slots=True)
class TcpEndpoint:
    """A TCP address, or a name that stands for one.

    Attributes:
        host: A host name, an IPv4 or IPv6 address (without brackets) or, for `bind`, the name of an interface; `None`
            for all addresses (`*`).
        port: The port, 1 to 65535; 0 lets the system choose (`*`).
        source: The (host, port) that a connection comes from; `*` and 0 let the system choose; `None` if not given.
    """

    scheme: ClassVar[str] = "tcp"
    host: str | None
    port: int
    source: tuple[str, int] | None = None

    def __str__(self) -> str:
        target = f"{_bracketed(self.host or '*')}:{self.port or '*'}"
        if self.source is None:
            return f"tcp://{target}"
        host, port = self.source
        return f"tcp://{_bracketed(host)}:{port or '*'};{target}"


class TcpTransport(StreamTransport[TcpEndpoint]):
    """Streams between machines, or over the loopback."""

    scheme = "tcp"
    bare = True
    families = frozenset({socket.AF_INET, socket.AF_INET6})
    options: ClassVar[frozenset[str]] = StreamTransport.options | {
        *("tcp_keepalive", "tcp_keepalive_count", "tcp_keepalive_idle", "tcp_keepalive_interval", "tcp_user_timeout"),
        *("accept_filter", "backlog", "bind_device", "ipv6", "priority", "recv_buffer", "send_buffer", "tos", "use_fd"),
        *("socks_password", "socks_proxy", "socks_username"),
    }

    def parse(self, rest: str, *, bind: bool) -> TcpEndpoint:
        return _parse(rest, bind)

    def bindings_of(self, address: str) -> tuple[str, ...]:
        host, _, port = address.rpartition(":")
        return (address, *(f"{one}:{port}" for one in _EVERYWHERE)) if host in _LOOPBACK else (address,)

    def listen(self, endpoint: TcpEndpoint, options: Options) -> Listening:
        if options.use_fd is not None:
            return Listening(*listen_at(descriptor.listening(options.use_fd, self.families), endpoint, options))
        return Listening(*listen(endpoint, options))

    def take_connected(self, fd: int, endpoint: TcpEndpoint, options: Options) -> socket.socket:
        sock = super().take_connected(fd, endpoint, options)
        with on_loan(sock, ConnectError, endpoint):
            set_network(sock, options)
        return sock

    def tune(self, sock: socket.socket, options: Options) -> None:
        tune(sock, options)

    def rejection(self, sock: socket.socket, address: Any, options: Options) -> str | None:
        if options.accept_filter is None or _comes_from(address or sock.getpeername(), options.accept_filter):
            return None
        networks = ", ".join(map(str, options.accept_filter))
        return f"{endpoint_of(address or sock.getpeername())} is not of accept_filter={networks}"

    def lookups(self, endpoint: TcpEndpoint, options: Options) -> list[Lookup]:
        # Resolved for each attempt, because an address may have changed.
        assert endpoint.host is not None
        target = endpoint.host, endpoint.port
        hosts = [(*(target if options.socks_proxy is None else _proxy(options.socks_proxy)), False)]
        if endpoint.source is not None:
            hosts.append((*endpoint.source, True))
        return [
            Lookup(host, port, hints(host, options), known(host, port, interfaces=interfaces))
            for host, port, interfaces in hosts
        ]

    def routes(self, endpoint: TcpEndpoint, options: Options, answers: Sequence[Sequence[AddrInfo]]) -> list[Route]:
        source = answers[1] if endpoint.source is not None else ()
        return [partial(_prepare_for, info, endpoint, options, source) for info in candidates(answers[0])]

    def address(self, endpoint: TcpEndpoint, options: Options, answers: Sequence[Sequence[AddrInfo]]) -> Address | None:
        found = candidates(answers[0])
        if len(found) != 1 or endpoint.source is not None or options.bind_device is not None or options.tos:
            return None
        if options.socks_proxy is not None:
            return None
        recorder = SettingsRecorder()
        tune(recorder, options)
        family, _, _, _, name = found[0]
        return Address(family, _packed(family, name), tuple(recorder.settings))

    def opening(self, endpoint: TcpEndpoint, options: Options) -> SocksOpening | None:
        if options.socks_proxy is None:
            return None
        assert endpoint.host is not None
        credentials = None
        if options.socks_username is not None:
            credentials = options.socks_username.encode(), (options.socks_password or "").encode()
        remote = endpoint_of((endpoint.host, endpoint.port))
        return SocksOpening(options.socks_proxy, endpoint.host, endpoint.port, remote, credentials)

    def verify(self, sock: socket.socket) -> None:
        if _leads_to_itself(sock):
            # Open, or in TIME-WAIT, the connection would keep the server from binding its port: it is reset.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
            raise OSError(errno.ECONNREFUSED, "there is no listener, the connection led to itself")

    def endpoint_of(self, address: tuple[Any, ...]) -> str:
        return endpoint_of(address)

    def remote_ip(self, sock: socket.socket) -> str:
        try:
            address: str = sock.getpeername()[0]
        except OSError:
            return ""
        return address.partition("%")[0]


def listen(endpoint: TcpEndpoint, options: Options) -> tuple[list[socket.socket], str]:
    """Opens listening sockets.

    A name, or an interface, is bound at each of its addresses, all on one port; IPv6 addresses count only if `ipv6` is
    set, or if the endpoint is one. `*` is one socket: of IPv4 or, with `ipv6`, of both kinds (RFC 3493, section 5.3).

    Args:
        endpoint: The endpoint to bind.
        options: `backlog`, `ipv6`, `tos`, `bind_device`, `send_buffer` and `recv_buffer` apply.

    Returns:
        The sockets, non-blocking, one or more; and the endpoint of the first with its numeric address and port
        (`ZMQ_LAST_ENDPOINT`).

    Raises:
        BindError: The endpoint cannot be bound, or the host is unknown; see `errno` (below 0: of the resolver).
    """
    try:
        if endpoint.host is None:
            sockets = _listen_anywhere(endpoint.port, options)
        else:
            sockets = _listen_all(addresses(endpoint.host, endpoint.port, options), endpoint.port, options)
        return sockets, endpoint_of(sockets[0].getsockname())
    except OSError as error:
        raise refusal(BindError, endpoint, error) from error


def listen_at(sock: socket.socket, endpoint: TcpEndpoint, options: Options) -> tuple[list[socket.socket], str]:
    """Prepares a listening socket that the program has opened; as `listen`, but `ipv6` has no effect.

    Raises:
        OptionError: The socket listens at another port than the endpoint has; it stays the program's.
        BindError: The system refused an option; the socket stays the program's.
    """
    with on_loan(sock, BindError, endpoint):
        address = sock.getsockname()
        if endpoint.port not in (0, address[1]):
            raise OptionError(f"option use_fd={sock.fileno()}: listens at {endpoint_of(address)}, not at {endpoint}")
        set_network(sock, options)
        set_buffers(sock, options)
        sock.listen(options.backlog)
    return [sock], endpoint_of(address)


def _proxy(text: str) -> tuple[str, int]:
    """Returns the host and the port of `socks_proxy`, which has been checked."""
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


def hints(host: str, options: Options) -> dict[str, int]:
    """Returns the arguments with which getaddrinfo finds the usable addresses.

    Args:
        host: A name or an address.
        options: `ipv6` lets a name stand for IPv6 addresses too; an IPv6 address needs no option.
    """
    family = socket.AF_UNSPEC if options.ipv6 or ":" in host else socket.AF_INET
    return {"family": family, "type": socket.SOCK_STREAM, "proto": socket.IPPROTO_TCP}


def known(host: str, port: int, *, interfaces: bool = False) -> list[AddrInfo]:
    """Returns the addresses of a host if no resolver is needed.

    Args:
        host: A name or an address; `*` for any address of either family.
        port: The port for the socket addresses.
        interfaces: Whether the host may also be the name of an interface.

    Returns:
        The addresses, as from getaddrinfo; empty if the host is a name that must be resolved.
    """
    if host == "*":
        return _numeric("0.0.0.0", port) + _numeric("::", port)
    if interfaces and any(host == name for _, name in socket.if_nameindex()):
        return [info for address in _interface_addresses(host) for info in _numeric(address, port)]
    try:
        return _numeric(host, port)
    except socket.gaierror:
        return []


def candidates(infos: Sequence[AddrInfo]) -> list[AddrInfo]:
    """Sorts addresses for a connection that tries them one after the other, each a little later than the last.

    The families alternate (RFC 8305, section 4, with a First Address Family Count of 1), beginning with that of the
    first address. The resolver has sorted the addresses by RFC 6724, and that order is kept within each family.

    Args:
        infos: The addresses from getaddrinfo; duplicates, and addresses that are not for TCP, are left out.
    """
    families: dict[int, list[AddrInfo]] = {}
    for info in infos:
        family, kind, _, _, address = info
        known_ones = families.setdefault(family, [])
        fits = family in (socket.AF_INET, socket.AF_INET6) and kind in (0, socket.SOCK_STREAM)
        if fits and all(address != other[4] for other in known_ones):
            known_ones.append(info)
    ordered: list[AddrInfo] = []
    for place in range(max(map(len, families.values()), default=0)):
        ordered += [same[place] for same in families.values() if place < len(same)]
    return ordered


def prepare(
    family: int, endpoint: TcpEndpoint, options: Options, source_addrs: Sequence[AddrInfo] = ()
) -> socket.socket:
    """Makes a socket that is ready to connect.

    Args:
        family: `AF_INET` or `AF_INET6`: that of the address to connect to.
        endpoint: The endpoint to connect to; its `source` is the address to connect from.
        options: `tos`, `bind_device`, `tcp_keepalive*`, `tcp_user_timeout`, `send_buffer` and `recv_buffer` apply;
            buffers must be set before connecting to affect the window (`tcp(7)`).
        source_addrs: The addresses of `endpoint.source`, if it has one (from `known` with `interfaces=True`, or from a
            resolver): the first of the family is used.

    Returns:
        A non-blocking socket.

    Raises:
        ConnectError: The source address is not available, or the system refused an option.
    """
    try:
        sock = _new_socket(family, options)
        try:
            tune(sock, options)
            if endpoint.source is not None:
                _bind_source(sock, endpoint.source, source_addrs)
        except OSError:
            sock.close()
            raise
    except OSError as error:
        raise refusal(ConnectError, endpoint, error) from error
    return sock


def _prepare_for(
    info: AddrInfo, endpoint: TcpEndpoint, options: Options, source_addrs: Sequence[AddrInfo]
) -> tuple[socket.socket, tuple[Any, ...]]:
    """Returns a socket for one address, and that address."""
    return prepare(info[0], endpoint, options, source_addrs), info[4]


def _leads_to_itself(sock: socket.socket) -> bool:
    """Returns whether both ends are this socket (RFC 9293, 3.5, simultaneous open).

    The system may give the port of an endpoint without a listener, from the range for clients, to the very attempt to
    connect to it.
    """
    try:
        return bool(sock.getsockname() == sock.getpeername())
    except OSError:
        return False  # reset already: the handshake will fail


def tune(sock: socket.socket | SettingsRecorder, options: Options) -> None:
    """Sets the options of a connection on its socket, accepted or connecting.

    Nagle's algorithm is always off (RFC 896): messages are batched before they get here. Accepted sockets inherit
    device, type of service and buffers from their listener.

    Args:
        sock: The socket.
        options: `tcp_keepalive*`, `tcp_user_timeout`, `priority`, `send_buffer` and `recv_buffer` apply.

    Raises:
        OSError: The system refused an option; the connection may be gone.
    """
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if options.priority:
        # An accepted socket does not inherit it, and setting `tos` changes it: so it is set last, each time.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, options.priority)
    if options.tcp_keepalive != -1:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, options.tcp_keepalive)
    if options.tcp_keepalive_count != -1:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, options.tcp_keepalive_count)
    if options.tcp_keepalive_idle != -1:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, options.tcp_keepalive_idle)
    if options.tcp_keepalive_interval != -1:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, options.tcp_keepalive_interval)
    if options.tcp_user_timeout is not None:
        milliseconds = math.ceil(options.tcp_user_timeout * 1000)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
    set_buffers(sock, options)


def _packed(family: int, address: tuple[Any, ...]) -> bytes:
    """Returns a `sockaddr_in` or `sockaddr_in6` (ip(7), ipv6(7))."""
    host, port, *rest = address
    begin = struct.pack("=H", family) + struct.pack("!H", port)
    if family == socket.AF_INET:
        return begin + socket.inet_aton(host) + bytes(8)
    flow, scope = rest
    packed = socket.inet_pton(family, host.partition("%")[0])
    return begin + struct.pack("!I", flow) + packed + struct.pack("=I", scope)


def _comes_from(address: tuple[Any, ...], networks: Collection[ipaddress.IPv4Network | ipaddress.IPv6Network]) -> bool:
    """Returns whether a peer's address is in one of these networks; IPv4 peers of an IPv6 socket count as IPv4."""
    found: ipaddress.IPv4Address | ipaddress.IPv6Address = ipaddress.ip_address(address[0].partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    return any(found in network for network in networks)


def endpoint_of(address: tuple[Any, ...]) -> str:
    """Returns the endpoint text of a socket address.

    Args:
        address: The result of `getsockname`, `getpeername` or `accept`. An IPv4 peer of a socket for both families (RFC
            4291, section 2.5.5.2) is returned with its IPv4 address.
    """
    host, port = address[:2]
    if ":" in host:
        mapped = ipaddress.IPv6Address(host).ipv4_mapped
        host = str(mapped) if mapped is not None else f"[{host}]"
    return f"tcp://{host}:{port}"


def _numeric(host: str, port: int) -> list[AddrInfo]:
    if not any(char in host for char in ":%"):
        # getaddrinfo releases the GIL, and next to busy threads, this one would wait to get it back.
        with suppress(OSError):
            socket.inet_pton(socket.AF_INET, host)
            return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (host, port))]
    kind, protocol, flags = socket.SOCK_STREAM, socket.IPPROTO_TCP, socket.AI_NUMERICHOST
    return list(socket.getaddrinfo(host, port, type=kind, proto=protocol, flags=flags))


def addresses(host: str, port: int, options: Options) -> list[AddrInfo]:
    """Returns all addresses of a host to bind."""
    infos = known(host, port, interfaces=True)
    if not infos:
        infos = list(socket.getaddrinfo(host, port, flags=socket.AI_PASSIVE, **hints(host, options)))
    elif ":" not in host and not options.ipv6:
        infos = [info for info in infos if info[0] == socket.AF_INET]
    if not infos:
        raise OSError(errno.EADDRNOTAVAIL, "the interface has no IPv4 address")
    return candidates(infos)


def _interface_addresses(name: str) -> list[str]:
    """Returns the addresses of an interface: IPv4, then IPv6 (link-local ones with their zone, RFC 4007)."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket, suppress(OSError):
        request = struct.pack("16s24x", name.encode())
        found.append(socket.inet_ntoa(fcntl.ioctl(any_socket, _SIOCGIFADDR, request)[20:24]))
    with suppress(OSError), open("/proc/net/if_inet6", encoding="ascii") as table:
        for line in table:
            digits, _, _, scope, _, owner = line.split()
            if owner == name:
                address = socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits))
                found.append(f"{address}%{name}" if int(scope, 16) == _LINK_LOCAL else address)
    return found


def _listen_anywhere(port: int, options: Options) -> list[socket.socket]:
    if options.ipv6:
        try:
            return [_listener(_numeric("::", port)[0], port, options)]
        except OSError as error:
            if error.errno not in _NOT_HERE:
                raise
    return [_listener(_numeric("0.0.0.0", port)[0], port, options)]


def _listen_all(infos: Sequence[AddrInfo], port: int, options: Options) -> list[socket.socket]:
    """Listens at all addresses, on one port; if the system chooses it, on one that is free on all of them."""
    for attempt in range(_PORT_ATTEMPTS):
        sockets: list[socket.socket] = []
        chosen, missing = port, None
        try:
            for info in infos:
                try:
                    sockets.append(_listener(info, chosen, options))
                except OSError as error:
                    if error.errno not in _NOT_HERE:
                        raise
                    missing = error
                else:
                    chosen = sockets[-1].getsockname()[1]
            if sockets or missing is None:
                return sockets
            raise missing
        except OSError as error:
            for sock in sockets:
                sock.close()
            lost = error.errno == errno.EADDRINUSE and port == 0 and sockets
            if not lost or attempt == _PORT_ATTEMPTS - 1:
                raise
    raise AssertionError("unreachable")


def _listener(info: AddrInfo, port: int, options: Options) -> socket.socket:
    family, _, _, _, address = info
    sock = _new_socket(family, options)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        set_buffers(sock, options)
        sock.bind((address[0], port, *address[2:]))
        sock.listen(options.backlog)
    except OSError:
        sock.close()
        raise
    return sock


def _new_socket(family: int, options: Options) -> socket.socket:
    """Makes a non-blocking socket with the options of the network layer."""
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        set_network(sock, options)
    except OSError:
        sock.close()
        raise
    return sock


def set_network(sock: socket.socket, options: Options) -> None:
    """Sets the options of the network layer: `bind_device`, `tos`, `priority`."""
    if options.bind_device is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, options.bind_device.encode() + b"\0")
    if options.tos:
        # An IPv6 socket may carry IPv4 too, so it gets both.
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, options.tos)
        if sock.family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, options.tos)
    if options.priority:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, options.priority)


def set_buffers(sock: socket.socket | SettingsRecorder, options: Options) -> None:
    """Sets the sizes of the kernel's buffers: `send_buffer`, `recv_buffer`."""
    if options.send_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, options.send_buffer)
    if options.recv_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, options.recv_buffer)


def _bind_source(sock: socket.socket, source: tuple[str, int], infos: Sequence[AddrInfo]) -> None:
    host, port = source
    address = next((info[4] for info in infos if info[0] == sock.family), None)
    if address is None:
        kind = "IPv6" if sock.family == socket.AF_INET6 else "IPv4"
        raise OSError(errno.EADDRNOTAVAIL, f"the source {host} has no {kind} address")
    if port:
        # Several connections may use one source port, and a new one may follow a closed one.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    else:
        sock.setsockopt(socket.IPPROTO_IP, _IP_BIND_ADDRESS_NO_PORT, 1)
    sock.bind((address[0], port, *address[2:]))


def _parse(rest: str, bind: bool) -> TcpEndpoint:
    origin, semicolon, target = rest.rpartition(";")
    if not semicolon:
        return TcpEndpoint(*parse_address(target, wildcards=bind))
    if bind:
        raise ValueError("a source address (before the semicolon) is only for connecting")
    host, port = parse_address(origin, wildcards=True)
    return TcpEndpoint(*parse_address(target, wildcards=False), source=(host or "*", port))


def parse_address(text: str, *, wildcards: bool) -> tuple[str | None, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port:
        raise ValueError("the port is missing")
    return parse_host(host, wildcards), _port(port, wildcards)


def _port(text: str, wildcards: bool) -> int:
    if text == "*" or (text.isascii() and text.isdigit() and not text.strip("0")):
        if not wildcards:
            raise ValueError(f"port {shown(text)} is only for binding")
        return 0
    # The length is checked first, because int() refuses thousands of digits with an error of its own.
    if not (text.isascii() and text.isdigit()) or len(text) > 5 or int(text) > 65535:
        raise ValueError(f"port {shown(text)} is not a number from 1 to 65535" + (", 0 or *" if wildcards else ""))
    return int(text)


def parse_host(text: str, wildcards: bool) -> str | None:
    if text == "*":
        if not wildcards:
            raise ValueError("host '*' is only for binding")
        return None
    if not text:
        raise ValueError("the host is missing")
    if ":" in text or text.startswith("["):
        return _ipv6(text)
    if len(text) > _MAX_HOST_CHARACTERS:
        raise ValueError(f"the host has {len(text)} characters, more than {_MAX_HOST_CHARACTERS}")
    # Names of interfaces and hosts have these characters; others would only confuse the resolver.
    if not all(char.isalnum() or char in "-._" for char in text):
        raise ValueError(f"{shown(text)} is not a valid host name or address")
    if not _has_labels(text):
        raise ValueError(f"{shown(text)} is not a valid host name")
    return text


def _has_labels(host: str) -> bool:
    """Returns whether a host name consists of valid labels, as for Python's IDNA codec.

    The codec itself would turn an exception of a signal handler into another one.
    """
    if host.isascii():
        *labels, last = host.split(".")
        return len(last) <= _MAX_LABEL_CHARACTERS and all(0 < len(label) <= _MAX_LABEL_CHARACTERS for label in labels)
    labels = idna.dots.split(host)
    try:
        encoded = [idna.ToASCII(label) for label in (labels[:-1] if not labels[-1] else labels)]
    except UnicodeError:
        return False
    return len(b".".join(encoded)) <= _MAX_HOST_CHARACTERS


def _ipv6(text: str) -> str:
    if text.startswith("["):
        if not text.endswith("]"):
            raise ValueError("the bracket before the IPv6 address is not closed right before the port")
        text = text[1:-1]
    try:
        ipaddress.IPv6Address(text)  # with its zone, RFC 4007: fe80::1%eth0
    except ValueError:
        raise ValueError(f"{shown(text)} is not a valid IPv6 address") from None
    return text


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
