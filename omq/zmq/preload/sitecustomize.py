"""Installs the face when the program imports `zmq`; one that does not loads nothing of it."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec
from types import ModuleType
from typing import Final

_FOLDER: Final = os.path.dirname(os.path.abspath(__file__))


class FirstImport(MetaPathFinder):
    """Installs the face at the first import of `zmq`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns the spec that the face's finder returns; `None` for all but `zmq`."""
        if fullname != "zmq":
            return None
        sys.meta_path.remove(self)
        try:
            importlib.import_module("omq.zmq").install()
        except ModuleNotFoundError as error:
            if error.name != "omq":
                raise
            return None  # the Python of another environment, without omq
        return sys.meta_path[0].find_spec(fullname, path, target)


def import_next() -> None:
    """Imports the `sitecustomize` that this one hides."""
    others = [entry for entry in sys.path if os.path.abspath(entry) != _FOLDER]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = sys.modules["sitecustomize"] = module_from_spec(spec)
        spec.loader.exec_module(module)


sys.meta_path.insert(0, FirstImport())
import_next()
