"""Creates `.venv`, installs omq into it with the dependencies of one target, and compiles the core.

Needs nothing but Python 3.11 and its standard library, because it runs before there is an environment. An edit of
pyproject.toml or setup.py installs again, and an edit of the core compiles it; otherwise nothing happens.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: The extras of pyproject.toml that each kind of target needs. `venv` stands for the bare environment.
EXTRAS = {
    "venv": "",
    "demo": "demo",
    "broker": "broker,cli",
    "goby": "goby,cli",
    "replicated": "demo-replicated",
    "spark": "spark,broker",
    "test": "test-all",
}
_USABLE = "import pip, sys; sys.exit(sys.version_info < (3, 11))"


class Environment:
    """A virtual environment of a source tree.

    Args:
        root: The source tree.
        path: The environment's directory; relative to the tree, or absolute.
    """

    def __init__(self, root: Path, path: str) -> None:
        self._root = root
        self._name = path
        self._path = root / path
        self._origin = self._path / ".made"  # holds the tree that the environment was created for
        self.python = self._path / "bin" / "python"

    def prepare(self, target: str) -> None:
        """Brings the environment up to date for a kind of target, one of `EXTRAS`."""
        if target == "spark":  # fails before anything is installed
            self._run(sys.executable, "omq/spark/java.py")
        if self._created_here():
            print(f"using the {self._name} that is here", flush=True)
        elif not self._is_current():
            self._create()
        self._origin.write_text(f"{self._root}\n")
        if not EXTRAS[target]:
            return
        if self._is_stale(target, [self._root / "pyproject.toml", self._root / "setup.py"]):
            self._install(EXTRAS[target])
            for name in EXTRAS if target == "test" else [target]:  # the tests need what every other target needs
                self._stamp(name)
        core = [path for path in (self._root / "omq/_core").rglob("*") if path.suffix in (".pyx", ".pxd", ".h")]
        if self._is_stale("core", [*core, self._root / "omq/_core/stubs.py"]):
            self._run(self.python, "setup.py", "--quiet", "build_ext", "--inplace")
            self._stamp("core")

    def _is_usable(self) -> bool:
        if not self.python.exists():
            return False
        return subprocess.run([self.python, "-c", _USABLE], stderr=subprocess.DEVNULL, check=False).returncode == 0

    def _is_current(self) -> bool:
        """Returns False for an environment that was moved, or whose interpreter is gone."""
        return self._origin.exists() and self._origin.read_text().strip() == str(self._root) and self._is_usable()

    def _created_here(self) -> bool:
        """Returns True for an environment that the user created and that no target has used yet."""
        return not self._origin.exists() and self._is_usable()

    def _create(self) -> None:
        find = subprocess.run(["sh", ".ci/find-python"], cwd=self._root, stdout=subprocess.PIPE, text=True, check=False)
        if find.returncode:
            sys.exit(find.returncode)  # its message is on stderr
        python = find.stdout.strip()
        print(f"creating {self._name} with {python}", flush=True)
        self._origin.unlink(missing_ok=True)
        self._run(python, "-m", "venv", "--clear", self._path)

    def _install(self, extras: str) -> None:
        print(f"installing omq with its dependencies ([{extras}]) into {self._name}", flush=True)
        # setup.py may compile the core in another way now, which Cython's own check does not notice.
        for source in (self._root / "omq/_core").rglob("*.c"):
            source.unlink()
        (self._path / ".core").unlink(missing_ok=True)
        project = tomllib.loads((self._root / "pyproject.toml").read_text())
        install(self.python, project["build-system"]["requires"], cwd=self._root)
        # pip would compile the core in a temporary directory, where later builds do not find the objects.
        env = {"OMQ_NO_CORE": "1"}
        install(self.python, ["--no-build-isolation", "--editable", f".[{extras}]"], cwd=self._root, env=env)

    def _stamp(self, name: str) -> None:
        (self._path / f".{name}").touch()

    def _is_stale(self, stamp: str, sources: Iterable[Path]) -> bool:
        path = self._path / f".{stamp}"
        return not path.exists() or any(source.stat().st_mtime > path.stat().st_mtime for source in sources)

    def _run(self, *command: str | Path) -> None:
        status = subprocess.run(command, cwd=self._root, check=False).returncode
        if status:
            sys.exit(status)


def install(
    python: Path, requirements: Sequence[str], cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> None:
    """Installs requirements into the virtual environment of an interpreter; exits if that fails."""
    command: list[str | Path] = [python, "-m", "pip", "--require-virtualenv", "install", "--quiet", *requirements]
    own = {"PIP_NO_INPUT": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    status = subprocess.run(command, cwd=cwd, env={**os.environ, **own, **(env or {})}, check=False).returncode
    if status:
        sys.exit(status)


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", choices=EXTRAS, help="the kind of target to prepare for")
    parser.add_argument("--venv", default=".venv", help="the environment's directory (default: %(default)s)")
    options = parser.parse_args()
    if not shutil.which("sh"):
        sys.exit("there is no sh on the PATH")
    Environment(ROOT, options.venv).prepare(options.target)


if __name__ == "__main__":
    main()
