"""`ZMQStream` for sockets of `zmq.green`."""

from __future__ import annotations

from omq.zmq.eventloop.zmqstream import ZMQStream

__all__ = ["ZMQStream"]
