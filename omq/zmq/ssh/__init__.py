"""Connections through tunnels of ssh."""

from __future__ import annotations

from omq.zmq.ssh.tunnel import (
    openssh_tunnel,
    paramiko_tunnel,
    ssh_tunnel,
    try_passwordless_ssh,
    tunnel_connection,
)

__all__ = ["openssh_tunnel", "paramiko_tunnel", "ssh_tunnel", "try_passwordless_ssh", "tunnel_connection"]
