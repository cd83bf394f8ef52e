"""Recordings of a bus: a file of publications with the times at which they came.

The file begins with `omq-goby-log 1` and a line feed. A record follows the other: the length of the publication (32
bits), the CRC-32 of what follows (32 bits), the time in nanoseconds since 1970 (64 bits), all little-endian, and the
publication: its identifier, a NUL, its payload. Whatever is damaged, the records before it are good.
"""

from __future__ import annotations

import fcntl
import itertools
import logging
import os
import shutil
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, Self

from omq.errors import UsageError
from omq.goby.dispatch import Received, received
from omq.goby.identifier import read_identifier, split_frame

log = logging.getLogger("omq.goby")

MAGIC: Final = b"omq-goby-log 1\n"
MAX_PUBLICATION_BYTES: Final = 1 << 30  # bytes of a publication
_HEAD: Final = struct.Struct("<IIQ")
_TIME: Final = struct.Struct("<Q")


def frame_of(publication: Received) -> bytes:
    """A publication as it was on the wire."""
    group, scheme, type, data = publication
    return f"/{group}/{scheme}/{type}/{publication.pid}/{publication.thread}/\0".encode() + data


def publication_of(frame: bytes) -> Received:
    """Returns what was on the wire as a publication.

    Raises:
        Malformed: It is not valid.
    """
    head, payload = split_frame(frame)
    return received(read_identifier(head), payload)


class Recorder:
    """Writes a recording, or continues one. Only one process may write it at a time.

    Nothing after damage can be read. So the damaged rest is moved to a file next to it, `*.damaged`, before records are
    appended.

    Args:
        path: The file.

    Raises:
        UsageError: The file is not a recording, or is written by another process.
        OSError: It cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path = Path(path)
        self.count = 0
        self._file: BinaryIO = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), "r+b")
        try:
            self._lock(path)
            self._go_on(path)
        except BaseException:
            self._file.close()
            raise

    def _lock(self, path: Path) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"{path}: another process records into it") from None

    def _go_on(self, path: Path) -> None:
        """Finds the end of what is there."""
        if not os.fstat(self._file.fileno()).st_size:
            self._file.write(MAGIC)
            self._file.flush()
            return
        with Recording(path) as before:
            for _ in before:
                pass
        self._file.seek(before.good)
        if before.damage is not None:
            aside = _damaged_path(path)
            try:
                with aside.open("xb") as file:
                    shutil.copyfileobj(self._file, file)
                    file.flush()
                    os.fsync(file.fileno())
            except OSError as error:
                aside.unlink(missing_ok=True)
                raise OSError(error.errno, f"{error.strerror}, while moving the damaged part", str(aside)) from None
            log.warning("%s: %s: what is there from then on is in %s now", path, before.damage, aside)
            self._file.seek(before.good)
        self._file.truncate()

    def append(self, frame: bytes, time: int) -> None:
        """Writes a publication.

        Args:
            frame: As it was on the wire.
            time: When it came: nanoseconds since 1970.
        """
        stamp = _TIME.pack(time)
        with self._naming():
            # One write: what is killed leaves no head without its publication, unless that is larger than the buffer.
            self._file.write(_HEAD.pack(len(frame), zlib.crc32(frame, zlib.crc32(stamp)), time) + frame)
        self.count += 1

    def flush(self) -> None:
        """Gives the system what was written."""
        with self._naming():
            self._file.flush()

    def close(self) -> None:
        """Ends. Idempotent."""
        with self._naming():
            self._file.close()

    @contextmanager
    def _naming(self) -> Iterator[None]:
        """Adds the file's path to errors."""
        try:
            yield
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._path)) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _damaged_path(path: Path) -> Path:
    """Returns an unused path for the damaged part."""
    for number in itertools.count():
        found = path.with_name(f"{path.name}.damaged" + (f".{number}" if number else ""))
        if not found.exists():
            return found
    raise AssertionError("not reached")


class Recording:
    """Reads a recording: iterate over it for pairs of a time (nanoseconds since 1970) and a frame.

    Args:
        path: The file.

    Attributes:
        path: The file.
        damage: The damage after the last record that was read; `None` while nothing is.
        good: How far the file is good, in bytes.

    Raises:
        UsageError: The file is not a recording.
        OSError: It cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file: BinaryIO = open(path, "rb")  # noqa: SIM115 - `close` closes it
        self.path = os.fspath(path)
        self.damage: str | None = None
        begin = self._file.read(len(MAGIC))
        self.good = len(begin)
        if begin != MAGIC:
            self._file.close()
            raise UsageError(f"{os.fspath(path)}: is not a recording of a bus")

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        while head := self._file.read(_HEAD.size):
            if len(head) < _HEAD.size:
                self.damage = f"at byte {self.good}: a record's head is cut short"
                return
            length, crc, time = _HEAD.unpack(head)
            if length > MAX_PUBLICATION_BYTES:
                self.damage = f"at byte {self.good}: a record of {length} bytes is not valid"
                return
            frame = self._file.read(length)
            if len(frame) < length:
                self.damage = f"at byte {self.good}: a record is cut short"
                return
            if zlib.crc32(frame, zlib.crc32(head[8:])) != crc:
                self.damage = f"at byte {self.good}: a record is damaged"
                return
            self.good += len(head) + length
            yield time, frame

    def close(self) -> None:
        """Ends. Idempotent."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
