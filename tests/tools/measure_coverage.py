"""Measures the lines that unit and property tests reach, those of the compiled core too where it holds the GIL.

Fails below a floor, which is 2 % below what was measured when it was set. A failing test does not fail the run, since
tracing makes some fail; a run that dies has no lines, and fails.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.tools.build_variant import Variant
from tests.tools.environment import install
from tests.tools.processes import exit_status, parser_for, split_arguments, with_tests

PYTEST = ("-m", "pytest", "-p", "no:cacheprovider", "-o", "timeout=300", "-m", "not slow and not alone")
TESTS = ("tests/unit", "tests/property")
#: Tests that end tracing, that raise in signal handlers (within coverage.py, this ends it, too), or exhaust its memory.
UNTRACED = (
    *("core/test_atomic", "core/test_memory", "engine/test_iothread", "engine/test_shortage"),
    "blocking/test_blocking_handlers",
)
#: Tests of speed, and of the number of system calls.
LEFT_OUT = "not tails and not short and not few_system_calls"


def main() -> int:
    """Runs the command line."""
    own, args = split_arguments()
    parser = parser_for(__doc__)
    parser.add_argument("--floor", type=float, default=90, help="percent that must be reached (default: %(default)s)")
    options = parser.parse_args(own)
    install(Path(sys.executable), ["coverage>=7.10"])
    variant = Variant("coverage", "OMQ_COVERAGE")
    variant.build()
    ignored = [f"--ignore=tests/unit/{name}.py" for name in UNTRACED]
    variant.python("-m", "coverage", "run", *PYTEST, "-k", LEFT_OUT, *ignored, *with_tests(args, *TESTS))
    status = variant.python("-m", "coverage", "html", "--quiet")
    if status == 0:
        print(f"line by line: {variant.path / 'html/index.html'}", flush=True)
        status = variant.python("-m", "coverage", "report", "--skip-covered", f"--fail-under={options.floor}")
    return exit_status(status)


if __name__ == "__main__":
    sys.exit(main())
