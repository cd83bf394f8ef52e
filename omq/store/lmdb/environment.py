"""An LMDB environment: its checks at opening, reads while its map may grow, and its sizes."""

from __future__ import annotations

import contextlib
import errno
import functools
import gc
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

import lmdb

from omq.store.errors import StoreClosed, StoreError
from omq.store.lmdb.data_file import Meta, complete, look, metas_of
from omq.store.lmdb.store_directory import check_place, sync_directory
from omq.unpatched import threading

MAX_MAP_BYTES: Final = 1 << 40  # of address space
MIN_MAP_BYTES: Final = 1 << 24
MAX_READERS: Final = 256
LOCK_TABLE_BYTES: Final = 64 * (MAX_READERS + 4)
RESERVE_BYTES: Final = 128 * 1024
#: Bytes of the data file that messages leave free where it cannot grow any more, for what makes room: this, or, if that
#: is less, such a part of the file.
MAX_HEADROOM_BYTES: Final = 2 * RESERVE_BYTES
HEADROOM_DIVISOR: Final = 16
COMPACT_BYTES: Final = 1 << 20  # of small messages that take twice as much, at worst; large ones do not
MAX_KEPT_BYTES: Final = (32 << 20) - (64 << 10)  # glibc goes up to 32 MiB
#: The system's errors where there is no space.
NO_SPACE: Final = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file may not become larger",
}
NEARLY_FULL_BYTES: Final = 64 * 1024


@functools.cache
def keep_freed_memory() -> None:
    """Has the C library keep what transactions free for the next ones.

    It gives large pieces back to the system at once and takes them again, every page with a fault, which costs twice as
    much as all the rest of a commit. Once a piece of this size was freed, it keeps up to twice as much.
    """
    bytearray(MAX_KEPT_BYTES)


