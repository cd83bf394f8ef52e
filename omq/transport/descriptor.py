"""Descriptors that the program has opened, and gives with the option `use_fd` (`ZMQ_USE_FD`, `zmq_setsockopt(3)`).

Whatever raises here leaves the descriptor open, and the caller's.
"""

from __future__ import annotations

from collections.abc import Collection

from omq.errors import OptionError
from omq.unpatched import socket


def listening(fd: int, families: Collection[int]) -> socket.socket:
    """Takes a socket that listens.

    Args:
        fd: Its descriptor; the result owns it.
        families: Those of the transport.

    Returns:
        The socket, non-blocking and not inherited by other programs.

    Raises:
        OptionError: The descriptor is closed, or not that of such a socket.
    """
    return _taken(fd, families, "a socket that listens", listens=True)


def connected(fd: int, families: Collection[int]) -> socket.socket:
    """Takes a socket that is connected; as `listening`."""
    return _taken(fd, families, "a socket that is connected", listens=False)


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
    """Raises `ValueError` or `OSError` unless the socket is of these families, a stream, and as far as it must be."""
    if sock.family not in families:
        names = " or ".join(sorted(socket.AddressFamily(family).name for family in families))
        raise ValueError(f"this endpoint takes {names}, and it is {socket.AddressFamily(sock.family).name}")
    if sock.type != socket.SOCK_STREAM:
        raise ValueError(f"it is {socket.SocketKind(sock.type).name}, not SOCK_STREAM")
    if bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)) is not listens:
        raise ValueError("it listens" if not listens else "it does not listen")
    if not listens:
        sock.getpeername()
