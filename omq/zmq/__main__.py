"""Runs a program with `omq.zmq` instead of pyzmq.

python -m omq.zmq PROGRAM [ARGUMENT ...]
python -m omq.zmq -m MODULE [ARGUMENT ...]

The Python child processes of the program use `omq.zmq`, too: PYTHONPATH, which they inherit, begins with a folder whose
`sitecustomize` installs it when they import `zmq`. Another `sitecustomize` is imported as before. A child process that
starts without PYTHONPATH, with `-I`, `-E` or `-S`, or in an environment without omq uses pyzmq.
"""

from __future__ import annotations

import sys

from omq.zmq.children import inherit
from omq.zmq.import_hook import install
from omq.zmq.program import run_module, run_path


def main(arguments: list[str]) -> None:
    """Runs the command."""
    match arguments:
        case ["-m", module, *rest]:
            _take_over()
            run_module(module, rest)
        case ["-h" | "--help"]:
            print(__doc__)
        case [program, *rest] if not program.startswith("-"):
            _take_over()
            run_path(program, rest)
        case _:
            print(__doc__, file=sys.stderr)
            sys.exit(2)


def _take_over() -> None:
    """Gives the face to this process and to its child processes."""
    install()
    inherit()


if __name__ == "__main__":
    main(sys.argv[1:])
