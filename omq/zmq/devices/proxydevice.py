"""Devices that send a copy of each message to a third socket."""

from __future__ import annotations

from typing import Any

from omq.zmq.constants import PUB
from omq.zmq.devices.basedevice import Device, ProcessDevice, SocketPlan, ThreadDevice
from omq.zmq.proxies import proxy


class ProxyBase:
    """The third socket of a device.

    Args:
        in_type: The type of one socket.
        out_type: The type of the other one; below 0, the first is the other one, too.
        mon_type: The type of the socket that sends the copies.
    """

    def __init__(self, in_type: int, out_type: int, mon_type: int = PUB) -> None:
        Device.__init__(self, in_type=in_type, out_type=out_type)  # type: ignore[arg-type]
        self.mon_type = mon_type
        self._mon = SocketPlan()

    def bind_mon(self, addr: str) -> None:
        """Notes an endpoint for `bind` of the third socket."""
        self._mon.binds.append(addr)

    def bind_mon_to_random_port(self, addr: str, *args: Any, **kwargs: Any) -> int:
        """Notes a free port for `bind` of the third socket; returns it. See `Socket.bind_to_random_port`."""
        return self._bind_later(self.bind_mon, addr, *args, **kwargs)  # type: ignore[attr-defined,no-any-return]

    def connect_mon(self, addr: str) -> None:
        """Notes an endpoint for `connect` of the third socket."""
        self._mon.connects.append(addr)

    def setsockopt_mon(self, opt: int, value: Any) -> None:
        """Notes an option of the third socket."""
        self._mon.options.append((opt, value))

    def _setup_sockets(self) -> Any:
        """Makes the sockets, and returns them."""
        device: Any = self
        first, second = Device._setup_sockets(device)
        third = device._make_socket(self.mon_type)
        device._prepare((third, self._mon))
        return first, second, third

    def run_device(self) -> None:
        """Runs the proxy; `start` calls it."""
        proxy(*self._setup_sockets())


class Proxy(ProxyBase, Device):
    """Runs a proxy that sends a copy of each message to a third socket."""


class ThreadProxy(ProxyBase, ThreadDevice):
    """A `Proxy` in a thread of its own."""


class ProcessProxy(ProxyBase, ProcessDevice):
    """A `Proxy` in a process of its own."""


__all__ = ["Proxy", "ThreadProxy", "ProcessProxy"]
