"""The directory of a store: its lock, its format, and the state in which the last process has left it."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from omq._core.blocks import crc32c
from omq.store.clock import Clock, uptime, wall
from omq.store.errors import DamagedError, OutOfSpace, StoreError, StoreLocked

#: The version of the layout on disk. A layout that this omq cannot read gets the next number, a step that rewrites a
#: store of the version before, and a row in docs/howto/back-up-the-broker.md.
FORMAT: Final = 2
#: The version of a replica, and of the directory of a node, which has its replica in `REPLICA`.
REPLICA_FORMAT: Final = 4
REPLICA: Final = "replica"
MIN_FILE_BYTES: Final = 4096  # the disk space of a file that is not empty
#: A new store needs less for its files. On a disk that becomes full meanwhile they would stay damaged, and writing to
#: their maps would crash the process.
NEW_STORE_BYTES: Final = 1 << 20
_OPTIONAL: Final = ("kind", "snapshot", "origin", "replica", "cluster")  # in the file `format`
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def write_durably(path: Path, data: bytes) -> None:
    """Replaces a file atomically: after a crash it has its old content or the new one."""
    new = path.with_name(path.name + ".new")
    with new.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    sync_directory(path.parent)


def overwrite(path: Path, data: bytes) -> bool:
    """Overwrites a file without growing it, and syncs it; returns whether that succeeded."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        size = os.fstat(descriptor).st_size
        if len(data) > max(size, MIN_FILE_BYTES):
            return False
        written = os.pwrite(descriptor, data.ljust(size), 0)
        os.fsync(descriptor)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return written >= len(data)


