"""The directory of a store: its lock, its format, and how the last one to have it open has left it."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from omq._core.blocks import crc32c
from omq.store.clock import Clock, uptime, wall
from omq.store.errors import DamagedError, StoreError, StoreLocked

FORMAT: Final = 2
MIN_FILE_BYTES: Final = 4096  # that a file takes on the disk, if it has any
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def write_durably(path: Path, data: bytes) -> None:
    """Replaces a file: after a crash it is the old one or the new one, whole."""
    new = path.with_name(path.name + ".new")
    with new.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    sync_directory(path.parent)


def write_in_place(path: Path, data: bytes) -> bool:
    """Writes over a file; whether it could, in the space that the file has."""
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


def check_place(path: Path, descriptor: int) -> None:
    """Looks whether an open file still is what its path leads to.

    Not to be called at each write: Linux then gives the file a time of its own for each, which a sync has to write.

    Raises:
        OSError: It was moved, removed or replaced: what is written to it would be lost.
    """
    here = os.fstat(descriptor)
    try:
        gone = not os.path.samestat(os.stat(path), here)
    except PermissionError:
        gone = not here.st_nlink  # the file may be there, and not be looked at
    except OSError:
        gone = True
    if gone:
        raise FileNotFoundError(errno.ENOENT, "moved, removed or replaced while it was open", os.fspath(path))


class StoreDirectory:
    """Holds the directory as long as the store is open.

    Args:
        directory: The directory.
        kind: Which program has it, such as `broker`; empty: any. A directory of another one is refused; one of which
            the kind is not known gets it.
        readonly: Nothing is changed, and the store has to be there.

    Attributes:
        directory: The directory.
        id: Of the store, 16 bytes in hex.
        new: There was no store in it.
        begun: One was opened in it before, to the end.
        orderly: The last one to have it open has closed it.
        same_boot: The system runs since then: what was written is there, synced or not.
        clock: Measures ages.
        left: After an orderly end, the checksums of the newest meta pages by environment.
        ids: How far the ids of topics went when that was noted last, or might go; after an orderly end exactly.
        next_topic: The same of the ids of topics: the next one.
        noted: It was.

    Raises:
        StoreLocked: Another process, or another store of this one, holds it.
        StoreError: It is not a store's directory, or of another version or program.
    """

    def __init__(self, directory: str | os.PathLike[str], kind: str = "", *, readonly: bool = False) -> None:
        self.directory = Path(directory)
        self._kind = kind
        if not readonly:
            self.directory.mkdir(parents=True, exist_ok=True)
        elif not (self.directory / "format").is_file():
            raise StoreError(f"{self.directory}: there is no store here")
        self._lock = self._take()
        try:
            self.id, self.new = self._format()
            last = self._last()
            self.begun = bool(last)
            self.orderly = self.new or bool(last.get("orderly"))
            self.same_boot = self.new or last.get("boot") == self._boot() != ""
            self.clock = self._clock(last)
            self.left: dict[str, int] = last.get("left") or {} if self.orderly else {}
            given: Any = last.get("given")
            self.noted = given is not None and last.get("checksum") == _checksum(given)
            self.ids = {int(topic): int(id) for topic, id in given["ids"].items()} if self.noted else {}
            self.next_topic = int(given["next_topic"]) if self.noted else 1
        except BaseException:
            os.close(self._lock)
            raise

    def _take(self) -> int:
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

    def _format(self) -> tuple[str, bool]:
        """The id of the store, and whether it was made now."""
        path = self.directory / "format"
        if not path.exists():
            if any(self.directory.glob("*/data.mdb")):
                raise DamagedError(f"{self.directory}: there is data, but the file `format` is missing")
            id = os.urandom(16).hex()
            self._write_format(path, id)
            return id, True
        try:
            row = json.loads(path.read_bytes())
            version, id, kind = row["omq-store"], str(row["id"]), str(row.get("kind", ""))
        except (ValueError, KeyError, TypeError):
            raise DamagedError(f"{path}: damaged: it does not have the version and the id of the store") from None
        if version != FORMAT:
            raise StoreError(f"{path}: version {version}; this omq reads version {FORMAT}")
        if self._kind and kind and kind != self._kind:
            raise StoreError(
                f"{self.directory} is a directory of `omq {kind}`, and `omq {self._kind}` cannot open it: "
                f"give `omq {self._kind}` another directory"
            )
        if self._kind and not kind:
            with suppress(OSError):  # a full disk: the next one to open it tries again
                self._write_format(path, id)
        return id, False

    def _write_format(self, path: Path, id: str) -> None:
        row = {"omq-store": FORMAT, "id": id}
        if self._kind:
            row["kind"] = self._kind
        write_durably(path, json.dumps(row).encode() + b"\n")

    def _last(self) -> dict[str, Any]:
        """Returns what the last session has left."""
        try:
            row = json.loads((self.directory / "session").read_bytes())
        except (OSError, ValueError):
            return {}
        return row if isinstance(row, dict) else {}

    def _clock(self, last: dict[str, Any]) -> Clock:
        """The store's clock. It goes on where it was; in the same run of the system, by what has passed since.

        Only the wall clock measures how long the system was off. It may be wrong, and deletion is final: that time
        is not counted. The wall is asked once in the life of a store.
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

    def note(self, *, orderly: bool, ids: dict[int, int], next_topic: int, left: dict[str, int] | None = None) -> bool:
        """Records the state of this store for the next session: what it `left`, and where ids go on.

        Returns:
            Whether there was room for it.
        """
        given = {"ids": {str(topic): id for topic, id in ids.items()}, "next_topic": next_topic}
        row: dict[str, Any] = {"boot": self._boot(), "orderly": orderly, "given": given, "checksum": _checksum(given)}
        row |= {"clock": self.clock.now(), "uptime": uptime(), "left": left}
        path = self.directory / "session"
        try:
            self.check_place()
        except OSError:
            return True  # what is there now has another owner
        data = json.dumps(row).encode() + b"\n"
        try:
            write_durably(path, data)
        except OSError:
            # No space. Where the file stands there may be some; it would not be whole if the power was lost meanwhile.
            if write_in_place(path, data):
                return True
            # A store without the file was not closed in order.
            if self._last().get("orderly"):
                path.unlink(missing_ok=True)
                sync_directory(self.directory)
            return False
        return True

    def check_place(self) -> None:
        """Raises `OSError` where the directory is not held any more: its lock was moved, removed or replaced."""
        check_place(self.directory / "lock", self._lock)

    def end(self) -> None:
        """Gives the directory back."""
        os.close(self._lock)
