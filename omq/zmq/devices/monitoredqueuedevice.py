"""Devices that run `monitored_queue`."""

from __future__ import annotations

from omq.zmq.constants import PUB
from omq.zmq.devices.monitoredqueue import monitored_queue
from omq.zmq.devices.proxydevice import ProcessProxy, Proxy, ProxyBase, ThreadProxy


class MonitoredQueueBase(ProxyBase):
    """The marks of the copies.

    Args:
        in_type: The type of one socket.
        out_type: The type of the other one.
        mon_type: The type of the socket that sends the copies.
        in_prefix: The first part of a copy of a message of the first socket.
        out_prefix: The first part of a copy of a message of the other one.
    """

    _in_prefix = b""
    _out_prefix = b""

    def __init__(
        self, in_type: int, out_type: int, mon_type: int = PUB, in_prefix: bytes = b"in", out_prefix: bytes = b"out"
    ) -> None:
        ProxyBase.__init__(self, in_type=in_type, out_type=out_type, mon_type=mon_type)
        self._in_prefix = in_prefix
        self._out_prefix = out_prefix

    def run_device(self) -> None:
        """Runs the proxy; `start` calls it."""
        first, second, third = self._setup_sockets()
        monitored_queue(first, second, third, self._in_prefix, self._out_prefix)


class MonitoredQueue(MonitoredQueueBase, Proxy):
    """Runs a `monitored_queue`, which two ROUTERs may be part of."""


class ThreadMonitoredQueue(MonitoredQueueBase, ThreadProxy):
    """A `MonitoredQueue` in a thread of its own."""


class ProcessMonitoredQueue(MonitoredQueueBase, ProcessProxy):
    """A `MonitoredQueue` in a process of its own."""


__all__ = ["MonitoredQueue", "ThreadMonitoredQueue", "ProcessMonitoredQueue"]
