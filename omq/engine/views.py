"""The socket, as each of its parts sees it: what that part uses of it, and no more.

`omq.engine.socket.Engine` is all of these. It makes its parts, and the parts know it by these views only. So no part
imports it, and each part can be read, and tested, without it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol

from omq._core.calls.leader import ForkGuard
from omq._core.link.background import Background
from omq._core.link.connection import Connection
from omq._core.link.flusher import Flusher
from omq._core.link.handshake_io import HandshakePoller
from omq._core.queues.names import Names
from omq._core.wire.pool import Pool
from omq.engine.attempts import Attempts
from omq.engine.driver import Driver
from omq.engine.lifecycle import ConnectionState
from omq.engine.verdict import Verdict
from omq.event import EventKind
from omq.options import Options
from omq.routing import Pattern
from omq.routing import Session as RoutedSession
from omq.transport import StreamTransport
from omq.types import SocketType
from omq.zmtp.handshake import Handshake, PeerMetadata
from omq.zmtp.mechanism import Question
from omq.zmtp.rehearsed import RehearsedHandshake
from omq.zmtp.websocket import Upgrade, WebSocketHandshake


class Shared(Protocol):
    """What the sockets of one context share.

    Attributes:
        pool: Memory for slabs and batches.
        inproc: The inproc names.
        fork_guard: Whether the process has forked since.
        flusher: Its thread writes what callers left behind.
        background: Its thread reads and writes while no thread with the GIL does.
        closed: Whether it has been terminated.
    """

    pool: Pool
    flusher: Flusher
    background: Background
    inproc: Names
    fork_guard: ForkGuard

    @property
    def closed(self) -> bool: ...

    def check(self) -> None:
        """Raises unless sockets can be made and used here."""

    def keep(self, socket: Any) -> None:
        """Holds a socket that its owner has dropped until it is closed."""

    def release(self, socket: Any) -> None:
        """Lets go of a socket that `keep` holds."""


# ---------------------------------------------------------------------- peers


class Session(RoutedSession, Protocol):
    """One peer: of a connection or, over inproc, of a pipe.

    Attributes:
        state: How far it has come.
        endpoint: The endpoint of ours that it belongs to.
        info: What the handshake told about the peer, once it is done.
        remote_address: Where the peer is, as an endpoint; empty if unknown.
        mechanism: The name of its security mechanism.
        dropped_told: Messages dropped for the peer that monitors know of.
    """

    state: ConnectionState
    endpoint: str
    info: PeerMetadata | None
    remote_address: str
    mechanism: str
    dropped_told: int

    @property
    def ended(self) -> asyncio.Future[None]:
        """Done when the peer takes nothing new any more, or all is over."""
        ...

    @property
    def is_ready(self) -> bool:
        """Whether its handshake is done, and it is not over."""
        ...

    @property
    def is_linked(self) -> bool:
        """Whether it takes part in routing, and its end has not come."""
        ...

    def move(self, target: ConnectionState) -> None:
        """Goes over to another state."""

    def leave(self) -> None:
        """Ends it when what was accepted for it has left, or `linger` has passed."""

    def half_close(self) -> bool:
        """Ends our side. True when the peer has everything and closing loses nothing."""
        ...

    def cease(self) -> None:
        """Has the peer send nothing more; what it has sent until then can be taken."""

    def end(self, reason: Exception | None = None) -> None:
        """Tears it down, once."""

    def leave_loop(self) -> None:
        """The loop ends, or has ended."""

    def enter_loop(self) -> None:
        """Goes on in another loop."""

    def close_after_fork(self) -> None:
        """In a forked child: closes what the parent has, too."""


class ConnectedSession(Session, Protocol):
    """One peer of a connection.

    Attributes:
        options: What holds for its endpoint.
    """

    options: Options

    @property
    def peer(self) -> Connection:
        """The connection, once the handshake is done."""
        ...


class Stranger(Session, Protocol):
    """One peer of a connection that was accepted."""

    def catch_up(self) -> None:
        """Takes the handshake as far as the bytes go that have arrived."""

    def time_out(self) -> None:
        """Its handshake has taken too long."""


class Origin(Protocol):
    """The dialer of a session, as the session sees it.

    Attributes:
        messages: What was accepted for its endpoint only.
        origin: Stands for the dialer where its connections are compared, and refers to nothing.
    """

    messages: list[bytes | tuple[bytes, ...]]
    origin: object

    @property
    def leaving(self) -> bool:
        """Whether it is no endpoint of the socket any more."""
        ...

    @property
    def dials_on(self) -> bool:
        """Returns whether it is an endpoint of the socket, and has not ended."""
        ...

    def stand_down(self) -> None:
        """Stops dialling, for the user has closed the peer; the connection ends by itself."""


# ---------------------------------------------------------------------- the socket


class RunningSocket(Protocol):
    """What has options, a loop, and a lock.

    Attributes:
        options: Those in force.
        lock: Held while queues and peers are touched.
        loop: Where everything happens, once there is one.
    """

    options: Options
    lock: contextlib.AbstractContextManager[Any]
    loop: asyncio.AbstractEventLoop

    @property
    def in_loop(self) -> bool:
        """Whether there is a loop that still takes calls."""
        ...


class RoutingSocket(RunningSocket, Protocol):
    """What routes.

    Attributes:
        pattern: Its routing.
    """

    pattern: Pattern


class LivingSocket(RoutingSocket, Protocol):
    """What has peers, until it is closed."""

    @property
    def closed(self) -> bool:
        """Returns whether nothing of it lives any more."""
        ...

    @property
    def sessions(self) -> list[Session]:
        """The peers that have finished their handshake and take part in routing."""
        ...


class ReportingSocket(RunningSocket, Protocol):
    """What tells what happens to it."""

    def emit(
        self,
        kind: EventKind,
        endpoint: str = "",
        *,
        session: Session | None = None,
        reason: str | BaseException | None = None,
        **details: Any,
    ) -> None:
        """Reports what happens to the socket and its connections."""


class AcceptingSocket(ReportingSocket, Protocol):
    """What takes over the descriptors of its listeners and dialers."""

    @property
    def handshakes(self) -> HandshakePoller:
        """What watches accepted connections during their handshakes."""
        ...

    def adopt(
        self,
        fd: int,
        transport: StreamTransport[Any],
        endpoint: str,
        remote_address: str,
        options: Options,
        dialer: Origin | None,
        limiter: LimiterView | None = None,
        *,
        said: bytes = b"",
    ) -> Session:
        """Takes over a connected descriptor: a dialer's, or a listener's, whose limiter says whether it may stay.

        *said*: what has been written to it already, the beginning of our side of the handshake.
        """
        ...


class EndpointsView(Protocol):
    """The endpoints of a socket, as a dialer sees them."""

    def dialer_over(self, dialer: object) -> None:
        """A dialer has ended by itself."""

    def dialer_closed(self, dialer: object) -> None:
        """A dialer was ended."""


class NamedEndpoints(Protocol):
    """The endpoints of a socket, as those see them who name them."""

    @property
    def names(self) -> list[str]:
        """The endpoints that are connected, being left, or bound."""
        ...


class DiallingSocket(AcceptingSocket, RoutingSocket, Protocol):
    """What dials."""

    @property
    def endpoints(self) -> EndpointsView:
        """What is told of the end of a dialer."""
        ...

    @property
    def wants_peers(self) -> bool:
        """Whether a new connection is of use."""
        ...

    @property
    def dials_silently(self) -> bool:
        """Returns whether it runs, and no monitor reports attempts to connect."""
        ...

    def is_last(self, session: Session | None) -> bool:
        """Whether only this session, or its dialer, could take what waits for any peer."""
        ...

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Starts a task that ends with the socket."""
        ...


