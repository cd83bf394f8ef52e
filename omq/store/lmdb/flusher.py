"""Syncs the weak environment every second or sooner, so that not more than that is lost with the power.

LMDB without sync promises nothing after a loss of power: pages may have reached the disk in any order. So the last
state that was synced as a whole is kept: a read transaction holds its pages, which are not used again meanwhile, and
its meta page is kept in a file of its own (`weak/synced`), which is written and synced after the pages are. Who opens
the store after a loss of power puts that meta page back, and finds the environment as it was.
"""

from __future__ import annotations

import contextlib
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
from omq.store.lmdb.data_file import META, META_BYTES, PAGE_HEADER, UNSYNCED, Meta, check_structure, look, parse_meta
from omq.store.lmdb.environment import NO_SPACE, Environment
from omq.store.lmdb.store_directory import sync_directory
from omq.store.lmdb.writer import Latency
from omq.unpatched import threading

log = logging.getLogger("omq.store")

SLOT_BYTES: Final = 4096  # of each of the two slots in the file
ROW: Final = struct.Struct(f">QI{META_BYTES}s")  # transaction, checksum, meta page
CLEAN_INTERVAL_S: Final = 3600.0
TICK_INTERVAL_S: Final = 1.0
#: Commits after which it does not wait for its time: pages that they have freed are held meanwhile, LMDB's list of them
#: is read and written with each commit, and large values find no room between them. A small commit frees five or so.
MAX_UNSYNCED_COMMITS: Final = 2000
MAX_TRIES: Final = 1000  # more failures than chance meetings with the writer explain


