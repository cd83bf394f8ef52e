"""Writes measured figures into docs/reference/performance*.md, scenario by scenario."""

from __future__ import annotations

import re
from collections.abc import Sequence

from bench.peers import PEERS
from bench.plan import Scenario, Target
from bench.processes import ROOT
from bench.report import CaseResult, figure, markdown_row

PAGES = sorted((ROOT / "docs" / "reference").glob("performance*.md"))


def write_section(scenario: Scenario, found: Sequence[CaseResult], command: str) -> None:
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


def section(found: Sequence[CaseResult], command: str) -> str:
    """Returns the results of a scenario as Markdown."""
    lines = ["", f"`{command}`", ""]
    for result in found:
        case = result.case
        head = ["", *(metric.title for metric in case.metrics), "omq / it", "target"]
        lines += [f"{case.title}; the machine was {result.machine}:", ""]
        lines += [markdown_row(head), markdown_row(["---", *["---:"] * (len(head) - 2), "---"])]
        lines += [markdown_row(_row(result, peer)) for peer in case.runs]
        lines += [f"| {PEERS[peer].label} failed |" for peer in result.failures]
        lines.append("")
    return "\n".join(lines)


def _row(result: CaseResult, peer: str) -> list[str]:
    case = result.case
    ratio = result.ratio(peer) if peer != case.subject else None
    aims = [
        f"{_about(result, target)}{result.aim(target)}: {result.verdict(target)}"
        for target in case.targets
        if (target.subject or target.peer or case.subject) == peer
    ]
    cells = [figure(result.median(peer, metric), metric) for metric in case.metrics]
    return [PEERS[peer].label, *cells, f"{ratio:.2f}x" if ratio is not None else "", "; ".join(aims)]


def _about(result: CaseResult, target: Target) -> str:
    if target.subject and target.peer:
        value = result.value(target)
        return f"{PEERS[target.peer].label} {'-' if value is None else f'{value:.2f}x'}, "
    return f"{target.metric.key} " if target.metric is not None else ""
