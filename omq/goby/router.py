"""The router of a bus: a proxy between the socket where clients publish and the one where they subscribe."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import omq
from omq.errors import ClosedError, OmqError
from omq.goby.protobuf import InterProcessPortalConfig, Socket
from omq.goby.wire import Bus
from omq.unpatched import threading

log = logging.getLogger("omq.goby")

_NUMBERS = itertools.count(1)
_JOIN_TIMEOUT_S: Final = 10.0  # for the router's thread to end


class BusRouter:
    """An XPUB where clients subscribe and an XSUB where they publish, with a proxy between them.

    Args:
        context: The context of the sockets.
        bus: The bus; over tcp the system chooses the ports.
        config: The high-water marks.
        host: tcp: the address to listen on; `*`: all.
        on_failure: Called if the proxy fails.

    Attributes:
        publish: The endpoint where clients publish.
        subscribe: The endpoint where clients subscribe.
        inproc_endpoints: The same two endpoints for the manager, in this process.

    Raises:
        BindError: An endpoint cannot be bound.
        EndpointError: An endpoint is not valid.
    """

    def __init__(
        self,
        context: omq.Context,
        bus: Bus,
        config: InterProcessPortalConfig,
        host: str,
        on_failure: Callable[[], None],
    ) -> None:
        marks: dict[str, Any] = {"send_hwm": config.send_queue_size, "recv_hwm": config.receive_queue_size}
        marks["linger"] = 0
        if bus.transport == "tcp":
            marks["ipv6"] = True
        number = next(_NUMBERS)
        self.inproc_endpoints = f"inproc://goby-xsub-{number}", f"inproc://goby-xpub-{number}"
        self._control_endpoint = f"inproc://goby-control-{number}"
        self._xsub = omq.XSUB(context, **marks)
        self._xpub = omq.XPUB(context, **marks)
        self._control = omq.PAIR(context, bind=self._control_endpoint, linger=0)
        self._thread: threading.Thread | None = None
        self._on_failure = on_failure
        try:
            for socket, endpoint in zip((self._xsub, self._xpub), self.inproc_endpoints, strict=True):
                socket.bind(endpoint)
            self.publish, self.subscribe = (
                socket.bind(f"ipc://{bus.path_prefix}.{name}" if bus.transport == "ipc" else f"tcp://{host}:*")
                for socket, name in ((self._xsub, "xsub"), (self._xpub, "xpub"))
            )
        except BaseException:
            self.close()
            raise
        self._context = context

    def start(self) -> None:
        """Starts to forward messages."""
        self._thread = threading.Thread(target=self._run, name="omq goby router", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops forwarding, and closes the sockets. Idempotent."""
        if self._thread is not None and not self._control.closed:
            with suppress(OmqError):
                self._control.send(b"TERMINATE", timeout=0)
            self._thread.join(_JOIN_TIMEOUT_S)
        for socket in (self._control, self._xsub, self._xpub):
            socket.close()
        if self._thread is not None:
            self._thread.join(_JOIN_TIMEOUT_S)

    def _run(self) -> None:
        with omq.PAIR(self._context, connect=self._control_endpoint, linger=0) as control:
            try:
                omq.proxy(self._xpub, self._xsub, control=control)
            except ClosedError:
                pass
            except Exception:
                log.exception("the router has failed")
                self._on_failure()


def socket_message(kind: int, endpoint: str, config: InterProcessPortalConfig) -> Socket:
    """Returns a socket as the manager reports it to clients: the path over ipc, the port alone over tcp."""
    socket = Socket(socket_type=kind, connect_or_bind=Socket.CONNECT)  # type: ignore[arg-type]
    scheme, _, rest = endpoint.partition("://")
    if scheme == "ipc":
        socket.transport = Socket.IPC
        socket.socket_name = rest
    else:
        socket.transport = Socket.TCP
        socket.ethernet_port = int(rest.rpartition(":")[2])
    socket.send_queue_size, socket.receive_queue_size = config.send_queue_size, config.receive_queue_size
    return socket
