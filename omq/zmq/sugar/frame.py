"""The names of `zmq.sugar.frame`."""

from __future__ import annotations

from omq.zmq.frame import *  # noqa: F403
from omq.zmq.frame import __all__ as __all__
