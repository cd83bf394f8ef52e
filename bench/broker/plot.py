"""Bars of all cases, as one SVG that needs nothing else to be looked at, in light and in dark."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import log10

from bench.broker.plan import FLOOR, OMQ
from bench.broker.report import Findings

WIDTH, LABELS, FIGURES = 820, 230, 110  # pixels: all of it, the names on the left, the figures on the right
BAR, GAP, HEAD = 18, 6, 44
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #222; } .title { font-weight: 600; } .note { fill: #666; }
  .omq { fill: #d9480f; } .peer { fill: #4c7fb5; } .floor { fill: #b5b5b5; } .spread { stroke: #222; }
  @media (prefers-color-scheme: dark) {
    text { fill: #ddd; } .note { fill: #999; } .floor { fill: #666; } .spread { stroke: #ddd; }
  }
"""


def plot(found: Sequence[Findings]) -> str:
    """A panel for each case; each with a scale of its own, that begins at 0."""
    parts: list[str] = []
    top = 0
    for findings in found:
        panel, top = _panel(findings, top)
        parts += panel
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" width="{WIDTH}" height="{top}">'
    return "\n".join([head, f"<style>{STYLE}</style>", *parts, "</svg>"]) + "\n"


def _panel(findings: Findings, top: int) -> tuple[list[str], int]:
    metric = findings.case.metrics[0]
    rows = [(row, value) for row in findings.case.rows if (value := findings.value(row)) is not None]
    better = "less is better" if metric.less_is_better else "more is better"
    # Floors may be far off: bars longer than twice the best server's are cut, and say so.
    servers = [value for row, value in rows if row.peer != FLOOR]
    widest = 1.5 * max(servers) if servers else max((value for _, value in rows), default=1.0)
    widest = min(widest, max((value for _, value in rows), default=1.0)) or 1.0
    room = WIDTH - LABELS - FIGURES
    parts = [
        f'<text class="title" x="8" y="{top + 26}">{escape(findings.case.title)}</text>',
        f'<text class="note" x="{WIDTH - 8}" y="{top + 26}" text-anchor="end">{escape(metric.title)}, {better}</text>',
    ]
    y = top + HEAD
    for row, value in rows:
        kind = row.peer if row.peer in (OMQ, FLOOR) else "peer"
        length = max(1.0, room * min(1.0, value / widest))
        cut = " →" if value > widest else ""
        parts += [
            f'<text x="{LABELS - 8}" y="{y + 14}" text-anchor="end">{escape(row.label)}</text>',
            f'<rect class="{kind}" x="{LABELS}" y="{y}" width="{length:.1f}" height="{BAR}"/>',
        ]
        values = [sample[metric.key] for sample in findings.samples[row.label]]
        low, high = (room * min(1.0, edge / widest) + LABELS for edge in (min(values), max(values)))
        middle = y + BAR / 2
        parts += [
            f'<line class="spread" x1="{low:.1f}" x2="{high:.1f}" y1="{middle}" y2="{middle}"/>',
            f'<text x="{max(LABELS + length, high) + 6:.1f}" y="{y + 14}">{_short(value, metric.decimals)}{cut}</text>',
        ]
        y += BAR + GAP
    return parts, y + 10


def _short(value: float, decimals: int) -> str:
    """A figure with three digits."""
    if value < 1000 or decimals:
        return f"{value:,.{decimals}f}"
    for unit, scale in (("M", 1e6), ("k", 1e3)):
        if value >= scale:
            return f"{value / scale:.{max(0, 2 - int(log10(value / scale)))}f} {unit}"
    return f"{value:,.0f}"
