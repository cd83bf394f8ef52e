"""Makes `import zmq` find omq's face in each process that has this folder in PYTHONPATH, with all of its modules.

A module that the face lacks is an empty one, so that only the tests that use it fail.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType

from omq.zmq.import_hook import FaceFinder


class EmptyLoader(Loader):
    """Makes an empty module."""

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        pass


class LenientFinder(FaceFinder):
    """Finds `zmq` and its modules in `omq.zmq`, those that are not there as well."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        found = super().find_spec(fullname, path, target)
        if found is None and fullname.startswith("zmq."):
            return ModuleSpec(fullname, EmptyLoader())
        return found


sys.meta_path.insert(0, LenientFinder())
