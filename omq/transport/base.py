"""The engine's view of a transport: one object for each scheme, of one of two kinds, and the endpoints that it reads.

The engine asks the object, and never the scheme. It listens, accepts and dials for all transports of a kind; the
transport says how, and neither awaits nor knows the protocol that is spoken over it.
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

#: A way to reach an endpoint: makes a non-blocking socket, and gives it with the address to connect it to. It raises
#: `ConnectError` where the system refuses.
Route: TypeAlias = Callable[[], tuple[socket.socket, Any]]


class Endpoint(Protocol):
    """The meaning of an endpoint text, decided before anything is opened. As a `str` it is such a text again.

    Attributes:
        scheme: That of its transport.
    """

    scheme: ClassVar[str]


class Opening(Protocol):
    """The exchange on a new connection before it leads to its endpoint: bytes in, bytes out.

    Attributes:
        remote: Where it leads to, as an endpoint.
        needed: The bytes that `receive` takes next, and not one more may be read; 0 at the end.
    """

    remote: str
    needed: int

    def start(self) -> bytes:
        """Returns what is to be written first."""
        ...

    def receive(self, data: bytes) -> bytes:
        """Takes the `needed` bytes; returns what is to be written next.

        Raises:
            OSError: The connection does not lead there; the text names what refuses, and not the endpoint.
        """
        ...


class Relay(Protocol):
    """An intermediary between a connection and the descriptor that the engine has of it.

    Attributes:
        fd: That descriptor; owned by the engine.
        error: Why the connection has ended, where that is known.
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
        family: Of the socket.
        name: A `sockaddr`, as bytes.
        settings: What is set on the socket first: level, option, value.
    """

    family: int
    name: bytes
    settings: tuple[tuple[int, int, int], ...]


class SettingsRecorder:
    """In place of a socket: notes what `tune` sets."""

    def __init__(self) -> None:
        self.settings: list[tuple[int, int, int]] = []

    def setsockopt(self, level: int, option: int, value: int) -> None:
        self.settings.append((level, option, value))


EndpointT = TypeVar("EndpointT", bound=Endpoint)


def _nothing() -> None:
    pass


class Listening(NamedTuple):
    """A listener at an endpoint.

    Attributes:
        sockets: Non-blocking, one or more.
        endpoint: The endpoint with its real address.
        cleanup: To be called on unbinding, before the sockets are closed; may be called again, and does nothing in a
            forked child.
    """

    sockets: Sequence[socket.socket]
    endpoint: str
    cleanup: Callable[[], None] = _nothing


@dataclass(frozen=True, slots=True)
class Lookup:
    """A host whose addresses are needed before its endpoint can be dialled.

    Attributes:
        host: A name or an address.
        port: For the socket addresses.
        hints: Further arguments of `getaddrinfo`.
        known: What it stands for where no resolver has to be asked; empty if one has to be.
    """

    host: str
    port: int
    hints: dict[str, int]
    known: Sequence[AddrInfo]


class Transport(ABC, Generic[EndpointT]):
    """One scheme; of a kind below.

    Attributes:
        scheme: What stands before `://`.
        bare: The bytes of one side come to the other as they are: a type that does not speak ZMTP can use it.
        options: Those that may be given for one endpoint of it, for somebody there has a use for them.
    """

    scheme: ClassVar[str]
    bare: ClassVar[bool] = False
    options: ClassVar[frozenset[str]] = frozenset({"peer_identity", "reconnect_interval", "reconnect_stop"})

    @abstractmethod
    def parse(self, rest: str, *, bind: bool) -> EndpointT:
        """Reads what follows `://`, which is something.

        Args:
            rest: That text.
            bind: It is to be bound; otherwise it is to be connected to, where wildcards mean nothing.

        Raises:
            ValueError: It means nothing, or nothing for this use; its text says why.
        """

    def check(self, text: str, options: Options, *, bind: bool) -> None:
        """Checks the options of an endpoint where more is to be known than each by itself shows.

        Args:
            text: The endpoint, for the error.
            options: What holds there.
            bind: It is to be bound; otherwise it is to be connected to.

        Raises:
            OptionError: An option does not fit.
        """

    def without_path(self, address: str) -> str:
        """Returns an endpoint without a path, which has no part in finding the machine and the port."""
        return address

    def bindings_of(self, address: str) -> tuple[str, ...]:
        """The endpoints one of which is bound on this machine where a connection to *address* leads there."""
        return (address,)


class LocalTransport(Transport[EndpointT]):
    """Joins sockets of one context: an endpoint is a name there, and nothing is opened for it."""


class StreamTransport(Transport[EndpointT]):
    """Carries streams of bytes through the kernel: one socket listens and accepts, another one connects.

    Attributes:
        hands_over: What the kernel has taken from one side stands in the other's queue already: closing loses nothing.
        families: Of its sockets (`AF_*`), where it takes descriptors of the program's.
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
            BindError: The system refused; `errno` says why.
            OptionError: The descriptor `use_fd` does not fit; it stays the program's, as with the error above.
        """

    def take_connected(self, fd: int, endpoint: EndpointT, options: Options) -> socket.socket:
        """Takes over a connected descriptor of the program's, and sets the options of a connection on it.

        Raises:
            OptionError: It does not fit; it stays the program's.
            ConnectError: The system refused an option, likewise.
        """
        sock = descriptor.connected(fd, self.families)
        with on_loan(sock, ConnectError, endpoint):
            self.tune(sock, options)
        return sock

    @abstractmethod
    def tune(self, sock: socket.socket, options: Options) -> None:
        """Sets the options of a connection on a socket that was accepted.

        Raises:
            OSError: The system refused; the connection may be gone.
        """

    def rejection(self, sock: socket.socket, address: Any, options: Options) -> str | None:
        """Returns why a connection that was accepted is refused, or `None` if it is not.

        Args:
            sock: The connection.
            address: What `accept` has given with it; `None` where the family has no such addresses.
            options: Those of the endpoint.

        Raises:
            OSError: The connection may be gone.
        """
        return None

    def lookups(self, endpoint: EndpointT, options: Options) -> Sequence[Lookup]:
        """The hosts whose addresses are needed before `routes` can tell the ways there."""
        return ()

    @abstractmethod
    def routes(self, endpoint: EndpointT, options: Options, answers: Sequence[Sequence[AddrInfo]]) -> Sequence[Route]:
        """The ways to an endpoint, which are tried one after the other, each a little after the last.

        Args:
            endpoint: Where the connection goes.
            options: Those of the socket that dials.
            answers: The addresses of what `lookups` has named, in that order.
        """

    def address(self, endpoint: EndpointT, options: Options, answers: Sequence[Sequence[AddrInfo]]) -> Address | None:
        """The only address of an endpoint; `None` if it has several, or if `routes` do more than connect to it."""
        return None

    def opening(self, endpoint: EndpointT, options: Options) -> Opening | None:
        """Makes the exchange on a new connection before it leads to the endpoint; `None` for none."""
        return None

    def relay(self, fd: int, endpoint: str, options: Options, *, dialled: bool) -> Relay | None:
        """Puts something between a connection and the engine; `None` for nothing.

        Args:
            fd: The connection; a relay owns it.
            endpoint: Where it leads, or has come in.
            options: Those of the endpoint.
            dialled: This side has dialled.

        Raises:
            OSError: That cannot be done; the descriptor stays the caller's.
        """
        return None

    def upgrade(self, endpoint: str, *, dialled: bool) -> Upgrade | None:
        """Makes the exchange that comes before ZMTP's handshake; `None` for none."""
        return None

    def verify(self, sock: socket.socket) -> None:
        """Looks at a socket that has just been connected.

        Raises:
            OSError: It leads nowhere, and is to be closed.
        """

    def remote_address(self, sock: socket.socket) -> str:
        """Returns the endpoint of a connected socket's peer; empty if that is unknown."""
        try:
            address = sock.getpeername()
        except OSError:
            return ""  # it has gone already
        return self.endpoint_of(address)

    @abstractmethod
    def endpoint_of(self, address: Any) -> str:
        """The endpoint text of a socket address that `getpeername` has given; empty if it names nobody."""

    def remote_ip(self, sock: socket.socket) -> str:
        """The peer's IP address, as ZAP wants it (RFC 27, Message Format); empty where there is none."""
        return ""


