"""Sockets in the loop of tornado."""

from tornado.ioloop import IOLoop

__all__ = ["IOLoop"]
