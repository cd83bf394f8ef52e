"""Medians, spreads, ratios and verdicts, as plain text tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from bench.measure import Sample
from bench.peers import PEERS
from bench.plan import P50, Case, Metric, Target

#: A bare round trip above this had to wake an idle core twice.
IDLE_TRIP_US = 40.0


@dataclass
class CaseResult:
    """The results of the rounds of a case.

    Attributes:
        case: The case.
        samples: One sample a round, by peer.
        failures: The reason why a peer has none, or too few.
        trip: The median round trip of bare sockets before the case, in microseconds; `None` if it was not taken.
    """

    case: Case
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    trip: float | None = None

    @property
    def machine(self) -> str:
        """The state of the machine, as text."""
        trip = self._trip
        if trip is None:
            return "unknown"
        state = "idle: a core has to wake for each message" if self.idle else "loaded: the cores stay awake"
        return f"{state} (bare round trip {trip:.1f} us)"

    @property
    def idle(self) -> bool:
        """True if cores had time to go idle between messages, as nothing else ran."""
        trip = self._trip
        return trip is None or trip > IDLE_TRIP_US

    @property
    def _trip(self) -> float | None:
        # The rounds themselves are the best measure.
        own = self.median("bare", P50) if P50 in self.case.metrics and "bare" in self.samples else None
        return own if own is not None else self.trip

    def median(self, peer: str, metric: Metric) -> float | None:
        """Returns the median over the rounds; `None` for a peer that failed."""
        values = [sample[metric.key] for sample in self.samples.get(peer, ()) if metric.key in sample]
        return median(values) if values and peer not in self.failures else None

    def ratio(self, peer: str, metric: Metric | None = None, subject: str | None = None) -> float | None:
        """Returns the subject's median over the peer's; by default in the first metric, and for the case's subject."""
        metric = metric or self.case.metrics[0]
        mine, other = self.median(subject or self.case.subject, metric), self.median(peer, metric)
        return mine / other if mine is not None and other else None

    def bound(self, target: Target) -> float:
        """Returns the bound for the state of the machine."""
        return target.idle if target.idle is not None and self.idle else target.bound

    def value(self, target: Target) -> float | None:
        """Returns the value to compare with the bound."""
        metric = target.metric or self.case.metrics[0]
        if target.peer:
            return self.ratio(target.peer, metric, target.subject)
        return self.median(target.subject or self.case.subject, metric)

    def verdict(self, target: Target) -> str:
        """Returns `ok`, `MISSED`, or `not measured`."""
        metric = target.metric or self.case.metrics[0]
        value, bound = self.value(target), self.bound(target)
        if value is None:
            return "not measured"
        met = value <= bound if metric.less_is_better else value >= bound
        return "ok" if met else "MISSED"

    def aim(self, target: Target) -> str:
        """Returns the target as text."""
        metric = target.metric or self.case.metrics[0]
        sign, bound = "<=" if metric.less_is_better else ">=", self.bound(target)
        return f"{sign} {bound:g}x" if target.peer else f"{sign} {figure(bound, metric)}"

    def as_json(self) -> dict[str, Any]:
        """Returns all results, for a file."""
        return {
            "case": self.case.title,
            "machine": self.machine,
            "peers": {
                peer: {
                    "rounds": samples,
                    "medians": {m.key: self.median(peer, m) for m in self.case.metrics},
                    "ratio": self.ratio(peer),
                }
                for peer, samples in self.samples.items()
            },
            "targets": [
                {
                    "subject": t.subject or self.case.subject,
                    "peer": t.peer,
                    "metric": (t.metric or self.case.metrics[0]).key,
                    "bound": self.bound(t),
                    "verdict": self.verdict(t),
                }
                for t in self.case.targets
            ],
            "failures": self.failures,
        }


def table(result: CaseResult) -> str:
    """Returns the case as a table: a row for each peer, the ratio of omq to it, and the target."""
    case, main = result.case, result.case.metrics[0]
    head = ["", main.title, "spread", *(m.title for m in case.metrics[1:]), "omq / it", "target", ""]
    rows = [head, *(_row(result, peer) for peer in case.runs)]
    lines = [f"== {case.title}", *aligned(rows)]
    lines += [_target_line(result, target) for target in case.targets if target.metric or target.subject]
    lines.append(f"machine: {result.machine}")
    for peer, why in result.failures.items():
        lines.append(f"!! {PEERS[peer].label} FAILED: {why}")
    return "\n".join(lines)


def _row(result: CaseResult, peer: str) -> list[str]:
    case, main = result.case, result.case.metrics[0]
    samples = result.samples.get(peer, [])
    values = [sample[main.key] for sample in samples]
    ratio = result.ratio(peer) if peer != case.subject else None
    own = (t for t in case.targets if not (t.metric or t.subject) and (t.peer or case.subject) == peer)
    target = next(own, None)
    return [
        PEERS[peer].label,
        figure(result.median(peer, main), main),
        spread(values, main),
        *(figure(result.median(peer, metric), metric) for metric in case.metrics[1:]),
        f"{ratio:.2f}x" if ratio is not None else "",
        result.aim(target) if target else "",
        result.verdict(target) if target else "",
    ]


def _target_line(result: CaseResult, target: Target) -> str:
    """Returns a target for another column than the first, or another subject than the case's, as a line."""
    value = result.value(target)
    text = "-" if value is None else f"{value:.2f}x {PEERS[target.peer].label}" if target.peer else f"{value:,.1f}"
    about = PEERS[target.subject].label if target.subject else (target.metric or result.case.metrics[0]).title
    return f"{about}: {text}, target {result.aim(target)}: {result.verdict(target)}"


def figure(value: float | None, metric: Metric) -> str:
    """Returns a value with the digits of its metric."""
    return "-" if value is None else f"{value:,.{metric.decimals}f}"


def spread(values: Sequence[float], metric: Metric) -> str:
    """Returns the lowest and the highest value, with the digits of their metric."""
    return f"{figure(min(values), metric)} - {figure(max(values), metric)}" if values else "-"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns the rows of a text table as lines: the first column is aligned to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        cells = [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    return lines


def markdown_row(cells: Sequence[str]) -> str:
    """Returns a row of a Markdown table."""
    return "| " + " | ".join(cells) + " |"
