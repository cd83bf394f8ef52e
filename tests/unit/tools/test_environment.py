"""Tests of the environment that make prepares, with an interpreter that records what it is asked to do."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.tools.environment import Environment

PROJECT = '[build-system]\nrequires = ["cython>=3.3"]\n'
PYTHON = '#!/bin/sh\nif test "$1" != -c; then echo "$@" >> {log}; fi\ncase "$*" in *{failing}*) exit 3;; esac\n'
CREATE = "-m venv --clear {tree}/.venv"
INSTALL = "-m pip --require-virtualenv install --quiet"
BUILD = "setup.py --quiet build_ext --inplace"


class Tree:
    """A source tree with a fake interpreter, whose `find-python` finds the same."""

    def __init__(self, path: Path) -> None:
        self.path = path
        for name, text in {
            "pyproject.toml": PROJECT,
            "setup.py": "",
            "omq/_core/lock.pyx": "",
            "omq/_core/lock.c": "",
            "omq/_core/stubs.py": "",
            ".ci/find-python": f"echo {path}/.venv/bin/python\n",
        }.items():
            self.write(name, text)
        self.set_python()
        self.environment = Environment(path, ".venv")

    def write(self, name: str, text: str) -> Path:
        (self.path / name).parent.mkdir(parents=True, exist_ok=True)
        (self.path / name).write_text(text)
        return self.path / name

    def set_python(self, failing: str = "nothing") -> None:
        """Installs an interpreter that fails where its arguments contain a word."""
        self.write(".venv/bin/python", PYTHON.format(log=self.path / "log", failing=failing)).chmod(0o755)

    def edit(self, name: str) -> None:
        """Changes a file later than everything else."""
        later = time.time() + 10
        os.utime(self.path / name, (later, later))

    def prepare(self, target: str) -> list[str]:
        """Prepares for a target, and returns what the interpreter was asked to do."""
        (self.path / "log").write_text("")
        self.environment.prepare(target)
        return (self.path / "log").read_text().splitlines()


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def installs(extras: str) -> list[str]:
    return [f"{INSTALL} cython>=3.3", f"{INSTALL} --no-build-isolation --editable .[{extras}]"]


def test_an_environment_that_the_user_created_is_taken(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    assert tree.prepare("demo") == [*installs("demo"), BUILD]
    assert "using the .venv that is here" in capsys.readouterr().out


def test_nothing_happens_twice(tree: Tree) -> None:
    tree.prepare("demo")
    assert tree.prepare("demo") == []


def test_an_environment_that_was_moved_is_created_again(tree: Tree) -> None:
    tree.write(".venv/.made", "/elsewhere\n")
    assert tree.prepare("venv") == [CREATE.format(tree=tree.path)]
    assert tree.prepare("venv") == []


def test_an_environment_whose_interpreter_is_gone_is_created_again(tree: Tree) -> None:
    tree.prepare("venv")
    python = tree.environment.python
    tree.write(".ci/find-python", f"mv {python}.old {python}; echo {python}\n")
    python.rename(f"{python}.old")
    assert tree.prepare("venv") == [CREATE.format(tree=tree.path)]


@pytest.mark.parametrize("name", ["pyproject.toml", "setup.py"])
def test_an_edit_of_the_project_installs_again(tree: Tree, name: str) -> None:
    tree.prepare("demo")
    tree.write("omq/_core/lock.c", "")
    tree.edit(name)
    assert tree.prepare("demo") == [*installs("demo"), BUILD]
    assert not (tree.path / "omq/_core/lock.c").exists()


@pytest.mark.parametrize("name", ["omq/_core/lock.pyx", "omq/_core/stubs.py"])
def test_an_edit_of_the_core_compiles_it(tree: Tree, name: str) -> None:
    tree.prepare("demo")
    tree.edit(name)
    assert tree.prepare("demo") == [BUILD]


def test_the_tests_need_what_every_other_target_needs(tree: Tree) -> None:
    tree.prepare("test")
    assert tree.prepare("broker") == tree.prepare("goby") == []


def test_a_failed_installation_is_repeated(tree: Tree) -> None:
    tree.set_python(failing="editable")
    with pytest.raises(SystemExit) as failed:
        tree.prepare("demo")
    assert failed.value.code == 3
    tree.set_python()
    assert tree.prepare("demo") == [*installs("demo"), BUILD]


def test_where_no_python_fits_its_message_is_all(tree: Tree) -> None:
    tree.environment.python.unlink()
    tree.write(".ci/find-python", "echo 'omq needs Python 3.11' >&2; exit 1\n")
    with pytest.raises(SystemExit) as failed:
        tree.prepare("demo")
    assert failed.value.code == 1


def test_a_missing_jdk_is_reported_before_anything_is_installed(
    tree: Tree, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tree.write("omq/spark/java.py", "import sys; print('Spark needs a JDK', file=sys.stderr); sys.exit(2)")
    with pytest.raises(SystemExit) as failed:
        tree.prepare("spark")
    assert failed.value.code == 2
    assert "Spark needs a JDK" in capfd.readouterr().err
    assert (tmp_path / "log").read_text() == ""
