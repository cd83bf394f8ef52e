"""The cluster options of a node."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from omq.errors import UsageError
from omq.unpatched import socket

NODE_TIMEOUT_US: Final = 10_000_000
REPLICATION_TIMEOUT_US: Final = 100_000

_ENDPOINT: Final = re.compile(r"tcp://(\[[^\]]+\]|[^:/\[\]]+):(\d{1,5})")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """The cluster options of one node.

    Attributes:
        name: This node's broadcast endpoint.
        peers: The receive endpoints of the others, by their broadcast endpoints.
        replicas: The number of peers that must have a message.
        timeout: Seconds after which a peer is silent.
        replication_timeout: Seconds that a producer waits for replicas.
        networks: The networks that nodes may connect from.
    """

    name: str
    peers: dict[str, str]
    replicas: int
    timeout: float
    replication_timeout: float
    networks: tuple[Network, ...]

    def admits(self, remote: str) -> bool:
        """Returns whether a node may connect from the remote address of an event."""
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
) -> ClusterSettings | None:
    """Checks the cluster options of a device; returns `None` without a cluster.

    Raises:
        UsageError: An option is not valid; the text has its name and its value.
    """
    nodes, allowed = list(nodes), list(allow_replicas_from)
    for option, value, least in (
        ("replicas", replicas, 0),
        ("timeout_nodes", timeout_nodes, 1),
        ("timeout_replication", timeout_replication, 1),
    ):
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 2**53:
            raise _invalid(option, value, f"must be a whole number, {least} or more")
    if not nodes:
        if replicas:
            raise _invalid("replicas", replicas, "no other nodes can keep them")
        for option, given in (("broadcast", broadcast), ("allow_replicas_from", allowed)):
            if given:
                raise _invalid(option, given, "needs nodes (--nodes)")
        return None
    if broadcast is None:
        raise UsageError(f"broadcast is missing: the nodes {','.join(nodes)} listen to it").about("broadcast")
    own, port = _read("broadcast", broadcast)
    peers: dict[str, str] = {}
    networks = [_network(text) for text in allowed]
    mine = set(_resolve("broadcast", broadcast, own))
    for node in nodes:
        host, _ = _read("nodes", node)
        addresses = _resolve("nodes", node, host)
        name = f"tcp://{host}:{port}"
        if mine.intersection(addresses) or node == receive:
            raise _invalid("nodes", node, "is this node itself; name only the others")
        if name in peers:
            raise _invalid("nodes", node, f"is listed twice: {peers[name]!r} is the same host")
        peers[name] = node
        for address in addresses:
            # A connection from a host to itself may have any of its loopback addresses.
            loop = "127.0.0.0/8" if address.version == 4 else "::1/128"
            networks.append(ipaddress.ip_network(loop if address.is_loopback else str(address)))
    if replicas > len(peers):
        raise _invalid("replicas", replicas, f"there are only {len(peers)} other nodes")
    return ClusterSettings(
        broadcast, peers, replicas, timeout_nodes / 1e6, timeout_replication / 1e6, tuple(dict.fromkeys(networks))
    )


def _read(option: str, endpoint: str) -> tuple[str, int]:
    found = _ENDPOINT.fullmatch(endpoint)
    if found is None or not 0 < int(found[2]) < 65536:
        raise _invalid(option, endpoint, "must be an endpoint as others reach it, such as tcp://10.0.0.1:11133")
    if found[1] in ("*", "0.0.0.0", "[::]"):
        raise _invalid(option, endpoint, "must name the host as the other nodes do: it is a node's name")
    return found[1], int(found[2])


def _resolve(option: str, endpoint: str, host: str) -> list[Address]:
    try:
        found = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise _invalid(option, endpoint, f"the host is not known: {error.strerror}") from None
    return [ipaddress.ip_address(str(address[0]).partition("%")[0]) for *_, address in found]


def _network(text: str) -> Network:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        reason = "must be an address, or a network such as 10.0.0.0/24"
        raise _invalid("allow_replicas_from", text, reason) from None


def _invalid(option: str, value: object, reason: str) -> UsageError:
    return UsageError(f"{option}={value!r}: {reason}").about(option)
