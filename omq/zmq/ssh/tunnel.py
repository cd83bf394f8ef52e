"""Tunnels of ssh: a port of this machine leads to one that the ssh server can reach."""

from __future__ import annotations

import atexit
import os
import re
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack
from getpass import getpass, getuser
from multiprocessing import Process
from typing import Any, Final

from omq.unpatched import socket as sockets
from omq.unpatched import subprocess

_PASSWORD_PROMPT: Final = rb"(?i)pass(word|phrase)"
_NEW_KEY_PROMPT: Final = "Are you sure you want to continue connecting"
_UNKNOWN_HOST: Final = b"Host key verification failed"
_REJECTED: Final = b"Permission denied"
_PASSWORD_TRIES: Final = 3
_PROMPT_TIMEOUT_S: Final = 15
#: ssh never asks: it fails where it would have to.
_SILENT: Final = ("-o", "BatchMode=yes")


class SSHException(Exception):
    """Raised when the host key of the ssh server is not known."""


class MaxRetryExceeded(Exception):
    """Raised when the ssh server accepts no password, or does not answer in time."""


def select_random_ports(n: int) -> list[int]:
    """Returns free ports of this machine."""
    with ExitStack() as stack:
        held = [stack.enter_context(sockets.socket()) for _ in range(n)]
        for one in held:
            one.bind(("", 0))
        return [one.getsockname()[1] for one in held]


def try_passwordless_ssh(server: str, keyfile: str | None, paramiko: bool | None = None) -> bool:
    """Returns whether the ssh server accepts a connection without a password.

    Args:
        server: The server: `USER@HOST:PORT`, `HOST` suffices.
        keyfile: The path of the private key; `None` for ssh's own.
        paramiko: Whether paramiko connects, instead of the command `ssh`.

    Raises:
        SSHException: The host key of the server is not known.
    """
    return (_try_paramiko if paramiko else _try_openssh)(server, keyfile)


def _try_openssh(server: str, keyfile: str | None) -> bool:
    # A server that cannot be reached needs no password: `openssh_tunnel` raises the error.
    done, report = _run_ssh([*_SILENT, *_target(server, keyfile), "exit"])
    return done or _REJECTED not in report


def _run_ssh(arguments: list[str]) -> tuple[bool, bytes]:
    """Runs `ssh` until it ends; returns whether it has succeeded, and its messages."""
    command = ["ssh", *arguments]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    report = done.stdout + done.stderr
    if _UNKNOWN_HOST in report:
        raise SSHException("The authenticity of the host can't be established.")
    return done.returncode == 0, report


def _target(server: str, keyfile: str | None) -> list[str]:
    """Returns the arguments of `ssh` that name the server."""
    host, separator, port = server.rpartition(":")
    arguments = ["-i", keyfile] if keyfile else []
    return [*arguments, "-p", port, host] if separator else [*arguments, server]


def _try_paramiko(server: str, keyfile: str | None) -> bool:
    module = _paramiko()
    try:
        _connect_paramiko(server, keyfile, None).close()
    except module.AuthenticationException:
        return False
    return True


def _paramiko() -> Any:
    try:
        import paramiko
    except ImportError:
        raise ImportError("paramiko is not installed; use openssh_tunnel") from None
    return paramiko


def _connect_paramiko(server: str, keyfile: str | None, password: str | None) -> Any:
    module = _paramiko()
    username, host, port = _split_server(server)
    client = module.SSHClient()
    client.load_system_host_keys()
    policy = os.environ.get("PYZMQ_PARAMIKO_HOST_KEY_POLICY")
    if policy:
        client.set_missing_host_key_policy(getattr(module, f"{policy}Policy")())
    client.connect(host, port, username=username, key_filename=keyfile, look_for_keys=True, password=password)
    return client


def _split_server(server: str) -> tuple[str, str, int]:
    """Returns the user, the host and the port of `USER@HOST:PORT`."""
    user, separator, place = server.rpartition("@")
    host, _, port = place.partition(":")
    return user if separator else getuser(), host, int(port or 22)


def tunnel_connection(
    socket: Any,
    addr: str,
    server: str,
    keyfile: str | None = None,
    password: str | None = None,
    paramiko: bool | None = None,
    timeout: int = 60,
) -> Process | int:
    """Connects a socket to an endpoint that the ssh server can reach; returns the tunnel. See `open_tunnel`."""
    endpoint, tunnel = open_tunnel(addr, server, keyfile=keyfile, password=password, paramiko=paramiko, timeout=timeout)
    socket.connect(endpoint)
    return tunnel


def open_tunnel(
    addr: str,
    server: str,
    keyfile: str | None = None,
    password: str | None = None,
    paramiko: bool | None = None,
    timeout: int = 60,
) -> tuple[str, Process | int]:
    """Opens a tunnel to an endpoint.

    Args:
        addr: The endpoint as the ssh server sees it: `tcp://HOST:PORT`.
        server: The server: `USER@HOST:PORT`, `HOST` suffices.
        keyfile: The path of the private key; `None` for ssh's own.
        password: The password; `None` asks for it if one is needed.
        paramiko: Whether paramiko connects, instead of the command `ssh`.
        timeout: Seconds that the tunnel waits for the first connection.

    Returns:
        The endpoint on this machine, and the tunnel: a process, or the number of one.
    """
    local = select_random_ports(1)[0]
    host, _, port = addr.partition("://")[2].rpartition(":")
    make: Callable[..., Process | int] = paramiko_tunnel if paramiko else openssh_tunnel
    tunnel = make(local, int(port), server, remoteip=host, keyfile=keyfile, password=password, timeout=timeout)
    return f"tcp://127.0.0.1:{local}", tunnel


