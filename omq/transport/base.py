"""The interface of transports: one object for each scheme, of one of several kinds, and its endpoints.

The engine uses the object, and never the scheme. It listens, accepts and dials for all transports of a kind. The
transport has the details of that, and neither awaits nor knows the protocol on top.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from omq.errors import ConnectError, TransportError
from omq.options import Options
from omq.transport import descriptor
from omq.unpatched import socket
from omq.zmtp.websocket import Upgrade

#: One result of getaddrinfo: family, type, protocol, canonical name, socket address.
AddrInfo: TypeAlias = tuple[int, int, int, str, tuple[Any, ...]]

#: A way to reach an endpoint: makes a non-blocking socket, and returns it with the address to connect to. Raises
#: `ConnectError` if the system refuses to make the socket.
Route: TypeAlias = Callable[[], tuple[socket.socket, Any]]


class Endpoint(Protocol):
    """A parsed endpoint. `str` turns it into text again.

    Attributes:
        scheme: The scheme of its transport.
    """

    scheme: ClassVar[str]


class Opening(Protocol):
    """An exchange with a proxy on a new connection, before that leads to its endpoint. Does no I/O.

    Attributes:
        remote: The endpoint that the connection leads to.
        needed: The number of bytes that `receive` takes next; not one more may be read. 0 at the end.
    """

    remote: str
    needed: int

    def start(self) -> bytes:
        """Returns the bytes to send first."""
        ...

    def receive(self, data: bytes) -> bytes:
        """Takes the `needed` bytes; returns the bytes to send next.

        Raises:
            OSError: The connection does not lead to the endpoint; the text names the proxy, and not the endpoint.
        """
        ...


class Relay(Protocol):
    """An intermediary between a connection and the descriptor that the engine uses.

    Attributes:
        fd: The engine's descriptor; owned by the engine.
        error: The reason why the connection has ended; `None` if it is unknown.
        delivered: Whether the peer's kernel has everything that the engine has written.
        remote_ip: The peer's IP address; empty if it is unknown.
    """

    fd: int
    error: Exception | None

    @property
    def delivered(self) -> bool: ...
    @property
    def remote_ip(self) -> str: ...


class Address(NamedTuple):
    """The arguments of the system calls that connect to an endpoint.

    Attributes:
        family: The address family of the socket.
        name: A `sockaddr`, as bytes.
        settings: Socket options to set first: level, option, value.
    """

    family: int
    name: bytes
    settings: tuple[tuple[int, int, int], ...]


class SettingsRecorder:
    """Stands for a socket, and records the options that `tune` sets."""

    def __init__(self) -> None:
        self.settings: list[tuple[int, int, int]] = []

    def setsockopt(self, level: int, option: int, value: int) -> None:
        self.settings.append((level, option, value))


EndpointT = TypeVar("EndpointT", bound=Endpoint)


def _nothing() -> None:
    pass


class Listening(NamedTuple):
    """The listening sockets of an endpoint.

    Attributes:
        sockets: One or more sockets, non-blocking.
        endpoint: The endpoint with its real address.
        cleanup: The function to call on unbinding, before the sockets are closed; may be called again, and does nothing
            in a forked child.
    """

    sockets: Sequence[socket.socket]
    endpoint: str
    cleanup: Callable[[], None] = _nothing


@dataclass(frozen=True, slots=True)
class Lookup:
    """A host whose addresses are needed to dial its endpoint.

    Attributes:
        host: A name or an address.
        port: The port of the socket addresses.
        hints: Further arguments of `getaddrinfo`.
        known: The addresses, if no resolver is needed; otherwise empty.
    """

    host: str
    port: int
    hints: dict[str, int]
    known: Sequence[AddrInfo]


class Transport(ABC, Generic[EndpointT]):
    """A scheme; subclasses are the kinds of transports.

    Attributes:
        scheme: The text before `://`.
        bare: Whether the bytes of one side arrive as they are, so that a type without ZMTP can use it.
        options: The options for one endpoint that it uses.
    """

    scheme: ClassVar[str]
    bare: ClassVar[bool] = False
    options: ClassVar[frozenset[str]] = frozenset(
        {"identity", "immediate", "peer_identity", "reconnect_interval", "reconnect_stop", "stream_notify"}
    )

    @abstractmethod
    def parse(self, rest: str, *, bind: bool) -> EndpointT:
        """Parses the text after `://`, which is not empty.

        rest: The text.
        bind: Whether the endpoint is for `bind`; otherwise it is for `connect`, where wildcards are not allowed.

        Raises:
            ValueError: The text is not valid, or not for this use; the error has the reason.
        """

    def check(self, text: str, options: Options, *, bind: bool) -> None:
        """Checks the options of an endpoint that depend on each other or on the call.

        Args:
            text: The endpoint, for errors.
            options: The options of the endpoint.
            bind: Whether it is for `bind`; otherwise it is for `connect`.

        Raises:
            OptionError: An option does not fit.
        """

    def without_path(self, address: str) -> str:
        """Returns an endpoint without its path, which does not affect the machine and the port."""
        return address

    def bindings_of(self, address: str) -> tuple[str, ...]:
        """Returns endpoints: if one of them is bound on this machine, a connection to *address* may lead there."""
        return (address,)


class LocalTransport(Transport[EndpointT]):
    """Connects sockets of one context: an endpoint is a name there, without a descriptor."""


class StreamTransport(Transport[EndpointT]):
    """Carries streams of bytes through the kernel: one socket listens and accepts, another one connects.

    Attributes:
        hands_over: Whether data that the kernel has taken is in the peer's queue already: then closing loses nothing.
        families: The address families (`AF_*`) of descriptors that it takes from the program.
    """

    hands_over: ClassVar[bool] = False
    families: ClassVar[frozenset[int]] = frozenset()
    options: ClassVar[frozenset[str]] = Transport.options | {
        *("connect_timeout", "handshake_timeout", "heartbeat_interval", "heartbeat_timeout", "heartbeat_ttl"),
        *("max_connections", "max_handshakes", "max_message_size", "max_parts"),
        *("security", "zap_domain", "zap_enforce_domain"),
    }

    @abstractmethod
    def listen(self, endpoint: EndpointT, options: Options) -> Listening:
        """Opens listening sockets.

        Raises:
            BindError: The endpoint cannot be bound; see `errno`.
            OptionError: The descriptor `use_fd` does not fit; it stays the program's, as with `BindError`.
        """

    def take_connected(self, fd: int, endpoint: EndpointT, options: Options) -> socket.socket:
        """Takes over a connected descriptor of the program, and sets the options of a connection on it.

        Raises:
            OptionError: The descriptor does not fit; it stays the program's.
            ConnectError: The system refused an option; the descriptor stays the program's.
        """
        sock = descriptor.connected(fd, self.families)
        with on_loan(sock, ConnectError, endpoint):
            self.tune(sock, options)
        return sock

    @abstractmethod
    def tune(self, sock: socket.socket, options: Options) -> None:
        """Sets the options of a connection on an accepted socket.

        Raises:
            OSError: The system refused an option; the connection may be gone.
        """

    def rejection(self, sock: socket.socket, address: Any, options: Options) -> str | None:
        """Returns the reason to refuse an accepted connection, or `None`.

        Args:
            sock: The connection.
            address: The address from `accept`; `None` if the family has none.
            options: The options of the endpoint.

        Raises:
            OSError: The connection may be gone.
        """
        return None

    def lookups(self, endpoint: EndpointT, options: Options) -> Sequence[Lookup]:
        """Returns the hosts whose addresses `routes` needs."""
        return ()

    @abstractmethod
    def routes(self, endpoint: EndpointT, options: Options, answers: Sequence[Sequence[AddrInfo]]) -> Sequence[Route]:
        """Returns the ways to connect to an endpoint, to be tried in this order, each a little later than the last.

        Args:
            endpoint: The endpoint to connect to.
            options: The options of the dialling socket.
            answers: The addresses of the hosts from `lookups`, in their order.
        """

    def address(self, endpoint: EndpointT, options: Options, answers: Sequence[Sequence[AddrInfo]]) -> Address | None:
        """Returns the only address of an endpoint; `None` if there are several, or if `routes` do more than connect."""
        return None

    def opening(self, endpoint: EndpointT, options: Options) -> Opening | None:
        """Makes the exchange with a proxy on a new connection; `None` without a proxy."""
        return None

    def relay(self, fd: int, endpoint: str, options: Options, *, dialled: bool) -> Relay | None:
        """Puts an intermediary between a connection and the engine; `None` for none.

        Args:
            fd: The connection; a relay owns it.
            endpoint: The endpoint of the connection.
            options: The options of the endpoint.
            dialled: Whether this side has dialled.

        Raises:
            OSError: The system refused to make the relay; the descriptor stays the caller's.
        """
        return None

    def upgrade(self, endpoint: str, *, dialled: bool) -> Upgrade | None:
        """Makes the exchange before ZMTP's handshake; `None` for none."""
        return None

    def verify(self, sock: socket.socket) -> None:
        """Checks a socket that has just been connected.

        Raises:
            OSError: The socket is not connected to a peer, and must be closed.
        """

    def remote_address(self, sock: socket.socket) -> str:
        """Returns the endpoint of a connected socket's peer; empty if it is unknown."""
        try:
            address = sock.getpeername()
        except OSError:
            return ""  # it has gone already
        return self.endpoint_of(address)

    @abstractmethod
    def endpoint_of(self, address: Any) -> str:
        """Returns the endpoint of a socket address from `getpeername`; empty if the address is empty."""

    def remote_ip(self, sock: socket.socket) -> str:
        """Returns the peer's IP address, as ZAP needs it (RFC 27, Message Format); empty if there is none."""
        return ""


