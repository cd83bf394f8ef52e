"""Runs what a change has to pass (`make test`), and prints a summary with the counts and the time of each part.

A part that fails does not keep the next ones from running; any failure fails the run, and nothing runs a second time.
The parts, in their order:

lint      ruff, and the format of the sources
types     mypy; runs next to the core's tests
core      tests of the core in a build that checks its indexes and invariants, in several processes
parallel  every other test that is not slow, in several processes; those of `core` only if that part does not run
alone     tests that measure time or count resources of the machine, one after the other
debug     unit tests in the build of `core`, in one process; only where --only names it
fault     tests that kill programs and damage disks, in several processes; only where --only names it

With arguments for pytest, which may name tests, one run in one process replaces `core`, `parallel` and `alone`.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from tests.tools.build_variant import Variant
from tests.tools.processes import ROOT, call, default_jobs, parser_for, print_crash_report, split_arguments, with_tests

PARTS = ("lint", "types", "core", "parallel", "alone")
EXTRA = ("debug", "fault")
RESULTS = ROOT / "build" / "results"
PYTEST = (sys.executable, "-m", "pytest")
CORE_TESTS = ("tests/unit/core", "tests/unit/routing", "tests/unit/blocking")
COLUMNS = ("passed", "failed", "skipped", "quarantined")


@dataclass
class Result:
    """The outcome of one part."""

    part: str
    passed: bool
    seconds: float
    counts: dict[str, int] = field(default_factory=dict)


class Types:
    """A run of mypy in the background; its output is printed when it has finished."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._output = RESULTS / "types.txt"
        self._output.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "mypy"]
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)

    def finish(self) -> Result:
        status = self._process.wait()
        print(self._output.read_text(errors="replace"), end="", flush=True)
        return Result("types", status == 0, time.monotonic() - self._started)


