"""The interfaces of the socket, its peers and its context, as the parts of a socket use them.

`omq.engine.socket.Engine` makes its parts, which know it as a `SocketView` only. So no part imports it, and each part
can be read, and tested, without it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from omq._core.calls.leader import ForkGuard
from omq._core.link.background import Background
from omq._core.link.connection import Connection
from omq._core.link.flusher import Flusher
from omq._core.link.handshake_io import HandshakePoller
from omq._core.queues.names import Names
from omq._core.wire.pool import Pool
from omq.engine.connect_attempts import ConnectAttempts
from omq.engine.driver import Driver
from omq.engine.lifecycle import ConnectionState
from omq.event import EventKind
from omq.options import Options
from omq.routing import Pattern, RoutedSession
from omq.transport import StreamTransport
from omq.types import SocketType
from omq.zmtp.handshake import PeerMetadata


class ContextView(Protocol):
    """The state that the sockets of one context share.

    Attributes:
        pool: Memory for slabs and batches.
        inproc: The inproc names.
        fork_guard: Knows whether the process has forked since.
        flusher: Its thread writes what callers have not written.
        background: Its thread reads and writes while no thread with the GIL does.
        closed: Whether the context has been terminated.
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
        """Keeps a socket that its owner has dropped alive until it is closed."""

    def release(self, socket: Any) -> None:
        """Drops the reference that `keep` holds."""


# ---------------------------------------------------------------------- peers


class Session(RoutedSession, Protocol):
    """One peer: of a connection or, over inproc, of a pipe.

    Attributes:
        state: The state of the connection.
        endpoint: The endpoint of the socket to which it belongs.
        info: The peer's metadata, once the handshake has finished.
        remote_address: The peer's address, as an endpoint; empty if unknown.
        mechanism: The name of its security mechanism.
        dropped_reported: The number of dropped messages of the peer that monitors have received.
        rejected: Whether the handshake has failed because one side has rejected the other.
        descriptor: Its descriptor, for monitors; `None` without one.
    """

    state: ConnectionState
    endpoint: str
    info: PeerMetadata | None
    remote_address: str
    mechanism: str
    dropped_reported: int
    rejected: bool
    descriptor: int | None

    @property
    def ended(self) -> asyncio.Future[None]:
        """A future that is done when the peer takes no more messages, or the session has ended."""
        ...

    @property
    def is_ready(self) -> bool:
        """Returns whether the session is ready, or only our side of the stream has ended (`CLOSING`)."""
        ...

    @property
    def is_linked(self) -> bool:
        """Returns whether it takes part in routing, and has not ended."""
        ...

    def move(self, target: ConnectionState) -> None:
        """Changes the state."""

    def leave(self) -> None:
        """Ends it when the messages accepted for it have left, or `linger` has passed."""

    def half_close(self) -> bool:
        """Ends this side of the stream; returns whether the peer's kernel has everything: closing loses nothing."""
        ...

    def cease(self) -> None:
        """Makes the peer stop sending; messages that it has sent by then can be received."""

    def end(self, reason: Exception | None = None) -> None:
        """Ends the session, once."""

    def leave_loop(self) -> None:
        """Leaves a loop that ends, or has ended."""

    def enter_loop(self) -> None:
        """Continues in another loop."""

    def close_after_fork(self) -> None:
        """Closes the inherited descriptors in a forked child."""


class ConnectedSession(Session, Protocol):
    """One peer of a connection.

    Attributes:
        options: The options of its endpoint.
    """

    options: Options

    @property
    def peer(self) -> Connection:
        """The connection, once the handshake has finished."""
        ...

    def catch_up(self) -> None:
        """Continues the handshake with the bytes that have arrived."""

    def time_out(self) -> None:
        """Ends a handshake that has taken too long."""


class DialerView(Protocol):
    """The dialer of a session, as the session sees it.

    Attributes:
        messages: The messages accepted for its endpoint alone.
        origin: Identifies the dialer where its connections are compared; has no reference to it.
    """

    messages: list[bytes | tuple[bytes, ...]]
    origin: object

    @property
    def leaving(self) -> bool:
        """Returns whether its endpoint is disconnected, and it dials only to send the remaining messages."""
        ...

    @property
    def dials_on(self) -> bool:
        """Returns whether its endpoint is connected to the socket, and it has not ended."""
        ...

    def connected(self) -> None:
        """Counts a connection that has finished its handshake."""

    def stop_dialling(self) -> None:
        """Stops dialling, because the user has closed the peer; the connection ends by itself."""


