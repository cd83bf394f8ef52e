"""The public names of `omq.zmq` and its modules are those of the installed pyzmq, with their signatures and numbers."""

from __future__ import annotations

import enum
import importlib
import inspect
import pkgutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

import omq.zmq as face

pyzmq = pytest.importorskip("zmq")
pytest.importorskip("tornado")
pytest.importorskip("gevent")

#: Modules of pyzmq that the face does not have, with the reason.
WITHOUT = {
    "zmq.backend.cython": "it wraps libzmq",
    "zmq.backend.cffi": "it wraps libzmq",
    "zmq.backend.select": "it chooses between the two",
    "zmq.tests": "the tests",
    "zmq._typing": "types for old Pythons",
    "zmq._future": "private, and its classes are the bases of those of zmq.asyncio",
    "zmq.eventloop._deprecated": "it cannot be imported: it needs a module that pyzmq no longer has",
}
#: Names that differ, with the reason.
EXCEPT = {
    "zmq.DRAFT_API": "omq has the draft types",
    "zmq.sugar.DRAFT_API": "omq has the draft types",
    "zmq.green.DRAFT_API": "omq has the draft types",
    "zmq.PYZMQ_DRAFT_API": "omq has the draft types",
    "zmq.sugar.PYZMQ_DRAFT_API": "omq has the draft types",
    "zmq.green.PYZMQ_DRAFT_API": "omq has the draft types",
    "zmq.backend.PYZMQ_DRAFT_API": "omq has the draft types",
    "zmq.green.core.TIMEOS": "a tuple of gevent's classes",
    "zmq.utils.garbage.GarbageCollectorThread": "omq frees memory without a thread",
    "zmq.utils.garbage.gcref": "omq frees memory without a thread",
}
#: Parameters that have another name where pyzmq's sockets do not agree with each other.
RENAMED = {"key": "option", "opt": "option", "val": "optval", "buf": "buffer"}
#: Bases that only one of the two has: those of the compiled classes, and those for attributes.
OWN_BASES = {"SocketCalls", "FutureCalls", "FrameData", "AttributeGetter", "AttributeSetter", "Generic"}
_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def modules() -> Iterator[str]:
    """Returns the names of the modules of pyzmq."""
    yield "zmq"
    for found in pkgutil.walk_packages(pyzmq.__path__, "zmq.", onerror=lambda name: None):
        name = found.name
        if not name.endswith("__main__") and not any(f"{name}.".startswith(f"{without}.") for without in WITHOUT):
            yield name


def load(name: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(name)


def public_names(module: Any) -> list[str]:
    def is_own(name: str) -> bool:
        value = getattr(module, name)
        defined = getattr(value, "__module__", None) == module.__name__ or (
            name.isupper() and not isinstance(value, enum.Enum | bool)
        )
        return name[0] != "_" and not inspect.ismodule(value) and defined

    return list(getattr(module, "__all__", None) or filter(is_own, vars(module)))


MODULES = sorted(modules())


def both(path: str) -> tuple[Any, Any]:
    module, _, name = path.rpartition(".")
    return getattr(load(module), name), getattr(load(f"omq.{module}"), name)


def parameters(function: Any) -> list[inspect.Parameter] | None:
    try:
        return list(inspect.signature(function).parameters.values())
    except ValueError:  # a compiled class without a signature
        return None


def assert_same_parameters(theirs: Any, ours: Any, where: str) -> None:
    expected, found = parameters(theirs), parameters(ours)
    if expected is None or found is None or (expected and expected[-1].kind in _VARIABLE and len(expected) < 4):
        return  # pyzmq passes everything on
    named = [RENAMED.get(one.name, one.name) for one in expected if one.kind not in _VARIABLE]
    assert [one.name for one in found][: len(named)] == named or [one.name for one in expected] == [
        one.name for one in found
    ], where
    for one in found[len(named) :]:  # what pyzmq takes as **kwargs, or its compiled base as an argument
        assert one.kind in _VARIABLE or one.default is not one.empty, where
    for expected_one, one in zip(expected, found, strict=False):
        if expected_one.kind in _VARIABLE:
            continue
        assert one.kind == expected_one.kind, where
        assert (one.default is one.empty) == (expected_one.default is one.empty), where
        if isinstance(expected_one.default, int | str | bytes | float | None | tuple):
            assert one.default == expected_one.default, where


@pytest.mark.parametrize("module", MODULES)
def test_the_face_has_the_module_with_all_its_names(module: str) -> None:
    names = public_names(load(module))
    ours = load(f"omq.{module}")
    assert [name for name in names if not hasattr(ours, name) and f"{module}.{name}" not in EXCEPT] == []


def test_all_names_are_there() -> None:
    assert set(face.__all__) == set(pyzmq.__all__)
    assert [name for name in face.__all__ if not hasattr(face, name)] == []


SHOW = """
import importlib, sys, warnings
warnings.simplefilter("ignore")
importlib.import_module(sys.argv[1])
print(*(name for name in sys.modules if name == "zmq" or name.startswith("zmq.")))
"""
REACH = """
import functools, importlib, sys
importlib.import_module(sys.argv[1])
import omq.zmq as zmq
for path in sys.argv[2:]:
    functools.reduce(getattr, path.split(".")[1:], zmq)
"""


@pytest.mark.parametrize("module", ["zmq", "zmq.utils.monitor", "zmq.auth.thread", "zmq.devices", "zmq.green"])
def test_modules_that_come_with_a_module_are_its_attributes(module: str) -> None:
    def run(program: str, *arguments: str) -> list[str]:
        command = [sys.executable, "-c", program, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.split()

    loaded = [name for name in run(SHOW, module) if name in MODULES]
    assert len(loaded) > 10
    run(REACH, f"omq.{module}", *loaded)


@pytest.mark.parametrize("module", MODULES)
def test_the_names_of_a_module_mean_the_same(module: str) -> None:
    for name in sorted(set(public_names(load(module)))):
        if f"{module}.{name}" not in EXCEPT:
            assert_same_meaning(f"{module}.{name}")


def assert_same_meaning(path: str) -> None:
    theirs, ours = both(path)
    if isinstance(theirs, enum.Enum):
        assert (type(ours).__name__, ours.name, ours.value) == (type(theirs).__name__, theirs.name, theirs.value), path
    elif inspect.isclass(theirs):
        assert_same_class(theirs, ours, path)
    elif inspect.isfunction(theirs):
        assert_same_parameters(theirs, ours, path)
    elif isinstance(theirs, int | str | bytes | tuple):
        assert ours == theirs, path
    else:
        assert callable(theirs) == callable(ours), path


def assert_same_class(theirs: Any, ours: Any, path: str) -> None:
    if issubclass(theirs, enum.Enum):
        assert {key: one.value for key, one in ours.__members__.items()} == {
            key: one.value for key, one in theirs.__members__.items()
        }
    if path.startswith("zmq.backend."):
        return  # the compiled bases of the classes that pyzmq shows elsewhere
    bases = [list(dict.fromkeys(one.__name__ for one in kind.__mro__)) for kind in (theirs, ours)]
    assert [one for one in bases[0] if one not in OWN_BASES] == [one for one in bases[1] if one not in OWN_BASES]
    assert_same_parameters(theirs, ours, path)
    for name in dir(theirs):
        if name.startswith("_") or path == "zmq.utils.garbage.GarbageCollector":
            continue
        where = f"{path}.{name}"
        assert hasattr(ours, name), where
        expected, found = getattr(theirs, name), getattr(ours, name)
        assert callable(expected) == callable(found), where
        if inspect.isroutine(expected):
            assert_same_parameters(expected, found, where)


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
