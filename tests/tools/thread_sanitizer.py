"""Runs the tests with threads, those of the blocking sockets, with the core built for ThreadSanitizer.

It follows Python's own locks, but not what libraries do that were not built for it. Everything takes ten times as long,
so tests of latency tails cannot pass. An owner this slow counts as absent, and frames are read ahead of it, so tests of
the memory that frames take cannot pass either.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.tools.build_variant import Variant
from tests.tools.processes import exit_status, parser_for, sanitizer_library, split_arguments, with_tests
from tests.tools.sanitize import print_reports

SUPPRESSIONS = Path(__file__).with_name("tsan_suppressions.txt")
PYTEST = ("-m", "pytest", "-p", "no:cacheprovider", "-o", "timeout=300", "-m", "not slow")
TESTS = "tests/unit/blocking"
LEFT_OUT = "not tails and not most_frames_take_no_memory"


def main() -> int:
    """Runs the command line."""
    own, args = split_arguments()
    parser_for(__doc__).parse_args(own)
    library = sanitizer_library("libtsan.so", "ThreadSanitizer")
    variant = Variant("races", "OMQ_RACES")
    variant.build()
    options = f"suppressions={SUPPRESSIONS} history_size=4 log_path={variant.path / 'report'}"
    env = {"LD_PRELOAD": library, "TSAN_OPTIONS": options}
    status = variant.python(*PYTEST, "-k", LEFT_OUT, *with_tests(args, TESTS), env=env)
    found = print_reports(variant.path)
    return exit_status(status) or int(found)


if __name__ == "__main__":
    sys.exit(main())
