"""Generates the modules of omq/goby/protobuf and docs/examples from their definitions.

The compiler is an old one in an environment of its own: every protobuf from 4.22 on can load what it generates.
"""

from __future__ import annotations

import argparse
import sys

from tests.tools.environment import install
from tests.tools.processes import ROOT, check

COMPILER = ("grpcio-tools==1.62.3", "setuptools<81")
EXAMPLES = "docs/examples"


def main() -> None:
    """Runs the command line."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    home = ROOT / "build" / "protobuf"
    python = home / "bin" / "python"
    check([sys.executable, "-m", "venv", home])
    install(python, COMPILER)
    check([python, "omq/goby/protobuf/generate.py"])
    output = [f"--python_out={EXAMPLES}", f"--pyi_out={EXAMPLES}"]
    check([python, "-m", "grpc_tools.protoc", f"-I{EXAMPLES}", *output, "navigation.proto"])


if __name__ == "__main__":
    main()
