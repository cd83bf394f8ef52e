"""Runs a program with `omq.zmq` instead of pyzmq.

python -m omq.zmq PROGRAM [ARGUMENT ...]
python -m omq.zmq -m MODULE [ARGUMENT ...]
"""

from __future__ import annotations

import sys

from omq.zmq.import_hook import install
from omq.zmq.program import run_module, run_path


def main(arguments: list[str]) -> None:
    """Runs the command."""
    match arguments:
        case ["-m", module, *rest]:
            install()
            run_module(module, rest)
        case ["-h" | "--help"]:
            print(__doc__)
        case [program, *rest] if not program.startswith("-"):
            install()
            run_path(program, rest)
        case _:
            print(__doc__, file=sys.stderr)
            sys.exit(2)


if __name__ == "__main__":
    main(sys.argv[1:])
