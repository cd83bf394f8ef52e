"""The names of `zmq.sugar.poll`."""

from __future__ import annotations

from omq.zmq.poll import *  # noqa: F403
from omq.zmq.poll import __all__ as __all__
