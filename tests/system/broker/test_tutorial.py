"""The tutorial of the broker: its files are written, its commands run, and their output is compared."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.ports import held
from tests.system.broker.server_process import Command, broker

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "tutorial" / "broker.md").read_text(encoding="utf-8")
_STEP = re.compile(r"(?:^`([\w.]+)`:\n\n)?^```(sh|py|toml|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

pytestmark = pytest.mark.timeout(180)


def steps() -> Iterator[tuple[str, str, str]]:
    """Yields the code blocks of the page: file name, language and content."""
    for match in _STEP.finditer(PAGE):
        yield match[1] or "", match[2], match[3]


class Reader:
    """Runs the steps of the page.

    Args:
        folder: Where.
        ports: What stands for the page's ports here.
    """

    def __init__(self, folder: Path, ports: dict[str, str]) -> None:
        self.commands = 0
        self._folder = folder
        self._ports = ports
        self._brokers = ExitStack()
        self._broker: Command | None = None
        self._output = ""

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
        elif kind == "text" and self._output:
            assert self._output == content
            self._output = ""

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
            environment = {**os.environ, "PYTHONPATH": str(ROOT)}
            done = subprocess.run(
                words, cwd=self._folder, env=environment, capture_output=True, text=True, timeout=60, check=False
            )
            assert (done.returncode, done.stderr) == (0, ""), line
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


def test_the_tutorial_as_a_new_user_does_it(tmp_path: Path) -> None:
    with held() as zmtp, held() as http, Reader(tmp_path, {"5555": str(zmtp), "8222": str(http)}) as reader:
        for name, kind, content in steps():
            reader.do(name, kind, content)
        reader.end()
        assert reader.commands >= 10


def test_the_security_of_the_page_is_read(tmp_path: Path) -> None:
    from omq.broker.config import read_config

    (tables,) = (content for name, kind, content in steps() if kind == "toml" and not name)
    path = tmp_path / "broker.toml"
    path.write_text(tables)
    config = read_config(path)
    assert config.security.mechanism == "curve"
    assert [permission.topics for permission in config.permissions] == ["prices*", "*"]