class DatagramTransport(Transport[EndpointT]):
    """Carries messages as datagrams, one way, without a connection: RADIO sends them, DISH receives them (RFC 48)."""

    @abstractmethod
    def listen(self, endpoint: EndpointT, options: Options) -> tuple[socket.socket, str]:
        """Opens a socket that receives datagrams for an endpoint.

        Returns:
            The socket, non-blocking, and the endpoint with its real address.

        Raises:
            BindError: The endpoint cannot be bound; see `errno`.
        """

    @abstractmethod
    def lookup(self, endpoint: EndpointT, options: Options) -> Lookup:
        """Returns the host whose addresses are needed to connect."""

    @abstractmethod
    def connect(self, endpoint: EndpointT, options: Options, infos: Sequence[AddrInfo]) -> socket.socket:
        """Opens a socket that sends to an endpoint; sends nothing yet.

        Args:
            endpoint: The endpoint to send to.
            options: The options of the endpoint.
            infos: The addresses of the host from `lookup`.

        Returns:
            The socket, non-blocking and connected.

        Raises:
            ConnectError: The socket cannot be made or connected; see `errno`.
        """


_Refusal = TypeVar("_Refusal", bound=TransportError)


def refusal(kind: type[_Refusal], endpoint: object, cause: OSError) -> _Refusal:
    """Makes the error for a refusal of the system.

    Args:
        kind: `BindError` or `ConnectError`.
        endpoint: The endpoint of the operation.
        cause: The error of the system.

    Returns:
        An error that names the endpoint and the cause, and has the cause's `errno`.
    """
    reason = cause.strerror or str(cause) or type(cause).__name__
    return kind(cause.errno, f"{endpoint}: {reason[:1].lower()}{reason[1:]}")


@contextmanager
def on_loan(sock: socket.socket, kind: type[TransportError], endpoint: object) -> Iterator[None]:
    """Leaves the descriptor of a socket (`use_fd`) to the program if the block raises.

    Args:
        sock: The socket.
        kind: The error for a refusal of the system; see `refusal`.
        endpoint: See `refusal`.
    """
    try:
        yield
    except BaseException as error:
        sock.detach()
        if isinstance(error, OSError):
            raise refusal(kind, endpoint, error) from error
        raise


def shown(value: object) -> str:
    """Returns a part of an endpoint text for an error, shortened if it is long."""
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:160]}... ({len(text)} characters)"
