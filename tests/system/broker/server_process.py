"""`omq broker` and other server commands as processes."""

from __future__ import annotations

import contextlib
import json
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tests.support.fork_server import ForkedProcess
from tests.support.waits import until

ROOT: Final = Path(__file__).parents[3]
MAIN: Final = "from omq.cli.main import main; main()"
BOUND: Final = 30.0  # seconds that a broker may take to serve, and to end


class Command:
    """A running broker or other server command.

    Args:
        folder: Where its ready file and its log are.
        *arguments: The arguments of the command.
        at: Its working directory; `None` for ours.
        descriptors: Its soft and its hard limit of descriptors; `None` for ours.
        program: Its name.
        main: The code that runs it.
    """

    def __init__(
        self,
        folder: Path,
        *arguments: str | Path,
        at: Path | None = None,
        descriptors: tuple[int, int] | None = None,
        program: str = "broker",
        main: str = MAIN,
    ) -> None:
        self.ready = folder / "ready.json"
        self._log = folder / f"{program}.log"
        self._left = self._written()
        with open(self._log, "ab") as log:
            self.process = ForkedProcess(
                "-c",
                main,
                *(program, *arguments, "--ready-file", self.ready),
                cwd=at,
                stdout=subprocess.PIPE,
                stderr=log,
                max_descriptors=descriptors,
            )

    @property
    def log(self) -> str:
        """The content of its standard error."""
        return self._log.read_text()

    def serving(self) -> dict[str, str]:
        """Waits until it serves, and returns its endpoints."""
        until(lambda: self._written() not in (None, self._left) or self.process.poll() is not None, lambda: self.log)
        assert self.process.poll() is None, self.log
        found: dict[str, str] = json.loads(self.ready.read_bytes())
        return found

    def _written(self) -> tuple[int, int] | None:
        """Identifies the ready file, to distinguish it from one that an earlier broker has left."""
        try:
            status = self.ready.stat()
        except FileNotFoundError:
            return None
        return status.st_ino, status.st_mtime_ns

    def ended(self) -> int:
        """Waits until it has ended, and returns its exit status."""
        return self.process.wait(BOUND)

    def end(self) -> int:
        """Stops it in an orderly way, and returns its exit status."""
        self.process.terminate()
        return self.ended()


@contextlib.contextmanager
def broker(folder: Path, *arguments: str | Path, **options: Any) -> Iterator[Command]:
    """Runs a command, and kills it at the end if it still runs; see `Command`."""
    command = Command(folder, *arguments, **options)
    try:
        yield command
    finally:
        command.process.kill()
        command.process.communicate()


def get(url: str) -> bytes:
    """Returns the content of a URL."""
    with urllib.request.urlopen(url, timeout=10) as answer:
        content: bytes = answer.read()
        return content
