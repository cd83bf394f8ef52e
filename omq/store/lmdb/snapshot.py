"""Snapshots of a store, and new stores from snapshots.

A snapshot has the files of a store that was closed at one instant. The process that has the store open takes no part,
and may be killed or started meanwhile. A read transaction in each environment keeps LMDB from reusing the pages of its
state, as LMDB also respects readers of other processes. So the pages can be copied from the files. The meta pages of
the two transactions complete the copies.

The two states belong together if `weak` has had no commit between the begins of the two transactions. Then no write in
one environment follows a write that is missing in the other. The write-ahead log is read in between, for the same
reason.

The pages are copied as they are, since LMDB's compacting copy crashes the process on a damaged page, cannot be
interrupted, and does not report progress. Its other copy does not take a transaction.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import lmdb

from omq.store.errors import DamagedError, OutOfSpace, StoreError
from omq.store.interface import Append
from omq.store.lmdb.data_file import DATA_FILE, MAX_PAGES_AFTER_CRASH, Meta, checksum
from omq.store.lmdb.environment import MAX_PIN_TRIES, NO_SPACE, Environment
from omq.store.lmdb.flusher import restore_meta
from omq.store.lmdb.inspector import Inspector
from omq.store.lmdb.opening import check_presence, highest_id
from omq.store.lmdb.store_directory import (
    Format,
    StoreDirectory,
    check_space,
    session_of,
    sync_directory,
    write_durably,
)
from omq.store.lmdb.wal import WriteAheadLog, read_log

#: Bytes that are copied between two syncs. Without these syncs, the last one would write everything at once, and delay
#: those of a live store on the same disk.
STEP_BYTES: Final = 8 << 20
#: Free bytes that the disk of a live store must have. It grows during the copy, since it reuses no pages of the copied
#: state.
LIVE_MARGIN_BYTES: Final = 64 << 20
PIN_RETRY_DELAY_S: Final = 0.001

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class StoreCopy:
    """A finished snapshot, or a store that was restored from one.

    Attributes:
        format: The file `format` of the copy.
        topics: The number of topics.
        size: The bytes of the data files.
        findings: Sentences about damage of messages, which is the same in the copy, and about omitted checks.
    """

    format: Format
    topics: int
    size: int
    findings: list[str]


@dataclass(frozen=True, slots=True)
class _State:
    """The state to copy. The transactions keep its pages.

    Attributes:
        pins: The read transactions.
        metas: The meta page of each environment.
        logged: The appends of the write-ahead log.
        clock: The time of the store's clock.
    """

    pins: tuple[Any, Any]
    metas: dict[str, Meta]
    logged: list[Append]
    clock: int

    @property
    def size(self) -> int:
        """The bytes of the data files."""
        return sum(meta.end for meta in self.metas.values())

    def release(self) -> None:
        """Ends the transactions."""
        for pin in self.pins:
            pin.abort()


def take_snapshot(
    directory: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    kind: str = "",
    progress: Progress = lambda copied, total: None,
) -> StoreCopy:
    """Copies a live or stopped store.

    Args:
        directory: The directory of the store.
        target: The directory of the snapshot. It does not exist or is empty, and gets its content in one step.
        kind: The program of the store, such as `broker`; empty: any.
        progress: Called with the number of copied bytes, and of all.

    Raises:
        StoreError: The directory is not a store of this program, the target is not empty, or the store does not permit
            a consistent copy. The text includes what to do.
        OutOfSpace: A disk has no room.
        DamagedError: The store is damaged.
    """
    source = StoreDirectory(directory, kind, readonly=True, locked=False)
    _check_source(source)
    margin = 0 if source.clean_shutdown else LIVE_MARGIN_BYTES
    format = replace(source.format, snapshot=datetime.now(UTC).isoformat(timespec="seconds"), origin={})

    def report(copied: int, total: int) -> None:
        progress(copied, total)
        if margin:
            check_space(source.directory, margin, "a live store keeps old pages during a snapshot, for which it needs")

    with _new_directory(target, source.directory) as partial, ExitStack() as stack:
        environments = {
            name: stack.enter_context(_opened(source.directory / name, shared=True)) for name in ("weak", "strong")
        }
        state = _pin(source, environments)
        stack.callback(state.release)
        is_same_disk = source.directory.stat().st_dev == partial.stat().st_dev
        check_space(partial, state.size + (margin if is_same_disk else 0), "the snapshot needs")
        _copy(environments, state, partial, format, report)
        stack.close()  # the store may reuse the pages while the copy is checked
        with _damage_of(source.directory, partial), Inspector(partial, MAX_PAGES_AFTER_CRASH) as copied:
            topics = copied.catalog.topics.values()
            session = session_of(
                state.clock,
                "",
                clean=True,
                ids={topic.id: highest_id(topic) for topic in topics},
                next_topic=copied.catalog.next,
                left={name: checksum(partial / name / DATA_FILE) for name in environments},
            )
            result = StoreCopy(format, len(topics), state.size, copied.unchecked + copied.known_damage())
        # The session comes last: a snapshot without it is not complete.
        _complete(partial, session)
    return result


def restore_snapshot(
    snapshot: str | os.PathLike[str],
    directory: str | os.PathLike[str],
    *,
    kind: str = "",
    progress: Progress = lambda copied, total: None,
) -> StoreCopy:
    """Makes a new store from a snapshot. It has a new id, so that clients notice that it is not the store they know.

    A replica keeps the id of its cluster: the journal brings it to the state that the others have.

    Args:
        snapshot: The directory of the snapshot; it is not changed.
        directory: The directory of the new store. It does not exist or is empty, and gets its content in one step.
        kind: The program of the store, such as `broker`; empty: any.
        progress: Called with the number of copied bytes, and of all.

    Raises:
        StoreError: The directory is not a snapshot of a store of this program, or the new one is not empty.
        OutOfSpace: The disk has no room.
        DamagedError: The snapshot is damaged.
    """
    source = StoreDirectory(snapshot, kind, readonly=True, locked=False)
    if not source.format.snapshot:
        raise StoreError(f"{source.directory} is not a snapshot, but a store: open it as it is, or take a snapshot")
    if not source.clean_shutdown:
        raise StoreError(f"{source.directory}: the snapshot is not complete: take it again")
    origin = {"store": source.id, "time": source.format.snapshot}
    replica = source.format.replica
    id = source.id if replica else os.urandom(16).hex()
    format = Format(id, source.format.kind, "", origin, replica, source.format.cluster)
    with _new_directory(directory, source.directory) as partial, ExitStack() as stack:
        names = "weak", "strong"
        for path in (source.directory / name / DATA_FILE for name in names):
            if not path.exists() or source.left.get(path.parent.name) != checksum(path):
                raise DamagedError(f"{path}: damaged: it is not as it was when the snapshot was taken")
        environments = {name: stack.enter_context(_opened(source.directory / name)) for name in names}
        state = _pin(source, environments)
        stack.callback(state.release)
        check_space(partial, state.size, "the store needs")
        _copy(environments, state, partial, format, progress)
        with _damage_of(source.directory, partial), Inspector(partial, MAX_PAGES_AFTER_CRASH) as copied:
            result = StoreCopy(format, len(copied.catalog.topics), state.size, copied.unchecked + copied.known_damage())
        _complete(partial, (source.directory / "session").read_bytes())
    return result


def _check_source(source: StoreDirectory) -> None:
    """Checks that a snapshot of a store can be taken, whether it is live or not."""
    directory = source.directory
    if source.format.snapshot:
        raise StoreError(f"{directory} is a snapshot: copy its files")
    if not source.used_before:
        raise StoreError(f"{directory}: the store is empty: it was never opened completely")
    if not (source.clean_shutdown or source.same_boot):
        raise StoreError(
            f"{directory}: the system stopped while the store was open, and the next opening restores its last sync: "
            "start its program once, and then take the snapshot"
        )
    check_presence(directory / "strong", directory / "weak")
    # Two processes with one id, in two containers, would free each other's slots in the reader table.
    if not source.clean_shutdown and (directory / "lock").read_bytes().strip() == str(os.getpid()).encode():
        raise StoreError(f"{directory}: its process has the id {os.getpid()}, as this one has: try again")


@contextmanager
def _new_directory(path: str | os.PathLike[str], source: Path) -> Iterator[Path]:
    """Yields a directory that gets its name once the block has ended. An error in the block removes it.

    Args:
        path: The name. It does not exist yet, or is an empty directory.
        source: The directory that is copied.
    """
    target = Path(os.path.realpath(path))
    if Path(os.path.realpath(source)) in target.parents:
        raise StoreError(f"{path}: it is in {source}, which would be lost together with it; give another directory")
    if target.exists() and not target.is_dir():
        raise StoreError(f"{path}: it is not a directory; give a new directory")
    if target.exists() and any(target.iterdir()):
        raise StoreError(f"{path}: it is not empty; give a new directory")
    if target.is_mount():
        raise StoreError(f"{path}: it is a mount point; give a new directory below it")
    if not target.parent.is_dir():
        raise StoreError(f"{path}: there is no directory {target.parent}")
    partial = target.with_name(target.name + ".partial")
    try:
        partial.mkdir()
    except FileExistsError:
        raise StoreError(
            f"{partial} exists: another process makes {path}, or was killed while it did. In the second case remove it"
        ) from None
    try:
        yield partial
        partial.rename(target)
    except BaseException as error:
        shutil.rmtree(partial, ignore_errors=True)
        if isinstance(error, OSError) and error.errno in NO_SPACE:
            raise OutOfSpace(f"{NO_SPACE[error.errno]}: {path}; what was written is removed") from None
        raise
    sync_directory(target.parent)


@contextmanager
def _opened(directory: Path, shared: bool = False) -> Iterator[Environment]:
    """Opens an environment to read it.

    Args:
        directory: The directory of the environment.
        shared: Another process may have it open.
    """
    table = directory / "lock.mdb"
    # LMDB would read a read-only file system without its reader table, and a live store would reuse the pages.
    if shared and not os.access(table if table.exists() else directory, os.R_OK | os.W_OK):
        raise StoreError(f"{table}: it is not writable: run the command as the user of the store, where that can write")
    try:
        environment = Environment(directory, sync=False, readonly=True, shared=shared)
    except lmdb.Error as error:
        raise StoreError(f"{directory}: LMDB cannot open it: {error}") from None
    try:
        yield environment
    finally:
        environment.close()


def _pin(source: StoreDirectory, environments: dict[str, Environment]) -> _State:
    """Begins a read transaction in each environment, so that their states belong together."""
    weak, strong = environments["weak"], environments["strong"]
    try:
        for _ in range(MAX_PIN_TRIES):
            pins = [weak.pin_state()]
            try:
                logged = read_log(weak.directory, source.id)
                pins.append(strong.pin_state())
                if weak.last_transaction() == pins[0][1].transaction:
                    metas = {"weak": pins[0][1], "strong": pins[1][1]}
                    state = _State((pins[0][0], pins[1][0]), metas, logged, source.clock.now())
                    pins.clear()
                    return state
            finally:
                for pin, _ in pins:
                    pin.abort()
            time.sleep(PIN_RETRY_DELAY_S)
    except lmdb.ReadersFullError:
        raise StoreError(f"{source.directory}: too many reads are in progress: try again") from None
    except lmdb.Error as error:
        raise StoreError(f"{source.directory}: LMDB cannot read it: {error}") from None
    raise StoreError(
        f"{weak.directory}: it had a commit during each of {MAX_PIN_TRIES} attempts to begin; try again with less load"
    )


def _copy(
    environments: dict[str, Environment], state: _State, partial: Path, format: Format, progress: Progress
) -> None:
    """Copies a state to a new directory."""
    format.write(partial)
    done = 0
    for name, environment in environments.items():
        (partial / name).mkdir()
        for size in _copy_pages(environment, state.metas[name], partial / name / DATA_FILE):
            done += size
            progress(done, state.size)
    _write_log(partial / "weak", format.id, state.logged)
    progress(state.size, state.size)
    for name in environments:
        sync_directory(partial / name)


def _copy_pages(environment: Environment, meta: Meta, target: Path) -> Iterator[int]:
    """Copies the pages of a state to a new data file, synced; yields the number of bytes after each step."""
    with target.open("xb", buffering=0) as file:
        file.truncate(meta.end)
        begin = 2 * meta.page_size  # after the meta pages
        while begin < meta.end:
            step = environment.read_bytes(min(STEP_BYTES, meta.end - begin), begin)
            if not step:
                break  # LMDB may leave out unused pages at the end
            written = os.pwrite(file.fileno(), step, begin)
            begin += written
            os.fdatasync(file.fileno())
            # The copy is not read soon, and would displace pages that the live store reads.
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            yield written
    restore_meta(target, meta)


def _write_log(directory: Path, store: str, logged: Iterable[Append]) -> None:
    """Writes a write-ahead log with these appends, synced."""
    log = WriteAheadLog(directory, store)
    for write in logged:
        if not log.put(write):
            raise OSError(errno.ENOSPC, "the write-ahead log cannot be written", str(directory))
    if not log.close():
        raise OSError(errno.EIO, "the write-ahead log cannot be synced", str(directory))


@contextmanager
def _damage_of(source: Path, copy: Path) -> Iterator[None]:
    """Reports the damage of a copy as that of its source, as all pages are the same."""
    try:
        yield
    except DamagedError as error:
        raise DamagedError(str(error).replace(str(copy), str(source)), error.topic_id) from None


def _complete(partial: Path, session: bytes) -> None:
    """Writes the file `session`, and makes the names in the directory durable."""
    (partial / "lock").unlink()
    write_durably(partial / "session", session)
