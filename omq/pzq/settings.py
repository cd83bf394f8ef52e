"""What a node of a cluster is told about it, checked."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from omq.errors import UsageError
from omq.unpatched import socket

TIMEOUT_NODES: Final = 10_000_000  # microseconds
TIMEOUT_REPLICATION: Final = 100_000  # microseconds

_ENDPOINT: Final = re.compile(r"tcp://(\[[^\]]+\]|[^:/\[\]]+):(\d{1,5})")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class Settings:
    """A cluster, as one of its nodes sees it.

    Attributes:
        name: This node's broadcast endpoint.
        peers: The receive endpoints of the others, by their broadcast endpoints.
        replicas: How many of them must have a message.
        timeout: Seconds after which one is silent.
        patience: Seconds that a producer waits for replicas.
        networks: Where nodes may speak from.
    """

    name: str
    peers: dict[str, str]
    replicas: int
    timeout: float
    patience: float
    networks: tuple[Network, ...]

    def admits(self, remote: str) -> bool:
        """Whether a node may speak from an address, as an event of a socket gives it."""
        try:
            host = remote.removeprefix("tcp://").rpartition(":")[0].strip("[]").partition("%")[0]
            address = ipaddress.ip_address(host)
        except ValueError:
            return False
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self.networks)


def read_settings(
    *,
    receive: str,
    broadcast: str | None,
    nodes: Iterable[str],
    replicas: int,
    timeout_nodes: int,
    timeout_replication: int,
    allow_replicas_from: Iterable[str],
) -> Settings | None:
    """Checks what a device is told about its cluster; `None` where it belongs to none.

    Raises:
        UsageError: Something does not fit; the text has the option and the value.
    """
    nodes, allowed = list(nodes), list(allow_replicas_from)
    for option, value, least in (
        ("replicas", replicas, 0),
        ("timeout_nodes", timeout_nodes, 1),
        ("timeout_replication", timeout_replication, 1),
    ):
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 2**53:
            raise UsageError(f"{option}={value!r}: must be a whole number, {least} or more")
    if not nodes:
        if replicas:
            raise UsageError(f"replicas={replicas}: there is nobody to keep them: nodes is missing")
        for option, given in (("broadcast", broadcast), ("allow_replicas_from", allowed)):
            if given:
                raise UsageError(f"{option}={given!r}: means nothing without nodes")
        return None
    if broadcast is None:
        raise UsageError(f"nodes={','.join(nodes)!r}: needs broadcast, where this node is heard by them")
    own, port = _read("broadcast", broadcast)
    peers: dict[str, str] = {}
    networks = [_network(text) for text in allowed]
    mine = set(_resolve("broadcast", broadcast, own))
    for node in nodes:
        host, _ = _read("nodes", node)
        addresses = _resolve("nodes", node, host)
        name = f"tcp://{host}:{port}"
        if mine.intersection(addresses) or node == receive:
            raise UsageError(f"nodes={node!r}: is this node itself: name the others only")
        if name in peers:
            raise UsageError(f"nodes={node!r}: is there twice, as {peers[name]!r} is the same host")
        peers[name] = node
        for address in addresses:
            # What connects from a host to itself comes from any of its loopback addresses.
            loop = "127.0.0.0/8" if address.version == 4 else "::1/128"
            networks.append(ipaddress.ip_network(loop if address.is_loopback else str(address)))
    if replicas > len(peers):
        raise UsageError(f"replicas={replicas}: there are {len(peers)} other nodes only")
    return Settings(
        broadcast, peers, replicas, timeout_nodes / 1e6, timeout_replication / 1e6, tuple(dict.fromkeys(networks))
    )


def _read(option: str, endpoint: str) -> tuple[str, int]:
    found = _ENDPOINT.fullmatch(endpoint)
    if found is None or not 0 < int(found[2]) < 65536:
        raise UsageError(f"{option}={endpoint!r}: must be an endpoint as others reach it, such as tcp://10.0.0.1:11133")
    if found[1] in ("*", "0.0.0.0", "[::]"):
        raise UsageError(f"{option}={endpoint!r}: must name the host as the other nodes do: it is a node's name")
    return found[1], int(found[2])


def _resolve(option: str, endpoint: str, host: str) -> list[Address]:
    try:
        found = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise UsageError(f"{option}={endpoint!r}: the host is not known: {error.strerror}") from None
    return [ipaddress.ip_address(str(address[0]).partition("%")[0]) for *_, address in found]


def _network(text: str) -> Network:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise UsageError(
            f"allow_replicas_from={text!r}: must be an address, or a network such as 10.0.0.0/24"
        ) from None
