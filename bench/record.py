"""Writes measured figures into the pages of figures, scenario by scenario."""

from __future__ import annotations

import re
from collections.abc import Sequence

from bench.peers import PEERS
from bench.plan import Scenario, Target
from bench.processes import ROOT
from bench.report import Findings, figure

PAGES = sorted((ROOT / "docs" / "reference").glob("performance*.md"))


def record(scenario: Scenario, found: Sequence[Findings], command: str) -> None:
    """Replaces the text between the marks of a scenario, in the page that has them.

    Raises:
        ValueError: No page has such marks.
    """
    marks = re.compile(rf"(?<=<!-- {scenario.name} -->\n).*?(?=<!-- /{scenario.name} -->)", re.DOTALL)
    for path in PAGES:
        page = path.read_text(encoding="utf-8")
        if marks.search(page):
            path.write_text(marks.sub(lambda _: section(found, command), page), encoding="utf-8")
            return
    raise ValueError(f"no page docs/reference/performance*.md has marks for {scenario.name}; add them to one")


def section(found: Sequence[Findings], command: str) -> str:
    """The findings of a scenario as Markdown."""
    lines = ["", f"`{command}`", ""]
    for findings in found:
        case = findings.case
        head = ["", *(metric.title for metric in case.metrics), "omq / it", "target"]
        lines += [f"{case.title}; the machine was {findings.machine}:", ""]
        lines += [_line(head), _line(["---", *["---:"] * (len(head) - 2), "---"])]
        lines += [_line(_row(findings, peer)) for peer in case.runs]
        lines += [f"| {PEERS[peer].label} failed |" for peer in findings.failures]
        lines.append("")
    return "\n".join(lines)


def _row(findings: Findings, peer: str) -> list[str]:
    case = findings.case
    ratio = findings.ratio(peer) if peer != case.subject else None
    aims = [
        f"{_about(findings, target)}{findings.aim(target)}: {findings.verdict(target)}"
        for target in case.targets
        if (target.subject or target.peer or case.subject) == peer
    ]
    cells = [figure(findings.median(peer, metric), metric) for metric in case.metrics]
    return [PEERS[peer].label, *cells, f"{ratio:.2f}x" if ratio is not None else "", "; ".join(aims)]


def _about(findings: Findings, target: Target) -> str:
    if target.subject and target.peer:
        value = findings.value(target)
        return f"{PEERS[target.peer].label} {'-' if value is None else f'{value:.2f}x'}, "
    return f"{target.metric.key} " if target.metric is not None else ""


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
