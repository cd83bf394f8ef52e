"""The name of `zmq.sugar.stopwatch`."""

from __future__ import annotations

from omq.zmq.stopwatch import Stopwatch

__all__ = ["Stopwatch"]
