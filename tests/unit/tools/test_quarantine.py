"""Tests of the quarantine marker: failures are printed and pass, until the day that ends them."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

Run = Callable[..., pytest.RunResult]
TODAY = datetime.date.today()
LAST = TODAY + datetime.timedelta(days=1)
TREE = Path(__file__).parents[3]
INI = """
[pytest]
addopts = --strict-markers -p no:cacheprovider
markers = quarantine(reason, until)
"""


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Returns a function that runs tests with the plugin."""
    pytester.makeini(INI)
    monkeypatch.setenv("PYTHONPATH", str(TREE))

    def run(source: str, *options: str) -> pytest.RunResult:
        pytester.makepyfile(f"import pytest\n{source}")
        start = pytester.runpytest_subprocess if "-n" in options else pytester.runpytest_inprocess
        return start("-p", "tests.support.quarantine", *options)

    return run


def flaky(body: str, until: datetime.date = LAST) -> str:
    """Returns the source of a test in quarantine."""
    return f"@pytest.mark.quarantine(reason='port clash', until='{until}')\ndef test_flaky():\n    {body}\n"


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["one process", "xdist"])
def test_a_failure_is_printed_and_does_not_fail_the_run(run: Run, options: tuple[str, ...]) -> None:
    result = run(flaky("print('sent'); assert 0, 'lost'") + "def test_good(): pass\n", *options)
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        ["*FAILURES IN QUARANTINE*", "*test_flaky*", "*lost*", "sent", f"quarantined until {LAST}: port clash"]
    )
    result.stdout.fnmatch_lines(["*1 passed, 1 quarantined*"])


def test_a_quarantined_test_runs_last(run: Run) -> None:
    result = run(flaky("pass") + "def test_good(): pass\n", "-v")
    result.stdout.fnmatch_lines(["*::test_good PASSED*", "*::test_flaky PASSED*"])
    assert result.ret == 0


@pytest.mark.parametrize("body", ["pass", "assert 0"])
def test_a_quarantined_test_fails_after_its_last_day(run: Run, body: str) -> None:
    result = run(flaky(body, TODAY - datetime.timedelta(days=1)))
    assert result.ret == 1
    result.assert_outcomes(failed=1)


def test_other_failures_fail_the_run(run: Run) -> None:
    assert run(flaky("assert 0") + "def test_bad(): assert 0\n").ret == 1


@pytest.mark.parametrize("when", ["setup", "teardown"])
def test_a_failing_fixture_is_in_quarantine_too(run: Run, when: str) -> None:
    fixture = "    assert 0\n    yield" if when == "setup" else "    yield\n    assert 0"
    result = run(f"@pytest.fixture(autouse=True)\ndef broken():\n{fixture}\n" + flaky("pass"))
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*1 quarantined*"])


@pytest.mark.parametrize(
    "mark", ["", "reason='x'", "until='2027-01-31'", "reason='x', until='soon'", "reason='', until='2027-01-31'"]
)
def test_a_mark_without_reason_or_date_is_refused(run: Run, mark: str) -> None:
    result = run(f"@pytest.mark.quarantine({mark})\ndef test_flaky(): pass\n")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*test_flaky*reason=*until=*"])
