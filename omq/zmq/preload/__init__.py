"""Gives the face to Python processes that are started from now on."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

#: The folder with a `sitecustomize`, which Python imports when it starts.
FOLDER: Final = str(Path(__file__).parent)
_HOME: Final = str(Path(__file__).parents[3])
_VARIABLE: Final = "PYTHONPATH"


def inherit() -> None:
    """Makes `import zmq` find the face in processes that inherit the environment.

    Puts `FOLDER` in front of their `PYTHONPATH`; and the folder of omq, if it is found only because `python -m` was run
    in it.
    """
    before = list(filter(None, os.environ.get(_VARIABLE, "").split(os.pathsep)))
    home = [_HOME] if sys.path[0] == _HOME and _HOME not in sys.path[1:] and not sys.flags.safe_path else []
    if FOLDER not in before:
        os.environ[_VARIABLE] = os.pathsep.join([FOLDER, *home, *before])
