"""The words of the code: docstrings begin with a verb or a noun, constants have a unit in their name.

Docstrings describe parameters and attributes that exist.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

import pytest

from tests.support import sources
from tests.support.sources import definitions

pytestmark = sources.in_one_process
TREE = sources.ROOT
#: Constants with the names of pyzmq.
NAMES_OF_PYZMQ = TREE / "omq" / "zmq" / "constants.py"
PACKAGE = TREE / "omq"
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
#: Names that have neither what is counted nor its unit; others have it: RETRY_DELAY_S, MAX_FRAME_BYTES.
WITHOUT_UNIT = re.compile(
    r"^_?(AGAIN|LATE|LOOK|MOST|PATIENCE|QUIET|RESTS?|SILENCE|TURN|(\w+_)?(DELAY|INTERVAL|PERIOD|TIMEOUT|TTL))$"
)
#: The first line of a docstring in Cython. C code between triple quotes begins on a line of its own.
CYTHON_DOCSTRING = re.compile(r'^ *"""(\w.*)', re.MULTILINE)
CYTHON_ENUM = re.compile(r"^ *(?:cdef|cpdef) enum\b.*:\n((?: +.*\n|\n)+)", re.MULTILINE)
CYTHON_CONSTANT = re.compile(r"^ +([A-Z]\w*) = ([^#\n]+?) *(?:#.*)?$", re.MULTILINE)
#: The section of a docstring, and the names that its entries describe.
SECTION = r"^{}:\n((?:    .*\n?|\n)+)"
ENTRY = re.compile(r"^    (\*{0,2}\w+(?:, \*{0,2}\w+)*): ", re.MULTILINE)


@pytest.fixture(scope="module")
def trees() -> dict[Path, ast.Module]:
    stubs = sorted(PACKAGE.rglob("*.pyi"))
    return sources.trees() | {path: ast.parse(path.read_text()) for path in stubs}


def cython_sources() -> list[Path]:
    return sorted([*PACKAGE.rglob("*.pyx"), *PACKAGE.rglob("*.pxd")])


def begins_with_clause(text: str) -> bool:
    return re.split(r"\W", text.strip(), maxsplit=1)[0].lower() in CLAUSES


