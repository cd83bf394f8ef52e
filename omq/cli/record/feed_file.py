"""The file of a recorded feed: messages with the time of each.

Numbers are little-endian. A file begins with `omqfeed` and a byte with the version, 1; then the start as nanoseconds
since 1970 (8 bytes), the length of a JSON object (4 bytes), and that object: `type` and `endpoints` of the recording
socket. Each record has the length of its payload (4 bytes), the CRC-32 of the payload (4 bytes), and the payload:
nanoseconds since the start (8 bytes), and for each part its length (4 bytes) and its content. An incomplete record at
the end is ignored.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, Self

from omq.errors import OmqError

MAGIC: Final = b"omqfeed\x01"
START: Final = struct.Struct("<QI")  # the time, the bytes of the JSON object
RECORD: Final = struct.Struct("<II")  # the bytes of the payload, its CRC-32
TIME: Final = struct.Struct("<Q")
PART: Final = struct.Struct("<I")
MAX_INFO_BYTES: Final = 1 << 20
BUFFER_BYTES: Final = 1 << 20


class FeedFileError(OmqError):
    """Raised when a file does not have a recorded feed."""


class FeedWriter:
    """Writes a feed to a new file.

    A record is with the operating system when `write` returns: it outlives a kill of the process, but not a loss of
    power.

    Args:
        path: The file.
        socket_type: The type of the recording socket.
        endpoints: Its endpoints.
        start_ns: The start of the recording, in nanoseconds since 1970.
        replace: True replaces an existing file.

    Raises:
        FileExistsError: The file exists.
    """

    def __init__(
        self, path: Path, socket_type: str, endpoints: Sequence[str], start_ns: int, *, replace: bool = False
    ) -> None:
        self._file = open(path, "wb" if replace else "xb", buffering=0)  # noqa: SIM115 - closed by `close`
        info = json.dumps({"type": socket_type, "endpoints": list(endpoints)}).encode()
        self._write_all(MAGIC + START.pack(start_ns, len(info)) + info)

    def write(self, records: Sequence[tuple[int, Sequence[bytes]]]) -> None:
        """Writes messages with their times, in nanoseconds since the start."""
        self._write_all(b"".join(encoded(time_ns, parts) for time_ns, parts in records))

    def _write_all(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) :]

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def encoded(time_ns: int, parts: Sequence[bytes]) -> bytes:
    """Returns the bytes of a record."""
    pieces = [TIME.pack(time_ns)]
    for part in parts:
        pieces += (PART.pack(len(part)), part)
    payload = b"".join(pieces)
    return RECORD.pack(len(payload), zlib.crc32(payload)) + payload


class FeedReader:
    """Reads a feed.

    Args:
        path: The file.

    Attributes:
        start_ns: The start of the recording, in nanoseconds since 1970.
        socket_type: The type of the recording socket.
        endpoints: Its endpoints.
        size: The bytes of the file.
        position: The bytes of the complete records that were read.

    Raises:
        FeedFileError: It is not such a file.
    """

    def __init__(self, path: Path) -> None:
        self._file: BinaryIO = open(path, "rb", buffering=BUFFER_BYTES)  # noqa: SIM115 - closed by `close`
        try:
            self._read_head(path)
        except BaseException:
            self._file.close()
            raise
        self.size = os.stat(path).st_size
        self.position = self._file.tell()

    def _read_head(self, path: Path) -> None:
        head = self._file.read(len(MAGIC))
        if head[:-1] != MAGIC[:-1]:
            raise FeedFileError(f"{path}: is not a recording of omq record")
        if head != MAGIC:
            raise FeedFileError(f"{path}: has version {head[-1]}; this omq reads version {MAGIC[-1]}")
        try:
            self.start_ns, length = START.unpack(self._file.read(START.size))
            info = json.loads(self._file.read(min(length, MAX_INFO_BYTES)))
            self.socket_type, self.endpoints = str(info["type"]), [str(one) for one in info["endpoints"]]
        except (struct.error, ValueError, KeyError, TypeError):
            raise FeedFileError(f"{path}: its head is damaged or incomplete") from None

    def __iter__(self) -> Iterator[tuple[int, list[bytes]]]:
        """Yields the messages with their times, in nanoseconds since the start, up to the first incomplete record."""
        while (record := self._next()) is not None:
            yield record

    def _next(self) -> tuple[int, list[bytes]] | None:
        head = self._file.read(RECORD.size)
        if len(head) < RECORD.size:
            return None
        length, checksum = RECORD.unpack(head)
        if length > self.size - self.position - RECORD.size or length < TIME.size:
            return None
        payload = self._file.read(length)
        if len(payload) < length or zlib.crc32(payload) != checksum:
            return None
        try:
            found = decoded_payload(payload)
        except struct.error:
            return None
        self.position += RECORD.size + length
        return found

    @property
    def incomplete_bytes(self) -> int:
        """Bytes after the last record that was read: an incomplete record, once the iteration has ended."""
        return self.size - self.position

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def decoded_payload(payload: bytes) -> tuple[int, list[bytes]]:
    """Returns the time and the parts of a record, whose checksum is right."""
    (time_ns,) = TIME.unpack_from(payload)
    at = TIME.size
    parts = []
    while at < len(payload):
        (length,) = PART.unpack_from(payload, at)
        at += PART.size
        parts.append(payload[at : at + length])
        at += length
    return time_ns, parts
