"""The measured proxies, each in a process of its own: `python -m bench.proxy.proxies NAME FRONTEND BACKEND FD`."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from typing import Any, Final

from bench.proxy.clients import copy_through

#: Messages that may wait at each side; a ROUTER, or an XPUB, drops messages above that.
HWM: Final = 100_000


def omq_blocking(front: str, back: str, endpoints_pipe: socket.socket) -> None:
    """Runs `omq.proxy`."""
    import omq

    sockets = [getattr(omq, kind)(bind="tcp://127.0.0.1:*", **_hwm_options(kind)) for kind in (front, back)]
    _report(endpoints_pipe, *(one.endpoints[0] for one in sockets))
    omq.proxy(*sockets)


def omq_asyncio(front: str, back: str, endpoints_pipe: socket.socket) -> None:
    """Runs `omq.asyncio.proxy` on uvloop."""
    import uvloop

    import omq.asyncio

    async def run() -> None:
        sockets = [getattr(omq.asyncio, kind)(bind="tcp://127.0.0.1:*", **_hwm_options(kind)) for kind in (front, back)]
        _report(endpoints_pipe, *(one.endpoints[0] for one in sockets))
        await omq.asyncio.proxy(*sockets)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


def pyzmq(front: str, back: str, endpoints_pipe: socket.socket) -> None:
    """Runs `zmq.proxy`, which is libzmq's."""
    import zmq

    _with_context(zmq, front, back, endpoints_pipe)


def pyomq(front: str, back: str, endpoints_pipe: socket.socket) -> None:
    """Runs `pyomq.proxy`."""
    import pyomq

    _with_context(pyomq, front, back, endpoints_pipe)


def floor(front: str, back: str, endpoints_pipe: socket.socket) -> None:
    """Runs a process that only copies bytes."""
    copy_through((front, back), endpoints_pipe)


def _with_context(library: Any, front: str, back: str, endpoints_pipe: socket.socket) -> None:
    context = library.Context()
    sockets = []
    for kind in (front, back):
        one = context.socket(getattr(library, kind))
        one.set_hwm(HWM)
        one.bind("tcp://127.0.0.1:*")
        sockets.append(one)
    _report(endpoints_pipe, *(one.getsockopt(library.LAST_ENDPOINT).decode().rstrip("\0") for one in sockets))
    library.proxy(*sockets)


def _hwm_options(kind: str) -> dict[str, int]:
    return {"PULL": {"recv_hwm": HWM}, "PUSH": {"send_hwm": HWM}}.get(kind, {"recv_hwm": HWM, "send_hwm": HWM})


def _report(endpoints_pipe: socket.socket, *endpoints: str) -> None:
    endpoints_pipe.sendall(" ".join(endpoints).encode() + b"\n")


PEERS: Final = {
    "omq": omq_blocking,
    "omq.asyncio": omq_asyncio,
    "pyzmq": pyzmq,
    "pyomq": pyomq,
    "floor": floor,
}

if __name__ == "__main__":
    with contextlib.suppress(ConnectionError):  # the clients have ended before
        PEERS[sys.argv[1]](sys.argv[2], sys.argv[3], socket.socket(fileno=int(sys.argv[4])))
