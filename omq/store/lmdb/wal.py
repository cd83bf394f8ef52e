"""The write-ahead log of small appends to weak topics: a small file next to the environment.

LMDB writes five pages for one small message, which takes longer than everything else that its producer waits for. So
a single append goes to the log with one `pwrite` of about its own size, and is answered. The appends of the log become
one transaction a little later, when no producer waits for it.

The log survives the process. It is synced only by `close`. After a power loss the environment has the state of its
last sync, and the entries of the log are ignored.
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

WAL_FILE_NAME: Final = "notes"  # in the directory of the environment; the name is part of the format on disk
#: Bounds of the log. A transaction of this many appends takes about 0.1 ms.
MAX_FILE_BYTES: Final = 256 * 1024
MAX_WRITES: Final = 64
#: Above this size of the records, a transaction is not slower than the log.
MAX_WRITE_BYTES: Final = 16 * 1024
#: An entry: checksum of the store's id and of what follows, round, bytes of the records, topic, first id, count,
#: timestamp, sequence, first outstanding one, bytes of the producer; then the producer and the records.
_SUM: Final = struct.Struct(">I")
_ENTRY: Final = struct.Struct(">QIIQIQQQB")
_HEAD: Final = _SUM.size + _ENTRY.size


class WriteAheadLog:
    """The write-ahead log of one environment. Only its writer uses it.

    Args:
        directory: The directory of the environment.
        store: The id of the store. Entries of another store are ignored.

    Attributes:
        waiting: Appends that are in the log and not in the environment.
        last: The last id of these, by topic.
    """

    def __init__(self, directory: Path, store: str) -> None:
        self.waiting: list[Append] = []
        self.last: dict[int, int] = {}
        self._path = directory / WAL_FILE_NAME
        self._store = store
        self._seed = crc32c(store.encode())
        self._file = -1
        self._end = 0  # of the entries
        # Each use of the file from its start is a round. Entries of earlier rounds may follow the current ones.
        self._round = int.from_bytes(os.urandom(8), "big")

    def put(self, write: Append) -> bool:
        """Logs an append that has its ids; returns whether the log had room."""
        records, producer = write.records, write.producer
        if len(self.waiting) >= MAX_WRITES:
            return False
        entry = _ENTRY.pack(
            self._round,
            len(records),
            write.topic_id,
            write.first,
            write.count,
            write.timestamp,
            write.sequence,
            write.first_outstanding,
            len(producer),
        )
        entry = b"".join((entry, producer, records))
        end = self._end + _SUM.size + len(entry)
        if end > MAX_FILE_BYTES:
            return False
        try:
            if self._file < 0:
                self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            if os.pwrite(self._file, _SUM.pack(crc32c(entry, self._seed)) + entry, self._end) != end - self._end:
                return False
        except OSError:
            return False  # the environment finds and reports a full or broken disk
        self._end = end
        self.waiting.append(write)
        self.last[write.topic_id] = write.first + write.count - 1
        return True

    def take(self) -> list[LoggedAppend]:
        """Returns the waiting appends, for a transaction. Their entries stay until `clear`."""
        taken = [LoggedAppend(write) for write in self.waiting]
        self.waiting.clear()
        self.last.clear()
        return taken

    def clear(self) -> None:
        """Starts a new round, once the environment has all appends of the log."""
        if not self._end:
            return
        self._end = 0
        self._round = (self._round + 1) % 2**64
        try:
            os.pwrite(self._file, bytes(_HEAD), 0)
        except OSError:
            pass  # the ids of the entries show that the environment has them

    def replay(self) -> list[Append]:
        """Returns the appends that a crashed process has left. New entries follow theirs.

        Raises:
            StoreError: The file cannot be read.
        """
        found, self._end, last, self._file = read_file(self._path, self._store, os.O_RDWR)
        self._round = last if found else self._round
        return found

    def close(self) -> bool:
        """Closes the file; returns whether its entries are on the disk."""
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


def read_file(path: Path, store: str, mode: int = os.O_RDONLY) -> tuple[list[Append], int, int, int]:
    """Returns what `read` returns for a file, and the file's descriptor, -1 if there is no file.

    Raises:
        StoreError: The file cannot be opened in this mode, or not be read.
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
            f"{path}: {error.strerror}. The file may have acknowledged messages that are nowhere else. Nothing was "
            "changed. Make it a file that can be read and written, or remove it to continue without these messages."
        ) from None


def read_log(directory: Path, store: str) -> list[Append]:
    """Returns the valid appends of the log in the directory of an environment, as `read` does.

    Raises:
        StoreError: The file cannot be read.
    """
    found, _, _, file = read_file(directory / WAL_FILE_NAME, store)
    if file >= 0:
        os.close(file)
    return found


def read(data: bytes, store: str) -> tuple[list[Append], int, int]:
    """Returns the valid appends of a log, the offset after the last, and their round.

    Some of them may be in the environment already.
    """
    view, seed = memoryview(data), crc32c(store.encode())
    found: list[Append] = []
    end = round = 0
    while len(data) >= end + _HEAD:
        entry = _ENTRY.unpack_from(data, end + _SUM.size)
        _, size, topic, first, count, timestamp, sequence, first_outstanding, name = entry
        begin = end + _HEAD + name
        whole = view[end + _SUM.size : begin + size]
        if len(whole) < _ENTRY.size + name + size or _SUM.unpack_from(data, end)[0] != crc32c(whole, seed):
            break  # the process died before it had answered
        if found and entry[0] != round:
            break
        write = Append(topic, data[begin : begin + size], count, data[end + _HEAD : begin], sequence, first_outstanding)
        write.first, write.timestamp = first, timestamp
        found.append(write)
        round, end = entry[0], begin + size
    return found, end, round
