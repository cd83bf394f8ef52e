"""A floor: the same bytes to one bare file; with `sync`, an fdatasync for each window of them."""

from __future__ import annotations

import os

from bench.broker.drivers import ClientJob

CHUNK_BYTES = 1 << 20


class Client:
    """Writes and reads a file."""

    def __init__(self, job: ClientJob) -> None:
        self._size, self._depth, self._sync = job.size, job.depth, "sync" in job.options
        self._path = os.path.join(job.directory, "floor")
        self._file = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_APPEND, 0o600)
        self._window = memoryview(job.body() * job.depth)

    def create(self) -> None: ...

    def publish(self, count: int) -> None:
        while count > 0:
            self._write(self._window[: min(count, self._depth) * self._size])
            count -= self._depth

    def trip(self) -> None:
        self._write(self._window[: self._size])

    def _write(self, data: memoryview) -> None:
        assert os.write(self._file, data) == len(data)
        if self._sync:
            os.fdatasync(self._file)

    def arm(self) -> None: ...

    def consume(self, count: int) -> None:
        self.replay(count)

    def replay(self, count: int) -> None:
        left, room = count * self._size, bytearray(CHUNK_BYTES)
        os.lseek(self._file, 0, os.SEEK_SET)
        while left > 0:
            got = os.readv(self._file, [room])
            assert got, "the file has fewer"
            left -= got