class FirstCollection:
    """Compiles the tests of a fresh tree in the background; else each process of the part `parallel` does it again."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        if not any((ROOT / "tests" / "unit" / "__pycache__").glob("*-pytest-*.pyc")):
            command = [*PYTEST, "-q", "-n", "0", "--collect-only", "tests"]
            self._process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def finish(self) -> None:
        if self._process is not None:
            self._process.wait()  # its errors are those of the part, which reports them


class Run:
    """A run of several parts.

    Args:
        parts: The names of the parts.
        jobs: The processes that tests are spread over.
        slow: Includes slow tests, and draws more examples.
        args: Arguments for pytest that choose tests.
    """

    def __init__(self, parts: Sequence[str], jobs: int, slow: bool, args: Sequence[str]) -> None:
        self._parts = parts
        self._spread = ("-n", str(jobs))
        self._slow = slow
        self._marker = "not fault" if slow else "not slow and not fault"
        self._options = ("--hypothesis-profile=long",) if slow else ()
        self._args = args
        self.results: list[Result] = []

    def run(self) -> None:
        types = Types() if "types" in self._parts else None
        collection = FirstCollection() if "parallel" in self._parts and not self._args else None
        if "lint" in self._parts:
            self._lint()
        if "core" in self._parts and not self._args:
            self._debug("core", "not slow and not alone", "-q", *self._spread, *CORE_TESTS)
        if types is not None:
            self.results.append(types.finish())
        if collection is not None:
            collection.finish()
        if "debug" in self._parts:
            self._debug("debug", "", *with_tests(self._args, "tests/unit"))
        if "fault" in self._parts:
            self._tests("fault", "fault", *self._spread, *with_tests(self._args, "tests"))
        if self._args:
            if set(self._parts) & {"core", "parallel", "alone"}:
                self._tests("chosen", self._marker, *self._options, *self._args)
        else:
            if "parallel" in self._parts:
                # With --slow they have tests that the part `core` leaves out.
                twice = CORE_TESTS if "core" in self._parts and not self._slow else ()
                ignored = [f"--ignore={path}" for path in twice]
                self._tests("parallel", f"{self._marker} and not alone", *self._spread, *self._options, *ignored)
            if "alone" in self._parts:
                self._tests("alone", f"{self._marker} and alone", *self._options, *_files_with("mark.alone"))

    def _lint(self) -> None:
        started = time.monotonic()
        statuses = [
            call([sys.executable, "-m", "ruff", *words]) for words in (("check", "."), ("format", "--check", "."))
        ]
        self.results.append(Result("lint", not any(statuses), time.monotonic() - started))

    def _debug(self, part: str, marker: str, *args: str) -> None:
        """Runs tests in the build that checks indexes and invariants, which stays for the next time."""
        started = time.monotonic()
        variant = Variant("debug", "OMQ_DEBUG")
        try:
            variant.build(keep=True)
        except SystemExit as error:
            print(f"the core with its bounds checked cannot be built: {error}", file=sys.stderr, flush=True)
            self.results.append(Result(part, False, time.monotonic() - started))
        else:
            self._tests(part, marker, "-p", "no:cacheprovider", *args, cwd=variant.path, env=variant.env)
            self.results[-1].seconds = time.monotonic() - started

    def _tests(self, part: str, marker: str, *args: str, cwd: Path = ROOT, env: dict[str, str] | None = None) -> None:
        report = RESULTS / f"{part}.xml"
        report.parent.mkdir(parents=True, exist_ok=True)
        report.unlink(missing_ok=True)
        started = time.monotonic()
        status = call([*PYTEST, "-m", marker, f"--junit-xml={report}", *args], cwd, env)
        print_crash_report(status, cwd, env)
        self.results.append(Result(part, status == 0, time.monotonic() - started, counts(report)))


def _files_with(text: str) -> list[str]:
    """Returns the test files that contain a text; collecting all of them takes 15 s."""
    found = (path for path in sorted((ROOT / "tests").rglob("test_*.py")) if text in path.read_text())
    return [str(path.relative_to(ROOT)) for path in found]


def counts(report: Path) -> dict[str, int]:
    """Returns how many tests of a JUnit report passed, failed, were skipped, and failed in quarantine."""
    if not report.exists():  # pytest died
        return {}
    found = dict.fromkeys(COLUMNS, 0)
    for case in ElementTree.parse(report).iter("testcase"):
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            found["failed"] += 1
        elif skipped is None:
            found["passed"] += 1
        else:
            found["quarantined" if skipped.get("message", "").startswith("quarantined") else "skipped"] += 1
    return found


def summary(results: Sequence[Result], seconds: float) -> str:
    """Returns a table of the parts and of the time that they took together."""
    lines = [f"{'part':10}{'result':>8}{'time':>8}" + "".join(f"{name:>13}" for name in COLUMNS)]
    for result in results:
        row = f"{result.part:10}{'passed' if result.passed else 'FAILED':>8}{_clock(result.seconds):>8}"
        lines.append(row + "".join(f"{result.counts.get(name, ''):>13}" for name in COLUMNS))
    lines.append(f"{'total':18}{_clock(seconds):>8}")
    return "\n".join(line.rstrip() for line in lines)


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def main() -> int:
    """Runs the command line."""
    own, args = split_arguments()
    parser = parser_for(__doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS + EXTRA, default=PARTS, help="run these parts only")
    parser.add_argument("--jobs", type=int, default=default_jobs(), help="processes for tests (default: %(default)s)")
    parser.add_argument("--slow", action="store_true", help="include slow tests, and draw ten times as many examples")
    options = parser.parse_args(own)
    started = time.monotonic()
    run = Run(options.only, options.jobs, options.slow, args)
    try:
        run.run()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    finally:
        print(f"\n{summary(run.results, time.monotonic() - started)}", flush=True)
    return 0 if all(result.passed for result in run.results) else 1


if __name__ == "__main__":
    sys.exit(main())
