"""Tables of medians, and their place in the docs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from bench.plan import Metric
from bench.processes import ROOT
from bench.report import aligned, figure, markdown_row, spread

PAGE = ROOT / "docs" / "explanation" / "scaling-out.md"
Samples = dict[str, list[dict[str, float]]]


@dataclass
class ClusterTable:
    """One table.

    Attributes:
        key: Its name in marks and on the command line.
        title: What is measured.
        metrics: The columns; the first one counts.
        base: The row that ratios are about; empty: without ratios.
        target: The ratio to it that `subject` has to reach; `None` without one.
        subject: The row of the target.
        samples: The rounds of each row.
    """

    key: str
    title: str
    metrics: tuple[Metric, ...]
    base: str = ""
    subject: str = ""
    target: float | None = None
    samples: Samples = field(default_factory=dict)

    def add(self, row: str, **values: float) -> None:
        """Adds a round of a row."""
        self.samples.setdefault(row, []).append(values)

    def value(self, row: str, metric: Metric | None = None) -> float | None:
        """Returns the median of a row; `None` without rounds."""
        key = (metric or self.metrics[0]).key
        values = [sample[key] for sample in self.samples.get(row, []) if key in sample]
        return median(values) if values else None

    def ratio(self, row: str) -> float | None:
        """Returns the median of the ratios to the base in the same round; `None` without both."""
        key = self.metrics[0].key
        pairs = zip(self.samples.get(row, []), self.samples.get(self.base, []), strict=False)
        ratios = [mine[key] / other[key] for mine, other in pairs if key in mine and other.get(key)]
        return median(ratios) if ratios else None

    @property
    def missed(self) -> bool:
        """True if the target is not reached."""
        ratio = self.ratio(self.subject)
        return self.target is not None and (ratio is None or ratio < self.target)

    def cells(self) -> list[list[str]]:
        """Returns all cells, the head first."""
        main = self.metrics[0]
        head = ["", main.title, "spread", *(metric.title for metric in self.metrics[1:])]
        lines = [[*head, f"/ {self.base}"] if self.base else head]
        for row, samples in self.samples.items():
            values = [sample[main.key] for sample in samples if main.key in sample]
            line = [row, figure(self.value(row), main), spread(values, main)]
            line += [figure(self.value(row, metric), metric) for metric in self.metrics[1:]]
            if self.base:
                ratio = self.ratio(row)
                line.append("-" if ratio is None else f"{ratio:.2f}x")
            lines.append(line)
        return lines

    def verdict(self) -> str:
        """Returns the target and whether it is reached; empty without one."""
        if self.target is None:
            return ""
        return f"target: {self.subject} at least {self.target:g}x: {'MISSED' if self.missed else 'ok'}"

    def text(self) -> str:
        """Returns it as text."""
        return "\n".join([f"== {self.title}", *aligned(self.cells()), *filter(None, [self.verdict()])])

    def markdown(self) -> str:
        """Returns it as Markdown."""
        head, *rows = self.cells()
        rule = ["---", *["---:"] * (len(head) - 1)]
        rounds = max(map(len, self.samples.values()), default=0)
        counted = f"medians of {rounds} rounds" if rounds != 1 else "one round"
        title = self.title[0].upper() + self.title[1:]
        return "\n".join([f"{title} ({counted}):", "", *map(markdown_row, (head, rule, *rows))])


def write(tables: Sequence[ClusterTable], command: str, path: Path = PAGE) -> None:
    """Replaces the text of the page between the marks of the tables.

    Args:
        tables: The tables.
        command: The command that measures them again.
        path: Another page than the one in the docs.

    Raises:
        ValueError: The page has no marks of a table.
    """
    page = path.read_text(encoding="utf-8")
    for key in dict.fromkeys(table.key for table in tables):
        marks = re.compile(rf"(?<=<!-- {key} -->\n).*?(?=<!-- /{key} -->)", re.DOTALL)
        if not marks.search(page):
            raise ValueError(f"{path} has no marks for {key}: add them")
        text = "\n\n".join(table.markdown() for table in tables if table.key == key)
        page = marks.sub(lambda _, text=text: f"\n`{command}`\n\n{text}\n", page)  # type: ignore[misc]
    path.write_text(page, encoding="utf-8")
