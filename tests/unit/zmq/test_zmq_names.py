"""The names, signatures and numbers of `omq.zmq` are those of the installed pyzmq."""

from __future__ import annotations

import enum
import importlib
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


def public_names(module: str) -> list[tuple[str, str]]:
    theirs = importlib.import_module(f"zmq.{module}")
    names = getattr(theirs, "__all__", None) or [name for name in vars(theirs) if name[0] != "_"]
    return [(module, name) for name in names if not inspect.ismodule(getattr(theirs, name))]


@pytest.mark.parametrize(
    ("module", "name"),
    [pair for module in ("auth", "devices", "utils.monitor", "decorators") for pair in public_names(module)],
)
def test_other_modules_have_the_same_names_and_parameters(module: str, name: str) -> None:
    theirs, ours = (getattr(importlib.import_module(f"{package}.{module}"), name) for package in ("zmq", "omq.zmq"))
    if not callable(theirs):
        assert ours == theirs
        return
    assert parameters(ours) == parameters(theirs)
    for method in dir(theirs) if inspect.isclass(theirs) else ():
        if not method.startswith("_"):
            assert hasattr(ours, method), method
            if inspect.isfunction(getattr(theirs, method)):
                assert parameters(getattr(ours, method)) == parameters(getattr(theirs, method)), method


@pytest.mark.parametrize(
    ("module", "name"),
    [("auth.thread", "ThreadAuthenticator"), ("auth.asyncio", "AsyncioAuthenticator"), ("log.handlers", "PUBHandler")],
)
def test_classes_are_made_with_the_same_parameters(module: str, name: str) -> None:
    theirs, ours = (getattr(importlib.import_module(f"{package}.{module}"), name) for package in ("zmq", "omq.zmq"))
    assert parameters(ours) == parameters(theirs)


@pytest.mark.parametrize("module", ["utils.strtypes", "ssh.tunnel", "ssh"])
def test_functions_of_other_modules_have_the_same_parameters(module: str) -> None:
    theirs, ours = (importlib.import_module(f"{package}.{module}") for package in ("zmq", "omq.zmq"))
    functions = [name for name in vars(theirs) if inspect.isfunction(getattr(theirs, name)) and name[0] != "_"]
    for name in functions:
        if getattr(theirs, name).__module__ == theirs.__name__:
            assert parameters(getattr(ours, name)) == parameters(getattr(theirs, name)), name


@pytest.mark.parametrize("option", ["MULTICAST_HOPS", "MULTICAST_LOOP"])
@pytest.mark.parametrize("kind", ["PUSH", "RADIO", "DISH"])
def test_multicast_options_have_the_same_limits(option: str, kind: str) -> None:
    def results(zmq: Any) -> list[Any]:
        found: list[Any] = []
        with zmq.Context() as context, context.socket(getattr(zmq, kind)) as socket:
            for value in (-1, 0, 1, 2, 255, 256, 1000):
                try:
                    socket.set(getattr(zmq, option), value)
                    found.append(socket.get(getattr(zmq, option)))
                except zmq.ZMQError as error:
                    found.append(error.errno)
        return found

    assert results(face) == results(pyzmq)
