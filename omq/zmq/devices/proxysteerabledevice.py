"""Devices that receive commands from a fourth socket."""

from __future__ import annotations

from typing import Any

from omq.zmq.constants import PUB
from omq.zmq.devices.basedevice import SocketPlan
from omq.zmq.devices.proxydevice import ProcessProxy, Proxy, ThreadProxy
from omq.zmq.proxies import proxy_steerable


class ProxySteerableBase:
    """The fourth socket of a device.

    Args:
        in_type: The type of one socket.
        out_type: The type of the other one; below 0, the first is the other one, too.
        mon_type: The type of the socket that sends the copies.
        ctrl_type: The type of the socket that receives `PAUSE`, `RESUME`, `TERMINATE`, `KILL` and `STATISTICS`.
    """

    def __init__(self, in_type: int, out_type: int, mon_type: int = PUB, ctrl_type: int | None = None) -> None:
        super().__init__(in_type=in_type, out_type=out_type, mon_type=mon_type)  # type: ignore[call-arg]
        self.ctrl_type = ctrl_type
        self._ctrl = SocketPlan()

    def bind_ctrl(self, addr: str) -> None:
        """Notes an endpoint for `bind` of the fourth socket."""
        self._ctrl.binds.append(addr)

    def bind_ctrl_to_random_port(self, addr: str, *args: Any, **kwargs: Any) -> int:
        """Notes a free port for `bind` of the fourth socket; returns it. See `Socket.bind_to_random_port`."""
        return self._bind_later(self.bind_ctrl, addr, *args, **kwargs)  # type: ignore[attr-defined,no-any-return]

    def connect_ctrl(self, addr: str) -> None:
        """Notes an endpoint for `connect` of the fourth socket."""
        self._ctrl.connects.append(addr)

    def setsockopt_ctrl(self, opt: int, value: Any) -> None:
        """Notes an option of the fourth socket."""
        self._ctrl.options.append((opt, value))

    def _setup_sockets(self) -> Any:
        """Makes the sockets, and returns them."""
        device: Any = self
        others = super()._setup_sockets()  # type: ignore[misc]
        fourth = device._make_socket(self.ctrl_type)
        device._prepare((fourth, self._ctrl))
        return *others, fourth

    def run_device(self) -> None:
        """Runs the proxy; `start` calls it."""
        proxy_steerable(*self._setup_sockets())


class ProxySteerable(ProxySteerableBase, Proxy):
    """Runs a `Proxy` that receives commands from a fourth socket."""


class ThreadProxySteerable(ProxySteerableBase, ThreadProxy):
    """A `ProxySteerable` in a thread of its own."""


class ProcessProxySteerable(ProxySteerableBase, ProcessProxy):
    """A `ProxySteerable` in a process of its own."""


__all__ = ["ProxySteerable", "ThreadProxySteerable", "ProcessProxySteerable"]
