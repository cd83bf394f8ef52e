"""The names of `zmq.sugar.context`."""

from __future__ import annotations

from omq.zmq.context import *  # noqa: F403
from omq.zmq.context import __all__ as __all__
