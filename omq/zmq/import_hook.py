"""Makes `import zmq` find omq's face."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

_NAME: Final = "zmq"
_FACE: Final = "omq.zmq"


def install() -> None:
    """Makes `import zmq` and `import zmq.NAME` find the modules of `omq.zmq`, from now on.

    Raises:
        ImportError: pyzmq is imported already; the error names the modules that use it.
    """
    if any(isinstance(finder, FaceFinder) for finder in sys.meta_path):
        return
    if _NAME in sys.modules:
        users = ", ".join(sorted(_users_of_pyzmq())) or "a module"
        raise ImportError(f"pyzmq is imported already, by {users}; call omq.zmq.install() before")
    sys.meta_path.insert(0, FaceFinder())


def _users_of_pyzmq() -> Iterator[str]:
    """Returns the names of the modules that have imported pyzmq, or names from it."""
    for name, module in list(sys.modules.items()):
        values = list(getattr(module, "__dict__", {}).values())
        if not _is_pyzmq(name) and any(_is_pyzmq(_home(value)) for value in values):
            yield name


def _home(value: Any) -> Any:
    """Returns the name of the module that a value comes from."""
    if isinstance(value, ModuleType):
        return value.__name__
    return value.__module__ if isinstance(value, type | FunctionType) else type(value).__module__


def _is_pyzmq(name: Any) -> bool:
    return isinstance(name, str) and name.partition(".")[0] == _NAME


class FaceFinder(MetaPathFinder):
    """Finds `zmq` and its modules in `omq.zmq`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns the spec of a module; `None` if the face does not have it."""
        if not _is_pyzmq(fullname):
            return None
        real = importlib.util.find_spec(_face_name(fullname))
        if real is None:
            return None
        spec = ModuleSpec(fullname, FaceLoader(), origin=real.origin)
        spec.submodule_search_locations = real.submodule_search_locations
        return spec


class FaceLoader(Loader):
    """Gives a module of `omq.zmq` its second name."""

    def __init__(self) -> None:
        self._own: dict[str, ModuleSpec | None] = {}

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Returns the module."""
        module = importlib.import_module(_face_name(spec.name))
        self._own[spec.name] = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Gives the module back its own spec, which the import has replaced."""
        assert module.__spec__ is not None
        module.__spec__ = self._own.pop(module.__spec__.name)

    def get_code(self, fullname: str) -> CodeType | None:
        """Returns the code of a module that is run as a program."""
        real = importlib.util.find_spec(_face_name(fullname))
        loader: Any = None if real is None else real.loader
        code: CodeType | None = None if loader is None else loader.get_code(_face_name(fullname))
        return code


def _face_name(name: str) -> str:
    return _FACE + name.removeprefix(_NAME)
