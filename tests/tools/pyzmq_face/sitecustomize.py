"""Makes `import zmq` find omq's face in each process that has this folder in PYTHONPATH, with all of its modules.

A module that the face lacks is an empty one, so that only the tests that use it fail.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class FaceLoader(Loader):
    """Loads a module of the face under the name that programs use."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        name = f"omq.{spec.name}"
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not name.startswith(error.name):
                raise
            return ModuleType(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass

    def get_code(self, fullname: str) -> Any:
        """Returns the code of a module that is run as a program."""
        real = importlib.util.find_spec(f"omq.{fullname}")
        return None if real is None else real.loader.get_code(real.name)  # type: ignore[union-attr]


class FaceFinder(MetaPathFinder):
    """Finds `zmq` and its modules in `omq.zmq`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] != "zmq":
            return None
        real = importlib.util.find_spec(f"omq.{fullname}")
        return ModuleSpec(
            fullname, FaceLoader(), is_package=real is not None and real.submodule_search_locations is not None
        )


sys.meta_path.insert(0, FaceFinder())
