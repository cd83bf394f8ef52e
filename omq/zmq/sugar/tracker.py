"""The names of `zmq.sugar.tracker`."""

from __future__ import annotations

from omq.zmq.tracker import *  # noqa: F403
from omq.zmq.tracker import __all__ as __all__
