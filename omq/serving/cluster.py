"""The settings of a server that is a member of a cluster."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from omq import check_endpoint
from omq.errors import EndpointError, UsageError
from omq.store.replication.lease import DEFAULT_LEASE_S
from omq.types import SocketType

MAX_NAME: Final = 64  # characters
_NAME: Final = re.compile(rf"[A-Za-z0-9_-]{{1,{MAX_NAME}}}")
MIN_LEASE_S: Final = 0.3
MAX_LEASE_S: Final = 600.0
_REPLICAS: Final = (1, 3, 5)
MIN_SNAPSHOT_BYTES: Final = 1 << 20
DEFAULT_SNAPSHOT_BYTES: Final = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A cluster of brokers, or of devices of pzq, with a journal on servers of NATS with JetStream; one member of it.

    Attributes:
        name: The name of the cluster: up to 64 letters, digits, `-` and `_`.
        servers: The URLs of the NATS servers, as `nats://HOST:PORT` or `tls://HOST:PORT`.
        node: The id of this member, unique in the cluster; `None`: a random one, which is kept in the directory.
        advertise: The endpoints of this member that clients use; `None`: those that are bound.
        servers_sync: States that all NATS servers have `sync_interval: always`, which strong topics need.
        lease: Seconds without an answer after which another member takes the place of the leader. A cluster keeps those
            of the member that was started first.
        replicas: The NATS servers that keep a copy of the journal: 3 or 5; 1 for trials.
        snapshot_bytes: Bytes of entries after which the leader stores a snapshot, and truncates the journal up to the
            snapshot before it. The journal takes about twice as much.
        user: The name of the user at the NATS servers.
        password: The password of the user.
        token: A token, for servers that use these.
        credentials: The path of a file with a JWT and a seed.
        ca: The path of a file with the certificates of the authorities that have signed those of the servers; `None`:
            those that the system trusts.
        tls: The certificates, for servers that demand or offer TLS; in place of `ca`.
        domain: The JetStream domain; empty for that of the servers.

    Raises:
        UsageError: A value is not valid.
    """

    name: str
    servers: str | Iterable[str] = field(repr=False)  # may have passwords
    node: str | None = None
    advertise: str | Iterable[str] | None = None
    servers_sync: bool = False
    lease: float = DEFAULT_LEASE_S
    replicas: int = 3
    snapshot_bytes: int = DEFAULT_SNAPSHOT_BYTES
    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    credentials: Path | None = None
    ca: Path | None = None
    tls: ssl.SSLContext | None = None
    domain: str = ""

    def __post_init__(self) -> None:
        for key in ("servers", "advertise"):
            value = getattr(self, key)
            if isinstance(value, str):
                value = (value,)
            if value is not None and not isinstance(value, Iterable):
                raise _invalid(key, value, "must be a text or a list of them")
            object.__setattr__(self, key, value and tuple(value))
        for key, text in (("name", self.name), ("node", self.node)):
            if not is_name(text) and (text is not None or key == "name"):
                raise _invalid(key, text, "must have 1 to 64 letters, digits, '-' and '_'")
        if not self.servers:
            raise UsageError("servers: is empty; expected at least one nats://HOST:PORT").about("servers")
        for url in self.servers:
            _check_server(url)
        for endpoint in self.advertise or ():
            if not _is_reachable(endpoint):
                raise _invalid("advertise", endpoint, "must be an endpoint that clients reach, such as tcp://host:5555")
        lease = self.lease
        if isinstance(lease, bool) or not isinstance(lease, int | float) or not MIN_LEASE_S <= lease <= MAX_LEASE_S:
            raise _invalid("lease", lease, f"must be seconds from {MIN_LEASE_S} to {MAX_LEASE_S:.0f}")
        if self.replicas not in _REPLICAS or isinstance(self.replicas, bool):
            raise _invalid("replicas", self.replicas, "must be 3 or 5, or 1 for trials")
        if type(self.snapshot_bytes) is not int or self.snapshot_bytes < MIN_SNAPSHOT_BYTES:
            raise _invalid(
                "snapshot_bytes", self.snapshot_bytes, f"must be a whole number of {MIN_SNAPSHOT_BYTES} bytes or more"
            )
        if not isinstance(self.servers_sync, bool):
            raise _invalid("servers_sync", self.servers_sync, "must be true or false")
        if self.tls is not None and not isinstance(self.tls, ssl.SSLContext):
            raise _invalid(
                "tls", self.tls, "must be an ssl.SSLContext; for certificates of the system, use tls:// URLs"
            )
        if self.ca is not None and self.tls is not None:
            raise _invalid("ca", str(self.ca), "cannot be combined with tls")
        self.context()
        if self.credentials is not None and not Path(self.credentials).is_file():
            raise _invalid("credentials", str(self.credentials), "there is no such file")

    def context(self) -> ssl.SSLContext | None:
        """Returns what checks the certificates of the servers; `None`: what the system trusts.

        Raises:
            UsageError: `ca` cannot be read.
        """
        if self.ca is None:
            return self.tls
        try:
            return ssl.create_default_context(cafile=self.ca)
        except OSError as error:
            raise _invalid("ca", str(self.ca), error.strerror or str(error)) from None

    def endpoints(self, bound: Iterable[str]) -> tuple[str, ...]:
        """Returns the endpoints of this broker for clients.

        Args:
            bound: The endpoints that are bound.

        Raises:
            UsageError: Clients cannot use one that is bound.
        """
        if self.advertise is not None:
            return tuple(self.advertise)
        for endpoint in bound:
            if _names_no_host(endpoint):
                raise UsageError(
                    f"advertise: is missing: {endpoint} accepts clients at all addresses; give the endpoint that they "
                    "use, such as tcp://broker-1.example.com:5555"
                ).about("advertise")
        return tuple(bound)


def is_name(text: object) -> bool:
    """Returns whether a text is valid as the name of a cluster or the id of a broker."""
    return isinstance(text, str) and _NAME.fullmatch(text) is not None


def _check_server(url: str) -> None:
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("nats", "tls") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except (ValueError, TypeError, AttributeError):
        valid = False
    if not valid:
        shown = str(url).rpartition("@")[2]  # not the password
        raise _invalid("servers", shown, "must be nats://HOST:PORT or tls://HOST:PORT")


def _is_reachable(endpoint: object) -> bool:
    """Returns whether a client can connect to an endpoint, by its form."""
    if not isinstance(endpoint, str) or _names_no_host(endpoint):
        return False
    try:
        check_endpoint(endpoint, socket_type=SocketType.DEALER)
    except EndpointError:
        return False
    return True


def _names_no_host(endpoint: str) -> bool:
    """Returns whether an endpoint has a wildcard in place of a host, or no host."""
    scheme, mark, address = endpoint.partition("://")
    if not mark or not address:
        return True
    if scheme in ("ipc", "inproc"):
        return False
    host, _, port = address.partition("/")[0].rpartition(":")
    return host in ("", "*", "0.0.0.0", "[::]", "::") or port in ("", "*", "0")


def _invalid(key: str, value: object, reason: str) -> UsageError:
    return UsageError(f"{key}={value!r:.200}: {reason}").about(key)
