"""Proxies between two sockets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import omq
from omq import errors
from omq._core.zmq.calls import SocketCalls
from omq.zmq.constants import ETERM, Errno
from omq.zmq.error import error_of, translate

if TYPE_CHECKING:
    from omq.zmq.socket import Socket


def proxy(frontend: Socket[Any], backend: Socket[Any], capture: Socket[Any] | None = None) -> int:
    """Forwards messages between two sockets until their context is terminated.

    Args:
        frontend: One socket.
        backend: The other one.
        capture: Gets a copy of each message.

    Raises:
        ContextTerminated: The context is terminated.
        ZMQError: A socket is closed, or the types do not fit.
    """
    return proxy_steerable(frontend, backend, capture)


def proxy_steerable(
    frontend: Socket[Any],
    backend: Socket[Any],
    capture: Socket[Any] | None = None,
    control: Socket[Any] | None = None,
) -> int:
    """Forwards messages between two sockets until a command ends it.

    Args:
        frontend: One socket.
        backend: The other one.
        capture: Gets a copy of each message.
        control: Receives `PAUSE`, `RESUME`, `TERMINATE`, `KILL` and `STATISTICS`.

    Returns:
        0, after `TERMINATE`.

    Raises:
        ContextTerminated: The context is terminated.
        ZMQError: A socket is closed, or the types do not fit.
    """
    own: list[Any] = []
    for one in (frontend, backend, capture, control):
        if isinstance(one, SocketCalls):
            one._check()
            own.append(one._handle.omq)
        elif len(own) < 2:
            raise TypeError(f"a proxy needs two sockets, not {one!r}")
        else:
            own.append(None)
    try:
        omq.proxy(own[0], own[1], capture=own[2], control=own[3])
    except errors.StateError:
        raise error_of(Errno.EINVAL) from None
    except errors.OmqError as error:
        raise translate(error, frontend._handle) from None
    if frontend._handle.context.terminating:
        raise error_of(ETERM)
    return 0


def device(device_type: int, frontend: Socket[Any], backend: Socket[Any]) -> int:
    """Calls `proxy`; deprecated."""
    return proxy(frontend, backend)
