"""The asyncio proxy."""

from __future__ import annotations

import asyncio

from omq._core.calls.async_proxy import AsyncProxy
from omq._core.calls.call import AsyncCore
from omq.asyncio.socket import Socket
from omq.errors import ClosedError
from omq.proxies import refuse_terminated, refuse_unfit

_POLL_INTERVAL_S = 0.005  # seconds between two checks after TERMINATE


async def proxy(
    frontend: Socket, backend: Socket, *, capture: Socket | None = None, control: Socket | None = None
) -> None:
    """Forwards messages between two sockets until a command, the end of a socket or a cancellation stops it.

    It works as `omq.proxy`, in the turns of the sockets' loop. A call that is cancelled loses nothing: queued messages
    stay in the socket that received them.

    Args:
        frontend: One socket, such as XSUB, ROUTER or PULL.
        backend: The other one, such as XPUB, DEALER or PUSH.
        capture: Receives a copy of each message: a PUB, XPUB, PUSH, DEALER or PAIR.
        control: Receives commands: a PAIR, PULL, SUB or REP.

    Raises:
        TypeError: An argument is not an asyncio socket.
        StateError: The sockets cannot be combined (see `omq.proxy`), or a socket belongs to another loop.
        ClosedError: A socket is closed, or was closed during the call.
        ContextTerminated: The context of a socket has been terminated.
    """
    sockets = refuse_unfit(frontend, backend, capture, control, AsyncCore, "sockets of omq.asyncio")
    for one in sockets:
        one._begin()
    loop = asyncio.get_running_loop()
    core = AsyncProxy(frontend, backend, capture, control)
    try:
        core.begin()
        while not core.ended:
            if core.turn():
                await asyncio.sleep(0)
            elif core.draining:
                await asyncio.sleep(_POLL_INTERVAL_S)
            elif not core.ended:
                await core.rest(loop)
    except ClosedError:
        refuse_terminated(sockets)
        raise
    finally:
        core.end()
