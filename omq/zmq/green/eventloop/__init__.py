"""Names of old programs: tornado's loop."""

from omq.zmq.green.eventloop.ioloop import IOLoop

__all__ = ["IOLoop"]
