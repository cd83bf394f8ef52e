"""Bars of all cases, as one SVG without other files, for light and dark pages."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import log10

from bench.broker.plan import FLOOR, OMQ
from bench.broker.report import BrokerResult

WIDTH_PX, LABELS_PX, FIGURES_PX = 820, 230, 110  # all of it, the names on the left, the figures on the right
BAR_PX, GAP_PX, HEAD_PX = 18, 6, 44
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #222; } .title { font-weight: 600; } .note { fill: #666; }
  .omq { fill: #d9480f; } .peer { fill: #4c7fb5; } .floor { fill: #b5b5b5; } .spread { stroke: #222; }
  @media (prefers-color-scheme: dark) {
    text { fill: #ddd; } .note { fill: #999; } .floor { fill: #666; } .spread { stroke: #ddd; }
  }
"""


def plot(found: Sequence[BrokerResult]) -> str:
    """Returns a panel for each case; each has a scale of its own, which begins at 0."""
    parts: list[str] = []
    top = 0
    for result in found:
        panel, top = _panel(result, top)
        parts += panel
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH_PX} {top}" width="{WIDTH_PX}" height="{top}">'
    return "\n".join([head, f"<style>{STYLE}</style>", *parts, "</svg>"]) + "\n"


def _panel(result: BrokerResult, top: int) -> tuple[list[str], int]:
    metric = result.case.metrics[0]
    rows = [(row, value) for row in result.case.rows if (value := result.value(row)) is not None]
    unit = escape(metric.title)
    better = "less is better" if metric.less_is_better else "more is better"
    # Floors may be far off: bars longer than one and a half times the best server's are cut, with an arrow.
    servers = [value for row, value in rows if row.peer != FLOOR]
    widest = 1.5 * max(servers) if servers else max((value for _, value in rows), default=1.0)
    widest = min(widest, max((value for _, value in rows), default=1.0)) or 1.0
    room = WIDTH_PX - LABELS_PX - FIGURES_PX
    parts = [
        f'<text class="title" x="8" y="{top + 26}">{escape(result.case.title)}</text>',
        f'<text class="note" x="{WIDTH_PX - 8}" y="{top + 26}" text-anchor="end">{unit}, {better}</text>',
    ]
    y = top + HEAD_PX
    for row, value in rows:
        kind = row.peer if row.peer in (OMQ, FLOOR) else "peer"
        length = max(1.0, room * min(1.0, value / widest))
        text = _short(value, metric.decimals) + (" →" if value > widest else "")
        parts += [
            f'<text x="{LABELS_PX - 8}" y="{y + 14}" text-anchor="end">{escape(row.label)}</text>',
            f'<rect class="{kind}" x="{LABELS_PX}" y="{y}" width="{length:.1f}" height="{BAR_PX}"/>',
        ]
        values = [sample[metric.key] for sample in result.samples[row.label]]
        low, high = (room * min(1.0, edge / widest) + LABELS_PX for edge in (min(values), max(values)))
        middle = y + BAR_PX / 2
        parts += [
            f'<line class="spread" x1="{low:.1f}" x2="{high:.1f}" y1="{middle}" y2="{middle}"/>',
            f'<text x="{max(LABELS_PX + length, high) + 6:.1f}" y="{y + 14}">{text}</text>',
        ]
        y += BAR_PX + GAP_PX
    return parts, y + 10


def _short(value: float, decimals: int) -> str:
    """Returns a figure with three digits."""
    if value < 1000 or decimals:
        return f"{value:,.{decimals}f}"
    for unit, scale in (("M", 1e6), ("k", 1e3)):
        if value >= scale:
            return f"{value / scale:.{max(0, 2 - int(log10(value / scale)))}f} {unit}"
    return f"{value:,.0f}"
