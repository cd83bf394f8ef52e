"""The names of `zmq.sugar.attrsettr`."""

from __future__ import annotations

from omq.zmq.attributes import AttributeSetter

__all__ = ["AttributeSetter"]
