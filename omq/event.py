"""Events of a socket's connections, as values: the words of engine and monitor."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from omq.message import PeerInfo


class EventKind(StrEnum):
    """The kind of an event (`zmq_socket_monitor(3)`, whose names these are where it has one)."""

    LISTENING = "listening"  #: The socket is bound to `endpoint`.
    BIND_FAILED = "bind_failed"  #: The system refused to bind `endpoint`.
    ACCEPTED = "accepted"  #: A peer has connected to `endpoint`; its handshake begins.
    ACCEPT_FAILED = "accept_failed"  #: A connection could not be accepted; the listener goes on.
    CLOSED = "closed"  #: The listener of `endpoint` is gone; connections that it accepted may go on.
    CONNECT_DELAYED = "connect_delayed"  #: An attempt to connect to `endpoint` has begun in the background.
    CONNECT_FAILED = "connect_failed"  #: That attempt has failed.
    CONNECT_RETRIED = "connect_retried"  #: The next attempt begins in `delay` seconds.
    CONNECTED = "connected"  #: The peer at `endpoint` has been reached; the handshake begins.
    HANDSHAKE_SUCCEEDED = "handshake_succeeded"  #: Messages can flow.
    HANDSHAKE_FAILED = "handshake_failed"  #: They never will: `category` and `reason`; `disconnected` follows.
    DISCONNECTED = "disconnected"  #: A connection that was `accepted` or `connected` is over.
    SUBSCRIBED = "subscribed"  #: A peer wants messages that start with `prefix`.
    UNSUBSCRIBED = "unsubscribed"  #: It no longer does. One that disconnects takes its subscriptions along unsaid.
    DROPPED = "dropped"  #: `count` messages were dropped since the last such event; `reason` says why.
    MISSED = "missed"  #: This monitor was read too slowly: `count` events that stood here are lost.
    MONITOR_STOPPED = "monitor_stopped"  #: The socket is closed; this is the last event.


class HandshakeFailure(StrEnum):
    """The reason why a handshake failed."""

    MECHANISM = "mechanism"  #: The sides have different mechanisms, or the same role in one.
    PROTOCOL = "protocol"  #: The peer sent what ZMTP does not allow here, or its socket type does not fit.
    AUTHENTICATION = "authentication"  #: Credentials were refused, theirs or ours.
    REFUSED = "refused"  #: One side does not let the other in for another reason.
    TIMEOUT = "timeout"  #: It was not done within `handshake_timeout`.
    HUNG_UP = "hung_up"  #: The peer closed the connection, or reset it.
    STOPPED = "stopped"  #: This side ended it: `close`, `stop`, `disconnect`.


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened to a socket.

    What an event's kind has no use for is empty: `""`, `None` or 0.

    Attributes:
        kind: What happened.
        time: When: seconds since the epoch, as `time.time()`.
        endpoint: The endpoint that was bound or connected, resolved; empty where the socket as a whole is meant.
        remote_address: Where the peer is, as an endpoint; empty if unknown.
        peer: A snapshot of the peer, once its handshake is done.
        mechanism: The connection's security mechanism, `"NULL"` for none; empty over inproc and before a handshake.
        reason: Why, to be read by people.
        error: The exception behind it, if there is one.
        category: `handshake_failed`: whose fault.
        delay: `connect_retried`: seconds until the next attempt.
        prefix: `subscribed`, `unsubscribed`: what the messages start with.
        count: `dropped`, `missed`: how many.
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

    @property
    def detail(self) -> str:
        """The reason without the endpoint in it, for a text that names the endpoint already."""
        return without_endpoint(self.reason, self.endpoint)


def without_endpoint(reason: str, endpoint: str) -> str:
    """Returns a reason without the endpoint that errors of transports begin with, behind their number."""
    return reason.replace(f"{endpoint}: ", "", 1) if endpoint else reason
