"""A pytest plugin for tests that fail now and then: `@pytest.mark.quarantine(reason="...", until="2027-01-31")`.

Tests in quarantine run last. Their failures are printed and do not fail the run. After the day `until` such a test
always fails, until it is mended or deleted. A test that takes its process down still fails the run.
"""

from __future__ import annotations

import datetime
from collections.abc import Generator

import pytest

STATUS = "quarantined"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        _quarantine(item)  # a mark that is wrong ends the run before any test
    items.sort(key=lambda item: item.get_closest_marker("quarantine") is not None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    quarantine = _quarantine(item)
    if quarantine is None:
        return report
    reason, until = quarantine
    if until < datetime.date.today():
        if call.when == "call" and report.passed:
            report.outcome = "failed"
            report.longrepr = f"the quarantine of {item.nodeid} ended on {until}: mend or delete the test ({reason})"
    elif report.failed:
        # As pytest does for an expected failure: neither the exit status nor --last-failed counts it.
        report.outcome = "skipped"
        report.wasxfail = f"{STATUS} until {until}: {reason}"
    return report


def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, str] | None:
    if report.skipped and getattr(report, "wasxfail", "").startswith(STATUS):
        return STATUS, "q", STATUS.upper()
    return None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = terminalreporter.stats.get(STATUS, [])
    if reports:
        terminalreporter.write_sep("=", "FAILURES IN QUARANTINE")
    for report in reports:
        terminalreporter.write_sep("_", report.head_line or report.nodeid)
        terminalreporter.write_line(report.longreprtext)
        for name, text in report.sections:
            terminalreporter.write_sep("-", name)
            terminalreporter.write_line(text)
        terminalreporter.write_line(report.wasxfail)


def _quarantine(item: pytest.Item) -> tuple[str, datetime.date] | None:
    """Returns the reason and the last day of a test's quarantine."""
    mark = item.get_closest_marker("quarantine")
    if mark is None:
        return None
    try:
        reason, until = mark.kwargs["reason"], datetime.date.fromisoformat(mark.kwargs["until"])
    except (KeyError, TypeError, ValueError):
        reason = ""
    if mark.args or len(mark.kwargs) != 2 or not reason:
        text = 'expected @pytest.mark.quarantine(reason="...", until="YYYY-MM-DD")'
        raise pytest.UsageError(f"{item.nodeid}: quarantine{mark.args or mark.kwargs}: {text}")
    return reason, until