class MeetingSocket(RoutingSocket, Protocol):
    """What has sessions, which tell it how far they have come.

    Attributes:
        socket_type: Its type.
        driver: Drives its descriptors.
        context: What it shares with other sockets.
    """

    socket_type: SocketType
    driver: Driver
    context: Shared

    @property
    def on_loop_thread(self) -> bool:
        """Whether this is the thread that the socket's loop runs in."""
        ...

    def post(self, function: Callable[..., None], *arguments: Any) -> None:
        """Calls a function in this socket's loop, from any thread."""

    def properties(self) -> dict[bytes, bytes]:
        """Our metadata for handshakes."""
        ...

    def is_last(self, session: Session | None) -> bool:
        """Whether only this session, or its dialer, could take what waits for any peer."""
        ...

    def session_met(self, session: Session, *, dialled: bool) -> None:
        """The two sides have met, and the handshake begins."""

    def session_ready(self, session: Session, *, routed: bool = True) -> None:
        """A handshake is done; *routed*: the session takes part in routing."""

    def session_over(self, session: Session, before: ConnectionState, reason: Exception | None) -> None:
        """A session has torn itself down; *before*: how far it had come."""


class WiredSocket(MeetingSocket, Protocol):
    """What has peers behind connections."""

    @property
    def closed(self) -> bool:
        """Whether nothing of it lives any more."""
        ...

    @property
    def authenticator(self) -> AuthenticatorView:
        """Decides whether a peer may come in."""
        ...

    @property
    def heartbeat(self) -> HeartbeatView:
        """Asks for signs of life."""
        ...

    @property
    def handshakes(self) -> HandshakePoller:
        """What watches accepted connections during their handshakes."""
        ...

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Starts a task that ends with the socket."""
        ...

    def session_drained(self) -> None:
        """A session that leaves has nothing more for the kernel."""


class PipedSocket(MeetingSocket, Protocol):
    """What has peers in the same context."""

    @property
    def wants_peers(self) -> bool:
        """Whether a new connection is of use."""
        ...

    def call(self, function: Callable[..., None], *arguments: Any) -> None:
        """Calls a function in this socket's thread: now, if that is this one."""


