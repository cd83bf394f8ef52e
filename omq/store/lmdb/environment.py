"""An LMDB environment: checks at opening, reads while the map may grow, and disk space."""

from __future__ import annotations

import contextlib
import errno
import functools
import gc
import logging
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

import lmdb

from omq.store.errors import OutOfSpace, StoreClosed, StoreError
from omq.store.lmdb.data_file import DATA_FILE, Meta, extend_to_last_page, metas_of, read_meta
from omq.store.lmdb.store_directory import NEW_STORE_BYTES, check_path, check_space, sync_directory
from omq.unpatched import threading

log = logging.getLogger("omq.store")

MAX_MAP_BYTES: Final = 1 << 40  # of address space
MIN_MAP_BYTES: Final = 1 << 24
MAX_READERS: Final = 256
LOCK_TABLE_BYTES: Final = 64 * (MAX_READERS + 4)
RESERVE_BYTES: Final = 128 * 1024
#: Bytes of a data file that cannot grow which messages leave free, as deletions need space too: this many, or the size
#: of the file divided by `HEADROOM_DIVISOR` if that is less.
MAX_HEADROOM_BYTES: Final = 2 * RESERVE_BYTES
HEADROOM_DIVISOR: Final = 16
COMPACT_BYTES: Final = 1 << 20  # small messages take up to twice their size; only this much of a group may be small
MAX_KEPT_BYTES: Final = (32 << 20) - (64 << 10)  # glibc raises its mmap threshold up to 32 MiB
#: Errors of the system for want of space, and their texts.
NO_SPACE: Final = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file may not become larger",
}
NEARLY_FULL_BYTES: Final = 64 * 1024
MAX_PIN_TRIES: Final = 1000  # more than races with the writer can explain


@functools.cache
def keep_freed_memory() -> None:
    """Makes the C library keep the memory that transactions free.

    By default it returns large allocations to the system at once. The page faults of the next allocation then cost
    twice as much as the rest of a commit. Once an allocation of this size was freed, glibc raises its threshold and
    keeps up to twice as much.
    """
    bytearray(MAX_KEPT_BYTES)


