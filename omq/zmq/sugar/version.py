"""The names of `zmq.sugar.version`."""

from __future__ import annotations

from omq.zmq.version import *  # noqa: F403
from omq.zmq.version import VERSION_EXTRA as VERSION_EXTRA
from omq.zmq.version import __all__ as __all__
