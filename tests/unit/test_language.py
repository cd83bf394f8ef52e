"""The words of the package: docstrings begin with a verb or a noun, and constants have a unit in their name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "omq"
#: A sentence that begins so is a clause, or is about something that stands before it.
CLAUSES = {
    "as",
    "how",
    "it",
    "that",
    "these",
    "they",
    "this",
    "what",
    "whatever",
    "when",
    "where",
    "whether",
    "which",
    "who",
    "whoever",
    "whose",
    "why",
}
#: Names that say neither what is counted nor its unit; others say it: RETRY_DELAY_S, MAX_FRAME_BYTES.
WITHOUT_UNIT = re.compile(
    r"^_?(AGAIN|LATE|LOOK|MOST|PATIENCE|QUIET|RESTS?|SILENCE|TURN|\w+_(DELAY|INTERVAL|PERIOD|TIMEOUT|TTL))$"
)


def sources() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if not path.name.endswith("_pb2.py"))


def clauses(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yields the line and the first line of each docstring that begins with a clause."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text and re.split(r"\W", text, maxsplit=1)[0].lower() in CLAUSES:
                yield getattr(node, "lineno", 1), text.splitlines()[0]


def constants(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yields the line and the name of each constant at the head of a module whose name has no unit."""
    for node in tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        for target in targets:
            if isinstance(target, ast.Name) and WITHOUT_UNIT.match(target.id):
                yield node.lineno, target.id


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{line}: {text}"
        for path in sources()
        for line, text in clauses(ast.parse(path.read_text()))
    ]
    assert not found, "\n".join(found)


def test_constants_have_a_unit_in_their_name() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{line}: {name}"
        for path in sources()
        for line, name in constants(ast.parse(path.read_text()))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("source", "finds"),
    [
        ('def f():\n    """Whether it is."""', True),
        ('"""What it does."""', True),
        ('class A:\n    """Who takes."""', True),
        ('def f():\n    """Returns whether it is."""', False),
        ('def f():\n    """Whatever-else."""', True),
        ('class A:\n    """The ack floor."""', False),
    ],
)
def test_a_clause_is_found(source: str, finds: bool) -> None:
    assert bool(list(clauses(ast.parse(source)))) is finds


@pytest.mark.parametrize(
    ("source", "finds"),
    [
        ("PATIENCE = 1.0", True),
        ("_RETRY_DELAY: Final = 1.0", True),
        ("RETRY_DELAY_S = 1.0", False),
        ("MOST = 64", True),
        ("def f():\n    MOST = 64", False),
    ],
)
def test_a_constant_without_a_unit_is_found(source: str, finds: bool) -> None:
    assert bool(list(constants(ast.parse(source)))) is finds
