"""Who speaks during a handshake: one epoll set for all accepted connections of a socket.

A connection is watched for its handshake only, and joins another epoll set afterwards. An event loop makes an object
for each descriptor, and needs seven system calls to watch it and to cease; a set of our own needs two.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable

_AT_ONCE = 64  # descriptors that are served in one turn of the loop


class HandshakePoller:
    """Calls a function whenever a descriptor can be read; made with the first descriptor.

    Args:
        loop: Where the functions are called.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._readers: dict[int, Callable[[], None]] = {}
        self._set: select.epoll | None = None

    def add(self, fd: int, reader: Callable[[], None]) -> None:
        """Begins to watch a descriptor.

        Raises:
            OSError: The system watches no more of them.
        """
        if self._set is None:
            made = select.epoll()
            try:
                self._loop.add_reader(made.fileno(), self._serve)
            except BaseException:
                made.close()
                raise
            self._set = made
        self._set.register(fd, select.EPOLLIN)
        self._readers[fd] = reader

    def remove(self, fd: int) -> None:
        """Ceases to watch a descriptor; one that is not watched is none of its business."""
        if self._readers.pop(fd, None) is not None and self._set is not None:
            self._set.unregister(fd)

    def _serve(self) -> None:
        assert self._set is not None
        for fd, _ in self._set.poll(0, _AT_ONCE):
            reader = self._readers.get(fd)  # None: another one's end was its own
            if reader is not None:
                try:
                    reader()
                except Exception as error:
                    self._loop.call_exception_handler({"message": "a handshake raised", "exception": error})

    def close_after_fork(self) -> None:
        """In a forked child: closes the set, which the parent has too."""
        if self._set is not None:
            self._set.close()

    def close(self) -> None:
        """Watches nothing any more."""
        if self._set is not None:
            if not self._loop.is_closed():
                self._loop.remove_reader(self._set.fileno())
            self._set.close()
            self._set = None
        self._readers.clear()
