"""The router: what is published at one socket goes to all that have subscribed at the other."""

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
_JOIN_TIMEOUT_S: Final = 10.0  # seconds that the router's thread has to end


class BusRouter:
    """An XPUB where clients subscribe and an XSUB where they publish, with a proxy between them.

    Args:
        context: Whose sockets they are.
        bus: Where they serve; over tcp at ports that the system chooses.
        config: Their high-water marks.
        host: tcp: the address that they listen on; `*`: all.
        failed: Called if it cannot go on.

    Attributes:
        publish: Where clients publish.
        subscribe: Where they subscribe.
        inside: Where the manager does both, without leaving the process.

    Raises:
        BindError: An endpoint cannot be listened on.
        EndpointError: One cannot be understood.
    """

    def __init__(
        self,
        context: omq.Context,
        bus: Bus,
        config: InterProcessPortalConfig,
        host: str,
        failed: Callable[[], None],
    ) -> None:
        marks: dict[str, Any] = {"send_hwm": config.send_queue_size, "recv_hwm": config.receive_queue_size}
        marks["linger"] = 0
        if bus.transport == "tcp":
            marks["ipv6"] = True
        number = next(_NUMBERS)
        self.inside = f"inproc://goby-xsub-{number}", f"inproc://goby-xpub-{number}"
        self._control_at = f"inproc://goby-control-{number}"
        self._xsub = omq.XSUB(context, **marks)
        self._xpub = omq.XPUB(context, **marks)
        self._control = omq.PAIR(context, bind=self._control_at, linger=0)
        self._thread: threading.Thread | None = None
        self._failed = failed
        try:
            for socket, inside in zip((self._xsub, self._xpub), self.inside, strict=True):
                socket.bind(inside)
            self.publish, self.subscribe = (
                socket.bind(f"ipc://{bus.base}.{name}" if bus.transport == "ipc" else f"tcp://{host}:*")
                for socket, name in ((self._xsub, "xsub"), (self._xpub, "xpub"))
            )
        except BaseException:
            self.close()
            raise
        self._context = context

    def start(self) -> None:
        """Begins to carry messages."""
        self._thread = threading.Thread(target=self._run, name="omq goby router", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends. Idempotent."""
        if self._thread is not None and not self._control.closed:
            with suppress(OmqError):
                self._control.send(b"TERMINATE", timeout=0)
            self._thread.join(_JOIN_TIMEOUT_S)
        for socket in (self._control, self._xsub, self._xpub):
            socket.close()
        if self._thread is not None:
            self._thread.join(_JOIN_TIMEOUT_S)

    def _run(self) -> None:
        with omq.PAIR(self._context, connect=self._control_at, linger=0) as control:
            try:
                omq.proxy(self._xpub, self._xsub, control=control)
            except ClosedError:
                pass
            except Exception:
                log.exception("the router has failed")
                self._failed()


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
