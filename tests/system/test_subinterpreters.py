"""Sub-interpreters: the import fails at once, since omq does not support them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NEW = sys.version_info >= (3, 13)

PROGRAM = """
import {module} as interpreters
one = interpreters.create({how})
interpreters.run_string(one, '''
try:
    import omq
except ImportError as error:
    print(error, flush=True)
''')
"""


@pytest.mark.parametrize("isolated", [True, False])
def test_an_import_is_refused(isolated):
    how = repr("isolated" if isolated else "legacy") if NEW else f"isolated={isolated}"
    program = PROGRAM.format(module="_interpreters" if NEW else "_xxsubinterpreters", how=how)
    command = [sys.executable, "-W", "ignore", "-c", program]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, env=env, check=False)
    assert "does not work in a sub-interpreter" in done.stdout, done.stderr
