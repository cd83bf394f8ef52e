"""omq: ZeroMQ for Python without libzmq.

    import omq

    with omq.PULL(bind="tcp://127.0.0.1:*") as pull, omq.PUSH(connect=pull.endpoints[0]) as push:
        push.send(b"hello")
        print(pull.recv(timeout=1.0))

These sockets block; `omq.asyncio` has the same ones for `await`.
"""

import sys as _sys

if _sys.platform != "linux":
    raise ImportError("omq runs on Linux only: it is built on epoll and eventfd")

from omq._version import __version__
from omq.context import Context
from omq.errors import *  # noqa: F403
from omq.errors import __all__ as _errors
from omq.message import Message, PeerInfo, SocketStats
from omq.monitor import Event, EventKind, HandshakeFailure, Monitor
from omq.options import Options
from omq.proxy import proxy
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
from omq.socket import (
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
    wait,
)
from omq.transport import check_endpoint
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
    "check_endpoint",
    "curve_keypair",
    "curve_public",
    "load_certificate",
    "proxy",
    "save_certificate",
    "wait",
    "z85_decode",
    "z85_encode",
    *_errors,
]
