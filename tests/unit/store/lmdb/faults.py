"""Environments of LMDB whose writes fail."""

import errno
import threading

import lmdb


class NoRoom:
    """Whether the commits of an environment find space; it is to be installed with `monkeypatch`."""

    def __init__(self, environment, monkeypatch) -> None:
        self.full = full = threading.Event()
        begin = environment.begin
        error = lmdb.DiskError("mdb_txn_commit: No space left on device")
        error.code = errno.ENOSPC

        class Transaction:
            def __init__(self) -> None:
                self._real = begin()
                self._grows = False

            def __getattr__(self, name: str):
                return getattr(self._real, name)

            def put(self, key, value):
                self._grows = self._grows or key[:1] == b"b"
                return self._real.put(key, value)

            def commit(self) -> None:
                if full.is_set() and self._grows:
                    raise error
                self._real.commit()

        monkeypatch.setattr(environment, "begin", Transaction)


class Failing:
    """A transaction whose commit fails, the first time."""

    def __init__(self, real, error: Exception, armed: list[bool]) -> None:
        self._real = real
        self._error = error
        self._armed = armed

    def __getattr__(self, name: str):
        return getattr(self._real, name)

    def commit(self) -> None:
        if not self._armed:
            self._real.commit()
            return
        self._armed.clear()
        self._real.abort()
        raise self._error
