"""A proxy between two sockets that it makes itself, where it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing import Process
from typing import Any, Final

from omq.unpatched import threading, time
from omq.zmq.constants import ENOTSOCK, ETERM, PUSH, QUEUE
from omq.zmq.context import Context
from omq.zmq.error import ZMQBindError, ZMQError
from omq.zmq.proxies import proxy
from omq.zmq.socket import Socket

_PORT_TRIES: Final = 5
_POLL_INTERVAL_S: Final = 0.001


@dataclass
class SocketPlan:
    """The calls for a socket that a device makes later.

    Attributes:
        binds: The endpoints that it binds.
        connects: The endpoints that it connects to.
        options: Its options, which are set first.
    """

    binds: list[str] = field(default_factory=list)
    connects: list[str] = field(default_factory=list)
    options: list[tuple[int, Any]] = field(default_factory=list)


class Device:
    """Runs a proxy between two sockets.

    Args:
        device_type: Kept; the types of the sockets decide.
        in_type: The type of one socket.
        out_type: The type of the other one; below 0, the first is the other one, too.

    Attributes:
        context_factory: Returns the context.
        daemon: Whether the process may end before the device.
        done: Whether the device has ended.
    """

    context_factory: Callable[[], Context[Any]] = Context.instance
    daemon: bool
    done: bool
    device_type: int
    in_type: int
    out_type: int

    def __init__(self, device_type: int = QUEUE, in_type: int | None = None, out_type: int | None = None) -> None:
        if in_type is None:
            raise TypeError("in_type must be specified")
        if out_type is None:
            raise TypeError("out_type must be specified")
        self.device_type = device_type
        self.in_type = in_type
        self.out_type = out_type
        self.daemon = True
        self.done = False
        self._in = SocketPlan()
        self._out = SocketPlan()
        self._random_addrs: set[str] = set()
        self._sockets: list[Socket[Any]] = []

    def bind_in(self, addr: str) -> None:
        """Notes an endpoint for `bind` of the first socket."""
        self._in.binds.append(addr)

    def bind_in_to_random_port(self, addr: str, *args: int, **kwargs: int) -> int:
        """Notes a free port for `bind` of the first socket; returns it. See `Socket.bind_to_random_port`."""
        return self._bind_later(self.bind_in, addr, *args, **kwargs)

    def connect_in(self, addr: str) -> None:
        """Notes an endpoint for `connect` of the first socket."""
        self._in.connects.append(addr)

    def setsockopt_in(self, opt: int, value: Any) -> None:
        """Notes an option of the first socket."""
        self._in.options.append((opt, value))

    def bind_out(self, addr: str) -> None:
        """Notes an endpoint for `bind` of the second socket."""
        self._out.binds.append(addr)

    def bind_out_to_random_port(self, addr: str, *args: int, **kwargs: int) -> int:
        """Notes a free port for `bind` of the second socket; returns it. See `Socket.bind_to_random_port`."""
        return self._bind_later(self.bind_out, addr, *args, **kwargs)

    def connect_out(self, addr: str) -> None:
        """Notes an endpoint for `connect` of the second socket."""
        self._out.connects.append(addr)

    def setsockopt_out(self, opt: int, value: Any) -> None:
        """Notes an option of the second socket."""
        self._out.options.append((opt, value))

    def _bind_later(self, bind: Callable[[str], None], addr: str, *args: int, **kwargs: int) -> int:
        port = self._reserve_random_port(addr, *args, **kwargs)
        bind(f"{addr}:{port}")
        return port

    def _reserve_random_port(self, addr: str, *args: int, **kwargs: int) -> int:
        """Returns a port that is free now, and that this method has not returned before."""
        with Context[Any]() as context, context.socket(PUSH) as binder:
            for _ in range(_PORT_TRIES):
                port: int = binder.bind_to_random_port(addr, *args, **kwargs)
                endpoint = f"{addr}:{port}"
                if endpoint not in self._random_addrs:
                    self._random_addrs.add(endpoint)
                    return port
        raise ZMQBindError("Could not reserve random port.")

    def _setup_sockets(self) -> Any:
        """Makes the sockets, and returns them."""
        self._context = self.context_factory()
        first = self._make_socket(self.in_type)
        second = first if self.out_type < 0 else self._make_socket(self.out_type)
        self._prepare((first, self._in), (second, self._out))
        return first, second

    def _make_socket(self, kind: int) -> Socket[Any]:
        made: Socket[Any] = self._context.socket(kind)
        self._sockets.append(made)
        return made

    @staticmethod
    def _prepare(*planned: tuple[Socket[Any], SocketPlan]) -> None:
        """Sets all options, then binds, then connects."""
        for socket, plan in planned:
            for option, value in plan.options:
                socket.setsockopt(option, value)
        for socket, plan in planned:
            for endpoint in plan.binds:
                socket.bind(endpoint)
        for socket, plan in planned:
            for endpoint in plan.connects:
                socket.connect(endpoint)

    def run_device(self) -> None:
        """Runs the proxy; `start` calls it."""
        proxy(*self._setup_sockets())

    def _close_sockets(self) -> None:
        for socket in self._sockets:
            if not socket.closed:
                socket.close()

    def run(self) -> None:
        """Runs the proxy until the context is terminated or a socket closed."""
        try:
            self.run_device()
        except ZMQError as error:
            if error.errno not in (ETERM, ENOTSOCK):
                raise
        finally:
            self.done = True
            self._close_sockets()

    def start(self) -> None:
        """Runs the proxy, as `run`; in a subclass, elsewhere."""
        self.run()

    def join(self, timeout: float | None = None) -> None:
        """Waits until the device has ended, or for some seconds."""
        end = None if timeout is None else time.monotonic() + timeout
        while not self.done and (end is None or time.monotonic() < end):
            time.sleep(_POLL_INTERVAL_S)


class BackgroundDevice(Device):
    """A device that does not run in the calling thread.

    Attributes:
        launcher: The thread or process.
    """

    launcher: Any = None
    _launch_class: Any = None

    def start(self) -> None:
        """Starts the device."""
        self.launcher = self._launch_class(target=self.run)
        self.launcher.daemon = self.daemon
        self.launcher.start()

    def join(self, timeout: float | None = None) -> None:
        """Waits until the device has ended, or for some seconds."""
        self.launcher.join(timeout=timeout)


class ThreadDevice(BackgroundDevice):
    """A device in a thread of its own."""

    _launch_class = threading.Thread


class ProcessDevice(BackgroundDevice):
    """A device in a process of its own, with a context of its own."""

    _launch_class = Process
    context_factory = Context


__all__ = ["Device", "ThreadDevice", "ProcessDevice"]
