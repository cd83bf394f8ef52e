"""omq: ZeroMQ for Python without libzmq.

    import omq

    with omq.PULL(bind="tcp://127.0.0.1:*") as pull, omq.PUSH(connect=pull.endpoints[0]) as push:
        push.send(b"hello")
        print(pull.recv(timeout=1.0))

These sockets block; `omq.asyncio` has the same ones for `await`.
"""

import importlib as _importlib
import sys as _sys
import typing as _typing  # type checkers know `TYPE_CHECKING` by this name only

if _sys.platform != "linux":
    raise ImportError("omq runs on Linux only: it is built on epoll and eventfd")

import omq.process_hooks as _process_hooks  # before the program registers hooks of its own
from omq._version import __version__
from omq.errors import *  # noqa: F403
from omq.errors import __all__ as _errors
from omq.unpatched import refuse_subinterpreter as _refuse_subinterpreter

_refuse_subinterpreter()

if _typing.TYPE_CHECKING:
    from omq.context import Context
    from omq.message import Message, PeerInfo, SocketStats
    from omq.monitor import Event, EventKind, HandshakeFailure, Monitor
    from omq.options import Options
    from omq.proxies import proxy
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

#: The modules of the names that are not defined above. The first use of such a name imports them all: asyncio and the
#: rest of what sockets need takes a program much longer than `import omq`.
_MODULES = ("context", "message", "monitor", "options", "proxies", "security", "socket", "transport", "types")

if not _typing.TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name in __all__:
            if _sys.is_finalizing():
                raise StateError(f"the interpreter is shutting down: omq.{name} cannot be loaded")  # noqa: F405
            with _process_hooks.import_lock:
                for found in [_importlib.import_module(f"omq.{module}") for module in _MODULES]:
                    for public in __all__:
                        if hasattr(found, public):
                            globals().setdefault(public, getattr(found, public))
            if name in globals():
                return globals()[name]
        raise AttributeError(f"module 'omq' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
