"""The names of `zmq.sugar`, for programs that import them from there."""

from __future__ import annotations

from omq.zmq import error as error
from omq.zmq.context import *  # noqa: F403
from omq.zmq.error import *  # noqa: F403
from omq.zmq.frame import *  # noqa: F403
from omq.zmq.poll import *  # noqa: F403
from omq.zmq.proxies import device
from omq.zmq.socket import *  # noqa: F403
from omq.zmq.stopwatch import Stopwatch
from omq.zmq.sugar import attrsettr as attrsettr
from omq.zmq.sugar import context, frame, poll, socket, tracker, version
from omq.zmq.sugar import stopwatch as stopwatch
from omq.zmq.tracker import *  # noqa: F403
from omq.zmq.version import *  # noqa: F403

__all__ = [
    "device",
    *context.__all__,
    *error.__all__,
    *frame.__all__,
    *poll.__all__,
    *socket.__all__,
    *tracker.__all__,
    *version.__all__,
    "Stopwatch",
]
