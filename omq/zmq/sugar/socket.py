"""The names of `zmq.sugar.socket`."""

from __future__ import annotations

from omq.zmq.socket import *  # noqa: F403
from omq.zmq.socket import __all__ as __all__
