"""What `help` shows of compiled code: the text and the signature that the stubs have for editors."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

import omq
import omq.asyncio

CALLS = Path(omq.__file__).parent / "_core" / "calls"
STUBS = sorted(CALLS.glob("*.pyi"))


def documented(stub: Path) -> Iterator[tuple[str, str, str]]:
    """The methods of a stub that have a text: class, name, text. Attributes of C structs can have none at run time."""
    for kind in ast.parse(stub.read_text()).body:
        if isinstance(kind, ast.ClassDef):
            for function in kind.body:
                text = ast.get_docstring(function) if isinstance(function, ast.FunctionDef) else None
                if (
                    isinstance(function, ast.FunctionDef)
                    and function.name[0] != "_"
                    and text
                    and not function.decorator_list
                ):
                    yield kind.name, function.name, text


@pytest.mark.parametrize("stub", STUBS, ids=[stub.stem for stub in STUBS])
def test_help_says_what_an_editor_shows(stub):
    module = importlib.import_module(f"omq._core.calls.{stub.stem}")
    for kind, name, text in documented(stub):
        assert inspect.getdoc(getattr(getattr(module, kind), name)) == text, f"{kind}.{name}"


@pytest.mark.parametrize("kind", [omq.Socket, omq.asyncio.Socket], ids=["blocking", "asyncio"])
def test_every_call_of_a_socket_has_a_text_and_a_signature(kind):
    calls = [name for name in dir(kind) if callable(getattr(kind, name)) and not name.startswith("_")]
    assert {"send", "recv", "poll", "fileno", "connect", "close"} <= set(calls)
    for name in calls:
        assert inspect.getdoc(getattr(kind, name)), name
        assert "self" in inspect.signature(getattr(kind, name)).parameters, name
