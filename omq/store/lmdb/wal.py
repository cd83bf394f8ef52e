"""The write-ahead log of small appends: a small file next to the environment, which outlives the process.

For one small message LMDB writes five pages, which takes longer than all else that its producer waits for. So what
comes alone is noted first, by one write of about its own size, and acknowledged. What has gathered becomes one
transaction a little later, when no producer waits for it.

Nothing here is synced. After a loss of power the environment is what its last sync has left, and the
notes are not read.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
from pathlib import Path
from typing import Final

from omq._core.blocks import crc32c
from omq.store.errors import StoreError
from omq.store.interface import Append
from omq.store.internal import LoggedAppend

#: Bytes of the file, and how many appends it holds: to write them takes some 0.1 ms.
MAX_FILE_BYTES: Final = 256 * 1024
MAX_WRITES: Final = 64
#: Bytes of records beyond which nothing is won.
MAX_WRITE_BYTES: Final = 16 * 1024
#: A note: checksum of the store's id and of what follows, round, bytes of the records, topic, first id, count,
#: timestamp, sequence, settled, bytes of the producer; then the producer and the records.
_SUM: Final = struct.Struct(">I")
_NOTE: Final = struct.Struct(">QIIQIQQQB")
_HEAD: Final = _SUM.size + _NOTE.size


class WriteAheadLog:
    """The notes of one environment. Only its writer uses them.

    Args:
        directory: Of the environment.
        store: The id of the store: what another one has noted means nothing here.

    Attributes:
        waiting: What is noted, and not in the environment.
        last: The last id that was acknowledged, by topic, of those.
    """

    def __init__(self, directory: Path, store: str) -> None:
        self.waiting: list[Append] = []
        self.last: dict[int, int] = {}
        self._path = directory / "notes"
        self._store = store
        self._seed = crc32c(store.encode())
        self._file = -1
        self._end = 0  # of what is noted
        # Notes of another round are old. They follow newer ones where those are smaller.
        self._round = int.from_bytes(os.urandom(8), "big")

    def put(self, write: Append) -> bool:
        """Notes an append that has its ids; returns whether there was room."""
        records, producer = write.records, write.producer
        if len(self.waiting) >= MAX_WRITES:
            return False
        note = _NOTE.pack(
            self._round,
            len(records),
            write.topic_id,
            write.first,
            write.count,
            write.timestamp,
            write.sequence,
            write.settled,
            len(producer),
        )
        note = b"".join((note, producer, records))
        end = self._end + _SUM.size + len(note)
        if end > MAX_FILE_BYTES:
            return False
        try:
            if self._file < 0:
                self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            if os.pwrite(self._file, _SUM.pack(crc32c(note, self._seed)) + note, self._end) != end - self._end:
                return False
        except OSError:
            return False  # a disk that is full, or broken, is the environment's to find
        self._end = end
        self.waiting.append(write)
        self.last[write.topic_id] = write.first + write.count - 1
        return True

    def take(self) -> list[LoggedAppend]:
        """Takes the noted appends, to be written now. The notes stay until they are cleared."""
        taken = [LoggedAppend(write) for write in self.waiting]
        self.waiting.clear()
        self.last.clear()
        return taken

    def clear(self) -> None:
        """Clears the notes, because all that was noted is in the environment."""
        if not self._end:
            return
        self._end = 0
        self._round = (self._round + 1) % 2**64
        try:
            os.pwrite(self._file, bytes(_HEAD), 0)
        except OSError:
            pass  # their ids show that they were written

    def left(self) -> list[Append]:
        """Returns the appends that a crashed process has left; new notes follow them.

        Raises:
            StoreError: It cannot be read.
        """
        found, self._end, last, self._file = look(self._path, self._store, os.O_RDWR)
        self._round = last if found else self._round
        return found

    def close(self) -> bool:
        """Ends; whether what is not in the environment is on the disk."""
        if self._file < 0:
            return True
        try:
            if self._end:
                os.fsync(self._file)
        except OSError:
            return False
        finally:
            os.close(self._file)
            self._file = -1
        return True


def look(path: Path, store: str, mode: int = os.O_RDONLY) -> tuple[list[Append], int, int, int]:
    """Returns the notes of a file, as `read` does, and the file's descriptor, -1 where there is no file.

    Raises:
        StoreError: It cannot be read, or not be opened so.
    """
    file = -1
    try:
        file = os.open(path, mode | os.O_CLOEXEC | os.O_NONBLOCK)
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        return *read(os.pread(file, MAX_FILE_BYTES, 0), store), file
    except FileNotFoundError:
        return [], 0, 0, -1
    except OSError as error:
        if file >= 0:
            os.close(file)
        raise StoreError(
            f"{path}: {error.strerror}. Messages may be noted there that are acknowledged and stand nowhere else. "
            "Nothing was changed. Have it be a file that can be read and written, or remove it to go on without them."
        ) from None


def read(data: bytes, store: str) -> tuple[list[Append], int, int]:
    """Reads a store's notes, which may be in the environment or not; returns them, their end and their round."""
    view, seed = memoryview(data), crc32c(store.encode())
    found: list[Append] = []
    end = round = 0
    while len(data) >= end + _HEAD:
        note = _NOTE.unpack_from(data, end + _SUM.size)
        _, size, topic, first, count, timestamp, sequence, settled, name = note
        begin = end + _HEAD + name
        whole = view[end + _SUM.size : begin + size]
        if len(whole) < _NOTE.size + name + size or _SUM.unpack_from(data, end)[0] != crc32c(whole, seed):
            break  # the writer died before it was acknowledged
        if found and note[0] != round:
            break
        write = Append(topic, data[begin : begin + size], count, data[end + _HEAD : begin], sequence, settled)
        write.first, write.timestamp = first, timestamp
        found.append(write)
        round, end = note[0], begin + size
    return found, end, round
