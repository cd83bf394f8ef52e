"""Installs the face when the program imports `zmq`; one that does not loads nothing of it."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any, Final

_FOLDER: Final = os.path.dirname(os.path.abspath(__file__))


class FirstImport(MetaPathFinder, Loader):
    """Installs the face at the first import of `zmq`.

    As a loader, because Python holds the lock of all imports while it asks a finder, and omq's import may wait for a
    thread that imports.
    """

    _loader: Any

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns a spec for `zmq`; `None` for all others, and in an environment without omq."""
        if fullname != "zmq" or find_spec("omq") is None:
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Returns the face."""
        importlib.import_module("omq.zmq").install()
        sys.meta_path.remove(self)
        self._loader = importlib.import_module("omq.zmq.import_hook").FaceLoader()
        module: ModuleType = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Gives the module back its own spec."""
        self._loader.exec_module(module)


def import_next() -> None:
    """Imports the `sitecustomize` that this one hides."""
    others = [entry for entry in sys.path if os.path.abspath(entry) != _FOLDER]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = sys.modules["sitecustomize"] = module_from_spec(spec)
        spec.loader.exec_module(module)


sys.meta_path.insert(0, FirstImport())
import_next()
