"""Gives the face to the Python child processes of a program."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

#: The folder with a `sitecustomize`, which Python imports when it starts.
FOLDER: Final = str(Path(__file__).parent)
_VARIABLE: Final = "PYTHONPATH"


def inherit() -> None:
    """Makes `import zmq` find the face in child processes too.

    Puts `FOLDER` in front of the `PYTHONPATH` that they inherit, and as `PYTHONPATH` does in `sys.path`, which some
    programs give to their child processes instead.
    """
    before = os.environ.get(_VARIABLE, "")
    if FOLDER not in before.split(os.pathsep):
        os.environ[_VARIABLE] = os.pathsep.join(filter(None, (FOLDER, before)))
    if FOLDER not in sys.path:
        sys.path.insert(0 if sys.flags.safe_path else 1, FOLDER)
