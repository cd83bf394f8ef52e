"""Generates the modules of the definitions in this directory; `make protobuf` runs it with a pinned compiler.

The modules use a descriptor pool of omq. Programs may have Goby's own modules loaded, which define the same
names in protobuf's default pool, where a second definition is an error.
"""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


def main() -> None:
    """Generates `*_pb2.py` and `*_pb2.pyi` next to the definitions."""
    files = [str(path.relative_to(ROOT)) for path in sorted(HERE.glob("*.proto"))]
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", "--python_out=.", "--pyi_out=.", *files]
    subprocess.run(command, cwd=ROOT, check=True)
    for path in HERE.glob("*_pb2.py"):
        text = path.read_text(encoding="utf-8")
        text = text.replace("_descriptor_pool.Default()", "_POOL")
        text = text.replace(
            "from google.protobuf import descriptor_pool as _descriptor_pool\n",
            "from omq.goby.protobuf.pool import POOL as _POOL\n",
        )
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
