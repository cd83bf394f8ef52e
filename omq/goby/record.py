"""Recordings of a bus: files of publications with their times of arrival.

The file begins with `omq-goby-log 1` and a line feed. Records follow: the length of the publication (32 bits), the
CRC-32 of what follows (32 bits), the time in nanoseconds since 1970 (64 bits), all little-endian, and the publication:
its identifier, a NUL, its payload. The records before damage can be read.
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
from omq.goby.identifier import read_identifier, shown, split_frame

log = logging.getLogger("omq.goby")

MAGIC: Final = b"omq-goby-log 1\n"
MAX_PUBLICATION_BYTES: Final = 1 << 30
_HEADER: Final = struct.Struct("<IIQ")
_TIME: Final = struct.Struct("<Q")


def frame_of(publication: Received) -> bytes:
    """Returns the frame of a publication, as it was on the wire."""
    group, scheme, type, data = publication
    return f"/{group}/{scheme}/{type}/{publication.pid}/{publication.thread}/\0".encode() + data


def publication_of(frame: bytes) -> Received:
    """Returns the publication of a frame.

    Raises:
        Malformed: The frame is not valid.
    """
    head, payload = split_frame(frame)
    return received(read_identifier(head), payload)


class Recorder:
    """Writes a recording, or continues one. Only one process may write it at a time.

    Nothing after damage can be read, so everything from the damage on is first moved to a file next to it, `*.damaged`.

    Args:
        path: The file.

    Attributes:
        count: The number of publications that were written.
        too_large: The number of publications that were skipped, because they have more than `MAX_PUBLICATION_BYTES`.

    Raises:
        UsageError: The file is not a recording, or is written by another process.
        OSError: The file cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path = Path(path)
        self.count = self.too_large = 0
        self._file: BinaryIO = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), "r+b")
        try:
            self._lock(path)
            self._resume(path)
        except BaseException:
            self._file.close()
            raise

    def _lock(self, path: Path) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"{path}: another process records into it") from None

    def _resume(self, path: Path) -> None:
        """Seeks to the end of the valid records, and moves the damaged rest away."""
        if not os.fstat(self._file.fileno()).st_size:
            self._file.write(MAGIC)
            self._file.flush()
            return
        with Recording(path) as before:
            for _ in before:
                pass
        self._file.seek(before.valid_bytes)
        if before.damage is not None:
            damaged_path = _unused_path(path)
            try:
                with damaged_path.open("xb") as file:
                    shutil.copyfileobj(self._file, file)
                    file.flush()
                    os.fsync(file.fileno())
            except OSError as error:
                damaged_path.unlink(missing_ok=True)
                reason = f"{error.strerror}, while moving the damaged part"
                raise OSError(error.errno, reason, str(damaged_path)) from None
            log.warning("%s: %s: the rest was moved to %s", path, before.damage, damaged_path)
            self._file.seek(before.valid_bytes)
        self._file.truncate()

    def append(self, frame: bytes, time: int) -> None:
        """Writes a publication. One of more than `MAX_PUBLICATION_BYTES` is logged, counted and skipped.

        Args:
            frame: The publication, as it was on the wire.
            time: The time of its arrival, in nanoseconds since 1970.
        """
        if len(frame) > MAX_PUBLICATION_BYTES:  # which a reader takes for damage
            if not self.too_large:
                log.warning(
                    "%s: skipped: a publication has %d bytes; a recording takes at most %d: %s",
                    *(self._path, len(frame), MAX_PUBLICATION_BYTES, shown(frame)),
                )
            self.too_large += 1
            return
        stamp = _TIME.pack(time)
        with self._name_errors():
            # One write: a killed process leaves no header without its publication, if both fit into the buffer.
            self._file.write(_HEADER.pack(len(frame), zlib.crc32(frame, zlib.crc32(stamp)), time) + frame)
        self.count += 1

    def flush(self) -> None:
        """Writes the buffered records to the file."""
        with self._name_errors():
            self._file.flush()

    def close(self) -> None:
        """Closes the file. Idempotent."""
        with self._name_errors():
            self._file.close()

    @contextmanager
    def _name_errors(self) -> Iterator[None]:
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


def _unused_path(path: Path) -> Path:
    """Returns an unused path for the damaged part."""
    for number in itertools.count():
        unused = path.with_name(f"{path.name}.damaged" + (f".{number}" if number else ""))
        if not unused.exists():
            return unused
    raise AssertionError("not reached")


class Recording:
    """Reads a recording: iterate over it for pairs of a time (nanoseconds since 1970) and a frame.

    Args:
        path: The file.

    Attributes:
        path: The file.
        damage: The damage after the last record that was read; `None` if there is not any.
        valid_bytes: The size of the records that were read, with the magic.

    Raises:
        UsageError: The file is not a recording.
        OSError: The file cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file: BinaryIO = open(path, "rb")  # noqa: SIM115 - `close` closes it
        self.path = os.fspath(path)
        self.damage: str | None = None
        begin = self._file.read(len(MAGIC))
        self.valid_bytes = len(begin)
        if begin != MAGIC:
            self._file.close()
            raise UsageError(f"{os.fspath(path)} is not a recording of a bus")

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        while head := self._file.read(_HEADER.size):
            if len(head) < _HEADER.size:
                self.damage = f"at byte {self.valid_bytes}: a record's header is cut short"
                return
            length, crc, time = _HEADER.unpack(head)
            if length > MAX_PUBLICATION_BYTES:
                self.damage = f"at byte {self.valid_bytes}: a record of {length} bytes is not valid"
                return
            frame = self._file.read(length)
            if len(frame) < length:
                self.damage = f"at byte {self.valid_bytes}: a record is cut short"
                return
            if zlib.crc32(frame, zlib.crc32(head[8:])) != crc:
                self.damage = f"at byte {self.valid_bytes}: a record is damaged"
                return
            self.valid_bytes += len(head) + length
            yield time, frame

    def close(self) -> None:
        """Closes the file. Idempotent."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