class JoiningSocket(DiallingSocket, PipedSocket, Protocol):
    """What dials in the same context."""


class AddressedSocket(JoiningSocket, Protocol):
    """What has endpoints.

    Attributes:
        has_loop: Whether they are served yet.
        attempts: Those of the calls of `connect_peer` that wait.
    """

    has_loop: bool
    attempts: set[Attempts]

    @property
    def closing(self) -> bool:
        """Returns whether `close` or `stop` has been called."""
        ...

    async def wait_until(self, reached: Callable[[], bool], timeout: float | None) -> bool:
        """Waits until a condition on peers or subscriptions holds; false if the time was up first."""
        ...

    def drain(self) -> None:
        """Has every peer send nothing more."""

    def changed(self) -> None:
        """Peers, dialers or subscriptions have changed: calls that wait for a state look again."""


class MonitoredSocket(LivingSocket, ReportingSocket, Protocol):
    """What monitors look at.

    Attributes:
        socket_type: Its type.
        has_loop: Whether it has a loop yet.
        attempts: Those of the calls of `connect_peer` that wait.
    """

    socket_type: SocketType
    has_loop: bool
    attempts: set[Attempts]

    def call(self, function: Callable[..., None], *arguments: Any) -> None:
        """Calls a function in this socket's thread: now, if that is this one."""


class LingeringSocket(LivingSocket, Protocol):
    """What closes, or is flushed.

    Attributes:
        socket_type: Its type.
        driver: Drives its descriptors.
    """

    socket_type: SocketType
    driver: Driver

    @property
    def endpoints(self) -> NamedEndpoints:
        """The endpoints that accepted messages may go to."""
        ...

    @property
    def unsent(self) -> int:
        """Messages that were accepted and are not with the kernel, as far as they are counted one by one."""
        ...

    @property
    def closing(self) -> bool:
        """Returns whether `close` or `stop` has been called."""
        ...

    @property
    def parting(self) -> list[Session]:
        """The connections that are half closed: our side of the stream has ended."""
        ...

    @property
    def heard(self) -> int:
        """Bytes that have come from the peers of half closed connections."""
        ...

    @property
    def drained(self) -> bool:
        """Whether everything that was accepted is with the kernel."""
        ...

    @property
    def may_have_peers(self) -> bool:
        """Whether it has a connection, or may get one."""
        ...

    def half_close(self) -> bool:
        """Ends our side of every connection. True when the peers' kernels have everything, or all is over."""
        ...


class GuardedSocket(RunningSocket, Protocol):
    """What lets in the peers that the user, or a ZAP handler, admits.

    Attributes:
        context: Where the handler may be.
    """

    context: Shared

    def sibling(self, socket_type: SocketType, options: Options, driver: Driver) -> AskingSocket:
        """Makes another socket of the same context."""
        ...


class AskingSocket(Protocol):
    """What asks a ZAP handler.

    Attributes:
        pattern: Its routing.
    """

    pattern: Pattern

    @property
    def endpoints(self) -> Connectable:
        """What it is connected to."""
        ...

    @property
    def sessions(self) -> list[Session]:
        """The handler, if it is there."""
        ...

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begins to run, in this loop."""

    async def wait_until(self, reached: Callable[[], bool], timeout: float | None) -> bool:
        """Waits until a condition on peers or subscriptions holds; false if the time was up first."""
        ...

    def stop(self) -> None:
        """Ends everything at once."""


# ---------------------------------------------------------------------- parts of a socket, as others of them see them


class Connectable(Protocol):
    """What can be connected."""

    def connect(self, text: str) -> str:
        """Dials in the background; gives the endpoint."""
        ...


class LimiterView(Protocol):
    """What limits the connections of a bound endpoint."""

    def enter(self, session: Stranger) -> None:
        """A connection has been accepted; its handshake is to begin."""

    def claim(self, session: Stranger) -> str | None:
        """The peer is about to be answered. Gives why it cannot be let in, or `None` if it has its place."""
        ...

    def admit(self, session: Stranger) -> None:
        """The handshake is done."""

    def leave(self, session: Stranger) -> None:
        """The connection is over."""


class AuthenticatorView(Protocol):
    """Decides whether a peer may come in."""

    def handshake(
        self,
        socket_type: SocketType,
        properties: Mapping[bytes, bytes],
        options: Options,
        upgrade: Upgrade | None = None,
    ) -> Handshake | RehearsedHandshake | WebSocketHandshake:
        """A fresh handshake for one connection."""
        ...

    def watch_cookies(self) -> None:
        """Called when a handshake has gone on."""

    async def decide(self, question: Question, address: str, options: Options) -> Verdict:
        """Whether a peer at this IP address may come in."""
        ...


class HeartbeatView(Protocol):
    """Asks for signs of life."""

    def begin(self, session: ConnectedSession) -> None:
        """A handshake is done."""

    def pinged(self, session: ConnectedSession, ttl: int) -> None:
        """A PING allows so many tenths of a second of silence."""

    def end(self, session: ConnectedSession) -> None:
        """A connection is over."""
