"""What a coordinator leaves for the one that stands in for it: by that the owners are found."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import tempfile
from pathlib import Path
from typing import Any


class Note:
    """A file that only our user can read, on the driver's host.

    A coordinator that ends as it should takes it away. One that is killed while no run of the query is there leaves it:
    nobody else knows the stream's secret then, but owners that wait for the next run.

    Args:
        stream: The stream's name.
    """

    def __init__(self, stream: str) -> None:
        self._folder = Path(tempfile.gettempdir()) / f"omq-spark-{os.getuid()}"
        self._path = self._folder / f"{stream}.json"

    def _is_private(self) -> bool:
        """Whether the folder is ours alone: anybody may make one of this name."""
        with contextlib.suppress(OSError):
            self._folder.mkdir(mode=0o700, exist_ok=True)
            found = self._folder.lstat()
            return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
        return False

    def read(self) -> dict[str, Any]:
        """The secret (in hexadecimal digits) and the port of a coordinator that has gone; nothing if there is none."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            if self._is_private():
                found = json.loads(self._path.read_text(encoding="ascii"))
                return {"secret": bytes.fromhex(found["secret"]).hex(), "port": int(found["port"])}
        return {}

    def write(self, told: dict[str, Any]) -> None:
        """Leaves them. Without such a file everything works but what it is for."""
        with contextlib.suppress(OSError):
            if self._is_private():
                new = self._path.with_suffix(f".{os.getpid()}")
                new.write_text(json.dumps(told), encoding="ascii")
                new.replace(self._path)

    def remove(self) -> None:
        """Takes them away."""
        with contextlib.suppress(OSError):
            self._path.unlink()
