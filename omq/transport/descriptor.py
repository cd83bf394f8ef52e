"""Descriptors that the program has opened, and passes with the option `use_fd` (`ZMQ_USE_FD`, `zmq_setsockopt(3)`).

After an error, the descriptor stays open, and the caller's.
"""

from __future__ import annotations

from collections.abc import Collection

from omq.errors import OptionError
from omq.unpatched import socket


def listening(fd: int, families: Collection[int]) -> socket.socket:
    """Takes over a listening socket.

    Args:
        fd: Its descriptor; the result owns it.
        families: The address families of the transport.

    Returns:
        The socket, non-blocking and not inherited by other programs.

    Raises:
        OptionError: The descriptor is closed, or is not a socket of that kind.
    """
    return _taken(fd, families, "a listening socket", listens=True)


def connected(fd: int, families: Collection[int]) -> socket.socket:
    """Takes over a connected socket; as `listening`."""
    return _taken(fd, families, "a connected socket", listens=False)


def _taken(fd: int, families: Collection[int], wanted: str, *, listens: bool) -> socket.socket:
    try:
        sock = socket.socket(fileno=fd)
    except OSError as error:
        raise OptionError(f"option use_fd={fd}: must be the descriptor of {wanted}: {error.strerror}") from error
    try:
        _check(sock, families, listens=listens)
        sock.setblocking(False)
        sock.set_inheritable(False)
    except (OSError, ValueError) as error:
        sock.detach()
        why = getattr(error, "strerror", None) or error
        raise OptionError(f"option use_fd={fd}: must be the descriptor of {wanted}: {why}") from error
    except BaseException:
        sock.detach()
        raise
    return sock


def _check(sock: socket.socket, families: Collection[int], *, listens: bool) -> None:
    """Raises `ValueError` or `OSError` unless the socket is a stream of these families, and listens or is connected."""
    if sock.family not in families:
        names = " or ".join(sorted(socket.AddressFamily(family).name for family in families))
        raise ValueError(f"this endpoint takes {names}, but it is {socket.AddressFamily(sock.family).name}")
    if sock.type != socket.SOCK_STREAM:
        raise ValueError(f"its type is {socket.SocketKind(sock.type).name}, not SOCK_STREAM")
    if bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)) is not listens:
        raise ValueError(
            "it is not a listening socket; bind needs one"
            if listens
            else "it is a listening socket; connect needs a connected one"
        )
    if not listens:
        sock.getpeername()
