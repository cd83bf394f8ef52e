"""A reader who does what a tutorial with a broker shows: its files are written, its commands run."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from tests.system.broker.server_process import Command, broker

ROOT = Path(__file__).parents[3]
_STEP = re.compile(r"(?:^`([\w.]+)`[^\n]*:\n\n)?^```(sh|py|toml|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def steps(page: str) -> Iterator[tuple[str, str, str]]:
    """Yields the code blocks of a page: file name, language and content."""
    for match in _STEP.finditer(page):
        yield match[1] or "", match[2], match[3]


class Reader:
    """Runs the steps of the page.

    Args:
        folder: Where.
        ports: What stands for the page's ports here.
        timeout: Seconds that a command may take.
        quiet: Whether a command must not write to its standard error.
    """

    def __init__(self, folder: Path, ports: dict[str, str], *, timeout: float = 60.0, quiet: bool = True) -> None:
        self.commands = 0
        self._timeout = timeout
        self._quiet = quiet
        self._folder = folder
        self._ports = ports
        self._brokers = ExitStack()
        self._broker: Command | None = None
        self._output: str | None = None  # of the last command, until it is compared

    def here(self, text: str) -> str:
        for port, other in self._ports.items():
            text = text.replace(port, other)
        return text

    def do(self, name: str, kind: str, content: str) -> None:
        if name:
            (self._folder / name).write_text(self.here(content))
        elif kind == "sh":
            self.commands += 1
            self._run(self.here(content).strip())
        elif kind == "text" and self._output is not None:
            assert self._output == content
            self._output = None

    def _run(self, line: str) -> None:
        words = shlex.split(line)
        if words[:2] == ["omq", "broker"]:
            self.end()
            self._broker = self._brokers.enter_context(broker(self._folder, *words[2:], at=self._folder))
            self._broker.serving()
        elif words[:2] == ["pkill", "-KILL"]:
            # The one that this test has started, and no other.
            assert self._broker is not None
            assert "omq broker data" in line
            self._broker.process.kill()
            self._broker.ended()
            self._broker = None
        else:
            words[0] = {"python": sys.executable}.get(words[0], words[0])
            path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
            done = subprocess.run(
                words,
                cwd=self._folder,
                env={**os.environ, "PYTHONPATH": path},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=self._timeout,
                check=False,
            )
            assert done.returncode == 0, f"{line}:\n{done.stderr}"
            assert not (self._quiet and done.stderr), f"{line}:\n{done.stderr}"
            self._output = done.stdout

    def end(self) -> None:
        """Stops the running broker."""
        if self._broker is not None:
            assert self._broker.end() == 0
            self._broker = None

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self._brokers.close()
