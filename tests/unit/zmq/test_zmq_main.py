"""`python -m omq.zmq` runs programs as `python` does: the same output, errors and exit codes."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from omq.zmq.preload import FOLDER

ROOT = Path(__file__).parents[3]
MAIN = """
import sys, zmq, zmq.devices
from zmq.utils import jsonapi
assert zmq.Socket.__module__ == {home!r}, zmq.Socket.__module__
print(__name__, __file__, __package__, sys.argv, sys.path[0], sorted(globals()))
"""
ERROR = "\ndef fail():\n    raise ValueError('reason')\nfail()\n"


def python(folder: Path, *arguments: str, unsafe: bool = True) -> tuple[int, str, str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    options = [] if unsafe else ["-P"]
    done = subprocess.run(
        [sys.executable, *options, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )
    return done.returncode, done.stdout, done.stderr


def write(folder: Path, home: str) -> None:
    """Writes the same programs for pyzmq and for omq: they differ in what they assert."""
    folder.mkdir()
    text = MAIN.format(home=home)
    (folder / "good.py").write_text(text)
    (folder / "bad.py").write_text(text + ERROR)
    (folder / "syntax.py").write_text("import zmq\nprint(1\n")
    (folder / "code.py").write_text("import sys\nsys.exit(7)\n")
    (folder / "text.py").write_text("raise SystemExit('reason')\n")
    (folder / "interrupted.py").write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nsignal.sigtimedwait([], 10)\n"
    )
    (folder / "package").mkdir()
    (folder / "package" / "__main__.py").write_text(text)
    (folder / "empty").mkdir()
    with zipfile.ZipFile(folder / "zipped.pyz", "w") as file:
        file.writestr("__main__.py", text)


@pytest.mark.parametrize(
    "command",
    [
        "good.py 1 -x",
        "bad.py",
        "-m good -m x",
        "-m bad",
        "syntax.py",
        "code.py",
        "text.py",
        "interrupted.py",
        "package a",
        "-m package a",
        "zipped.pyz a",
        "empty",
        "missing.py",
        "-m missing",
    ],
)
def test_a_program_runs_as_with_python(tmp_path: Path, command: str) -> None:
    pytest.importorskip("zmq")
    write(tmp_path / "1", "zmq.sugar.socket")
    write(tmp_path / "2", "omq.zmq.socket")
    expected = python(tmp_path / "1", *command.split())
    got = python(tmp_path / "2", "-m", "omq.zmq", *command.split())
    assert expected[0] == 0 or not command.startswith(("good", "package", "zipped"))
    swapped = [text.replace(str(tmp_path / "2"), str(tmp_path / "1")) for text in got[1:]]
    assert (got[0], *swapped) == expected


def test_no_folder_is_added_to_the_path_with_safe_path(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import sys\nprint(sys.path[0])\n")
    assert python(tmp_path, "-m", "omq.zmq", "program.py", unsafe=False) == (0, f"{FOLDER}\n", "")


def test_arguments_that_do_not_fit(tmp_path: Path) -> None:
    for arguments in ((), ("-m",), ("-x",)):
        code, _, errors = python(tmp_path, "-m", "omq.zmq", *arguments)
        assert (code, "PROGRAM" in errors) == (2, True)
    assert python(tmp_path, "-m", "omq.zmq", "--help")[0] == 0


@pytest.mark.parametrize("last", ["-m omq.zmq", "-Bm omq.zmq", "-momq.zmq"])
def test_options_of_python_reach_the_program(tmp_path: Path, last: str) -> None:
    (tmp_path / "program.py").write_text(
        "import sys\nprint(sys.flags.optimize, sys.flags.dev_mode, sys.warnoptions, sys.dont_write_bytecode)\n"
    )
    options = ["-X", "dev", "-O", "-W", "error", "-B"]
    expected = python(tmp_path, *options, "program.py")
    assert python(tmp_path, *options, *last.split(), "program.py") == expected
    assert expected[1] == "1 True ['default', 'error'] True\n"


@pytest.mark.parametrize("option", ["-E", "-S"])
def test_options_that_keep_python_from_finding_the_face(tmp_path: Path, option: str) -> None:
    start = f"import sys; sys.path[:0] = {sys.path!r}; import omq.zmq.__main__ as one; one.main(['program.py'])"
    code, _, errors = python(tmp_path, option, "-c", start)
    assert (code, "run it without them" in errors) == (1, True)
