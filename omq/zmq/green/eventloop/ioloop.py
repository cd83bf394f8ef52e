"""tornado's loop under the names of old programs."""

from omq.zmq.eventloop.ioloop import IOLoop, PeriodicCallback, ZMQIOLoop, install

__all__ = ["IOLoop", "PeriodicCallback", "ZMQIOLoop", "install"]
