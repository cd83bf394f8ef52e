"""The pages of traps and of conformance name tests that are there, and no test passes for lack of an assertion."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from tests.support import sources

pytestmark = sources.in_one_process
TESTS = sources.ROOT / "tests"
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
    every = sources.definitions(sources.trees()[path])
    return [node for node in every if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


@pytest.mark.parametrize("page", PAGES)
def test_every_trap_has_a_test_that_is_there(page):
    for trap in rows(page):
        assert len(trap) == 2, trap
        named = NAMED.findall(trap[1])
        assert named or trap[1].startswith("not applicable"), f"{trap[0]}: without a test or a reason"
        for path, name in named:
            assert name in {function.name for function in functions(TESTS / path)}, f"{path} has no {name}"


def test_every_statement_of_an_rfc_has_a_test_that_is_there():
    found = statements()
    assert len(found) > 50
    for statement in found:
        assert len(statement) == 3, statement
        named = NAMED.findall(statement[1])
        assert named, f"{statement[0]}: without a test"
        for path, name in named:
            assert name in {function.name for function in functions(TESTS / path)}, f"{path} has no {name}"


@pytest.mark.parametrize("page", PAGES)
def test_the_page_is_not_empty(page):
    assert len(rows(page)) > 30


def called(function):
    """Returns the names of the functions that a function calls; `None` if it has an assertion or raises an error."""
    names = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Assert | ast.Raise):
            return None
        if isinstance(node, ast.Call):
            names.add(node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", ""))
    return names


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


def test_every_test_asserts_something():
    """A test that can fail has an assertion, an expected error, a bounded wait, or a helper with one of them."""
    empty = {path.relative_to(TESTS): names for path in TESTS.rglob("test_*.py") if (names := unfailing(path))}
    assert not empty, f"nothing in these can fail: {empty}"


def unfailing(path):
    """Returns the names of the tests of a file that cannot fail."""
    calls = [(one.name, called(one)) for one in functions(path)]
    failing = set(SAYING)

    def fails(names):
        return names is None or not names.isdisjoint(failing)

    while more := {name for name, names in calls if not name.startswith("test_") and fails(names)} - failing:
        failing |= more  # a helper may assert by way of another one
    return [name for name, names in calls if name.startswith("test_") and not fails(names)]
