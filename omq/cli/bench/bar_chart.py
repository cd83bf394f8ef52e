"""A bar chart as SVG, without a library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

COLORS: Final = ("#1f77b4", "#ff7f0e", "#2ca02c")
WIDTH: Final = 720
LABEL_WIDTH: Final = 190
VALUE_WIDTH: Final = 120
BAR_HEIGHT: Final = 16
GAP: Final = 14
FONT: Final = 'font-family="sans-serif" font-size="12"'


@dataclass(frozen=True)
class BarChart:
    """A group of bars, one for each series, under a title.

    Attributes:
        title: The title, with the unit.
        series: The names of the series.
        groups: The label of each group, and its values by series; `None` for a missing one.
    """

    title: str
    series: Sequence[str]
    groups: Sequence[tuple[str, Sequence[float | None]]]

    @property
    def height(self) -> int:
        """The height in pixels."""
        return 40 + len(self.groups) * (len(self.series) * BAR_HEIGHT + GAP) + GAP

    def draw(self, top: int) -> list[str]:
        """Returns the elements of the chart below a height of the picture."""
        found = [f'<text x="10" y="{top + 20}" {FONT} font-weight="bold">{escape(self.title)}</text>']
        for index, name in enumerate(self.series):
            x = WIDTH - 110 * (len(self.series) - index)
            found.append(_bar(x, top + 10, 12, 12, index))
            found.append(f'<text x="{x + 18}" y="{top + 20}" {FONT}>{escape(name)}</text>')
        largest = max((value for _, values in self.groups for value in values if value), default=1.0)
        y = top + 40
        for label, values in self.groups:
            middle = y + len(values) * BAR_HEIGHT // 2 + 4
            found.append(f'<text x="{LABEL_WIDTH - 10}" y="{middle}" text-anchor="end" {FONT}>{escape(label)}</text>')
            for index, value in enumerate(values):
                if value is not None:
                    width = (WIDTH - LABEL_WIDTH - VALUE_WIDTH) * value / largest
                    found.append(_bar(LABEL_WIDTH, y, width, BAR_HEIGHT - 2, index))
                    x = int(LABEL_WIDTH + width + 6)
                    found.append(
                        f'<text x="{x}" y="{y + BAR_HEIGHT - 4}" {FONT}>{value:,.{0 if value >= 1000 else 1}f}</text>'
                    )
                y += BAR_HEIGHT
            y += GAP
        return found


def _bar(x: float, y: float, width: float, height: float, series: int) -> str:
    color = COLORS[series % len(COLORS)]
    return f'<rect x="{x:.0f}" y="{y:.0f}" width="{width:.1f}" height="{height:.0f}" fill="{color}"/>'


def svg(charts: Sequence[BarChart]) -> str:
    """Returns a picture with the charts, one below the other."""
    height = sum(chart.height for chart in charts)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
    ]
    top = 0
    for chart in charts:
        lines += chart.draw(top)
        top += chart.height
    return "\n".join((*lines, "</svg>", ""))
