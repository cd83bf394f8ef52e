"""Ports that a test binds, leaves and binds again, or keeps without a listener: no other process gets them."""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Iterator

_ATTEMPTS = 100


@contextlib.contextmanager
def held(*hosts: str) -> Iterator[int]:
    """Keeps a port on each of these addresses of IPv4, 127.0.0.1 if none is named, and gives its number.

    It is bound with SO_REUSEADDR and never listens: who names it may listen there, or dial from there, and the kernel
    gives it to no process that asks for any port (ip(7)).
    """
    for _ in range(_ATTEMPTS):
        with contextlib.ExitStack() as kept:
            try:
                port = 0
                for host in hosts or ("127.0.0.1",):
                    one = kept.enter_context(socket.socket())
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    one.bind((host, port))
                    port = one.getsockname()[1]
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                continue
            yield port
            return
    raise AssertionError(f"no port is free on all of {hosts}")
