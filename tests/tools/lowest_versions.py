"""Runs `make test` with the lowest version of each dependency that pyproject.toml allows.

Runs in a copy of the tree, `build/lowest`, whose own environment stays for the next time.
"""

from __future__ import annotations

import re
import sys
import tomllib

from tests.tools.build_variant import copy_tree
from tests.tools.processes import ROOT, exit_status, make_test, parser_for, split_arguments

#: The extras that users install. Tools for tests and benchmarks may be new.
EXTRAS = ("cli", "broker", "demo", "goby", "replicated", "spark")


def lowest_versions() -> list[str]:
    """Returns pip's constraints; exits if a dependency has no lowest version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    constraints = []
    for requirement in sum((project["optional-dependencies"][name] for name in EXTRAS), project["dependencies"]):
        if match := re.fullmatch(r"([\w.-]+)>=([\d.]+)", requirement):
            constraints.append(f"{match[1]}=={match[2]}")
        elif not requirement.startswith("omq-zmtp["):
            sys.exit(f"{requirement}: has no lowest version; write it as NAME>=VERSION")
    return constraints


def main() -> int:
    """Runs the command line."""
    own, args = split_arguments()
    parser_for(__doc__).parse_args(own)
    tree = ROOT / "build" / "lowest"
    copy_tree(tree)
    constraints = tree / "constraints.txt"
    constraints.write_text("".join(f"{line}\n" for line in lowest_versions()))
    print(constraints.read_text(), end="", flush=True)
    return exit_status(make_test(tree, args, env={"PIP_CONSTRAINT": str(constraints)}))


if __name__ == "__main__":
    sys.exit(main())