class Environment:
    """One environment, with one writer thread and many readers.

    Args:
        directory: The directory of the environment; created if it is missing.
        sync: Each commit waits for the disk.
        readonly: Changes nothing, and assumes that no other process does.
        shared: With `readonly`: another process may have it open and write it. Reads take a slot of its reader table.

    Raises:
        DamagedError: The data file cannot be mapped.
        OutOfSpace: The disk has no room for the files of a new environment, or for a reader table.
    """

    def __init__(self, directory: Path, *, sync: bool, readonly: bool = False, shared: bool = False) -> None:
        self.directory = directory
        self.path = directory / DATA_FILE
        new = not self.path.exists()
        if not readonly:
            if new:
                check_space(directory.parent, NEW_STORE_BYTES // 2, f"the new files of {directory.name!r} need")
            directory.mkdir(exist_ok=True)
        if not shared:  # the file of a live environment may lack unused pages at its end
            read_meta(self.path)
        self._sync = sync
        self._shared = shared
        self._gate = threading.Condition(threading.Lock())
        self._readers = 0
        self._readonly = readonly
        self._closing: str | None = None  # "growing" while the map changes, "closed" after `close`
        #: A context in which no pin is held, as the map changes. Its argument: no commit follows.
        self.unpinned: Callable[[bool], AbstractContextManager[None]] = lambda last: nullcontext()
        if shared or not readonly:
            self._allocate_lock_table()
        self._lmdb: Any = self._open()
        #: Open from the start, as the kernel reports a failed write-back once to each descriptor.
        self._descriptor = os.open(self.path, (os.O_RDONLY if readonly else os.O_RDWR) | os.O_CLOEXEC)
        self._link = f"/proc/self/fd/{self._descriptor}"
        self._name = self._linked()
        if readonly:
            return
        # If a snapshot has the environment open, LMDB keeps the lock table of a killed process. A write transaction
        # corrects its transaction number, which may be one too low, and then readers would get an older state.
        self._lmdb.begin(write=True).abort()
        self.clear_stale_readers()
        keep_freed_memory()
        self.allocate_reserve()
        if new:
            # Later syncs are useless unless the names of the files are durable.
            self.sync()
            sync_directory(directory)
            sync_directory(directory.parent)

    def _open(self) -> Any:
        """Opens LMDB with the largest map that the system allows."""
        if self._readonly and not self._shared:
            return lmdb.open(str(self.directory), readonly=True, lock=False, create=False)
        size = MAX_MAP_BYTES
        while True:
            try:
                # Readahead stays on: it also loads pages that replays of other topics need.
                return lmdb.open(
                    str(self.directory),
                    map_size=size,
                    subdir=True,
                    readonly=self._shared,
                    create=not self._shared,
                    sync=self._sync,
                    max_readers=MAX_READERS,
                    max_spare_txns=1,
                )
            except (lmdb.MemoryError, MemoryError):
                pass
            except lmdb.Error as error:
                if getattr(error, "code", 0) not in (errno.ENOMEM, errno.EINVAL):
                    raise
            size //= 4
            if size < MIN_MAP_BYTES:
                raise StoreError(
                    f"{self.directory}: the store needs {MIN_MAP_BYTES >> 20} MiB of address space, and the system "
                    "refuses it; raise the limit (ulimit -v)"
                ) from None

    def _allocate_lock_table(self) -> None:
        """Allocates the reader table: it is mapped, so that taking a slot on a full disk would crash the process."""
        path = self.directory / "lock.mdb"
        try:
            with path.open("ab") as file:
                os.posix_fallocate(file.fileno(), 0, LOCK_TABLE_BYTES)
        except OSError as error:
            if error.errno in NO_SPACE:
                raise OutOfSpace(f"{NO_SPACE[error.errno]}: {path}, which needs {LOCK_TABLE_BYTES} bytes") from None

    def allocate_reserve(self) -> bool:
        """Reserves space for a full disk, where deleting messages needs space too.

        Returns:
            Whether the reserve is allocated.
        """
        path = self.directory / "reserve"
        try:
            if path.stat().st_size == RESERVE_BYTES:
                return True
        except OSError:
            pass
        try:
            with path.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, RESERVE_BYTES)
        except OSError:
            self.release_reserve()
            return False
        return True

    def release_reserve(self) -> None:
        """Frees the reserve, because the disk is full."""
        with contextlib.suppress(OSError):
            (self.directory / "reserve").unlink()

    def is_full(self) -> bool:
        """Returns whether a write that failed with EIO failed for want of space."""
        # LMDB returns EIO for a short write, which is the first symptom of a full disk.
        try:
            if self._has_space() and self._may_grow(NEARLY_FULL_BYTES):
                return False
            os.fsync(self._descriptor)
        except OSError:
            return False
        return True

    def shortage(self) -> str:
        """Returns a text for the resource that was exhausted at a short write."""
        return "a disk quota or a limit of the process is reached" if self._has_space() else NO_SPACE[errno.ENOSPC]

    def _has_space(self) -> bool:
        """Returns whether the disk has some space, though perhaps not for this process."""
        disk = os.statvfs(self.directory)
        return disk.f_bavail * disk.f_frsize >= NEARLY_FULL_BYTES

    def has_room(self, size: int) -> bool:
        """Returns whether there is space for `size` bytes and the reserve. Only the writer may call it."""
        return self.allocate_reserve() and self._may_grow(size)

    def required_bytes(self, size: int) -> int:
        """Returns the bytes that messages of `size` bytes and the deletions after them need."""
        return (
            size
            + min(size, COMPACT_BYTES)
            + min(MAX_HEADROOM_BYTES, max(RESERVE_BYTES, os.fstat(self._descriptor).st_size // HEADROOM_DIVISOR))
        )

    def nears_limit(self, size: int) -> bool:
        """Returns whether messages of `size` bytes come near the process's file size limit, where no reserve helps."""
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        if limit == resource.RLIM_INFINITY:
            return False
        return os.fstat(self._descriptor).st_size + self.required_bytes(size) > limit

    def free_bytes(self) -> int:
        """Returns the free bytes of the data file. A reader or the pin of the last sync may still hold some."""
        # A failed transaction may have made the file longer than any committed one.
        file = os.fstat(self._descriptor)
        return min(file.st_size, file.st_blocks * 512) - self._last_meta().used_bytes

    def _may_grow(self, by: int) -> bool:
        """Returns whether the data file can grow; a quota or a process limit may end that before the disk is full."""
        size = os.fstat(self._descriptor).st_size
        try:
            os.posix_fallocate(self._descriptor, size, by)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            return False
        finally:
            os.ftruncate(self._descriptor, size)
        return True

    def check_path(self) -> None:
        """Raises `OSError` if the data file was moved, removed or replaced, as writes to it would be lost."""
        check_path(self.path, self._descriptor)

    def check_path_cheaply(self) -> None:
        """Does the same at a lower cost: calls `check_path` only if the kernel's name of the file has changed."""
        name = self._linked()
        if not name or name != self._name:
            self.check_path()
            self._name = name

    def _linked(self) -> str:
        try:
            return os.readlink(self._link)
        except OSError:
            return ""

    def read_bytes(self, size: int, offset: int) -> bytes:
        """Returns bytes of the data file: at most `size`, and fewer at its end."""
        return os.pread(self._descriptor, size, offset)

    def copy_compacted(self, directory: Path) -> None:
        """Copies the environment to an empty directory, without free pages."""
        self._lmdb.copy(str(directory), compact=True)

    def entries(self) -> int:
        """Returns the number of rows."""
        return int(self._lmdb.stat()["entries"])

    def metas(self) -> list[Meta | None]:
        """Returns the meta pages of the open file, even if its path leads to another one now."""
        return metas_of(self._descriptor)

    def last_transaction(self) -> int:
        """Returns the number of the last committed transaction."""
        return self._last_meta().transaction

    def _last_meta(self) -> Meta:
        return max((meta for meta in self.metas() if meta is not None), key=lambda meta: meta.transaction)

    def begin(self) -> Any:
        """Begins a write transaction. Values are views."""
        return self._lmdb.begin(write=True, buffers=True)

    @contextmanager
    def read(self) -> Iterator[Any]:
        """Opens a read transaction. Values are views that are valid until its end."""
        transaction = self.begin_read()
        try:
            yield transaction
        finally:
            self.end_read(transaction)

    def begin_read(self) -> Any:
        """Begins a read transaction, which the caller ends with `end_read`. Values are views."""
        with self._gate:
            while self._closing == "growing":
                self._gate.wait()
            if self._closing is not None:
                raise StoreClosed("the store is closed")
            self._readers += 1
        try:
            return self._begin_read(buffers=True)
        except lmdb.PanicError:
            pass
        except BaseException:
            self._leave()
            raise
        self._leave()
        self._reopen_readonly()
        return self.begin_read()

    def pin(self) -> Any:
        """Begins a read transaction that `grow` and `close` do not wait for. Its owner aborts it in `unpinned`."""
        with self._gate:
            while self._closing == "growing":
                self._gate.wait()
            if self._closing is not None:
                raise StoreClosed("the store is closed")
            return self._begin_read()

    def pin_state(self) -> tuple[Any, Meta]:
        """Begins a read transaction as `pin` does; returns it with the meta page that it reads."""
        for _ in range(MAX_PIN_TRIES):
            pin = self.pin()
            # A concurrent commit may be overwriting this page: then a second read differs.
            for meta in self.metas():
                if meta is not None and meta.transaction == pin.id():
                    if meta in self.metas():
                        return pin, meta
                    break
            pin.abort()
        raise StoreError(f"{self.path}: the meta pages of the file differ from those that LMDB has mapped")

    def clear_stale_readers(self) -> None:
        """Frees the slots of processes that were killed while they read: LMDB keeps all pages that these could read."""
        with self._gate:
            if self._closing is None and (cleared := self._lmdb.reader_check()):
                log.info("%s: freed %d reader slots of killed processes", self.directory, cleared)

    def _begin_read(self, buffers: bool = False) -> Any:
        try:
            return self._lmdb.begin(buffers=buffers)
        except lmdb.ReadersFullError:
            # A finished transaction occupies a reader slot until its object is freed, which may be in a cycle.
            gc.collect()
            return self._lmdb.begin(buffers=buffers)

    def end_read(self, transaction: Any) -> None:
        """Ends a read transaction."""
        transaction.abort()
        self._leave()

    def _leave(self) -> None:
        with self._gate:
            self._readers -= 1
            if self._closing is not None and not self._readers:
                self._gate.notify_all()

    def grow(self) -> None:
        """Doubles the map, once all reads have ended."""
        with self.unpinned(False), self._exclusive():
            self._lmdb.set_mapsize(2 * self._lmdb.info()["map_size"])

    def _reopen_readonly(self) -> None:
        """Reopens LMDB read-only: after a failed write of a meta page it refuses everything else."""
        with self.unpinned(True), self._exclusive():
            if not self._readonly:
                self._check_before_reopening()
                self._lmdb.close()
                self._readonly = True
                self._lmdb = self._open()

    def _check_before_reopening(self) -> None:
        try:
            self.check_path()
        except OSError as error:
            raise StoreError(str(error)) from None

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Waits until all reads have ended. New ones wait until the context ends."""
        with self._gate:
            while self._closing == "growing":
                self._gate.wait()
            if self._closing is not None:
                raise StoreClosed("the store is closed")
            self._closing = "growing"
            while self._readers:
                self._gate.wait()
            try:
                yield
            finally:
                self._closing = None
                self._gate.notify_all()

    def sync(self) -> None:
        """Waits until everything committed is on the disk."""
        if self._readonly:
            raise OSError(errno.EIO, "an earlier write failed")
        self._lmdb.sync(True)

    def sizes(self) -> tuple[int, int]:
        """Returns the bytes of the data file, and the bytes of it in use."""
        with self._gate:
            if self._closing is not None:
                return 0, 0
            return os.fstat(self._descriptor).st_size, self._last_meta().used_bytes

    def close(self, timeout: float = 10.0) -> bool:
        """Closes the environment once all reads have ended; returns false and leaves it open after the timeout."""
        with self._gate:
            self._closing = "closed"
            if not self._gate.wait_for(lambda: not self._readers, timeout):
                return False
        self._lmdb.close()
        if not self._readonly:
            with contextlib.suppress(OSError, ValueError):
                extend_to_last_page(self._descriptor)
        os.close(self._descriptor)
        return True
