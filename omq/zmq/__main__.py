"""Runs a program with `omq.zmq` instead of pyzmq.

python -m omq.zmq PROGRAM [ARGUMENT ...]
python -m omq.zmq -m MODULE [ARGUMENT ...]

Python runs the program as always, but with a folder in front of PYTHONPATH whose `sitecustomize` installs `omq.zmq`
when the program imports `zmq`. Another `sitecustomize` is imported as before. Child processes inherit PYTHONPATH, so
they use `omq.zmq`, too. One that starts without it, with `-I`, `-E` or `-S`, or in an environment without omq uses
pyzmq.
"""

from __future__ import annotations

import os
import sys

from omq.zmq.preload import inherit


def main(arguments: list[str]) -> None:
    """Runs the command."""
    match arguments:
        case ["-m", _, *_]:
            _run(arguments)
        case ["-h" | "--help"]:
            print(__doc__)
        case [program, *_] if not program.startswith("-"):
            _run(arguments)
        case _:
            print(__doc__, file=sys.stderr)
            sys.exit(2)


def _run(arguments: list[str]) -> None:
    """Becomes `python ARGUMENTS`, with the same options of Python."""
    if sys.flags.ignore_environment or sys.flags.no_site:
        sys.exit("omq.zmq: Python ignores PYTHONPATH with -I and -E, and sitecustomize with -S; run it without them")
    inherit()
    os.execv(sys.executable, [sys.executable, *_options(), *arguments])


def _options() -> list[str]:
    """Returns the options of Python that stand before `-m omq.zmq`."""
    options = sys.orig_argv[1 : len(sys.orig_argv) - len(sys.argv[1:])]
    if options[-1] == "omq.zmq":
        options.pop()
    last = options.pop().removesuffix("omq.zmq").removesuffix("m")  # "-m", "-Pm" or "-momq.zmq"
    return [*options, last] if last != "-" else options


if __name__ == "__main__":
    main(sys.argv[1:])
