"""Every state that a part of a socket can be in, and every way from one to another: the only place that says so.

The parts move through this table (`StateMachine.move`), and `docs/reference/lifecycle.md` is drawn from it.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from typing import Final, Generic, TypeAlias, TypeVar

from omq._core.debug import DEBUG
from omq.event import EventKind
from omq.types import Kind

log = logging.getLogger("omq")

#: Whether a way that is not in the table raises: in debug builds and in our tests. Elsewhere it is logged as an error.
STRICT: Final = DEBUG or "OMQ_STRICT" in os.environ


# The values say what a state means. A part begins in the first one, and ends in the last.


class SocketState(Kind):
    """A socket of either twin."""

    NEW = "it was made, and may have endpoints, but no loop to serve them yet"
    RUNNING = "it has a loop: endpoints are served, messages flow"
    CLOSING = "calls raise `ClosedError`; what was accepted may leave, also to peers that come, while `linger` lasts"
    CLOSED = "nothing of it lives; what had arrived is gone"


class ListenerState(Kind):
    """A bound endpoint."""

    BOUND = "the kernel lets peers connect, but nobody accepts them yet"
    ACCEPTING = "peers are accepted as they come"
    PAUSED = "descriptors or memory are short, or `max_handshakes` are under way: it accepts again in a moment"
    CLOSED = "the name is free"


class DialerState(Kind):
    """A connected endpoint."""

    NEW = "there is no loop to dial in yet"
    CONNECTING = "an attempt is under way; over inproc: nobody has bound the name yet"
    CONNECTED = "it has a connection, in whatever state"
    WAITING = "the next attempt comes after `reconnect_interval`"
    LEAVING = "no endpoint any more; it dials on, as long as `linger` lasts, for what was accepted for nobody else"
    CLOSED = "it dials no more"


class ConnectionState(Kind):
    """A connection, accepted or dialled; over inproc one end of a pipe."""

    CONNECTING = "it was made; over inproc the other socket has not answered yet"
    HANDSHAKING = "the two sides find out whether they fit"
    READY = "messages flow"
    LEAVING = "out of routing; what was accepted leaves as long as `linger` lasts, and what arrives can be taken"
    CLOSING = "our side of the stream has ended, and the peer's kernel takes what is on its way"
    OVER = "out of routing, descriptor closed; what had arrived stays readable"


State: TypeAlias = SocketState | ListenerState | DialerState | ConnectionState
_StateT = TypeVar("_StateT", SocketState, ListenerState, DialerState, ConnectionState)


@dataclass(frozen=True, slots=True)
class Transition:
    """One way from a state to another.

    Attributes:
        source: The state before.
        target: The state after.
        cause: What takes it there.
        tells: What monitors are told then, in this order; of two kinds with `|` between, one.
    """

    source: State
    target: State
    cause: str
    tells: str = ""


def _row(source: State, target: State, cause: str, *tells: EventKind | tuple[EventKind, EventKind]) -> Transition:
    names = [" | ".join(kind) if isinstance(kind, tuple) else kind.value for kind in tells]
    return Transition(source, target, cause, ", ".join(names))


_S, _L, _D, _C, _E = SocketState, ListenerState, DialerState, ConnectionState, EventKind

TABLE: Final = (
    _row(_S.NEW, _S.RUNNING, "the first bind, connect or wait in a loop"),
    _row(_S.NEW, _S.CLOSED, "`close` or `stop`: nobody can come for what it accepted", _E.MONITOR_STOPPED),
    _row(
        _S.RUNNING,
        _S.CLOSING,
        "`close`, the program has dropped the socket, or its loop has ended before everything has left",
    ),
    _row(_S.RUNNING, _S.CLOSED, "`stop`, or the end of its parent, of its loop or of its context", _E.MONITOR_STOPPED),
    _row(
        _S.CLOSING,
        _S.CLOSED,
        "everything has left, nobody can come for it, `linger` has passed, or `stop`",
        _E.MONITOR_STOPPED,
    ),
    #
    _row(_L.BOUND, _L.ACCEPTING, "the socket runs"),
    _row(
        _L.ACCEPTING,
        _L.PAUSED,
        "accepting fails for want of descriptors or memory; or, without an event, `max_handshakes` are under way",
        _E.ACCEPT_FAILED,
    ),
    _row(_L.PAUSED, _L.ACCEPTING, "a tenth of a second has passed, or a handshake has come to its end"),
    _row(_L.BOUND, _L.CLOSED, "`unbind`, or the end of the socket", _E.CLOSED),
    _row(_L.ACCEPTING, _L.CLOSED, "`unbind`, or the end of the socket", _E.CLOSED),
    _row(_L.PAUSED, _L.CLOSED, "`unbind`, or the end of the socket", _E.CLOSED),
    #
    _row(_D.NEW, _D.CONNECTING, "the socket runs", _E.CONNECT_DELAYED),
    _row(_D.CONNECTING, _D.CONNECTED, "the peer is reached"),
    _row(_D.CONNECTING, _D.WAITING, "the attempt fails", _E.CONNECT_FAILED, _E.CONNECT_RETRIED),
    _row(_D.CONNECTED, _D.WAITING, "the connection is over, or the peer drains", _E.CONNECT_RETRIED),
    _row(_D.WAITING, _D.CONNECTING, "the time has come", _E.CONNECT_DELAYED),
    _row(_D.NEW, _D.LEAVING, "`disconnect`, and messages wait that nobody else could take"),
    _row(_D.CONNECTING, _D.LEAVING, "the same"),
    _row(_D.CONNECTED, _D.LEAVING, "the same, before the handshake is done, or when the peer has just gone"),
    _row(_D.WAITING, _D.LEAVING, "the same"),
    _row(_D.NEW, _D.CLOSED, "`disconnect`, or the end of the socket"),
    _row(_D.CONNECTING, _D.CLOSED, "`disconnect`, the end of the socket, or a failure that is not to be tried again"),
    _row(_D.CONNECTED, _D.CLOSED, "`disconnect`, the end of the socket, or of a connection that was to be the last"),
    _row(_D.WAITING, _D.CLOSED, "`disconnect`, or the end of the socket"),
    _row(
        _D.LEAVING,
        _D.CLOSED,
        "they have left, `linger` has passed, the end of the socket, or a failure that is not to be tried again",
    ),
    #
    _row(_C.CONNECTING, _C.HANDSHAKING, "the other side has answered", (_E.ACCEPTED, _E.CONNECTED)),
    _row(_C.CONNECTING, _C.OVER, "inproc: one of the two sockets ends before they meet"),
    _row(_C.HANDSHAKING, _C.READY, "both sides agree", _E.HANDSHAKE_SUCCEEDED),
    _row(_C.HANDSHAKING, _C.OVER, "they do not, in time, or at all", _E.HANDSHAKE_FAILED, _E.DISCONNECTED),
    _row(
        _C.READY,
        _C.LEAVING,
        "`disconnect`, also if that was called before; the program closes a peer of a STREAM; or the peer drains and a "
        "batch is to leave",
    ),
    _row(_C.READY, _C.CLOSING, "`close`, when everything is with the kernel"),
    _row(_C.READY, _C.OVER, "the peer goes or errs, `disconnect` with `linger=0`, `stop`", _E.DISCONNECTED),
    _row(_C.LEAVING, _C.CLOSING, "everything is with the kernel"),
    _row(
        _C.LEAVING,
        _C.OVER,
        "`linger` has passed, the peer goes, errs, or has ended its side and takes nothing, `stop`",
        _E.DISCONNECTED,
    ),
    _row(
        _C.CLOSING,
        _C.OVER,
        "the peer's kernel has everything, or the peer is gone, silent for a second of `close`, or out of `linger`",
        _E.DISCONNECTED,
    ),
)

_LAWFUL: Final = frozenset((row.source, row.target) for row in TABLE)


class StateMachine(Generic[_StateT]):
    """Something that lives: it has a state, and changes it by the table only."""

    state: _StateT

    def move(self, target: _StateT) -> None:
        """Goes over to another state."""
        if (self.state, target) not in _LAWFUL:
            complaint = f"{type(self).__name__} cannot go from {self.state.name} to {target.name}"
            if STRICT:
                raise AssertionError(complaint)
            log.error("%s; it does all the same", complaint)
        self.state = target
