"""The pages of traps and of conformance name tests that are there, and no test passes for lack of an assertion."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent.parent
PAGES = {name: TESTS.parent / "docs" / "explanation" / f"{name}.md" for name in ("traps", "conformance")}
NAMED = re.compile(r"`([\w/]+\.py)::(\w+)`")


def rows(page):
    """Trap and tests, as the page has them."""
    lines = [line for line in PAGES[page].read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    found = [tuple(cell.strip() for cell in line.strip("|").split(" | ")) for line in lines]
    return [row for row in found if row[1] not in ("Test", "---")]


def statements():
    """Rows of the page of the RFCs: a statement, its tests, and the behaviour of libzmq."""
    page = TESTS.parent / "docs" / "reference" / "conformance.md"
    lines = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    found = [tuple(cell.strip() for cell in line.strip("|").split(" | ")) for line in lines]
    return [row for row in found if row[1] not in ("Test", "---")]


@cache
def functions(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


@pytest.mark.parametrize("trap", [row for page in PAGES for row in rows(page)], ids=lambda row: row[0][:40])
def test_every_trap_has_a_test_that_is_there(trap):
    assert len(trap) == 2
    named = NAMED.findall(trap[1])
    assert named or trap[1].startswith("not applicable"), "a trap without a test or a reason"
    for path, name in named:
        assert name in {function.name for function in functions(TESTS / path)}, f"{path} has no {name}"


@pytest.mark.parametrize("statement", statements(), ids=lambda row: row[0][:40])
def test_every_statement_of_an_rfc_has_a_test_that_is_there(statement):
    assert len(statement) == 3
    named = NAMED.findall(statement[1])
    assert named, "a statement without a test"
    for path, name in named:
        assert name in {function.name for function in functions(TESTS / path)}, f"{path} has no {name}"


@pytest.mark.parametrize("page", PAGES)
def test_the_page_is_not_empty(page):
    assert len(rows(page)) > 30


def test_the_reference_of_conformance_names_tests_that_are_there():
    """Each row of a statement names one at least."""
    page = TESTS.parent / "docs" / "reference" / "conformance.md"
    lines = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    statements = [line for line in lines if not line.startswith(("| Statement |", "| --- |"))]
    assert len(statements) > 50
    for line in statements:
        named = NAMED.findall(line)
        assert named, f"no test in {line}"
        for path, name in named:
            assert name in {function.name for function in functions(TESTS / path)}, f"{path} has no {name}"


def asserts(function, helpers):
    """Returns whether a test can fail: it has an assertion, an expected error, a bounded wait, or a helper with one."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assert | ast.Raise):
            return True
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in SAYING or name in helpers:
                return True
    return False


#: Calls that fail by themselves.
SAYING = {
    "raises",
    "timeout",
    "warns",
    "fail",
    "until",
    "wait_for",
    "run_state_machine_as_test",
    "join",
    "end",
    "check",
    "assert_served",
}


@pytest.mark.parametrize("path", sorted(TESTS.rglob("test_*.py")), ids=lambda path: str(path.relative_to(TESTS)))
def test_every_test_asserts_something(path):
    found = functions(path)
    helpers: set[str] = set()
    while more := {one.name for one in found if not one.name.startswith("test_") and asserts(one, helpers)} - helpers:
        helpers |= more  # a helper may assert by way of another one
    empty = [one.name for one in found if one.name.startswith("test_") and not asserts(one, helpers)]
    assert not empty, f"nothing in these can fail: {empty}"
