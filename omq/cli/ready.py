"""The ready file of a server: whoever waits for it finds the whole of it, and finds it only while all is served."""

import json
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import click


def read_ready_file(ctx: click.Context, param: click.Parameter, value: Path | None) -> Path | None:
    """What `--ready-file` takes: a file is put in the place of what is there, so that may be nothing but a file."""
    if value is None:
        return None
    try:
        place = value.resolve()
    except (OSError, RuntimeError) as error:
        raise click.BadParameter(f"{str(value)!r}: {error}", ctx, param) from None
    if not place.parent.is_dir():
        raise click.BadParameter(f"there is no directory {str(value.parent)!r}", ctx, param)
    if place.exists() and not place.is_file():
        raise click.BadParameter(f"{str(value)!r} is no file, and would be replaced", ctx, param)
    return place


class ReadyFile:
    """A file that says where a server serves: one JSON object of endpoints by name.

    Args:
        path: The file; `None` for none.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._written: bytes | None = None

    @contextmanager
    def cleared(self) -> Iterator[None]:
        """Takes away what a server that was killed has left, and puts it back if this one does not come to serve.

        A second server that is refused, because the first one lives, has not taken the first one's file away.
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
        """Writes the file, or logs why it cannot be: a server that could serve does, whatever becomes of the file."""
        try:
            self.write(endpoints)
        except OSError as error:
            log.error(
                "--ready-file %s: cannot be written: %s; the server serves all the same", self._path, error.strerror
            )

    def write(self, endpoints: Mapping[str, str]) -> None:
        """Writes the file at once: nobody ever sees a part of it.

        Raises:
            OSError: It cannot be written.
        """
        if self._path is not None:
            self._written = json.dumps(dict(endpoints)).encode() + b"\n"
            self._put(self._written)

    def remove(self) -> None:
        """Takes the file away, if it still says what was written."""
        if self._path is not None and self._written is not None:
            with suppress(OSError):
                if self._path.read_bytes() == self._written:
                    self._path.unlink()

    def _put(self, content: bytes) -> None:
        assert self._path is not None
        beside = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            beside.write_bytes(content)
            os.replace(beside, self._path)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
