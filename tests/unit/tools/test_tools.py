"""Tests of the programs behind make's targets."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools import build_site, build_variant, processes, sanitize, thread_sanitizer
from tests.tools.lowest_versions import lowest_versions
from tests.tools.measure_coverage import UNTRACED
from tests.tools.run_tests import CORE_TESTS, Result, Run, counts, summary

TREE = Path(__file__).parents[3]
PROGRAMS = sorted(
    path.stem for path in (TREE / "tests/tools").glob("*.py") if "__main__" in path.read_text(encoding="utf-8")
)
REPORT = """<testsuites><testsuite>
<testcase name="a"/>
<testcase name="b"><failure message="no"/></testcase>
<testcase name="c"><error message="no"/></testcase>
<testcase name="d"><skipped message="no JVM"/></testcase>
<testcase name="e"><skipped type="pytest.xfail" message="quarantined until 2027-01-31: port clash"/></testcase>
</testsuite></testsuites>"""


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_each_program_has_a_help_text(name: str) -> None:
    command = [sys.executable, "-m", f"tests.tools.{name}", "--help"]
    shown = subprocess.run(command, cwd=TREE, capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stderr
    assert "usage:" in shown.stdout


def test_the_makefile_is_short_and_names_programs_that_exist() -> None:
    text = (TREE / "Makefile").read_text()
    assert len(text.splitlines()) <= 100
    assert set(re.findall(r"\$\(TOOL\)\.(\w+)", text)) <= set(PROGRAMS)


def test_each_target_is_in_the_help() -> None:
    text = (TREE / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (help (?:.*\\\n)*.*)", text, re.MULTILINE)
    assert phony is not None
    shown = subprocess.run(["make", "help"], cwd=TREE, capture_output=True, text=True, check=True).stdout
    assert set(re.findall(r"^  make (\S+)", shown, re.MULTILINE)) == set(phony[1].replace("\\", "").split())


def test_what_the_programs_name_exists() -> None:
    assert importlib.util.find_spec(processes.CRASH_REPORT) is not None
    for name in (
        *CORE_TESTS,
        *build_site.TESTS,
        *(f"tests/unit/{test}.py" for test in UNTRACED),
        thread_sanitizer.TESTS,
        *sanitize.TESTS,
    ):
        assert (TREE / name).exists(), name
    assert thread_sanitizer.SUPPRESSIONS.exists()


def test_what_follows_two_dashes_is_passed_on() -> None:
    assert processes.split_arguments(["--slow", "--", "-k", "a", "--", "b"]) == (["--slow"], ["-k", "a", "--", "b"])
    assert processes.split_arguments(["--slow"]) == (["--slow"], [])


def test_arguments_may_name_other_tests() -> None:
    assert processes.with_tests(["-x", "-k", "te"], "tests/unit") == ["tests/unit", "-x", "-k", "te"]
    named = ["tests/unit/tools/test_tools.py::test_a", "-x"]
    assert processes.with_tests(named, "tests/unit") == named


def test_a_signal_has_an_exit_status() -> None:
    assert [processes.exit_status(status) for status in (0, 2, -11)] == [0, 2, 139]


def test_results_are_counted_from_a_report(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    assert counts(report) == {}
    report.write_text(REPORT)
    assert counts(report) == {"passed": 1, "failed": 2, "skipped": 1, "quarantined": 1}


def test_the_summary_has_a_line_for_each_part() -> None:
    parts = [Result("lint", True, 1.5), Result("alone", False, 150.0, {"passed": 181, "failed": 2})]
    lines = [line.split() for line in summary(parts, 152.0).splitlines()]
    assert lines[1:] == [["lint", "passed", "0:01"], ["alone", "FAILED", "2:30", "181", "2"], ["total", "2:32"]]


def test_a_part_that_fails_does_not_keep_the_next_from_running(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started = []

    def call(command: list[str], *_args: object) -> int:
        started.append(command)
        return 1

    monkeypatch.setattr("tests.tools.run_tests.PYTEST", ("true",))  # also of the first collection in a fresh tree
    monkeypatch.setattr("tests.tools.run_tests.call", call)
    monkeypatch.setattr("tests.tools.run_tests.print_crash_report", lambda *_args: None)
    monkeypatch.setattr("tests.tools.run_tests.RESULTS", tmp_path)
    run = Run(["lint", "parallel", "alone"], jobs=3, slow=False, args=[])
    run.run()
    assert [(result.part, result.passed) for result in run.results] == [
        ("lint", False),
        ("parallel", False),
        ("alone", False),
    ]
    assert len(started) == 4  # ruff twice, and pytest once for each part: nothing runs a second time


@pytest.mark.parametrize(
    ("parts", "slow", "ignores"),
    [
        (["core", "parallel"], False, True),
        (["core", "parallel"], True, False),
        (["parallel"], False, False),
    ],
)
def test_tests_of_the_core_run_once_unless_slow_ones_run_too(
    parts: list[str], slow: bool, ignores: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr("tests.tools.run_tests.PYTEST", ("true",))
    monkeypatch.setattr("tests.tools.run_tests.call", lambda command, *_args: started.append(command) or 0)
    monkeypatch.setattr("tests.tools.run_tests.print_crash_report", lambda *_args: None)
    monkeypatch.setattr("tests.tools.run_tests.Variant.build", lambda *_args, **_options: None)
    monkeypatch.setattr("tests.tools.run_tests.RESULTS", tmp_path)
    Run(parts, jobs=2, slow=slow, args=[]).run()
    assert [f"--ignore={path}" in started[-1] for path in CORE_TESTS] == [ignores] * len(CORE_TESTS)


def test_reports_of_a_sanitizer_are_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert not sanitize.print_reports(tmp_path)
    (tmp_path / "report.4711").write_text("heap-buffer-overflow")
    assert sanitize.print_reports(tmp_path)
    assert "heap-buffer-overflow" in capsys.readouterr().err


def test_the_output_of_a_sanitized_run_is_shown_and_kept(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    code = "import os; os.write(2, b'a.c:7: runtime error: overflow'); os._exit(3)"
    status = sanitize.tee([sys.executable, "-c", code], tmp_path / "log", tmp_path, dict(os.environ))
    assert status == 3
    assert sanitize.UNDEFINED in (tmp_path / "log").read_bytes()
    assert sanitize.UNDEFINED in capfdbinary.readouterr().out


def test_each_dependency_of_users_has_a_lowest_version() -> None:
    assert {line.partition("==")[0] for line in lowest_versions()} >= {"uvloop", "pynacl", "lmdb", "pyspark"}


def test_a_copy_is_brought_up_to_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, copy = tmp_path / "root", tmp_path / "copy"
    monkeypatch.setattr(build_variant, "ROOT", root)
    for name in ("omq/_core/a.pyx", "omq/_core/a.c", "omq/_core/a.so", "omq/old.py", "tests/crash.c", "setup.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    build_variant.copy_tree(copy)
    (copy / "omq/_core/a.so").write_text("compiled here")
    (root / "omq/old.py").unlink()
    build_variant.copy_tree(copy)
    files = {str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file()}
    assert files == {"omq/_core/a.pyx", "omq/_core/a.so", "tests/crash.c", "setup.py"}
    assert (copy / "omq/_core/a.so").read_text() == "compiled here"


def test_the_mark_alone_is_set_in_test_files_only() -> None:
    """The part `alone` collects the files that name the mark, so one that is set elsewhere would run nothing."""
    others = [path for path in (processes.ROOT / "tests").rglob("*.py") if not path.name.startswith("test_")]
    assert [path for path in others if "pytest.mark.alone" in path.read_text()] == []
