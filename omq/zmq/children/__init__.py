"""Gives the face to the Python child processes of a program."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

#: The folder with a `sitecustomize`, which Python imports when it starts.
FOLDER: Final = str(Path(__file__).parent)
_VARIABLE: Final = "PYTHONPATH"


def inherit() -> None:
    """Makes `import zmq` find the face in child processes too: puts `FOLDER` in front of their `PYTHONPATH`."""
    before = os.environ.get(_VARIABLE, "")
    if FOLDER not in before.split(os.pathsep):
        os.environ[_VARIABLE] = os.pathsep.join(filter(None, (FOLDER, before)))