class DatagramTransport(Transport[EndpointT]):
    """Carries messages as datagrams, one way, without a connection: RADIO sends them, DISH receives them (RFC 48)."""

    @abstractmethod
    def listen(self, endpoint: EndpointT, options: Options) -> tuple[socket.socket, str]:
        """Opens a socket that receives what is sent to an endpoint.

        Returns:
            The socket, non-blocking, and the endpoint with its real address.

        Raises:
            BindError: The system refused; `errno` says why.
        """

    @abstractmethod
    def lookup(self, endpoint: EndpointT, options: Options) -> Lookup:
        """Returns the host whose addresses are needed to connect."""

    @abstractmethod
    def connect(self, endpoint: EndpointT, options: Options, infos: Sequence[AddrInfo]) -> socket.socket:
        """Opens a socket that sends to an endpoint; nothing is sent yet.

        Args:
            endpoint: Where datagrams go.
            options: Those for the endpoint.
            infos: The addresses of what `lookup` has named.

        Returns:
            The socket, non-blocking and connected.

        Raises:
            ConnectError: The system refused; `errno` says why.
        """


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


@contextmanager
def on_loan(sock: socket.socket, kind: type[TransportError], endpoint: object) -> Iterator[None]:
    """Leaves the descriptor of a socket (`use_fd`) to the program where the block raises.

    Args:
        sock: The socket.
        kind: What the block raises where the system refuses; see `refusal`.
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
    """A part of an endpoint text, for an error; not all of one that is long."""
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:160]}... ({len(text)} characters)"
