"""Syncs an environment at least once a second, which bounds the loss at a power failure.

Without sync, LMDB guarantees nothing after a power loss, as pages may have reached the disk in any order. So the
flusher preserves the state of the last complete sync. A read transaction, the pin, keeps LMDB from reusing its pages.
Its meta page is written to a separate file (`synced`) and synced after the pages are. After a power loss, opening
the store restores that meta page, and with it the environment as it was at that sync.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import lmdb

from omq._core.blocks import crc32c
from omq.store.errors import DamagedError, StoreError
from omq.store.lmdb.data_file import (
    DATA_FILE,
    META,
    META_BYTES,
    PAGE_HEADER,
    UNSYNCED,
    Meta,
    check_structure,
    parse_meta,
    read_meta,
)
from omq.store.lmdb.environment import NO_SPACE, Environment
from omq.store.lmdb.store_directory import sync_directory
from omq.store.lmdb.writer import Latency
from omq.unpatched import threading

log = logging.getLogger("omq.store")

SLOT_BYTES: Final = 4096  # the size of each of the two slots of `synced`
ROW: Final = struct.Struct(f">QI{META_BYTES}s")  # transaction, checksum, meta page
EXPIRY_INTERVAL_S: Final = 3600.0
TICK_INTERVAL_S: Final = 1.0
#: Commits after which a sync does not wait for its interval. The pin holds the pages that commits free, about five for
#: a small one. LMDB reads and writes the list of these with each commit, and large values find no room between them.
MAX_UNSYNCED_COMMITS: Final = 2000


class Flusher:
    """Syncs an environment periodically in a background thread.

    Args:
        directory: The directory of the environment: `weak`, or `strong` of a replica.
        interval: The seconds between two syncs.
        tick: Called in the thread every second, with true once an hour.
        failed: Called with the error of a failed sync. No sync follows it.
    """

    def __init__(
        self, directory: Path, interval: float, tick: Callable[[bool], None], failed: Callable[[BaseException], None]
    ) -> None:
        self.directory = directory
        self.path = directory / "synced"
        self._data = directory / DATA_FILE
        self._interval = interval
        self._tick = tick
        self._failed = failed
        self._broken = False
        self._wake = threading.Event()
        self._ended = False
        self._commits = 0  # since the last sync began
        self._environment: Environment | None = None
        self._latency = Latency()
        self._catch_up: Callable[[], None] = lambda: None
        self._lock = threading.RLock()
        self._pin: Any = None
        self._synced = -1  # the number of the last synced transaction
        self._thread = threading.Thread(target=self._run, name="omq-store-flush", daemon=True)

    def start(self, environment: Environment, latency: Latency, catch_up: Callable[[], None]) -> None:
        """Syncs once and starts the thread.

        Args:
            environment: The environment to sync.
            latency: The histogram to which syncs are added.
            catch_up: Called before a sync, to apply the write-ahead log.
        """
        self._environment = environment
        self._latency = latency
        self._catch_up = catch_up
        environment.unpinned = self._unpinned
        if self.is_ahead():
            self.path.unlink()  # it belongs to another data file, or to a state that is lost
        self.flush()
        self._thread.start()

    def is_ahead(self) -> bool:
        """Returns whether the last synced state is newer than the data file."""
        kept, _ = self._last_meta()
        now = read_meta(self._data)
        return kept is not None and now is not None and kept.transaction > now.transaction

    def stop(self) -> None:
        """Ends the thread."""
        self._ended = True
        self._wake.set()
        self._thread.join()

    def committed(self) -> None:
        """Counts a commit; the writer calls it."""
        self._commits += 1
        if self._commits == MAX_UNSYNCED_COMMITS:
            self._wake.set()

    def finish(self) -> bool:
        """Syncs once more after the last write; returns whether everything is on the disk."""
        self.flush()
        self._release()
        return not self._broken

    def _run(self) -> None:
        flushed = ticked = expired = time.monotonic()
        while True:
            self._wake.wait(max(0.0, min(flushed + self._interval, ticked + TICK_INTERVAL_S) - time.monotonic()))
            self._wake.clear()
            if self._ended:
                break
            now = time.monotonic()
            if now >= flushed + self._interval or self._commits >= MAX_UNSYNCED_COMMITS:
                self._catch_up()
                self.flush()
                flushed = now
            if now >= ticked + TICK_INTERVAL_S:
                hour = now >= expired + EXPIRY_INTERVAL_S
                self._tick(hour)
                ticked = now
                expired = now if hour else expired

    def flush(self) -> None:
        """Syncs the committed state, unless that is synced already."""
        with self._lock:
            if self._broken or self._environment is None:
                return
            self._commits = 0
            try:
                self._flush(self._environment)
            except lmdb.ReadersFullError as error:
                log.error("%s: the sync will be retried: too many concurrent readers: %s", self._data, error)
            except (lmdb.Error, OSError, StoreError) as error:
                self._broken = True
                log.critical("%s: a sync failed: %s", self._data, error)
                self._failed(error)

    def _flush(self, environment: Environment) -> None:
        pin, meta = environment.pin_state()
        if meta.transaction == self._synced:
            pin.abort()
            return
        try:
            began = time.perf_counter()
            environment.sync()
            self._latency.record(time.perf_counter() - began)
            environment.check_path()
            try:
                self._write_meta(meta)
            except OSError as error:
                if error.errno not in NO_SPACE:
                    raise
                pin.abort()  # the meta page of the previous sync stays valid, as does its pin
                return
        except BaseException:
            pin.abort()
            raise
        if self._pin is not None:
            self._pin.abort()
        self._pin, self._synced = pin, meta.transaction

    def _write_meta(self, meta: Meta) -> None:
        """Writes a meta page durably into the slot that does not hold the previous one."""
        row = ROW.pack(meta.transaction, crc32c(meta.raw, meta.transaction & 0xFFFFFFFF), meta.raw)
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            new = os.fstat(descriptor).st_size == 0
            # The previous one has to stay valid until this one is complete.
            slot = 1 - self._last_meta()[1]
            if new:
                os.posix_fallocate(descriptor, 0, 2 * SLOT_BYTES)
            os.pwrite(descriptor, row.ljust(SLOT_BYTES, b"\0"), SLOT_BYTES * slot)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if new:
            sync_directory(self.path.parent)

    def _last_meta(self) -> tuple[Meta | None, int]:
        """Returns the meta page of the last sync and the index of its slot; `None` and 1 if there was no sync."""
        found: list[tuple[Meta, int]] = []
        try:
            data = self.path.read_bytes()
        except OSError:
            data = b""
        for offset in (0, SLOT_BYTES):
            row = data[offset : offset + ROW.size]
            if len(row) == ROW.size:
                transaction, checksum, raw = ROW.unpack(row)
                meta = parse_meta(raw)
                if meta is not None and crc32c(raw, transaction & 0xFFFFFFFF) == checksum:
                    found.append((meta, offset // SLOT_BYTES))
        return max(found, key=lambda one: one[0].transaction, default=(None, 1))

    def restore(self) -> list[str]:
        """Restores the last synced state after a loss of power; returns the findings to report."""
        if not self._data.exists():
            return []
        meta, _ = self._last_meta()
        if meta is None:
            try:
                check_structure(self.directory)
            except DamagedError:
                aside = self._data.with_name(UNSYNCED)
                self._data.replace(aside)
                return [
                    f"{self.directory}: the power was lost before the first sync: it starts over, and the damaged file "
                    f"is {aside}"
                ]
            return []
        restore_meta(self._data, meta)
        return [f"{self.directory}: the power was lost: it has the state of the last sync"]

    @contextlib.contextmanager
    def _unpinned(self, last: bool) -> Iterator[None]:
        """Blocks syncs and releases the pin (an open read transaction) while the map is replaced.

        Args:
            last: No commit follows. Otherwise what is committed is synced, and pinned again afterwards.

        Raises:
            OSError: It cannot be synced.
        """
        with self._lock:
            if last:
                self._release()
                yield
                return
            environment = self._environment
            assert environment is not None
            self.flush()
            if self._synced != environment.last_transaction():
                raise OSError(errno.EIO, "the last commits cannot be synced")
            self._release()
            try:
                yield
            finally:
                self._pin = environment.pin()

    def _release(self) -> None:
        if self._pin is not None:
            self._pin.abort()
            self._pin = None


def restore_meta(path: Path, meta: Meta) -> None:
    """Writes a meta page to a data file, as the one that LMDB will use."""
    header = PAGE_HEADER.size
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        for back in (0, 1):
            # The other page has to be valid and older. It gets the same state with the number before.
            transaction = max(meta.transaction - back, 0)
            number = (meta.transaction ^ back) & 1
            fields = list(META.unpack(meta.raw[header:]))
            fields[-1] = transaction
            page = PAGE_HEADER.pack(number, *PAGE_HEADER.unpack(meta.raw[:header])[1:]) + META.pack(*fields)
            os.pwrite(descriptor, page, number * meta.page_size)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
