"""Builds a copy of the tree with a switch of setup.py, in `build/NAME`, and runs Python in it.

A copy keeps the modules of such a build apart from the usual ones. For example, this checks the core's invariants:

    python -m tests.tools.build_variant debug OMQ_DEBUG --keep -- -m pytest tests/unit/core
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from tests.tools.processes import ROOT, call, check, exit_status, parser_for, split_arguments

#: What a copy needs to be built and tested; what does not exist is left out.
COPIED = (
    *("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "Makefile", ".gitignore", ".ci", ".github"),
    *(".pre-commit-config.yaml", "omq", "tests", "bench", "docs"),
)
_COMPILED = (".so", ".c", ".pyc")
_WHERE = "import importlib.util; print(importlib.util.find_spec('omq').origin)"


def copy_tree(target: Path) -> None:
    """Makes the sources in a directory equal to those of this tree; what was compiled there stays."""
    target.mkdir(parents=True, exist_ok=True)
    for name in COPIED:
        for old in [target / name, *(target / name).rglob("*")]:
            if old.is_file() and old.suffix not in _COMPILED:
                old.unlink()
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, symlinks=True, dirs_exist_ok=True, ignore=_ignored)
        elif source.exists():
            shutil.copy2(source, target / name)


def _ignored(directory: str, names: list[str]) -> set[str]:
    core = Path(directory).is_relative_to(ROOT / "omq/_core")
    return {name for name in names if name == "__pycache__" or name.endswith(".so") or (core and name.endswith(".c"))}


class Variant:
    """A copy of the tree that is built with other switches.

    Args:
        name: The directory below `build`.
        switch: The environment variable that setup.py reads.
    """

    def __init__(self, name: str, switch: str) -> None:
        self.path = ROOT / "build" / name
        self.env = {"PYTHONPATH": str(self.path)}
        self._switch = switch
        self._key = self.path / ".made"

    def build(self, keep: bool = False) -> None:
        """Builds the variant; exits if that fails.

        Args:
            keep: Keeps what was compiled for as long as compiling it would have the same result.
        """
        key = _build_key() if keep else ""
        if not keep or not self._key.exists() or self._key.read_text() != key:
            shutil.rmtree(self.path, ignore_errors=True)
            copy_tree(self.path)
            print(f"building with {self._switch}=1 in {self.path.relative_to(ROOT)}", flush=True)
            command = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
            check(command, self.path, {self._switch: "1"})
            self._key.write_text(key)
        else:
            copy_tree(self.path)
        self._check_import()

    def python(self, *args: str, env: dict[str, str] | None = None) -> int:
        """Runs Python in the copy, and returns its exit status, negative for a signal."""
        return call([sys.executable, *args], self.path, {**self.env, **(env or {})})

    def environ(self) -> dict[str, str]:
        """Returns the whole environment of a process in the copy."""
        return {**os.environ, **self.env}

    def _check_import(self) -> None:
        """Exits if Python in the copy would import omq from another place."""
        command = [sys.executable, "-c", _WHERE]
        found = subprocess.run(command, cwd=self.path, env=self.environ(), capture_output=True, text=True, check=False)
        if Path(found.stdout.strip()) != self.path / "omq/__init__.py":
            sys.exit(f"{self.path}: omq is imported from {found.stdout.strip() or found.stderr}")


def _build_key() -> str:
    """Returns a digest of everything that the compiled modules depend on."""
    seen = hashlib.sha256(sys.version.encode() + os.environ.get("CFLAGS", "").encode())
    compiler = [*shlex.split(os.environ.get("CC") or "cc"), "--version"]
    for command in (compiler, [sys.executable, "-m", "cython", "--version"]):
        seen.update(subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False).stdout)
    sources = [path for path in (ROOT / "omq/_core").rglob("*") if path.suffix in (".pyx", ".pxd", ".h")]
    for path in [Path(__file__), ROOT / "setup.py", *sorted(sources)]:
        seen.update(f"{path.relative_to(ROOT)} {path.stat().st_size}\n".encode())
        seen.update(path.read_bytes())
    return seen.hexdigest()


def main() -> int:
    """Runs the command line."""
    own, passed = split_arguments()
    parser = parser_for(__doc__, "arguments of Python, which runs in the copy")
    parser.add_argument("name", help="the directory below build/")
    parser.add_argument("switch", help="the variable that setup.py reads, such as OMQ_DEBUG")
    parser.add_argument("--keep", action="store_true", help="compile only if the result would differ")
    options = parser.parse_args(own)
    variant = Variant(options.name, options.switch)
    variant.build(options.keep)
    return exit_status(variant.python(*passed)) if passed else 0


if __name__ == "__main__":
    sys.exit(main())
