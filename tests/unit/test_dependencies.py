"""Imported packages are declared: those installed on one machine may be missing on another."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata

import pytest

from tests.support import sources
from tests.support.optional_packages import OPTIONAL

pytestmark = sources.in_one_process
TREE = sources.ROOT
EXAMPLES = TREE / "docs" / "examples"
#: These run in environments of their own, which have what they import.
PROGRAMS = TREE / "tests" / "system" / "drop_in" / "programs"
OURS = {"omq", "tests", "bench", "pyspark_omq"} | {path.stem for path in EXAMPLES.glob("*.py")}
#: Comes with CPython where its tests are installed, and is asked for with `importorskip`.
INTERPRETER = {"_testcapi"}
#: The clients of other servers, which `python -m bench.broker.install` fetches before they are measured.
FETCHED = {"pika", "redis"}

#: The distributions of modules that may not be installed where the tests run.
ELSEWHERE = {module: [package] for module, package in OPTIONAL.items()}


def _key(name: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", name, maxsplit=1)[0]).lower()


def _declared() -> set[str]:
    project = tomllib.loads((TREE / "pyproject.toml").read_text())["project"]
    return {
        _key(each) for some in (project["dependencies"], *project["optional-dependencies"].values()) for each in some
    }


def _imported(tree: ast.AST) -> Iterator[str]:
    """First names of what a module imports when it runs, wherever it does; not what only a type checker reads."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            yield from (each.name.split(".")[0] for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0]
        if not isinstance(node, ast.expr):
            yield from _imported(node)


@pytest.mark.parametrize("room", ["omq", "bench", "tests", "docs"])
def test_what_is_imported_is_declared(room: str) -> None:
    declared = _declared()
    owners = ELSEWHERE | dict(metadata.packages_distributions())
    missing = {}
    trees = {
        path: tree
        for path, tree in sources.trees().items()
        if path.is_relative_to(TREE / room) and path.parent != PROGRAMS
    }
    assert trees
    for path, tree in trees.items():
        for name in {*_imported(tree)} - sys.stdlib_module_names - OURS - INTERPRETER - FETCHED:
            if not {_key(owner) for owner in owners.get(name, [name])} & declared:
                missing[str(path.relative_to(TREE))] = name
    assert missing == {}
