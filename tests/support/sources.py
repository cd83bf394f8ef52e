"""The Python sources of the tree, parsed once in a process for all tests that read them.

Such tests have the mark `in_one_process`, so that other processes of pytest-xdist do not parse the sources again.
"""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("omq", "bench", "docs", "tests")
BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")  # attributes of a node with statements
Definition = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef

in_one_process = pytest.mark.xdist_group("sources")


@cache
def trees() -> dict[Path, ast.Module]:
    """Returns the syntax trees of all modules but generated ones."""
    paths = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    gc.disable()  # each collection would traverse a million nodes: three quarters of the time of parsing
    try:
        return {path: ast.parse(path.read_text()) for path in paths if not path.name.endswith("_pb2.py")}
    finally:
        gc.freeze()
        gc.enable()


def definitions(node: ast.AST) -> Iterator[Definition]:
    """Yields a module, its classes and its functions at any depth, without lambdas."""
    if isinstance(node, Definition):
        yield node
    for name in BLOCKS:
        for inner in getattr(node, name, ()):
            yield from definitions(inner)
