"""The asyncio sockets: those of `omq`, with calls to await.

import omq.asyncio as omq

async def feed(url: str) -> None:
    async with omq.SUB(connect=url, subscribe=b"AAPL.") as sub:
        async for tick in sub:
            print(tick)
"""

from omq._version import __version__
from omq.asyncio.monitor import Monitor
from omq.asyncio.proxy import proxy
from omq.asyncio.socket import (
    CHANNEL,
    CLIENT,
    DEALER,
    DISH,
    GATHER,
    PAIR,
    PEER,
    PUB,
    PULL,
    PUSH,
    RADIO,
    REP,
    REQ,
    ROUTER,
    SCATTER,
    SERVER,
    STREAM,
    SUB,
    XPUB,
    XSUB,
    Socket,
)
from omq.context import Context
from omq.errors import *  # noqa: F403
from omq.errors import __all__ as _errors
from omq.message import Message, PeerInfo, SocketStats
from omq.monitor import Event, EventKind, HandshakeFailure
from omq.options import Options
from omq.security import (
    Certificate,
    CurveClient,
    CurveServer,
    PlainClient,
    PlainServer,
    curve_keypair,
    curve_public,
    load_certificate,
    save_certificate,
    z85_decode,
    z85_encode,
)
from omq.types import POLL_IN, POLL_OUT, SocketType

__all__ = [
    "CHANNEL",
    "CLIENT",
    "DEALER",
    "DISH",
    "GATHER",
    "PAIR",
    "PEER",
    "POLL_IN",
    "POLL_OUT",
    "PUB",
    "PULL",
    "PUSH",
    "RADIO",
    "REP",
    "REQ",
    "ROUTER",
    "SCATTER",
    "SERVER",
    "STREAM",
    "SUB",
    "XPUB",
    "XSUB",
    "Context",
    "Certificate",
    "CurveClient",
    "CurveServer",
    "Event",
    "EventKind",
    "HandshakeFailure",
    "Message",
    "Monitor",
    "Options",
    "PeerInfo",
    "PlainClient",
    "PlainServer",
    "Socket",
    "SocketStats",
    "SocketType",
    "__version__",
    "curve_keypair",
    "curve_public",
    "load_certificate",
    "proxy",
    "save_certificate",
    "z85_decode",
    "z85_encode",
    *_errors,
]
