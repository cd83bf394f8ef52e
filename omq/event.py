"""Events of a socket and its connections: the engine reports them, monitors deliver them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from omq.message import PeerInfo


class EventKind(StrEnum):
    """The kind of an event, named as in `zmq_socket_monitor(3)` where that has it."""

    LISTENING = "listening"  #: The socket is bound to `endpoint`.
    BIND_FAILED = "bind_failed"  #: The system refused to bind `endpoint`.
    ACCEPTED = "accepted"  #: A peer has connected to `endpoint`; its handshake begins.
    ACCEPT_FAILED = "accept_failed"  #: A connection could not be accepted; the listener continues.
    CLOSED = "closed"  #: The listener of `endpoint` is gone; connections that it accepted may continue.
    CONNECT_DELAYED = "connect_delayed"  #: An attempt to connect to `endpoint` has begun in the background.
    CONNECT_FAILED = "connect_failed"  #: That attempt has failed.
    CONNECT_RETRIED = "connect_retried"  #: The next attempt begins in `delay` seconds.
    CONNECTED = "connected"  #: The peer at `endpoint` has been reached; the handshake begins.
    HANDSHAKE_SUCCEEDED = "handshake_succeeded"  #: Messages can flow.
    HANDSHAKE_FAILED = "handshake_failed"  #: Messages cannot flow: see `category` and `reason`; `disconnected` follows.
    DISCONNECTED = "disconnected"  #: A connection that was `accepted` or `connected` is over.
    SUBSCRIBED = "subscribed"  #: A peer has subscribed to messages that start with `prefix`.
    UNSUBSCRIBED = "unsubscribed"  #: A peer has unsubscribed. A disconnect ends subscriptions without this event.
    DROPPED = "dropped"  #: `count` messages were dropped since the last such event, for `reason`.
    MISSED = "missed"  #: This monitor was read too slowly: `count` events were lost here.
    MONITOR_STOPPED = "monitor_stopped"  #: The socket is closed; this is the last event.


class HandshakeFailure(StrEnum):
    """The reason why a handshake failed."""

    MECHANISM = "mechanism"  #: The sides have different mechanisms, or the same role in one.
    PROTOCOL = "protocol"  #: The peer violated ZMTP, or its socket type does not fit.
    AUTHENTICATION = "authentication"  #: One side refused the other's credentials.
    REFUSED = "refused"  #: One side refused the other for another reason.
    TIMEOUT = "timeout"  #: It did not finish within `handshake_timeout`.
    HUNG_UP = "hung_up"  #: The peer closed the connection, or reset it.
    STOPPED = "stopped"  #: This side ended it: `close`, `stop`, `disconnect`.


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An event of a socket or of one of its connections.

    Attributes that a kind does not use are empty: `""`, `None` or 0.

    Attributes:
        kind: The kind.
        time: The time of the event, in seconds since the epoch, as `time.time()`.
        endpoint: The endpoint that was bound or connected, resolved; empty for an event of the whole socket.
        remote_address: The peer's address, as an endpoint; empty if unknown.
        peer: A snapshot of the peer; `None` before its handshake has finished.
        mechanism: The connection's security mechanism, `"NULL"` for none; empty over inproc and before a handshake.
        reason: The reason, as text for people.
        error: The exception that caused the event; `None` for none.
        category: The kind of failure, with `handshake_failed`.
        delay: Seconds until the next attempt, with `connect_retried`.
        prefix: The prefix of the subscription, with `subscribed` and `unsubscribed`.
        count: The number of messages or events, with `dropped` and `missed`.
        descriptor: The descriptor of the listener or of the connection, which may be closed already; `None` over inproc
            and udp.
    """

    kind: EventKind
    time: float
    endpoint: str = ""
    remote_address: str = ""
    peer: PeerInfo | None = None
    mechanism: str = ""
    reason: str = ""
    error: BaseException | None = None
    category: HandshakeFailure | None = None
    delay: float | None = None
    prefix: bytes | None = None
    count: int = 0
    descriptor: int | None = None

    @property
    def detail(self) -> str:
        """The reason without the endpoint in it, for a text that names the endpoint already."""
        return without_endpoint(self.reason, self.endpoint)


def without_endpoint(reason: str, endpoint: str) -> str:
    """Returns a reason without the endpoint that errors of transports put after the error number."""
    return reason.replace(f"{endpoint}: ", "", 1) if endpoint else reason
