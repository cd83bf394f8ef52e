"""LMDB environments whose writes fail."""

import errno
import threading
from collections.abc import Callable
from pathlib import Path

import lmdb


class NoRoom:
    """Lets the commits of an environment fail for want of space.

    Args:
        environment: The environment.
        monkeypatch: Puts this in its place.
        every: Not only the commits with blocks fail.

    Attributes:
        full: They find none.
        refused: Called where one finds none, in the thread that writes.
    """

    def __init__(self, environment, monkeypatch, *, every: bool = False) -> None:
        self.full = full = threading.Event()
        self.refused: Callable[[], None] = lambda: None
        room, begin = self, environment.begin
        error = lmdb.DiskError("mdb_txn_commit: No space left on device")
        error.code = errno.ENOSPC

        class Transaction:
            def __init__(self) -> None:
                self._real = begin()
                self._grows = every

            def __getattr__(self, name: str):
                return getattr(self._real, name)

            def put(self, key, value):
                self._grows = self._grows or key[:1] == b"b"
                return self._real.put(key, value)

            def commit(self) -> None:
                if full.is_set() and self._grows:
                    room.refused()
                    raise error
                self._real.commit()

        monkeypatch.setattr(environment, "begin", Transaction)


class Failing:
    """A transaction whose commit may fail.

    Args:
        real: The transaction.
        errors: What the commits of all with this list raise, one by one; `None`: that one succeeds.
    """

    def __init__(self, real, errors: list[Exception | None]) -> None:
        self._real = real
        self._errors = errors

    def __getattr__(self, name: str):
        return getattr(self._real, name)

    def commit(self) -> None:
        error = self._errors.pop(0) if self._errors else None
        if error is not None:
            self._real.abort()
            raise error
        self._real.commit()


class Held:
    """Delays the next transactions of an environment, so that writes gather.

    Args:
        environment: The environment.
        monkeypatch: Puts this in its place.

    Attributes:
        asked: A transaction was to begin.
        go_on: It may.
    """

    def __init__(self, environment, monkeypatch) -> None:
        self.asked, self.go_on = threading.Event(), threading.Event()
        begin = environment.begin

        def held():
            self.asked.set()
            assert self.go_on.wait(20)
            return begin()

        monkeypatch.setattr(environment, "begin", held)


def spoil(directory: Path, key: bytes) -> None:
    """Flips a bit in every copy of a row's value in both data files."""
    found = 0
    for path in directory.glob("*/data.mdb"):
        data = bytearray(path.read_bytes())
        at = data.find(key)
        while at >= 0:
            data[at + len(key) + 3] ^= 1
            found += 1
            at = data.find(key, at + 1)
        path.write_bytes(data)
    assert found
