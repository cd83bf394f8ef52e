"""Tunnels of ssh, without a server of it."""

from __future__ import annotations

import getpass
import shutil
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from omq.zmq.ssh import tunnel
from omq.zmq.ssh.forward import ForwardHandler, ForwardServer


def test_ports_are_free_and_different() -> None:
    ports = tunnel.select_random_ports(50)
    assert len(set(ports)) == 50
    with socket.socket() as one:
        one.bind(("127.0.0.1", ports[0]))


def test_the_parts_of_a_server() -> None:
    assert tunnel._split_server("user@host:23") == ("user", "host", 23)
    assert tunnel._split_server("host") == (getpass.getuser(), "host", 22)
    assert tunnel._target("user@host:23", "key") == ["-i", "key", "-p", "23", "user@host"]
    assert tunnel._target("host", None) == ["host"]


@pytest.mark.skipif(shutil.which("ssh") is None, reason="needs the command ssh")
def test_a_server_that_cannot_be_reached_needs_no_password() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        assert tunnel.try_passwordless_ssh(f"user@127.0.0.1:{unused.getsockname()[1]}", None)


@pytest.mark.parametrize(("output", "expected"), [("Permission denied (publickey)", False), ("", True)])
def test_a_server_that_rejects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, expected: bool) -> None:
    command = tmp_path / "ssh"
    command.write_text(f"#!/bin/sh\necho '{output}' >&2\nexit {0 if expected else 255}\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert tunnel.try_passwordless_ssh("host", None) is expected
    command.write_text("#!/bin/sh\necho 'Host key verification failed.' >&2\nexit 255\n")
    with pytest.raises(tunnel.SSHException):
        tunnel.try_passwordless_ssh("host", None)


class DirectTransport:
    """Opens channels without a server between."""

    def open_channel(self, kind: str, target: tuple[str, int], origin: Any) -> socket.socket:
        assert kind == "direct-tcpip"
        return socket.create_connection(target, timeout=10)


def test_bytes_are_forwarded_both_ways() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
        handler = type("Test", (ForwardHandler,), {"chain_host": host, "chain_port": port})
        handler.ssh_transport = DirectTransport()  # type: ignore[attr-defined]
        with ForwardServer(("127.0.0.1", 0), handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            try:
                with socket.create_connection(server.server_address, timeout=10) as near:  # type: ignore[arg-type]
                    far, _ = listener.accept()
                    with far:
                        near.sendall(b"there")
                        assert far.recv(100) == b"there"
                        far.sendall(b"back")
                        assert near.recv(100) == b"back"
                    assert near.recv(100) == b""
            finally:
                server.shutdown()