def clauses(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yields the line and the first line of each docstring that begins with a clause."""
    for node in definitions(tree):
        text = ast.get_docstring(node)
        if text and begins_with_clause(text):
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


def cython_clauses(source: str) -> Iterator[tuple[int, str]]:
    """Yields the line and the first line of each docstring in Cython that begins with a clause."""
    for found in CYTHON_DOCSTRING.finditer(source):
        if begins_with_clause(found[1]):
            yield source.count("\n", 0, found.start(1)) + 1, found[1]


def cython_constants(source: str) -> Iterator[tuple[int, str, str]]:
    """Yields the line, the name and the value of each constant in an enum of Cython."""
    for enum in CYTHON_ENUM.finditer(source):
        for found in CYTHON_CONSTANT.finditer(source, enum.start(1), enum.end(1)):
            yield source.count("\n", 0, found.start()) + 1, found[1], found[2]


def described(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, section: str) -> list[str]:
    """Returns the names that a section of the docstring describes."""
    found = re.search(SECTION.format(section), ast.get_docstring(node) or "", re.MULTILINE)
    return [name.lstrip("*") for names in ENTRY.findall(found[1]) for name in names.split(", ")] if found else []


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    given = function.args
    every = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    return {one.arg for one in every if one is not None}


def constructor(node: ast.ClassDef) -> ast.FunctionDef | None:
    made = [one for one in node.body if isinstance(one, ast.FunctionDef) and one.name in ("__init__", "__new__")]
    return made[-1] if made else None  # the others are overloads


def assigned(node: ast.ClassDef) -> set[str]:
    """Returns the attributes that a class body defines or a method of it sets."""
    names = {one.name for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}
    for statement in node.body:
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        names |= {target.id for target in targets if isinstance(target, ast.Name)}
    for one in ast.walk(node):
        match one:
            case ast.Attribute(value=ast.Name(id="self"), ctx=ast.Store()):
                names.add(one.attr)
    return names


class Attributes:
    """The attributes of all classes by name, those of their bases included."""

    def __init__(self, trees: Iterable[ast.Module]) -> None:
        self._classes: dict[str, list[ast.ClassDef]] = {}
        for node in chain.from_iterable(map(definitions, trees)):
            if isinstance(node, ast.ClassDef):
                self._classes.setdefault(node.name, []).append(node)

    def of(self, name: str) -> set[str]:
        found, names, left = set(), set(), [name]
        while left:
            name = left.pop()
            if name not in names:
                names.add(name)
                for node in self._classes.get(name, ()):
                    found |= assigned(node)
                    left += (ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases)
        return found


def unknown_entries(tree: ast.Module, attributes: Attributes) -> Iterator[tuple[int, str]]:
    """Yields the line of each function or class, and a described parameter or attribute that it does not have."""
    for node in definitions(tree):
        function: ast.FunctionDef | ast.AsyncFunctionDef | None
        if isinstance(node, ast.ClassDef):
            function = constructor(node)
            if entries := described(node, "Attributes"):
                known = attributes.of(node.name)
                yield from ((node.lineno, name) for name in entries if name not in known)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            function = node
        else:
            continue
        if function is not None:
            yield from ((node.lineno, name) for name in described(node, "Args") if name not in parameters(function))


def test_docstrings_begin_with_a_verb_or_a_noun(trees: dict[Path, ast.Module]) -> None:
    found = [f"{path.relative_to(TREE)}:{line}: {text}" for path, tree in trees.items() for line, text in clauses(tree)]
    assert not found, "\n".join(found)


def test_constants_have_a_unit_in_their_name(trees: dict[Path, ast.Module]) -> None:
    found = [
        f"{path.relative_to(TREE)}:{line}: {name}"
        for path, tree in trees.items()
        for line, name in constants(tree)
        if path != NAMES_OF_PYZMQ
    ]
    assert not found, "\n".join(found)


def test_docstrings_of_the_core_begin_with_a_verb_or_a_noun() -> None:
    found = [
        f"{path.relative_to(TREE)}:{line}: {text}"
        for path in cython_sources()
        for line, text in cython_clauses(path.read_text())
    ]
    assert not found, "\n".join(found)


def test_constants_of_the_core_have_a_unit_in_their_name() -> None:
    found = [
        f"{path.relative_to(TREE)}:{line}: {name}"
        for path in cython_sources()
        for line, name, _ in cython_constants(path.read_text())
        if WITHOUT_UNIT.match(name)
    ]
    assert not found, "\n".join(found)


def test_constants_of_the_core_are_defined_once() -> None:
    places: dict[tuple[str, str], list[str]] = {}
    for path in cython_sources():
        for line, name, value in cython_constants(path.read_text()):
            places.setdefault((name, value), []).append(f"{path.relative_to(TREE)}:{line}")
    found = [f"{name} = {value}: {', '.join(where)}" for (name, value), where in places.items() if len(where) > 1]
    assert not found, "\n".join(found)


def test_docstrings_describe_parameters_and_attributes_that_exist(trees: dict[Path, ast.Module]) -> None:
    attributes = Attributes(trees.values())
    found = [
        f"{path.relative_to(TREE)}:{line}: {name}"
        for path, tree in trees.items()
        for line, name in unknown_entries(tree, attributes)
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


@pytest.mark.parametrize(
    ("source", "finds"),
    [
        ('"""What it does."""\n', True),
        ('# cython: language_level=3\n"""What it does."""\n', True),
        ('cdef class A(B):\n    """Who takes."""\n', True),
        ('    cdef inline bint f(self, int a) noexcept nogil:\n        """Whether it is."""\n', True),
        ('cdef object f(object a,\n              object b):\n    """How it is."""\n', True),
        ('cdef int f() except -1:  # never\n    """As it is."""\n', True),
        ('cpdef int f():\n    """Returns whether it is."""\n', False),
        ('cdef extern from *:\n    """\n    what();\n    """\n', False),
        ('cdef class A:\n    cdef int b\n\ncdef extern from *:\n    """\n    what();\n    """\n', False),
        ('def f():\n    text = """What it is."""\n', False),
    ],
)
def test_a_clause_of_cython_is_found(source: str, finds: bool) -> None:
    assert bool(list(cython_clauses(source))) is finds


def test_a_constant_of_cython_is_found() -> None:
    source = "cdef enum:\n    # A comment.\n    MOST = 64  # messages\n\n    SPIN_NS = 1 << 4\n\ncdef int OTHER = 1\n"
    assert list(cython_constants(source)) == [(3, "MOST", "64"), (5, "SPIN_NS", "1 << 4")]


@pytest.mark.parametrize(
    ("source", "names"),
    [
        (
            'def f(a, *b, **c):\n    """Does.\n\n    Args:\n        a: A.\n        *b: B.\n        **c: C.\n    """',
            [],
        ),
        ('def f(a):\n    """Does.\n\n    Args:\n        a, b: Both.\n\n    Returns:\n        c: No.\n    """', ["b"]),
        ('class A:\n    """One.\n\n    Args:\n        a: One.\n    """\n    def __init__(self, b): ...', ["a"]),
        ('class A:\n    """One.\n\n    Attributes:\n        a: One.\n        b: Two.\n    """\n    a: int', ["b"]),
        (
            'class A:\n    """One.\n\n    Attributes:\n        a: One.\n    """\n    def f(self):\n        self.a = 1',
            [],
        ),
        ('class A:\n    a = 1\nclass B(x.A[int]):\n    """One.\n\n    Attributes:\n        a: One.\n    """', []),
    ],
)
def test_an_unknown_parameter_or_attribute_is_found(source: str, names: list[str]) -> None:
    tree = ast.parse(source)
    assert [name for _, name in unknown_entries(tree, Attributes([tree]))] == names
