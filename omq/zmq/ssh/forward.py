"""A port of this machine that leads to one behind an ssh server, with paramiko."""

from __future__ import annotations

import logging
import socketserver
from typing import Any, Final

from omq.unpatched import select

logger = logging.getLogger("ssh")
_READ_BYTES: Final = 1 << 16


class ForwardServer(socketserver.ThreadingTCPServer):
    """Accepts the local connections."""

    daemon_threads = True
    allow_reuse_address = True


class ForwardHandler(socketserver.BaseRequestHandler):
    """Copies the bytes of one connection both ways.

    Attributes:
        chain_host: The host behind the server.
        chain_port: The port behind the server.
        ssh_transport: The connection to the server.
    """

    chain_host: str
    chain_port: int
    ssh_transport: Any

    def handle(self) -> None:
        """Runs until one side closes."""
        target = (self.chain_host, self.chain_port)
        try:
            channel = self.ssh_transport.open_channel("direct-tcpip", target, self.request.getpeername())
        except Exception as error:
            logger.debug("Connection to %s:%d failed: %r", *target, error)
            return
        if channel is None:
            logger.debug("Connection to %s:%d was rejected by the ssh server", *target)
            return
        other = {self.request: channel, channel: self.request}
        try:
            while True:
                for side in select.select(list(other), [], [])[0]:
                    data = side.recv(_READ_BYTES)
                    if not data:
                        return
                    other[side].sendall(data)
        finally:
            channel.close()
            self.request.close()


def forward_tunnel(local_port: int, remote_host: str, remote_port: int, transport: Any) -> None:
    """Forwards connections for ever.

    Args:
        local_port: The port of this machine.
        remote_host: The host behind the server.
        remote_port: The port behind the server.
        transport: The connection to the server, of paramiko.
    """
    place = {"chain_host": remote_host, "chain_port": remote_port, "ssh_transport": transport}
    ForwardServer(("127.0.0.1", local_port), type("TunnelHandler", (ForwardHandler,), place)).serve_forever()


__all__ = ["forward_tunnel"]
