"""Compaction of a store that no process has open: LMDB reuses free pages, but its files never get smaller."""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import lmdb

from omq.store.errors import DamagedError, OutOfSpace, StoreError, StoreLocked
from omq.store.lmdb.data_file import DATA_FILE, check_structure, checksum, read_meta
from omq.store.lmdb.environment import NO_SPACE, Environment
from omq.store.lmdb.flusher import restore_meta
from omq.store.lmdb.opening import check_presence
from omq.store.lmdb.store_directory import StoreDirectory, check_space, sync_directory

COPY: Final = "compact"  # the directory in that of the store that has the new files until they are complete


class Compacted(NamedTuple):
    """The bytes of a data file before and after a compaction."""

    before: int
    after: int


def compact(directory: str | os.PathLike[str]) -> dict[str, Compacted]:
    """Replaces the data files of a store by copies without free pages, each in one step.

    After a crash, the store opens with the old or the new file of each environment. Both have the same content.

    Args:
        directory: The directory of a store that was shut down cleanly, or of a snapshot.

    Returns:
        The sizes of the data files by environment.

    Raises:
        StoreLocked: A process has the store open, or takes a snapshot of it.
        StoreError: The store was not shut down cleanly, or is not a store.
        OutOfSpace: The disk has no room for the copies.
        DamagedError: The store is damaged.
    """
    store = StoreDirectory(directory, readonly=True)
    try:
        paths = {name: store.directory / name for name in ("strong", "weak")}
        if not (store.used_before and store.clean_shutdown):
            raise StoreError(f"{store.directory}: it was not shut down cleanly: start its program, stop it, and repeat")
        check_presence(*paths.values())
        with ExitStack() as stack:
            for path in paths.values():
                stack.enter_context(_exclusive(path))
            return _compact(store, paths)
    finally:
        store.release()


def _compact(store: StoreDirectory, paths: dict[str, Path]) -> dict[str, Compacted]:
    copies = store.directory / COPY
    shutil.rmtree(copies, ignore_errors=True)  # of a process that was killed
    try:
        copies.mkdir()
        check_space(copies, sum(map(_used_bytes, paths.values())), "the compacted files need")
        for name, path in paths.items():
            (copies / name).mkdir()
            _copy(path, copies / name)
        # From here on the checksums in `session` do not fit, and `synced` must not be restored into the new file.
        store.set_left(None)
        for path in paths.values():
            (path / "synced").unlink(missing_ok=True)
            sync_directory(path)
        found = {}
        for name, path in paths.items():
            before, after = (path / DATA_FILE).stat().st_size, (copies / name / DATA_FILE).stat().st_size
            found[name] = Compacted(before, after)
            (copies / name / DATA_FILE).replace(path / DATA_FILE)
            sync_directory(path)
        store.set_left({name: checksum(path / DATA_FILE) for name, path in paths.items()})
    except OSError as error:
        if error.errno in NO_SPACE:
            raise OutOfSpace(f"{NO_SPACE[error.errno]}: {copies}; the store is as it was") from None
        raise
    finally:
        shutil.rmtree(copies, ignore_errors=True)
    return found


def _used_bytes(directory: Path) -> int:
    """Returns the bytes of an environment without free pages."""
    meta = read_meta(directory / DATA_FILE)
    return 0 if meta is None else meta.used_bytes


def _copy(source: Path, target: Path) -> None:
    """Copies an environment without free pages, synced, and checks the copy."""
    check_structure(source)  # LMDB would crash on a damaged page
    path = target / DATA_FILE
    environment = Environment(source, sync=False, readonly=True)
    try:
        environment.copy_compacted(target)
        rows = environment.entries()
    except lmdb.Error as error:
        code = getattr(error, "code", 0)
        if code in NO_SPACE:
            raise OSError(code, os.strerror(code)) from None
        raise StoreError(f"{source}: LMDB cannot compact it: {error}; the store is as it was") from None
    finally:
        environment.close()
    old, new = read_meta(source / DATA_FILE), read_meta(path)
    if old is None or new is None:
        raise DamagedError(f"{source / DATA_FILE}: damaged: it is empty")
    # The transaction numbers continue: LMDB starts them again, which looks like an older copy of the file.
    if new.transaction:
        restore_meta(path, dataclasses.replace(new, transaction=old.transaction))
    check_structure(target)
    copy = Environment(target, sync=False, readonly=True)
    try:
        if copy.entries() != rows:
            raise StoreError(f"{source}: LMDB copied {copy.entries()} of {rows} rows; the store is as it was")
    finally:
        copy.close()
    here = (source / DATA_FILE).stat()
    path.chmod(here.st_mode & 0o7777)
    if os.geteuid() == 0:
        os.chown(path, here.st_uid, here.st_gid)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _exclusive(directory: Path) -> Iterator[None]:
    """Holds the lock with which LMDB recognizes the first process that opens an environment.

    A process that takes a snapshot has a part of it. Such a process that begins now waits until the lock is released.
    """
    descriptor = os.open(directory / "lock.mdb", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
    except OSError as error:
        os.close(descriptor)
        if error.errno not in (errno.EACCES, errno.EAGAIN):
            raise
        raise StoreLocked(f"{directory}: a snapshot of it is being taken: repeat after its end") from None
    try:
        yield
    finally:
        os.close(descriptor)
