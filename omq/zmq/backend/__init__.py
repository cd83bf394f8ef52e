"""The names of `zmq.backend`, for programs that import them from there."""

from __future__ import annotations

from omq.zmq.context import Context
from omq.zmq.endpoint_errors import IPC_PATH_MAX_LEN
from omq.zmq.error import strerror, zmq_errno
from omq.zmq.frame import Frame, Message
from omq.zmq.poll import zmq_poll
from omq.zmq.proxies import proxy, proxy_steerable
from omq.zmq.security import curve_keypair, curve_public, has
from omq.zmq.socket import Socket
from omq.zmq.version import zmq_version_info

PYZMQ_DRAFT_API = True

__all__ = [
    "Context",
    "Socket",
    "Frame",
    "Message",
    "proxy",
    "proxy_steerable",
    "zmq_poll",
    "strerror",
    "zmq_errno",
    "has",
    "curve_keypair",
    "curve_public",
    "zmq_version_info",
    "IPC_PATH_MAX_LEN",
    "PYZMQ_DRAFT_API",
]
