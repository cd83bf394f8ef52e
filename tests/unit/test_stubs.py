"""The stubs of the compiled modules, which the build writes from the Cython sources."""

from __future__ import annotations

import ast
import importlib
import inspect
import runpy
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest

import omq

CORE = Path(omq.__file__).parent / "_core"
STUBS = sorted(CORE.rglob("*.pyi"))

with_cython = pytest.mark.xdist_group("cython")  # importing it takes two seconds: in one process

SOURCE = '''"""A module.

    With details."""

# stub: from omq.event import Event
# stub: T = TypeVar("T")
# stub: class Slot(Generic[T]):

from libc.stdint cimport uint64_t
from omq._core.clock cimport now_ns
from omq.errors import OmqError

import os

cdef enum:
    LIMIT = 3


cdef class Slot:
    """A slot.

    Attributes:
        value: A value.
    """
    # stub: value: T | None
    # stub: table: dict[str, Event]

    cdef readonly int fd  # owned

    def __cinit__(self, int limit=16, *_) -> None:
        """Makes a \\\\backslash."""
        self.fd = limit

    def __dealloc__(self):
        pass

    @property
    def done(self) -> bool:
        """Whether it is done."""
        return True

    def put(self, value: T, uint64_t at, Other other not None, /, *, timeout: float | None = None, x: int = LIMIT) -> T:
        return value

    cpdef int control(self, bytes frames) except -1:
        return 0

    # stub: def close(self) -> None: ...
    cpdef close(self):
        """Closes it."""

    cdef int hidden(self):
        return 0


cdef class Other(Slot):
    cdef int _inner

    def unannotated(self, thing):
        return thing


def take(list values not None: list[Buffer], *more: bytes, **options: Any) -> Iterator[OmqError]:
    """Takes values."""
    return iter(values)
'''
DECLARATIONS = """
cdef class Slot:
    cdef public object table     # by name
    cdef readonly object value
    cdef public bint open, shut
    cdef int _limit
"""
STUB = '''"""A module.

With details.
"""
from collections.abc import Iterator
from omq.errors import OmqError
from typing import Any
from typing import Generic
from typing import TypeVar
from typing_extensions import Buffer
from omq.event import Event
T = TypeVar("T")

class Slot(Generic[T]):
    """A slot.

    Attributes:
        value: A value.
    """
    def __init__(self, limit: int = 16, *_: Any) -> None:
        """Makes a \\\\backslash."""
    @property
    def done(self) -> bool:
        """Whether it is done."""
    def put(self, value: T, at: int, other: Other, /, *, timeout: float | None = None, x: int = ...) -> T: ...
    def control(self, frames: bytes) -> int: ...
    def close(self) -> None:
        """Closes it."""
    table: dict[str, Event]
    @property
    def value(self) -> T | None: ...
    open: bool
    shut: bool
    @property
    def fd(self) -> int: ...

class Other(Slot):
    ...
def take(values: list[Buffer], *more: bytes, **options: Any) -> Iterator[OmqError]:
    """Takes values."""
'''


@cache
def tool() -> SimpleNamespace:
    """Returns the module that writes stubs, which imports Cython."""
    return SimpleNamespace(**runpy.run_path(str(CORE / "stubs.py")))


@pytest.mark.slow
@with_cython
def test_a_stub_has_what_python_may_use():
    assert tool().Stub(SOURCE, DECLARATIONS, {}).text == STUB


@with_cython
@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("def f(thing) -> None:\n    pass\n", "line 1: the parameter thing needs an annotation"),
        ("def f(list things) -> None:\n    pass\n", "the parameter things needs an annotation"),
        ("def f(int size) -> Nowhere:\n    pass\n", "'Nowhere' is not defined"),
    ],
)
def test_a_source_that_declares_too_little_is_refused(source, complaint):
    with pytest.raises(tool().StubError, match=complaint):
        tool().Stub(source, "", {})


@with_cython
def test_stubs_are_up_to_date():
    assert {path: path.read_text() for path in STUBS} == dict(tool().stubs(CORE))


def named(text: str) -> list[tuple[str, str | None]]:
    """The dotted names of a stub's classes and functions, and their texts."""
    found = []
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found.append((node.name, ast.get_docstring(node)))
        if isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef):
                    found.append((f"{node.name}.{inner.name}", ast.get_docstring(inner)))
                elif isinstance(inner, ast.AnnAssign):
                    found.append((f"{node.name}.{ast.unparse(inner.target)}", None))
    return found


@pytest.mark.parametrize("path", STUBS, ids=[path.stem for path in STUBS])
def test_what_a_stub_promises_is_there_and_help_agrees(path):
    module = importlib.import_module(".".join(("omq", *path.relative_to(CORE.parent).with_suffix("").parts)))
    for name, text in named(path.read_text()):
        thing = module
        for part in name.split("."):
            thing = getattr(thing, part)
        if text and not name.endswith(".__init__"):
            assert inspect.getdoc(thing) == text, name
