"""Medians, spreads, ratios and verdicts of the brokers, as text, Markdown and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from bench.broker.plan import FLOOR, OMQ, BrokerCase, Row
from bench.measure import Sample
from bench.plan import Metric
from bench.report import aligned, figure, markdown_row, spread


@dataclass
class BrokerResult:
    """The results of the rounds of a case, by the label of a row.

    Attributes:
        case: The case.
        samples: One for each round.
        drivers: The better driver.
        beaten: The figures of the other drivers.
        left_out: The reason why a row has no figures, or too few.
    """

    case: BrokerCase
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    drivers: dict[str, str] = field(default_factory=dict)
    beaten: dict[str, dict[str, float]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def value(self, row: Row, metric: Metric | None = None) -> float | None:
        """Returns the median over the rounds; `None` for a row that failed."""
        metric = metric or self.case.metrics[0]
        values = [sample[metric.key] for sample in self.samples.get(row.label, ()) if metric.key in sample]
        return median(values) if values and row.label not in self.left_out else None

    def best_peer(self) -> float | None:
        """Returns the best median of the rows that are neither omq nor a floor."""
        found = [self.value(row) for row in self.case.rows if row.peer not in (OMQ, FLOOR)]
        values = [value for value in found if value is not None]
        if not values:
            return None
        return min(values) if self.case.metrics[0].less_is_better else max(values)

    def floor(self) -> float | None:
        """Returns the median of the first floor."""
        return next((self.value(row) for row in self.case.rows if row.peer == FLOOR), None)

    def ratio(self, row: Row, to: float | None) -> float | None:
        """Returns the ratio of a row's figure to another."""
        value = self.value(row)
        return value / to if value is not None and to else None

    def aim(self, row: Row) -> str:
        """Returns the targets of a row as text; empty without any."""
        aims = [f">= {row.bound:g}x best peer"] if row.bound is not None else []
        for metric in self.case.metrics:
            if metric.key in row.limits:
                sign = "<=" if metric.less_is_better else ">="
                aims.append(f"{metric.title} {sign} {row.limits[metric.key]:,.0f}")
        return ", ".join(aims)

    def verdict(self, row: Row) -> str:
        """Returns `ok`, `MISSED`, `not measured`, or an empty text without a target."""
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
        """Returns all results, for a file."""
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


def _cells(result: BrokerResult) -> list[list[str]]:
    case, main = result.case, result.case.metrics[0]
    floor = next((row.label for row in case.rows if row.peer == FLOOR), None)
    head = ["", main.title, "spread", *(metric.title for metric in case.metrics[1:])]
    bases = {"/ best peer": result.best_peer()} if any(row.peer not in (OMQ, FLOOR) for row in case.rows) else {}
    if floor is not None:
        bases[f"/ {floor}"] = result.floor()
    lines = [[*head, *bases, "client", "target", ""]]
    for row in case.rows:
        values = [sample[main.key] for sample in result.samples.get(row.label, [])]
        lines.append(
            [
                row.label,
                figure(result.value(row), main),
                spread(values, main),
                *(figure(result.value(row, metric), metric) for metric in case.metrics[1:]),
                *(_times(result.ratio(row, other)) for other in bases.values()),
                result.drivers.get(row.label, "-").partition("_")[2] if len(row.drivers) > 1 else "",
                result.aim(row),
                result.verdict(row),
            ]
        )
    return lines


def _times(ratio: float | None) -> str:
    return f"{ratio:.2f}x" if ratio is not None else "-"


def _notes(result: BrokerResult) -> list[str]:
    main = result.case.metrics[0]
    notes = [
        f"{label} by {driver}, once: {figure(value, main)} {main.title}"
        for label, others in result.beaten.items()
        for driver, value in others.items()
    ]
    return notes + [f"!! {label} left out: {why}" for label, why in result.left_out.items()]


def table(result: BrokerResult) -> str:
    """Returns the case as a table of text."""
    return "\n".join([f"== {result.case.title}", *aligned(_cells(result)), *_notes(result)])


def markdown(found: Sequence[BrokerResult], command: str) -> str:
    """Returns all cases as Markdown."""
    lines = [f"`{command}`", ""]
    for result in found:
        title = result.case.title
        lines += [f"{title[0].upper()}{title[1:]}:", "", section(result), ""]
    return "\n".join(lines).rstrip() + "\n"


def section(result: BrokerResult) -> str:
    """Returns the table of a case as Markdown, with its notes."""
    head, *rows = _cells(result)
    rule = ["---", *["---:"] * (len(head) - 3), "---", "---"]
    lines = [markdown_row(cells) for cells in (head, rule, *rows)]
    if notes := [note.splitlines()[0] for note in _notes(result)]:
        lines += ["", f"{'; '.join(notes)}."]
    return "\n".join(lines)
