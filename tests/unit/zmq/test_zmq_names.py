"""The names, signatures and numbers of `omq.zmq` are those of the installed pyzmq."""

from __future__ import annotations

import enum
import inspect
from typing import Any

import pytest

import omq.zmq as face

pyzmq = pytest.importorskip("zmq")
CLASSES = ("Context", "Frame", "MessageTracker", "Poller", "Socket")


def parameters(function: Any) -> list[tuple[str, Any, Any]]:
    return [(one.name, one.kind, one.default) for one in inspect.signature(function).parameters.values()]


def test_all_names_are_there() -> None:
    assert set(face.__all__) == set(pyzmq.__all__)
    assert [name for name in face.__all__ if not hasattr(face, name)] == []


@pytest.mark.parametrize("name", sorted(set(pyzmq.__all__)))
def test_constants_have_the_same_numbers(name: str) -> None:
    theirs, ours = getattr(pyzmq, name), getattr(face, name)
    if isinstance(theirs, enum.Enum):
        assert (type(ours).__name__, ours.name, ours.value) == (type(theirs).__name__, theirs.name, theirs.value)
    elif inspect.isclass(theirs) and issubclass(theirs, enum.Enum):
        assert {key: one.value for key, one in ours.__members__.items()} == {
            key: one.value for key, one in theirs.__members__.items()
        }


@pytest.mark.parametrize(
    "name", sorted(name for name in set(pyzmq.__all__) if inspect.isfunction(getattr(pyzmq, name)))
)
def test_functions_have_the_same_parameters(name: str) -> None:
    assert parameters(getattr(face, name)) == parameters(getattr(pyzmq, name))


@pytest.mark.parametrize("kind", CLASSES)
def test_methods_have_the_same_parameters(kind: str) -> None:
    theirs, ours = getattr(pyzmq, kind), getattr(face, kind)
    for name in dir(theirs):
        if name.startswith("_"):
            continue
        assert hasattr(ours, name), name
        if callable(getattr(theirs, name)):
            assert parameters(getattr(ours, name)) == parameters(getattr(theirs, name)), name


@pytest.mark.parametrize("name", pyzmq.error.__all__)
def test_errors_have_the_same_bases(name: str) -> None:
    theirs, ours = getattr(pyzmq.error, name), getattr(face.error, name)
    assert [one.__name__ for one in ours.__mro__] == [one.__name__ for one in theirs.__mro__]
