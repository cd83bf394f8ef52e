"""Medians, spreads, ratios and verdicts of the brokers: as text, Markdown and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from bench.broker.plan import FLOOR, OMQ, Case, Row
from bench.measure import Sample
from bench.plan import Metric
from bench.report import figure


@dataclass
class Findings:
    """What the rounds of a case gave, by a row's label.

    Attributes:
        case: The case.
        samples: One a round.
        drivers: The driver that was the better one.
        beaten: The figure of each driver that was not.
        left_out: Why a row has no figures, or too few.
    """

    case: Case
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    drivers: dict[str, str] = field(default_factory=dict)
    beaten: dict[str, dict[str, float]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def value(self, row: Row, metric: Metric | None = None) -> float | None:
        """The median over the rounds; `None` for a row that did not run through."""
        metric = metric or self.case.metrics[0]
        values = [sample[metric.key] for sample in self.samples.get(row.label, ()) if metric.key in sample]
        return median(values) if values and row.label not in self.left_out else None

    def best_peer(self) -> float | None:
        """The best median of those that are neither omq nor a floor."""
        found = [self.value(row) for row in self.case.rows if row.peer not in (OMQ, FLOOR)]
        values = [value for value in found if value is not None]
        if not values:
            return None
        return min(values) if self.case.metrics[0].less_is_better else max(values)

    def floor(self) -> float | None:
        """The median of the first floor."""
        return next((self.value(row) for row in self.case.rows if row.peer == FLOOR), None)

    def ratio(self, row: Row, to: float | None) -> float | None:
        """A row's figure in that of another."""
        value = self.value(row)
        return value / to if value is not None and to else None

    def aim(self, row: Row) -> str:
        """A row's targets in words; empty if it has none."""
        aims = [f">= {row.bound:g}x best peer"] if row.bound is not None else []
        for metric in self.case.metrics:
            if metric.key in row.limits:
                sign = "<=" if metric.less_is_better else ">="
                aims.append(f"{metric.title} {sign} {row.limits[metric.key]:,.0f}")
        return ", ".join(aims)

    def verdict(self, row: Row) -> str:
        """`ok`, `MISSED`, `not measured`, or nothing where there is no target."""
        held: list[bool | None] = []
        if row.bound is not None:
            ratio = self.ratio(row, self.best_peer())
            held.append(None if ratio is None else ratio >= row.bound)
        for metric in self.case.metrics:
            if metric.key in row.limits:
                value, limit = self.value(row, metric), row.limits[metric.key]
                held.append(None if value is None else value <= limit if metric.less_is_better else value >= limit)
        if not held:
            return ""
        return "MISSED" if False in held else "not measured" if None in held else "ok"

    def as_json(self) -> dict[str, Any]:
        """Everything, for a file."""
        rows = {
            row.label: {
                "peer": row.peer,
                "driver": self.drivers.get(row.label),
                "other drivers": self.beaten.get(row.label, {}),
                "rounds": self.samples.get(row.label, []),
                "medians": {metric.key: self.value(row, metric) for metric in self.case.metrics},
                "ratio to best peer": self.ratio(row, self.best_peer()),
                "ratio to floor": self.ratio(row, self.floor()),
                "target": self.aim(row),
                "verdict": self.verdict(row),
            }
            for row in self.case.rows
        }
        return {"case": self.case.key, "title": self.case.title, "rows": rows, "left out": self.left_out}


def _cells(findings: Findings) -> list[list[str]]:
    case, main = findings.case, findings.case.metrics[0]
    floor = next((row.label for row in case.rows if row.peer == FLOOR), None)
    head = ["", main.title, "spread", *(metric.title for metric in case.metrics[1:])]
    beside = {"/ best peer": findings.best_peer()} if any(row.peer not in (OMQ, FLOOR) for row in case.rows) else {}
    if floor is not None:
        beside[f"/ {floor}"] = findings.floor()
    lines = [[*head, *beside, "client", "target", ""]]
    for row in case.rows:
        values = [sample[main.key] for sample in findings.samples.get(row.label, [])]
        lines.append(
            [
                row.label,
                figure(findings.value(row), main),
                f"{figure(min(values), main)} - {figure(max(values), main)}" if values else "-",
                *(figure(findings.value(row, metric), metric) for metric in case.metrics[1:]),
                *(_times(findings.ratio(row, other)) for other in beside.values()),
                findings.drivers.get(row.label, "-").partition("_")[2] if len(row.drivers) > 1 else "",
                findings.aim(row),
                findings.verdict(row),
            ]
        )
    return lines


def _times(ratio: float | None) -> str:
    return f"{ratio:.2f}x" if ratio is not None else "-"


def _notes(findings: Findings) -> list[str]:
    main = findings.case.metrics[0]
    notes = [
        f"{label} by {driver}, once: {figure(value, main)} {main.title}"
        for label, others in findings.beaten.items()
        for driver, value in others.items()
    ]
    return notes + [f"!! {label} left out: {why}" for label, why in findings.left_out.items()]


def table(findings: Findings) -> str:
    """The case as a table of text."""
    lines = _cells(findings)
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    text = [f"== {findings.case.title}"]
    for line in lines:
        cells = [line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))]
        text.append("  ".join(cells).rstrip())
    return "\n".join([*text, *_notes(findings)])


def markdown(found: Sequence[Findings], command: str) -> str:
    """All cases as Markdown."""
    lines = [f"`{command}`", ""]
    for findings in found:
        title = findings.case.title
        lines += [f"{title[0].upper()}{title[1:]}:", "", section(findings), ""]
    return "\n".join(lines).rstrip() + "\n"


def section(findings: Findings) -> str:
    """The table of a case as Markdown, and what is to be said about it."""
    head, *rows = _cells(findings)
    lines = [_line(head), _line(["---", *["---:"] * (len(head) - 3), "---", "---"]), *map(_line, rows)]
    if notes := [note.splitlines()[0] for note in _notes(findings)]:
        lines += ["", *(f"- {note}" for note in notes)]
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
