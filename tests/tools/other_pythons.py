"""Runs `make test` with every other Python, 3.11 or newer, that is installed, pyenv's included.

Each runs in a copy of the tree, `build/pythonX.Y`, whose own environment stays for the next time.
"""

from __future__ import annotations

import os
import subprocess
import sys

from tests.tools.build_variant import copy_tree
from tests.tools.processes import ROOT, make_test, parser_for, split_arguments


def installed() -> dict[str, str]:
    """Returns the interpreter of each version that omq can be built with."""
    env = {**os.environ, "PYTHON": ""}
    found = subprocess.run(["sh", ".ci/find-python", "all"], cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True)
    return {version(python): python for python in found.stdout.split()}


def version(python: str) -> str:
    """Returns the major and minor version of an interpreter."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    return subprocess.run([python, "-c", code], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def main() -> int:
    """Runs the command line."""
    own, args = split_arguments()
    parser = parser_for(__doc__)
    parser.add_argument("--list", action="store_true", help="only print the interpreters")
    options = parser.parse_args(own)
    ours = "{}.{}".format(*sys.version_info[:2])
    others = {number: python for number, python in installed().items() if number != ours}
    if options.list:
        print("".join(f"{number} {python}\n" for number, python in others.items()), end="")
        return 0
    if not others:
        print("no other Python that omq can be built with is installed", file=sys.stderr)
    failed = []
    for number, python in others.items():
        tree = ROOT / "build" / f"python{number}"
        copy_tree(tree)
        print(f"Python {number} in {tree.relative_to(ROOT)}", flush=True)
        if make_test(tree, args, python=python):
            failed.append(number)
    if failed:
        print(f"the tests failed with Python {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
