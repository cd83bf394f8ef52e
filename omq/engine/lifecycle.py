"""The states of the parts of a socket, and all transitions between them.

The parts change their state through this table (`StateMachine.move`), from which `docs/reference/lifecycle.md` is
drawn.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from typing import Final, Generic, TypeAlias, TypeVar

from omq._core.debug import DEBUG
from omq.event import EventKind
from omq.types import IdentityEnum

log = logging.getLogger("omq")

#: Whether a transition that is not in the table raises, as in debug builds and tests. Otherwise it is logged.
STRICT: Final = DEBUG or "OMQ_STRICT" in os.environ


# The values describe the states. A part begins in the first one, and ends in the last.


class SocketState(IdentityEnum):
    """A socket of either twin."""

    NEW = "it was made, and may have endpoints, but no loop to serve them yet"
    RUNNING = "it has a loop: endpoints are served, messages flow"
    CLOSING = "calls raise `ClosedError`; accepted messages may leave, also to new peers, while `linger` lasts"
    CLOSED = "everything has ended; messages that were not received are gone"


class ListenerState(IdentityEnum):
    """A bound endpoint."""

    BOUND = "the kernel lets peers connect, but they are not accepted yet"
    ACCEPTING = "peers are accepted as they come"
    PAUSED = "descriptors or memory are short, or `max_handshakes` are in progress: it accepts again in a moment"
    CLOSED = "the name is free"


class DialerState(IdentityEnum):
    """A connected endpoint."""

    NEW = "there is no loop to dial in yet"
    CONNECTING = "an attempt is in progress; over inproc: the name is not bound yet"
    CONNECTED = "it has a connection, in any state"
    WAITING = "the next attempt comes after `reconnect_interval`"
    LEAVING = "its endpoint is disconnected; while `linger` lasts, it dials for messages that no other peer can take"
    CLOSED = "it has stopped dialling"


class ConnectionState(IdentityEnum):
    """A connection, accepted or dialled; over inproc one end of a pipe."""

    CONNECTING = "it was made; over inproc the other socket has not answered yet"
    HANDSHAKING = "the two sides negotiate"
    READY = "messages flow"
    LEAVING = "out of routing; accepted messages leave while `linger` lasts, and arriving ones can be received"
    CLOSING = "our side of the stream has ended, and the peer's kernel receives the rest"
    OVER = "out of routing, descriptor closed; messages that had arrived stay readable"


State: TypeAlias = SocketState | ListenerState | DialerState | ConnectionState
_StateT = TypeVar("_StateT", SocketState, ListenerState, DialerState, ConnectionState)


@dataclass(frozen=True, slots=True)
class Transition:
    """One transition from a state to another.

    Attributes:
        source: The state before.
        target: The state after.
        cause: The cause of the transition.
        events: The events that monitors then get, in order; `|` separates alternatives.
    """

    source: State
    target: State
    cause: str
    events: str = ""


def _row(source: State, target: State, cause: str, *events: EventKind | tuple[EventKind, EventKind]) -> Transition:
    names = [" | ".join(kind) if isinstance(kind, tuple) else kind.value for kind in events]
    return Transition(source, target, cause, ", ".join(names))


_S, _L, _D, _C, _E = SocketState, ListenerState, DialerState, ConnectionState, EventKind

TABLE: Final = (
    _row(_S.NEW, _S.RUNNING, "the first bind, connect or wait in a loop"),
    _row(_S.NEW, _S.CLOSED, "`close` or `stop`: no peer can come for what it accepted", _E.MONITOR_STOPPED),
    _row(
        _S.RUNNING,
        _S.CLOSING,
        "`close`, the program has dropped the socket, or its loop has ended before all messages have left",
    ),
    _row(_S.RUNNING, _S.CLOSED, "`stop`, or the end of its parent, of its loop or of its context", _E.MONITOR_STOPPED),
    _row(
        _S.CLOSING,
        _S.CLOSED,
        "all messages have left, no peer can come for them, `linger` has passed, or `stop`",
        _E.MONITOR_STOPPED,
    ),
    #
    _row(_L.BOUND, _L.ACCEPTING, "the socket runs"),
    _row(
        _L.ACCEPTING,
        _L.PAUSED,
        "accepting fails for lack of descriptors or memory; or, without an event, `max_handshakes` are in progress",
        _E.ACCEPT_FAILED,
    ),
    _row(_L.PAUSED, _L.ACCEPTING, "a tenth of a second has passed, or a handshake has ended"),
    _row(_L.BOUND, _L.CLOSED, "`unbind`, or the end of the socket", _E.CLOSED),
    _row(_L.ACCEPTING, _L.CLOSED, "`unbind`, or the end of the socket", _E.CLOSED),
    _row(_L.PAUSED, _L.CLOSED, "`unbind`, or the end of the socket", _E.CLOSED),
    #
    _row(_D.NEW, _D.CONNECTING, "the socket runs", _E.CONNECT_DELAYED),
    _row(_D.CONNECTING, _D.CONNECTED, "the peer is reached"),
    _row(_D.CONNECTING, _D.WAITING, "the attempt fails", _E.CONNECT_FAILED, _E.CONNECT_RETRIED),
    _row(_D.CONNECTED, _D.WAITING, "the connection is over, or the peer drains", _E.CONNECT_RETRIED),
    _row(_D.WAITING, _D.CONNECTING, "the delay has passed", _E.CONNECT_DELAYED),
    _row(_D.NEW, _D.LEAVING, "`disconnect`, and messages are queued that no other peer could take"),
    _row(_D.CONNECTING, _D.LEAVING, "the same"),
    _row(_D.CONNECTED, _D.LEAVING, "the same, before the handshake has finished, or when the peer has just gone"),
    _row(_D.WAITING, _D.LEAVING, "the same"),
    _row(_D.NEW, _D.CLOSED, "`disconnect`, or the end of the socket"),
    _row(_D.CONNECTING, _D.CLOSED, "`disconnect`, the end of the socket, or a failure that is not retried"),
    _row(_D.CONNECTED, _D.CLOSED, "`disconnect`, the end of the socket, or of a connection that is not renewed"),
    _row(_D.WAITING, _D.CLOSED, "`disconnect`, or the end of the socket"),
    _row(
        _D.LEAVING,
        _D.CLOSED,
        "the messages have left, `linger` has passed, the end of the socket, or a failure that is not retried",
    ),
    #
    _row(_C.CONNECTING, _C.HANDSHAKING, "the other side has answered", (_E.ACCEPTED, _E.CONNECTED)),
    _row(_C.CONNECTING, _C.OVER, "inproc: one of the two sockets ends before they meet"),
    _row(_C.HANDSHAKING, _C.READY, "both sides agree", _E.HANDSHAKE_SUCCEEDED),
    _row(_C.HANDSHAKING, _C.OVER, "they do not agree, or not in time", _E.HANDSHAKE_FAILED, _E.DISCONNECTED),
    _row(
        _C.READY,
        _C.LEAVING,
        "`disconnect`, also before the handshake; the program closes a peer of a STREAM; or the peer drains while a "
        "batch is leaving",
    ),
    _row(_C.READY, _C.CLOSING, "`close`, when the kernel has everything"),
    _row(
        _C.READY,
        _C.OVER,
        "the peer goes or violates ZMTP, `disconnect` with `linger=0`, `stop`",
        _E.DISCONNECTED,
    ),
    _row(_C.LEAVING, _C.CLOSING, "the kernel has everything"),
    _row(
        _C.LEAVING,
        _C.OVER,
        "`linger` has passed, the peer goes, violates ZMTP, or has ended its side and takes nothing, `stop`",
        _E.DISCONNECTED,
    ),
    _row(
        _C.CLOSING,
        _C.OVER,
        "the peer's kernel has everything, the peer is gone or silent for a second of `close`, or `linger` has passed",
        _E.DISCONNECTED,
    ),
)

_LAWFUL: Final = frozenset((row.source, row.target) for row in TABLE)


class StateMachine(Generic[_StateT]):
    """Base of parts that have a state, which they change only along the table."""

    state: _StateT

    def move(self, target: _StateT) -> None:
        """Changes the state; an error if the table has no such transition."""
        if (self.state, target) not in _LAWFUL:
            complaint = f"{type(self).__name__} cannot go from {self.state.name} to {target.name}"
            if STRICT:
                raise AssertionError(complaint)
            log.error("%s; the transition is made anyway", complaint)
        self.state = target