class LimiterView(Protocol):
    """The limiter of the connections of a bound endpoint: a `ConnectionLimiter`."""

    def enter(self, session: ConnectedSession) -> None: ...

    def claim(self, session: ConnectedSession) -> str | None: ...

    def admit(self, session: ConnectedSession) -> None: ...

    def leave(self, session: ConnectedSession) -> None: ...


class EndpointsView(Protocol):
    """The endpoints of a socket: the part of `Endpoints` that other parts use."""

    @property
    def names(self) -> list[str]: ...

    def connect(self, text: str) -> str: ...

    def dialer_over(self, dialer: object) -> None: ...

    def dialer_closed(self, dialer: object) -> None: ...


class SocketView(Protocol):
    """The socket, as its parts use it: an `Engine`, which documents the members.

    Attributes:
        socket_type: The socket's type.
        options: The options in force.
        context: The state shared with other sockets.
        driver: Drives its descriptors.
        pattern: Its routing.
        lock: Held while queues and peers are used.
        has_loop: Whether it has a loop yet.
        loop: The loop that everything runs in, once there is one.
        connect_attempts: Those of the calls of `connect_peer` that wait.
        reconnects: The number of connections that dialers have got after their first one.
    """

    socket_type: SocketType
    options: Options
    context: ContextView
    driver: Driver
    pattern: Pattern
    lock: contextlib.AbstractContextManager[Any]
    has_loop: bool
    loop: asyncio.AbstractEventLoop
    connect_attempts: set[ConnectAttempts]
    reconnects: int

    @property
    def endpoints(self) -> EndpointsView: ...

    @property
    def handshakes(self) -> HandshakePoller: ...

    # ------------------------------------------------------------------ its loop

    @property
    def in_loop(self) -> bool: ...

    @property
    def on_loop_thread(self) -> bool: ...

    def post(self, function: Callable[..., None], *arguments: Any) -> None: ...

    def call(self, function: Callable[..., None], *arguments: Any) -> None: ...

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]: ...

    async def wait_until(self, reached: Callable[[], bool], timeout: float | None) -> bool: ...

    def changed(self) -> None: ...

    def attach(self, loop: asyncio.AbstractEventLoop) -> None: ...

    # ------------------------------------------------------------------ its peers

    @property
    def sessions(self) -> list[Session]: ...

    @property
    def wants_peers(self) -> bool: ...

    @property
    def may_have_peers(self) -> bool: ...

    def is_last(self, session: Session | None) -> bool: ...

    @property
    def dials_silently(self) -> bool: ...

    def properties(self, options: Options) -> dict[bytes, bytes]: ...

    def adopt(
        self,
        fd: int,
        transport: StreamTransport[Any],
        endpoint: str,
        remote_address: str,
        options: Options,
        dialer: DialerView | None,
        limiter: LimiterView | None = None,
        *,
        already_sent: bytes = b"",
    ) -> Session: ...

    def session_connected(self, session: Session, *, dialled: bool) -> None: ...

    def session_ready(self, session: Session, *, routed: bool = True) -> None: ...

    def session_drained(self) -> None: ...

    def session_ended(self, session: Session, before: ConnectionState, reason: Exception | None) -> None: ...

    def emit(
        self,
        kind: EventKind,
        endpoint: str = "",
        *,
        session: Session | None = None,
        reason: str | BaseException | None = None,
        **details: Any,
    ) -> None: ...

    def sibling(self, socket_type: SocketType, options: Options, driver: Driver) -> SocketView: ...

    # ------------------------------------------------------------------ its end

    @property
    def closing(self) -> bool: ...

    @property
    def closed(self) -> bool: ...

    @property
    def drained(self) -> bool: ...

    @property
    def unsent(self) -> int: ...

    def drain(self) -> None: ...

    def half_close(self) -> bool: ...

    @property
    def half_closed(self) -> list[Session]: ...

    @property
    def half_closed_bytes_in(self) -> int: ...

    def stop(self) -> None: ...
