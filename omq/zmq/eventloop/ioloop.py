"""tornado's loop under the names of old programs; deprecated: `tornado.ioloop` will do."""

from __future__ import annotations

import warnings

from tornado.ioloop import IOLoop, PeriodicCallback


def _deprecated() -> None:
    warnings.warn("zmq.eventloop.ioloop is deprecated: use tornado.ioloop", DeprecationWarning, stacklevel=3)


_deprecated()

ZMQIOLoop = IOLoop


def install() -> None:
    """Does nothing; deprecated."""
    _deprecated()


__all__ = ["IOLoop", "PeriodicCallback", "ZMQIOLoop", "install"]