def sync_directory(directory: Path) -> None:
    """Makes the names in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _checksum(value: Any) -> int:
    return crc32c(json.dumps(value, sort_keys=True).encode())


def check_space(directory: Path, needed: int, purpose: str) -> None:
    """Checks that the disk of a directory has room.

    Raises:
        OutOfSpace: It has less than `needed` bytes. The error includes the purpose of these.
    """
    disk = os.statvfs(directory)
    free = disk.f_bavail * disk.f_frsize
    if free < needed:
        raise OutOfSpace(f"{directory}: {purpose} {needed} bytes, and the disk has {free} free")


def session_of(
    clock: int, boot: str, *, clean: bool, ids: dict[int, int], next_topic: int, left: dict[str, int] | None
) -> bytes:
    """Returns the content of the file `session`.

    Args:
        clock: The time of the store's clock.
        boot: The boot id of the system, until whose end the clock advances. Empty: it stands still until the opening.
        clean: True at a clean shutdown.
        ids: The highest id of each topic.
        next_topic: The id of the next topic.
        left: The checksums of the meta pages by environment, at a clean shutdown.
    """
    given = {"ids": {str(topic): id for topic, id in ids.items()}, "next_topic": next_topic}
    row: dict[str, Any] = {"boot": boot, "orderly": clean, "given": given, "checksum": _checksum(given)}
    row |= {"clock": clock, "uptime": uptime(), "left": left}
    return json.dumps(row).encode() + b"\n"


def check_path(path: Path, descriptor: int) -> None:
    """Checks that the path of an open file still leads to it.

    Do not call this for each write: after a `stat`, Linux gives the next write a new time stamp, which a sync has to
    write too.

    Raises:
        OSError: The file was moved, removed or replaced: writes to it would be lost.
    """
    here = os.fstat(descriptor)
    try:
        gone = not os.path.samestat(os.stat(path), here)
    except PermissionError:
        gone = not here.st_nlink  # the path may exist, but it cannot be checked
    except OSError:
        gone = True
    if gone:
        raise FileNotFoundError(errno.ENOENT, "moved, removed or replaced while it was open", os.fspath(path))


@dataclass(frozen=True, slots=True)
class Format:
    """The file `format` of a store.

    Attributes:
        id: The id of the store, 16 bytes in hex. In a snapshot: of the store that was copied.
        kind: The program of the store, such as `broker`; empty: any.
        snapshot: The time at which the snapshot was taken, in UTC; empty: it is a store.
        origin: `store` and `time` of the snapshot that the store was restored from; empty: it was not restored.
        replica: It is a replica, and `id` is the id of its cluster.
        cluster: The name of its cluster, for messages; empty: it is not known.
    """

    id: str
    kind: str = ""
    snapshot: str = ""
    origin: dict[str, str] = field(default_factory=dict)
    replica: bool = False
    cluster: str = ""

    @property
    def version(self) -> int:
        """The version of the layout."""
        return REPLICA_FORMAT if self.replica else FORMAT

    def write(self, directory: Path) -> None:
        """Writes the file durably."""
        row: dict[str, Any] = {"omq-store": self.version, "id": self.id}
        row |= {key: value for key in _OPTIONAL if (value := getattr(self, key))}
        write_durably(directory / "format", json.dumps(row).encode() + b"\n")


def read_format(directory: Path, kind: str = "") -> Format:
    """Reads the file `format`.

    Args:
        directory: The directory of the store.
        kind: The program that opens it; empty: any.

    Raises:
        FileNotFoundError: There is no file.
        StoreError: The store is of another version or program.
        DamagedError: The content is not valid.
    """
    path = directory / "format"
    try:
        row = json.loads(path.read_bytes())
        version = int(row["omq-store"])
        found = Format(
            str(row["id"]),
            str(row.get("kind", "")),
            str(row.get("snapshot", "")),
            row.get("origin") or {},
            bool(row.get("replica")),
            str(row.get("cluster", "")),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        raise DamagedError(f"{path}: damaged: it does not have the version and the id of the store") from None
    if version != found.version:
        # A step that migrates an older store belongs here.
        writer = "a newer" if version > found.version else "an older"
        raise StoreError(
            f"{path}: version {version}, of {writer} omq; this omq reads version {found.version}. Nothing was changed. "
            "Use the omq that wrote it"
        )
    if kind and found.kind and kind != found.kind:
        raise StoreError(
            f"{directory} is a directory of `omq {found.kind}`, and `omq {kind}` cannot open it: give `omq {kind}` "
            "another directory"
        )
    return found


class StoreDirectory:
    """The directory of a store, locked while it is open.

    Args:
        directory: The path of the directory.
        kind: The program of the store, such as `broker`; empty: any. A directory of another program is refused, and
            one without a program gets this one.
        cluster_id: The id of the cluster of a replica; empty: any, and a new one for a new replica. `None`: the store
            is not a replica. A replica cannot be opened as another store, nor the other way round.
        cluster: The name of the cluster, which the directory keeps for messages; empty: it is not known.
        readonly: Changes nothing except the lock; the store must exist. Otherwise a snapshot is refused.
        locked: Take the lock. Without it, another process may have the store open.

    Attributes:
        directory: The path of the directory.
        format: The content of the file `format`.
        id: The id of the store, 16 bytes in hex.
        new: The store was created now.
        used_before: The store was opened successfully before.
        clean_shutdown: The last process to open the store has closed it.
        same_boot: The system was not restarted since then, so that no write was lost, synced or not.
        clock: Measures ages.
        left: The checksums of the meta pages by environment, if `clean_shutdown`.
        ids: The highest id that each topic may have assigned, as of the last write of `session`; exact after a clean
            shutdown.
        next_topic: The same for the ids of topics: the next one.
        has_ids: `session` has `ids` and `next_topic`, undamaged.

    Raises:
        StoreLocked: Another process, or another store of this process, holds the lock.
        StoreError: The directory is not a store, or is of another version, program or cluster.
        OutOfSpace: The disk has no room for a new store.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        kind: str = "",
        *,
        cluster_id: str | None = None,
        cluster: str = "",
        readonly: bool = False,
        locked: bool = True,
    ) -> None:
        self.directory = Path(directory)
        if not readonly:
            self.directory.mkdir(parents=True, exist_ok=True)
            if not (self.directory / "format").exists():
                check_space(self.directory, NEW_STORE_BYTES, "a new store needs")
        elif not (self.directory / "format").is_file():
            raise StoreError(f"{self.directory}: there is no store here")
        self._lock = self._acquire_lock() if locked else -1
        try:
            self.new = not (self.directory / "format").exists()
            self.format = self._create(kind, cluster_id, cluster) if self.new else read_format(self.directory, kind)
            self.id = self.format.id
            if readonly:
                self._check_has_store()
            else:
                self._check_cluster(cluster_id, cluster)
                self._check_writable(kind, cluster)
            last = self._last_session()
            self.used_before = bool(last)
            self.clean_shutdown = self.new or bool(last.get("orderly"))
            self.same_boot = self.new or last.get("boot") == self._boot() != ""
            self.clock = self._clock(last)
            self.left: dict[str, int] = last.get("left") or {} if self.clean_shutdown else {}
            given: Any = last.get("given")
            self.has_ids = given is not None and last.get("checksum") == _checksum(given)
            self.ids = {int(topic): int(id) for topic, id in given["ids"].items()} if self.has_ids else {}
            self.next_topic = int(given["next_topic"]) if self.has_ids else 1
        except BaseException:
            self.release()
            raise

    def _acquire_lock(self) -> int:
        path = self.directory / "lock"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
            os.close(descriptor)
            raise StoreLocked(f"{self.directory}: in use by {f'process {owner}' if owner else 'another'}") from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        return descriptor

    def _create(self, kind: str, cluster_id: str | None, cluster: str) -> Format:
        """Creates the file `format` of a new store."""
        if any(self.directory.glob("*/data.mdb")):
            raise DamagedError(
                f"{self.directory}: damaged: it has data, but the file `format` is missing. Nothing was changed. "
                "Restore the file from a copy of the store, or move the directory away to start over."
            )
        new = Format(cluster_id or os.urandom(16).hex(), kind, replica=cluster_id is not None, cluster=cluster)
        new.write(self.directory)
        return new

    def _check_cluster(self, cluster_id: str | None, cluster: str) -> None:
        """Refuses a replica that is opened as another store, another store as a replica, and one of another cluster."""
        own = repr(self.format.cluster) if self.format.cluster else self.id
        if self.format.replica and cluster_id is None:
            raise StoreError(
                f"{self.directory} is a replica of the cluster {own}, and can only be opened as that: give the options "
                "of the cluster, or another directory"
            )
        if cluster_id is not None and not self.format.replica:
            raise StoreError(f"{self.directory} is a store, and not a replica of a cluster: give another directory")
        if cluster_id and cluster_id != self.id:
            given = repr(cluster) if cluster else cluster_id
            raise StoreError(
                f"{self.directory} is a replica of the cluster {own}, not of {given}: give another directory"
            )

    def _check_has_store(self) -> None:
        """Refuses the directory of a node, whose replica is in another one."""
        if self.format.replica and (self.directory / REPLICA / "format").exists():
            raise StoreError(
                f"{self.directory} is the directory of a node of a cluster; its store is {self.directory / REPLICA}: "
                "give that directory"
            )

    def _check_writable(self, kind: str, cluster: str) -> None:
        """Refuses a snapshot, and gives a store without a program, or without the name of its cluster, this one."""
        if self.format.snapshot:
            # With the id of the store that was copied, its clients would take this one for that store.
            raise StoreError(
                f"{self.directory} is a snapshot: `omq {self.format.kind or 'broker'} restore {self.directory} DIR` "
                "makes a store of it"
            )
        named = replace(self.format, kind=self.format.kind or kind, cluster=cluster or self.format.cluster)
        if named != self.format:
            self.format = named
            with suppress(OSError):  # on a full disk; the next opening retries
                self.format.write(self.directory)

    def _last_session(self) -> dict[str, Any]:
        """Returns the content of `session`, which the last process has left; empty without the file."""
        try:
            row = json.loads((self.directory / "session").read_bytes())
        except (OSError, ValueError):
            return {}
        return row if isinstance(row, dict) else {}

    def set_left(self, left: dict[str, int] | None) -> None:
        """Writes other checksums of the meta pages to `session`; `None`: the next opening does not compare them."""
        write_durably(self.directory / "session", json.dumps(self._last_session() | {"left": left}).encode() + b"\n")

    def _clock(self, last: dict[str, Any]) -> Clock:
        """Returns the store's clock. It continues where it was, plus the time that has passed since in the same boot.

        The time for which the system was off is not counted: only the wall clock measures it, which may be wrong, and
        a deletion is final. The wall clock is read once, when the store is created.
        """
        try:
            clock, then = int(last["clock"]), int(last["uptime"])
        except (KeyError, TypeError, ValueError):
            return Clock(wall())
        return Clock(clock + max(uptime() - then, 0) if self.same_boot else clock)

    @staticmethod
    def _boot() -> str:
        try:
            return BOOT_ID.read_text().strip()
        except OSError:
            return ""

    def save(self, *, clean: bool, ids: dict[int, int], next_topic: int, left: dict[str, int] | None = None) -> bool:
        """Writes the state of this store to `session`, for the next opening.

        Args:
            clean: True at a clean shutdown.
            ids: The highest id of each topic.
            next_topic: The id of the next topic.
            left: The checksums of the meta pages by environment, at a clean shutdown.

        Returns:
            Whether there was space for it.
        """
        path = self.directory / "session"
        try:
            self.check_path()
        except OSError:
            return True  # the path leads to another store now
        data = session_of(self.clock.now(), self._boot(), clean=clean, ids=ids, next_topic=next_topic, left=left)
        try:
            write_durably(path, data)
        except OSError:
            # Without space for a new file, the old one is overwritten. A power loss may then leave it incomplete.
            if overwrite(path, data):
                return True
            # A store without the file has no clean shutdown.
            if self._last_session().get("orderly"):
                path.unlink(missing_ok=True)
                sync_directory(self.directory)
            return False
        return True

    def check_path(self) -> None:
        """Raises `OSError` if the lock file was moved, removed or replaced: the directory is not locked any more."""
        check_path(self.directory / "lock", self._lock)

    def release(self) -> None:
        """Releases the lock."""
        if self._lock >= 0:
            os.close(self._lock)