class Flusher:
    """Syncs an environment from time to time, in a thread of its own.

    Args:
        directory: Of the environment.
        interval: Seconds.
        tick: Is called every second, with true every hour, in this thread.
        failed: Called with the error of a failed sync; none follows it.
    """

    def __init__(
        self, directory: Path, interval: float, tick: Callable[[bool], None], failed: Callable[[BaseException], None]
    ) -> None:
        self.path = directory / "synced"
        self._data = directory / "data.mdb"
        self._interval = interval
        self._tick = tick
        self._failed = failed
        self._broken = False
        self._call = threading.Event()  # not to wait any longer
        self._ended = False
        self._commits = 0  # since the last sync began
        self._environment: Environment | None = None
        self._latency = Latency()
        self._catch_up: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        self._pin: Any = None
        self._synced = -1  # the transaction that is
        self._thread = threading.Thread(target=self._run, name="omq-store-flush", daemon=True)

    def start(self, environment: Environment, latency: Latency, catch_up: Callable[[], None]) -> None:
        """Begins, with a first sync.

        Args:
            environment: What it syncs.
            latency: Of these syncs.
            catch_up: Writes what is acknowledged and not yet in the environment.
        """
        self._environment = environment
        self._latency = latency
        self._catch_up = catch_up
        environment.unpinned = self._unpinned
        if self.is_ahead():
            self.path.unlink()  # it was of another file, or of a state that is lost
        self.flush()
        self._thread.start()

    def is_ahead(self) -> bool:
        """Returns whether a later state was synced than the data file has."""
        kept, _ = self._kept()
        now = look(self._data)
        return kept is not None and now is not None and kept.transaction > now.transaction

    def stop(self) -> None:
        """Ends the thread."""
        self._ended = True
        self._call.set()
        self._thread.join()

    def committed(self) -> None:
        """Counts a commit; the writer calls it."""
        self._commits += 1
        if self._commits == MAX_UNSYNCED_COMMITS:
            self._call.set()

    def finish(self) -> bool:
        """Syncs once more after the last write; returns whether all is on the disk."""
        self.flush()
        self._release()
        return not self._broken

    def _run(self) -> None:
        flushed = ticked = cleaned = time.monotonic()
        while True:
            self._call.wait(max(0.0, min(flushed + self._interval, ticked + TICK_INTERVAL_S) - time.monotonic()))
            self._call.clear()
            if self._ended:
                break
            now = time.monotonic()
            if now >= flushed + self._interval or self._commits >= MAX_UNSYNCED_COMMITS:
                self._catch_up()
                self.flush()
                flushed = now
            if now >= ticked + TICK_INTERVAL_S:
                hour = now >= cleaned + CLEAN_INTERVAL_S
                self._tick(hour)
                ticked = now
                cleaned = now if hour else cleaned

    def flush(self) -> None:
        """Syncs what is committed now, if it is not."""
        with self._lock:
            if self._broken or self._environment is None:
                return
            self._commits = 0
            try:
                self._flush(self._environment)
            except lmdb.ReadersFullError as error:
                log.error("%s: not synced, which is tried again: too many read at once: %s", self._data, error)
            except (lmdb.Error, OSError, StoreError) as error:
                self._broken = True
                log.critical("%s: a sync failed: %s", self._data, error)
                self._failed(error)

    def _flush(self, environment: Environment) -> None:
        pin, meta = self._snapshot(environment)
        if meta.transaction == self._synced:
            pin.abort()
            return
        try:
            began = time.perf_counter()
            environment.sync()
            self._latency.note(time.perf_counter() - began)
            environment.check_place()
            try:
                self._keep(meta)
            except OSError as error:
                if error.errno not in NO_SPACE:
                    raise
                pin.abort()  # the last one that was kept holds
                return
        except BaseException:
            pin.abort()
            raise
        if self._pin is not None:
            self._pin.abort()
        self._pin, self._synced = pin, meta.transaction

    @staticmethod
    def _snapshot(environment: Environment) -> tuple[Any, Meta]:
        """A read transaction, and the meta page that it began with."""
        for _ in range(MAX_TRIES):
            pin = environment.pin()
            # The writer may have gone on, and be about to write this very page: then it reads differently.
            for meta in environment.metas():
                if meta is not None and meta.transaction == pin.id():
                    if meta in environment.metas():
                        return pin, meta
                    break
            pin.abort()
        raise StoreError(f"{environment.path}: its meta pages are not those that LMDB reads")

    def _keep(self, meta: Meta) -> None:
        """Makes a meta page durable, next to the one before."""
        row = ROW.pack(meta.transaction, crc32c(meta.raw, meta.transaction & 0xFFFFFFFF), meta.raw)
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            new = os.fstat(descriptor).st_size == 0
            # Not where the last one stands, which holds until this one is whole.
            slot = 1 - self._kept()[1]
            if new:
                os.posix_fallocate(descriptor, 0, 2 * SLOT_BYTES)
            os.pwrite(descriptor, row.ljust(SLOT_BYTES, b"\0"), SLOT_BYTES * slot)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if new:
            sync_directory(self.path.parent)

    def _kept(self) -> tuple[Meta | None, int]:
        """The last meta page that was kept, and in which place."""
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
        meta, _ = self._kept()
        if meta is None:
            try:
                check_structure(self._data.parent)
            except DamagedError:
                aside = self._data.with_name(UNSYNCED)
                self._data.replace(aside)
                return [f"weak and async topics: the power was lost before the first sync; they start over ({aside})"]
            return []
        put_back(self._data, meta)
        return ["weak and async topics: the power was lost; they are as at the last sync"]

    @contextlib.contextmanager
    def _unpinned(self, kept: bool) -> Iterator[None]:
        """Unpins and holds back flushes while the map is replaced, which no transaction outlives."""
        with self._lock:
            if self._pin is not None and not kept:
                with contextlib.suppress(OSError):
                    if self._environment is not None:
                        self._environment.check_place()
                    self.path.unlink()
                    sync_directory(self.path.parent)
                self._synced = -1
            self._release()
            yield

    def _release(self) -> None:
        if self._pin is not None:
            self._pin.abort()
            self._pin = None


def put_back(path: Path, meta: Meta) -> None:
    """Makes a meta page the one that LMDB takes."""
    header = PAGE_HEADER.size
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        for back in (0, 1):
            # The other page has to be a good one as well, and an older one; the same state serves.
            transaction = max(meta.transaction - back, 0)
            number = (meta.transaction ^ back) & 1
            fields = list(META.unpack(meta.raw[header:]))
            fields[-1] = transaction
            page = PAGE_HEADER.pack(number, *PAGE_HEADER.unpack(meta.raw[:header])[1:]) + META.pack(*fields)
            os.pwrite(descriptor, page, number * meta.page_size)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
