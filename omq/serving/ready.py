"""The ready file of a server: it is written in one step, and exists only while the server runs."""

import json
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path


class ReadyFile:
    """A file that lists the endpoints of a server, as one JSON object of endpoints by name, and may have more keys.

    Args:
        path: The file; `None` for none.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._endpoints: dict[str, str] | None = None  # those that were written
        self._more: dict[str, object] = {}
        self._written: bytes | None = None

    @contextmanager
    def cleared(self) -> Iterator[None]:
        """Removes the file of a server that was killed; restores it if this server does not start.

        So the file of a running server stays, if a second one is refused because of it.
        """
        if self._path is None:
            yield
            return
        left = None
        with suppress(OSError):
            left = self._path.read_bytes()
            self._path.unlink()
        try:
            yield
        except Exception:
            if left is not None and not self._path.exists():
                self._put(left)
            raise

    def write_if_possible(self, endpoints: Mapping[str, str], log: logging.Logger) -> None:
        """Writes the file; logs an error, and the server runs without it."""
        try:
            self.write(endpoints)
        except OSError as error:
            log.error("--ready-file %s: cannot be written: %s; the server runs without it", self._path, error.strerror)

    def set(self, log: logging.Logger, **more: object) -> None:
        """Sets keys next to the endpoints; writes the file again if it was written."""
        self._more |= more
        if self._endpoints is not None:
            self.write_if_possible(self._endpoints, log)

    def write(self, endpoints: Mapping[str, str]) -> None:
        """Writes the file in one step, so that a reader never finds a part of it.

        Raises:
            OSError: It cannot be written.
        """
        if self._path is not None:
            self._endpoints = dict(endpoints)
            self._written = json.dumps({**endpoints, **self._more}).encode() + b"\n"
            self._put(self._written)

    def remove(self) -> None:
        """Removes the file, if this server has written its content."""
        self._endpoints = None
        if self._path is not None and self._written is not None:
            with suppress(OSError):
                if self._path.read_bytes() == self._written:
                    self._path.unlink()

    def _put(self, content: bytes) -> None:
        assert self._path is not None
        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            temporary.write_bytes(content)
            os.replace(temporary, self._path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
