"""What a crash of the interpreter leaves: which test it was, which had failed, and the stacks of C and of Python.

While tests run it stands in `.cache/crash`, and goes when they end. `python -m tests.lastwords` prints it, the most
telling last: that is what the end of a long log shows.
"""

from __future__ import annotations

import ctypes
import faulthandler
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PLACE = Path(__file__).parent.parent / ".cache"
_FRAME = re.compile(r"(?P<object>[^(]+)\((?P<name>[^+)]*)\+(?P<offset>0x[0-9a-f]+)\)")


class LastWords:
    """A plugin of pytest that keeps the file."""

    def __init__(self) -> None:
        PLACE.mkdir(exist_ok=True)
        self._path = PLACE / "crash"
        self._file = self._path.open("wb", buffering=0)
        self._failed: list[str] = []
        faulthandler.enable(self._file)
        _tell_of_c(self._file.fileno())

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._file.seek(0)
        self._file.truncate()
        self._file.write("".join(f"failed before: {name}\n" for name in self._failed[-5:]).encode())
        self._file.write(f"in {nodeid}\n".encode())

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.append(report.nodeid)

    def pytest_unconfigure(self) -> None:
        # Its end, too, is one that may crash; whoever comes through it leaves an empty file.
        self._file.seek(0)
        self._file.truncate()
        self._file.write(b"at the end\n")


def _tell_of_c(fd: int) -> None:
    """Has the stack of C told, too, where there is a compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return
    library = PLACE / "lastwords.so"
    source = Path(__file__).with_suffix(".c")
    made = subprocess.run([compiler, "-shared", "-fPIC", "-O1", source, "-o", library], check=False)
    if made.returncode == 0:
        ctypes.CDLL(str(library)).install(fd)


def _named(frame: str) -> str:
    """A frame of C with the function that the object's table of symbols has there."""
    found = _FRAME.match(frame)
    if found is None or found["name"] or not shutil.which("addr2line"):
        return frame
    asked = ["addr2line", "-fe", found["object"], found["offset"]]
    name = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.partition("\n")[0]
    return f"{Path(found['object']).name}: {name}"


def _parts(text: str) -> tuple[list[str], dict[str, list[str]]]:
    """The lines before the crash, and those of each of its parts."""
    head: list[str] = []
    parts: dict[str, list[str]] = {"stack": [], "stderr": [], "threads": []}
    current = head
    for line in text.splitlines():
        current = parts.get(line, current)
        if line and line not in parts:
            current.append(line)
    return head, parts


def main() -> None:
    """Prints them."""
    try:
        text = (PLACE / "crash").read_text(errors="replace")
    except FileNotFoundError:
        sys.exit("it has left no last words")
    head, parts = _parts(text)
    threads = [line for line in parts["threads"] if not re.search(r"/_pytest/|/pluggy/|^Extension modules", line)]
    print("\n".join(threads[:60]))
    if "Current thread" in text:
        start = next(number for number, line in enumerate(threads) if line.startswith("Current thread"))
        print("\n".join(threads[start : start + 6]))
    print("\n".join(_named(frame) for frame in parts["stack"][1:11]))
    print("\n".join([*parts["stderr"][-4:], *head]))


if __name__ == "__main__":
    main()