class Environment:
    """One environment, with one writer thread and many readers.

    Args:
        directory: Its own; made where it is missing.
        sync: Each commit waits for the disk.
        readonly: Changes nothing, and assumes that no other process does.

    Raises:
        DamagedError: The data file cannot be mapped.
    """

    def __init__(self, directory: Path, *, sync: bool, readonly: bool = False) -> None:
        self.directory = directory
        self.path = directory / "data.mdb"
        if not readonly:
            directory.mkdir(exist_ok=True)
        look(self.path)
        self._sync = sync
        self._gate = threading.Condition(threading.Lock())
        self._readers = 0
        self._readonly = readonly
        self._shut: str | None = None  # why reads are refused now: the map is changing, or the environment closed
        #: While the map changes no pin may be held; true: what is committed stays as it is.
        self.unpinned: Callable[[bool], AbstractContextManager[None]] = lambda kept: nullcontext()
        new = not self.path.exists()
        if not readonly:
            self._allocate_lock_table()
        self._lmdb: Any = self._open()
        #: Kept from the beginning: a sync reports an earlier failure once to each descriptor.
        self._descriptor = os.open(self.path, (os.O_RDONLY if readonly else os.O_RDWR) | os.O_CLOEXEC)
        self._link = f"/proc/self/fd/{self._descriptor}"
        self._name = self._linked()
        if readonly:
            return
        keep_freed_memory()
        self.take_reserve()
        if new:
            # What is synced later is worth nothing under a name that is not.
            self.sync()
            sync_directory(directory)
            sync_directory(directory.parent)

    def _open(self) -> Any:
        """Opens it with the largest map that the system gives."""
        if self._readonly:
            return lmdb.open(str(self.directory), readonly=True, lock=False, create=False)
        size = MAX_MAP_BYTES
        while True:
            try:
                # Readahead would read in what a replay of something else needs.
                return lmdb.open(
                    str(self.directory),
                    map_size=size,
                    subdir=True,
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
                raise StoreError(f"{self.directory}: the system gives no address space to map the store") from None

    def _allocate_lock_table(self) -> None:
        """Gives the table of readers its space now: it is mapped, and on a full disk taking a slot would crash."""
        with contextlib.suppress(OSError), (self.directory / "lock.mdb").open("ab") as file:
            os.posix_fallocate(file.fileno(), 0, LOCK_TABLE_BYTES)

    def take_reserve(self) -> bool:
        """Sets some space aside for a full disk: forgetting messages takes some as well.

        Returns:
            Whether it is there.
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
            self.give_reserve()
            return False
        return True

    def give_reserve(self) -> None:
        """Gives back the reserve, because the disk has no space."""
        with contextlib.suppress(OSError):
            (self.directory / "reserve").unlink()

    def is_full(self) -> bool:
        """Returns whether a write that failed like a disk error failed for want of space."""
        # LMDB returns EIO for a write that ends too early, as the last one does on a full disk.
        try:
            if self._has_space() and self._may_grow(NEARLY_FULL_BYTES):
                return False
            os.fsync(self._descriptor)
        except OSError:
            return False
        return True

    def shortage(self) -> str:
        """Returns what was exhausted when a write ended too early."""
        return "a disk quota or a limit of the process is reached" if self._has_space() else NO_SPACE[errno.ENOSPC]

    def _has_space(self) -> bool:
        """Returns whether the disk has some space, though perhaps not for this process."""
        disk = os.statvfs(self.directory)
        return disk.f_bavail * disk.f_frsize >= NEARLY_FULL_BYTES

    def has_room(self, size: int) -> bool:
        """Returns whether there is room for `size` bytes and the reserve. The writer calls it between two writes."""
        return self.take_reserve() and self._may_grow(size)

    def need(self, size: int) -> int:
        """Returns the bytes for messages of `size` bytes, and for the deletions that later make room."""
        return (
            size
            + min(size, COMPACT_BYTES)
            + min(MAX_HEADROOM_BYTES, max(RESERVE_BYTES, os.fstat(self._descriptor).st_size // HEADROOM_DIVISOR))
        )

    def nears_limit(self, size: int) -> bool:
        """Returns whether messages of `size` bytes come near a limit of the process, where a reserve does not help."""
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        return limit != resource.RLIM_INFINITY and os.fstat(self._descriptor).st_size + self.need(size) > limit

    def spare(self) -> int:
        """Returns the bytes of the data file that are free; a reader, or the last sync, may hold some yet."""
        meta = max((meta for meta in self.metas() if meta is not None), key=lambda meta: meta.transaction)
        file = os.fstat(
            self._descriptor
        )  # a transaction that failed may have made it longer than any that is committed
        return min(file.st_size, file.st_blocks * 512) - meta.used * meta.page_size

    def _may_grow(self, by: int) -> bool:
        """Returns whether the data file may grow: a quota or a limit of the process may end before the disk is full."""
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

    def check_place(self) -> None:
        """Raises `OSError` where the data file was moved, removed or replaced: what is written there would be lost."""
        check_place(self.path, self._descriptor)

    def look_at_place(self) -> None:
        """The same, cheaply: it only looks further where the kernel calls the file by another name than before."""
        name = self._linked()
        if not name or name != self._name:
            self.check_place()
            self._name = name

    def _linked(self) -> str:
        try:
            return os.readlink(self._link)
        except OSError:
            return ""

    def metas(self) -> list[Meta | None]:
        """The meta pages of the file that is open, whatever its path leads to now."""
        return metas_of(self._descriptor)

    def begin(self) -> Any:
        """A write transaction. Values are views."""
        return self._lmdb.begin(write=True, buffers=True)

    @contextmanager
    def read(self) -> Iterator[Any]:
        """A read transaction. Values are views that hold until its end."""
        transaction = self.begin_read()
        try:
            yield transaction
        finally:
            self.end_read(transaction)

    def begin_read(self) -> Any:
        """The same, to be ended with `end_read`."""
        with self._gate:
            while self._shut == "growing":
                self._gate.wait()
            if self._shut is not None:
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
        self._read_on()
        return self.begin_read()

    def pin(self) -> Any:
        """A read transaction that nothing waits for; `unpin` is called when it has to be given back."""
        with self._gate:
            while self._shut == "growing":
                self._gate.wait()
            if self._shut is not None:
                raise StoreClosed("the store is closed")
            return self._begin_read()

    def _begin_read(self, buffers: bool = False) -> Any:
        try:
            return self._lmdb.begin(buffers=buffers)
        except lmdb.ReadersFullError:
            # One that is over keeps its place among the readers until its object goes, which may lie in a circle.
            gc.collect()
            return self._lmdb.begin(buffers=buffers)

    def end_read(self, transaction: Any) -> None:
        """Ends a read transaction."""
        transaction.abort()
        self._leave()

    def _leave(self) -> None:
        with self._gate:
            self._readers -= 1
            if self._shut is not None and not self._readers:
                self._gate.notify_all()

    def grow(self) -> None:
        """Doubles the map; waits until all reads have ended."""
        with self.unpinned(False), self._alone():
            self._lmdb.set_mapsize(2 * self._lmdb.info()["map_size"])

    def _read_on(self) -> None:
        """Opens LMDB again for reading only: after a failed write of its meta page it refuses everything else."""
        with self.unpinned(True), self._alone():
            if not self._readonly:
                self._still_there()
                self._lmdb.close()
                self._readonly = True
                self._lmdb = self._open()

    def _still_there(self) -> None:
        try:
            self.check_place()
        except OSError as error:
            raise StoreError(str(error)) from None

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Waits until all reads have ended; new ones wait then."""
        with self._gate:
            while self._shut == "growing":
                self._gate.wait()
            if self._shut is not None:
                raise StoreClosed("the store is closed")
            self._shut = "growing"
            while self._readers:
                self._gate.wait()
            try:
                yield
            finally:
                self._shut = None
                self._gate.notify_all()

    def sync(self) -> None:
        """Waits until all that is committed is on the disk."""
        if self._readonly:
            raise OSError(errno.EIO, "a write failed before")
        self._lmdb.sync(True)

    def sizes(self) -> tuple[int, int]:
        """Returns the bytes of the file, and those of it in use."""
        with self._gate:
            if self._shut is not None:
                return 0, 0
            page = self._lmdb.stat()["psize"]
            used = (self._lmdb.info()["last_pgno"] + 1) * page
            return os.fstat(self._descriptor).st_size, used

    def close(self, timeout: float = 10.0) -> bool:
        """Closes it once all reads have ended; returns false, and leaves it open, if some have not at the timeout."""
        with self._gate:
            self._shut = "closed"
            if not self._gate.wait_for(lambda: not self._readers, timeout):
                return False
        self._lmdb.close()
        if not self._readonly:
            with contextlib.suppress(OSError, ValueError):
                complete(self._descriptor)
        os.close(self._descriptor)
        return True
