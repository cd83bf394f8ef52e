"""Runs unit and property tests with the core built for AddressSanitizer and UndefinedBehaviorSanitizer.

AddressSanitizer writes its reports to files, because pytest may capture or discard the output of a child process. UBSan
of gcc writes to stderr only: pytest captures Python's streams only (`--capture=sys`), and the output is searched.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.tools.build_variant import Variant
from tests.tools.processes import exit_status, gcc_library, parser_for, sanitizer_library, split_arguments, with_tests

UNDEFINED = b"runtime error: "  # begins each report of UBSan
PYTEST = ("-m", "pytest", "-p", "no:cacheprovider", "--capture=sys", "-o", "timeout=300")
TESTS = ("tests/unit", "tests/property")


def environment(**options: str) -> dict[str, str]:
    """Returns the variables of a Python that loads a core with both sanitizers.

    Args:
        options: Options of AddressSanitizer.
    """
    asan = sanitizer_library("libasan.so", "AddressSanitizer")
    # Python's own arena allocator would hide overruns. Leaks of the interpreter itself are not the core's.
    return {
        "LD_PRELOAD": f"{asan} {gcc_library('libstdc++.so.6')}".strip(),
        "PYTHONMALLOC": "malloc",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "ASAN_OPTIONS": ":".join(f"{name}={value}" for name, value in {"detect_leaks": "0", **options}.items()),
    }


def tee(command: list[str], log: Path, cwd: Path, env: dict[str, str]) -> int:
    """Runs a command whose output goes to stdout and to a file, and returns its exit status."""
    with (
        log.open("wb") as file,
        subprocess.Popen(command, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process,
    ):
        assert process.stdout is not None
        while block := os.read(process.stdout.fileno(), 1 << 16):  # as it comes, not by lines: pytest prints dots
            sys.stdout.buffer.write(block)
            sys.stdout.flush()
            file.write(block)
    return process.returncode


def print_reports(directory: Path) -> bool:
    """Prints the reports that a sanitizer left in a directory, and returns whether there were any."""
    reports = sorted(directory.glob("report.*"))
    for report in reports:
        print(report.read_text(errors="replace"), file=sys.stderr)
    return bool(reports)


def main() -> int:
    """Runs the command line."""
    own, args = split_arguments()
    parser_for(__doc__).parse_args(own)
    variant = Variant("sanitize", "OMQ_SANITIZE")
    env = environment(log_path=str(variant.path / "report"))
    variant.build()
    log = variant.path / "log"
    status = tee([sys.executable, *PYTEST, *with_tests(args, *TESTS)], log, variant.path, {**variant.environ(), **env})
    found = print_reports(variant.path) or UNDEFINED in log.read_bytes()
    if status or found:
        print(f"make test-sanitize failed; the output is in {log}, with the reports next to it", file=sys.stderr)
    return exit_status(status) or int(found)


if __name__ == "__main__":
    sys.exit(main())
