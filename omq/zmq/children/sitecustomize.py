"""Installs the face in a child process when that imports `zmq`; a child process that does not loads nothing."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
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
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != _FOLDER]
    own = sys.modules.pop("sitecustomize")
    try:
        importlib.import_module("sitecustomize")
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = own  # Python looks for it after the import


sys.meta_path.insert(0, FirstImport())
import_next()
