"""A proxy: forwards whatever two sockets receive to each other (`zmq_proxy(3)`, `zmq_proxy_steerable(3)`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from omq._core.calls.sync_proxy import SyncProxy
from omq.errors import ClosedError, StateError
from omq.socket import Socket
from omq.socket_base import SocketBase
from omq.types import TRAITS, Route, SocketType

#: The socket types that capture may have.
CAPTURES: Final = (SocketType.PUB, SocketType.XPUB, SocketType.PUSH, SocketType.DEALER, SocketType.PAIR)
#: The socket types that control may have.
CONTROLS: Final = (SocketType.PAIR, SocketType.PULL, SocketType.SUB, SocketType.REP)

#: Advice where `send` needs a keyword that a forwarded message does not carry.
_INSTEAD: Final = {
    Route.ROUTING_ID: "use ROUTER and DEALER, whose messages carry their way back, or keep the routing ids yourself",
    Route.GROUP: "forward what recv_message returns, with its group",
}


def proxy(frontend: Socket, backend: Socket, *, capture: Socket | None = None, control: Socket | None = None) -> None:
    """Forwards messages between two sockets until a command, or the end of a socket, stops it (`zmq_proxy(3)`).

    Each socket sends what the other one receives, as far as their types receive and send. A message stays in the socket
    that received it until the other one has room. The calling thread does the work; until the call returns, no other
    call may use these sockets. Frontend and backend may be the same socket, which then sends back what it receives.

    Args:
        frontend: One socket, such as XSUB, ROUTER or PULL.
        backend: The other one, such as XPUB, DEALER or PUSH.
        capture: Gets a copy of each message: a PUB, XPUB, PUSH, DEALER or PAIR. While it has no room, nothing is
            forwarded.
        control: Receives commands (`zmq_proxy_steerable(3)`): a PAIR, PULL, SUB or REP. The commands are
            `PAUSE` (forward nothing until `RESUME`),
            `RESUME`,
            `TERMINATE` (forward what was received so far, then return; a message that finds no room for half a second
            stays in its socket),
            `KILL` (return at once; queued messages stay in their sockets) and
            `STATISTICS`, which PAIR and REP answer with eight unsigned 64-bit numbers in native byte order, one a part:
            messages and bytes received and sent by the frontend, then by the backend.
            A REP answers all other messages with an empty one. Messages that are not a command are ignored.

    Raises:
        TypeError: An argument is not a blocking socket.
        StateError: Neither of the two sockets can send what the other one receives; the socket that would send needs an
            argument of `send` (SERVER, PEER, RADIO); one socket has two roles; capture or control has a type that does
            not fit; or another proxy uses a socket.
        ClosedError: A socket is closed, or was closed during the call.
        ContextTerminated: The context of a socket has been terminated.
    """
    sockets = refuse_unfit(frontend, backend, capture, control, Socket, "blocking sockets")
    for one in sockets:
        one._begin()
    try:
        SyncProxy(frontend, backend, capture, control).run()
    except ClosedError:
        refuse_terminated(sockets)
        raise


def refuse_unfit(frontend: Any, backend: Any, capture: Any, control: Any, kind: type[Any], kinds: str) -> Sequence[Any]:
    """Raises unless the arguments make a proxy.

    Args:
        frontend: See `proxy`.
        backend: See `proxy`.
        capture: See `proxy`.
        control: See `proxy`.
        kind: The class that each socket must have.
        kinds: The name of that class in errors.

    Returns:
        The distinct sockets.
    """
    given = {"frontend": frontend, "backend": backend, "capture": capture, "control": control}
    given = {name: one for name, one in given.items() if one is not None or name in ("frontend", "backend")}
    names: dict[Any, str] = {}
    for name, one in given.items():
        if not isinstance(one, kind):
            raise TypeError(f"{name}: this proxy takes {kinds}, not {one!r}")
        if one.closed:
            raise one._closed_error(f"given as {name} is closed")
        if names.setdefault(one, name) != name and (names[one], name) != ("frontend", "backend"):
            raise StateError(f"{name}: {one!r} is the {names[one]} already")
    for source, target in ((frontend, backend), (backend, frontend)):
        route = TRAITS[target.socket_type].route
        if route is not None and source._engine.pattern.recv_queue is not None:
            raise StateError(
                f"frontend, backend: a {target.socket_type.value} socket sends with {route.value}= only, so messages"
                f" that a {source.socket_type.value} socket receives cannot be forwarded to it: {_INSTEAD[route]}"
            )
    if not (_can_forward(frontend, backend) or _can_forward(backend, frontend)):
        front, back = frontend.socket_type.value, backend.socket_type.value
        raise StateError(
            f"frontend, backend: a {front} and a {back} socket cannot forward to each other:"
            " neither sends what the other one receives"
        )
    for name, fit in (("capture", CAPTURES), ("control", CONTROLS)):
        one = given.get(name)
        if one is not None and one.socket_type not in fit:
            raise StateError(f"{name}: must be a {_listed(fit)} socket, not a {one.socket_type.value} socket")
    return list(names)


def refuse_terminated(sockets: Sequence[SocketBase]) -> None:
    """Raises if a socket was closed because its context was terminated."""
    for one in sockets:
        if one._engine.context.closed:
            raise one._closed_error("was closed while a proxy served it") from None


def _can_forward(source: SocketBase, target: SocketBase) -> bool:
    """Returns whether *source* receives and *target* sends."""
    return source._engine.pattern.recv_queue is not None and target._engine.pattern.send_queue is not None


def _listed(types: Sequence[SocketType]) -> str:
    *others, last = [kind.value for kind in types]
    return f"{', '.join(others)} or {last}"