def openssh_tunnel(
    lport: int,
    rport: int,
    server: str,
    remoteip: str = "127.0.0.1",
    keyfile: str | None = None,
    password: str | None = None,
    timeout: int = 60,
) -> int:
    """Opens a tunnel with the command `ssh`, which ends when nothing uses it.

    Args:
        lport: The port of this machine.
        rport: The port behind the server.
        server: The server: `USER@HOST:PORT`, `HOST` suffices.
        remoteip: The host behind the server.
        keyfile: The path of the private key; `None` for ssh's own.
        password: The password; `None` asks for it if one is needed.
        timeout: Seconds that the tunnel waits for the first connection.

    Returns:
        The number of the process: of the shared connection, if ssh has one to this server.

    Raises:
        ImportError: A password is needed, and pexpect is not installed.
        SSHException: The host key of the server is not known.
        MaxRetryExceeded: The server accepts no password, or does not answer in time.
        RuntimeError: The tunnel cannot be opened.
    """
    target = _target(server, keyfile)
    forward = ["-L", f"127.0.0.1:{lport}:{remoteip}:{rport}"]
    shared = _shared_connection(target, forward)
    if shared is not None:
        return shared
    command = ["-f", "-S", "none", "-o", "ExitOnForwardFailure=yes", *forward, *target, "sleep", str(timeout)]
    return _spawn_with_password(command, server, password)


def _shared_connection(target: list[str], forward: list[str]) -> int | None:
    """Adds the port to a connection that ssh shares; returns the number of its process, or `None`."""
    shares, report = _run_ssh(["-O", "check", *target])
    found = re.search(rb"\(pid=(\d+)\)", report)
    if not shares or found is None or not _run_ssh(["-O", "forward", *forward, *target])[0]:
        return None
    atexit.register(_run_ssh, ["-O", "cancel", *forward, *target])
    return int(found[1])


def _spawn_with_password(arguments: list[str], server: str, password: str | None) -> int:
    """Starts `ssh`, answers its questions, and returns the number of its process."""
    try:
        import pexpect
    except ImportError:
        raise ImportError("pexpect is not installed; install it, or use paramiko_tunnel") from None
    environment = {name: value for name, value in os.environ.items() if name != "SSH_ASKPASS"}
    process = pexpect.spawn("ssh", arguments, env=environment, timeout=_PROMPT_TIMEOUT_S)
    for attempt in range(_PASSWORD_TRIES + 1):
        match process.expect([_NEW_KEY_PROMPT, _PASSWORD_PROMPT, pexpect.EOF, pexpect.TIMEOUT]):
            case 0:
                process.close(force=True)
                raise SSHException("The authenticity of the host can't be established.")
            case 1:
                if attempt:
                    print("Password rejected, try again")
                if attempt or password is None:
                    password = getpass(f"{server}'s password: ")
                process.sendline(password)
            case 2:
                process.close()
                if process.exitstatus:
                    text = process.before.decode(errors="replace").strip()
                    raise RuntimeError(f"tunnel to {server} failed to start: {text}")
                return int(process.pid)
            case _:
                break
    process.close(force=True)
    raise MaxRetryExceeded(f"{server} did not accept the connection")


def paramiko_tunnel(
    lport: int,
    rport: int,
    server: str,
    remoteip: str = "127.0.0.1",
    keyfile: str | None = None,
    password: str | None = None,
    timeout: int = 60,
) -> Process:
    """Opens a tunnel with paramiko, in a process that lasts as long as this one.

    Args:
        lport: The port of this machine.
        rport: The port behind the server.
        server: The server: `USER@HOST:PORT`, `HOST` suffices.
        remoteip: The host behind the server.
        keyfile: The path of the private key; `None` for ssh's own.
        password: The password; `None` asks for it if one is needed.
        timeout: Ignored.

    Returns:
        The process.

    Raises:
        ImportError: paramiko is not installed.
    """
    if password is None and not _try_paramiko(server, keyfile):
        password = getpass(f"{server}'s password: ")
    process = Process(target=_forward, args=(lport, remoteip, rport, server, keyfile, password), daemon=True)
    process.start()
    return process


def _forward(lport: int, host: str, rport: int, server: str, keyfile: str | None, password: str | None) -> None:
    """Runs the process of a tunnel."""
    from omq.zmq.ssh.forward import forward_tunnel

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program, not for its tunnel
    try:
        client = _connect_paramiko(server, keyfile, password)
        forward_tunnel(lport, host, rport, client.get_transport())
    except Exception as error:
        sys.exit(f"tunnel to {server}: {error!r}")


ssh_tunnel = openssh_tunnel

__all__ = ["tunnel_connection", "ssh_tunnel", "openssh_tunnel", "paramiko_tunnel", "try_passwordless_ssh"]
